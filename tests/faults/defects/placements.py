"""Parameters on the axes of a mesh."""

SUMS = "api_test_shared_parameters"

DEFECTS = [
    ("a summand is left out", "src/model/gradients/axis_sums.cpp",
     "for (std::uint32_t rank = 0; rank < ranks; ++rank) {\n        const std::uint32_t target",
     "for (std::uint32_t rank = 0; rank + 1 < ranks; ++rank) {\n        const std::uint32_t target",
     SUMS),
    ("summands are not added up", "src/model/gradients/axis_sums.cpp",
     "      bring(axes_[number], set, line.memory.data());\n", "", SUMS),
    ("summands are added up twice", "src/model/gradients/axis_sums.cpp",
     "      bring(axes_[number], set, line.memory.data());\n",
     "      for (std::uint64_t i = 0; i < set.elements; ++i) {\n"
     "        reinterpret_cast<float*>(line.memory.data() + set.place)[i] *= 2;\n"
     "      }\n      bring(axes_[number], set, line.memory.data());\n", SUMS),
    ("summands are added up in the order of ranks", "src/model/gradients/axis_sums.cpp",
     "    const std::uint32_t levels = sharding::tree_levels(ranks);\n",
     "    kernels::reduce(dtype, TRIREME_REDUCTION_SUM, block + first * size, sources, ranks, count, 1,"
     " 0);\n    return;\n    const std::uint32_t levels = sharding::tree_levels(ranks);\n", SUMS),
    ("a norm counts a shared parameter once for each rank", "src/sharding/placement.cpp",
     "    models *= placement.ranks;\n",
     "    if (whole) models *= placement.ranks;\n", SUMS),
    ("a sum divides by the ranks of the axis", "src/model/gradients/axis_sums.cpp",
     "kernels::reduce_few(dtype, TRIREME_REDUCTION_SUM, to, parts.data(),\n"
     "                            static_cast<std::uint32_t>(parts.size()), here, 1, 0);",
     "kernels::reduce_few(dtype, TRIREME_REDUCTION_AVERAGE, to, parts.data(),\n"
     "                            static_cast<std::uint32_t>(parts.size()), here,\n"
     "                            static_cast<std::uint32_t>(parts.size()), 0);", SUMS),
    ("other models do not hear which parameters one of them uses",
     "src/model/gradients/axis_sums.cpp",
     "    if (skips_ && read_flag(", "    if (false && read_flag(", SUMS),
    ("ends of buckets are each model's own", "src/model/model_axes.cpp",
     "cuts[i] = words[i] > 0;", "static_cast<void>(words[i]);", SUMS),
    ("an axis's failure stays in the model", "src/model/failure.cpp",
     "    for (const auto& group : axes_.own_groups()) groups.push_back(group.get());\n", "",
     "api_test_shared_failures"),
    ("models that add up may have other options", "src/model/model_axes.cpp",
     "all.insert(all.end(), facts.begin(), facts.end());", "static_cast<void>(facts);",
     "api_test_shared_failures"),
    ("a part is rounded by its own numbers", "src/optimizer/rules/shard_update.cpp",
     "          random.first = number;\n", "", "api_test_split_parameters"),
    ("models draw by numbers of their own", "src/sharding/registry.cpp",
     "parameter.draw_key = key_of(parameter.name);", "parameter.draw_key = number;",
     "api_test_split_parameters"),
    ("parts need not make the whole", "src/model/placed_parameters.cpp",
     "if (end == placement.extent) return", "if (end <= placement.extent) return",
     "api_test_split_parameters"),
    ("a part takes its own norm", "src/optimizer/rules/parameter_norms.cpp",
     "    if (place != sharding::kNone) std::copy_n(next, kWordsOfParameter, own + place);\n", "",
     "api_test_split_parameters"),
    ("MUON gathers along one of two axes", "src/optimizer/rules/matrix_plan.cpp",
     "if (each.is_split() && each.ranks > 1) axes.push_back(each.axis);",
     "if (each.is_split() && each.ranks > 1) axes = {each.axis};", "api_test_split_muon"),
    ("ADAFACTOR begins anew along a second axis", "src/optimizer/rules/adafactor_whole.cpp",
     "    carry(along, copy);\n", "", "api_test_split_adafactor"),
    ("the largest gradient of a matrix is that of one axis", "src/optimizer/rules/adafactor_whole.cpp",
     "{ *here.largest = *first.largest; }", "{}", "api_test_split_adafactor"),
    ("a forgotten sum is not found", "src/optimizer/step.cpp",
     "  if (compares_gradients) {", "  if (false) {", "api_test_shared_failures"),
]
