"""Parallel objects and the axes of models."""

LAYOUT = "src/parallel/layout/layout.cpp"
MODELS = "api_test_parallel_models"

DEFECTS = [
    ("parallel: experts are added up over ranks with other experts", "src/sharding/placement.cpp",
     "const bool experts = axis.name == kExpert && contents == Contents::experts;",
     "const bool experts = false;", MODELS),
    ("parallel: ranks along context keep their gradients", "src/sharding/placement.cpp",
     """    if (home || axis.name == kContext || (axis.name == kExpert && !experts)) {
      made""",
     """    if (axis.name == kContext) {
      made.model_axes_.push_back(i);
    } else if (home || (axis.name == kExpert && !experts)) {
      made""", MODELS),
    ("parallel: all ranks have another group than an axis that has all", "src/api/parallel.cpp",
     """    add(layout_->wide(TRIREME_PARALLEL_GROUP_ALL), layout_->shared_all());
    const auto& axes = layout_->mesh()->axis_communicators();
""",
     """    const auto& axes = layout_->mesh()->axis_communicators();
""", "api_test_parallel_failures"),
    ("parallel: costs of stages are not compared", "src/api/parallel_options.cpp",
     "    add_costs(out->costs, &out->layout.facts);\n", "", "api_test_parallel_refusals"),
    ("parallel: costs of a layer are checked after the largest is taken", "src/api/parallel.cpp",
     "return pipeline::check_layers(*out);", "return Status::success();",
     "api_test_parallel_refusals"),
    ("parallel: a limit is that of one micro-batch", "src/parallel/layout/stages.cpp",
     "options.limits.push_back(limit_bytes / times);",
     "options.limits.push_back(times == 0 ? 0 : limit_bytes);", "api_test_parallel"),
    ("parallel: contents are not compared", "src/model/options.cpp",
     'options.contents == sharding::Contents::experts ? "experts" : "common"', '"common"', MODELS),
    ("parallel: an average of experts passes", "src/api/parallel.cpp",
     "if (layout.size(Axis::expert) > 1 && options.gradients != TRIREME_GRADIENTS_SUM) {",
     "if (false) {", MODELS),
    ("parallel: axes fail apart", LAYOUT,
     "Mesh::create(layout->all_, axes_of", "Mesh::create(ranks, axes_of",
     "faults_test_kill_parallel"),
    ("parallel: experts' ranks read the same rows", LAYOUT,
     "TRIREME_PARALLEL_AXIS_DATA | TRIREME_PARALLEL_AXIS_SHARD | TRIREME_PARALLEL_AXIS_EXPERT;",
     "TRIREME_PARALLEL_AXIS_DATA | TRIREME_PARALLEL_AXIS_SHARD;", "api_test_parallel"),
    ("parallel: each rank cuts by its own times", LAYOUT,
     "operation.reduction = TRIREME_REDUCTION_MAX;", "operation.reduction = TRIREME_REDUCTION_MIN;",
     "api_test_parallel"),
    ("parallel: a rank may keep more than its limit", "src/parallel/layout/stages.cpp",
     "if (peaks[rank] <= limit_bytes) continue;", "continue;", "api_test_parallel"),
    ("parallel: schedules of a text are not compared", "src/api/parallel_options.cpp",
     "if (text || options.order == TRIREME_PIPELINE_ORDER_BEST) {", "if (false) {",
     "api_test_parallel_refusals"),
    ("parallel: a provider that is missing fails on one rank alone", "src/api/parallel.cpp",
     """        layout->agree("trireme_parallel_create", {},
                      parallel::Tensor::create(axes[static_cast<std::size_t>(Axis::tensor)],
                                               *wish.tensor, &tensor),
                      std::max<std::uint64_t>(deadline.remaining_ns(), 1)));""",
     """        parallel::Tensor::create(axes[static_cast<std::size_t>(Axis::tensor)],
                                 *wish.tensor, &tensor));""", "api_test_parallel_refusals"),
]
