"""Parallel objects and the axes of models."""

LAYOUT = "src/parallel/layout/layout.cpp"
MODELS = "api_test_parallel_models"

DEFECTS = [
    ("parallel: experts are added up over ranks with other experts", "src/sharding/placement.cpp",
     "const bool experts = axis.name == kExpert && contents == Contents::experts;",
     "const bool experts = false;", MODELS),
    ("parallel: ranks along context keep their gradients", "src/sharding/placement.cpp",
     "if (home || axis.name == kContext || (axis.name == kExpert && !experts)) {",
     "if (home || (axis.name == kExpert && !experts)) {", MODELS),
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
