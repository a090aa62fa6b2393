"""Experts on several ranks: routing, rows on their way, and their sums."""

DEFECTS = [
    ("padding rows are routed", "src/parallel/experts/router.cpp",
     "    if (padding != nullptr && padding[row] != 0) continue;\n", "", "api_test_experts"),
    ("the higher expert wins a tie", "src/parallel/experts/router.cpp",
     "for (; at > 0 && row_[expert] > score_of(slots[at - 1]); --at)",
     "for (; at > 0 && row_[expert] >= score_of(slots[at - 1]); --at)", "api_test_experts"),
    ("capacity is counted over the rows of a rank", "src/parallel/experts/router.cpp",
     "  std::fill(taken_.begin(), taken_.end(), 0);\n",
     "  if (slots == nullptr) std::fill(taken_.begin(), taken_.end(), 0);\n", "api_test_experts"),
    ("the highest weights are dropped", "src/parallel/experts/router.cpp",
     "return slots[a].weight > slots[b].weight;", "return slots[a].weight < slots[b].weight;",
     "api_test_experts"),
    ("dropped rows take capacity at their expert", "src/parallel/experts/routing.cpp",
     "of_leaf.chosen[expert] - of_leaf.dropped[expert];", "of_leaf.chosen[expert];",
     "api_test_experts"),
    ("normalized weights pass no gradient to each other", "src/parallel/experts/router.cpp",
     "(static_cast<double>(d_weights[k]) - mean) / sum;", "static_cast<double>(d_weights[k]) / sum;",
     "api_test_experts"),
    ("mean probabilities have no gradient", "src/parallel/experts/router.cpp",
     "d_mean == nullptr ? 0 : d_mean[expert] / static_cast<double>(real_rows);", "0;",
     "api_test_experts"),
    ("mean probabilities are those of each rank", "src/parallel/experts/experts.cpp",
     "      sum += leaf.probability(expert);\n",
     "      const auto number = static_cast<std::uint64_t>(&leaf - leaves_.data());\n"
     "      const sharding::Range own = layout_.leaves_of(rank());\n"
     "      if (number < own.first || number >= own.end()) continue;\n"
     "      sum += leaf.probability(expert);\n",
     "api_test_experts"),
    ("weights have no gradient", "src/parallel/experts/experts.cpp",
     "      d_weights[i] = static_cast<float>(", "      static_cast<void>(", "api_test_experts"),
    ("gradients of results lack the weight", "src/parallel/experts/experts.cpp",
     "scale_row(options_.dtype, slots[i].weight, gradient,", "scale_row(options_.dtype, 1, gradient,",
     "api_test_experts"),
    ("results are added in the order of places", "src/parallel/experts/experts.cpp",
     "    add_weighted_rows(options_.dtype, sources_.data(), weighted ? weights_.data() : nullptr, count,",
     "    for (std::uint32_t k = 1; k < count; ++k) {\n"
     "      for (std::uint32_t at = k; at > 0 && sources_[at] < sources_[at - 1]; --at) {\n"
     "        std::swap(sources_[at], sources_[at - 1]);\n"
     "        std::swap(weights_[at], weights_[at - 1]);\n"
     "      }\n"
     "    }\n"
     "    add_weighted_rows(options_.dtype, sources_.data(), weighted ? weights_.data() : nullptr, count,",
     "api_test_experts"),
    ("a row's later rounds begin where the first one does", "src/parallel/experts/experts.cpp",
     "          from += back ? received : sent;\n", "", "api_test_experts"),
    ("a rank keeps the verdict on its rows for itself", "src/parallel/experts/experts.cpp",
     "    words += word_counts_[source];\n",
     "    words += word_counts_[source];\n"
     "    if (source == rank()) return Status::success();\n",
     "api_test_experts_refusals"),
    ("route passes with equal counts are not told apart", "src/parallel/experts/experts.cpp",
     "mix(shape_, passes(ExpertPass::route));", "mix(shape_, 0);", "api_test_experts_refusals"),
    ("ways to drop are not compared", "src/parallel/experts/experts.cpp",
     "        static_cast<std::uint64_t>(options.router.drop), options.width,",
     "        options.width,", "api_test_experts_refusals"),
    ("kept bytes are believed", "src/parallel/experts/routing.cpp",
     " != header.hash) {", " == 0) {", "api_test_experts_refusals"),
    ("a layer of experts takes a name that another one has", "src/parallel/experts/expert_names.cpp",
     "if (names.taken.emplace(&communicator, name).second) return Status::success();",
     "names.taken.emplace(&communicator, name);\n  return Status::success();",
     "api_test_experts_refusals"),
    ("gradients of rows are added in the reverse order of slots", "src/parallel/experts/experts.cpp",
     "    add_weighted_rows(options_.dtype, sources_.data(), weighted ? weights_.data() : nullptr, count,",
     "    if (!weighted) std::reverse(sources_.begin(), sources_.begin() + count);\n"
     "    add_weighted_rows(options_.dtype, sources_.data(), weighted ? weights_.data() : nullptr, count,",
     "api_test_experts"),
    ("gradients of weights are added in f32", "src/parallel/experts/expert_rows.cpp",
     "  double lanes[kProductLanes] = {};", "  Number lanes[kProductLanes] = {};",
     "api_test_experts"),
    ("sums of narrow rows are rounded at each slot", "src/parallel/experts/expert_rows.cpp",
     "      for (std::uint64_t i = 0; i < count; ++i) sum[i] += weight * summand[i];\n",
     "      for (std::uint64_t i = 0; i < count; ++i) sum[i] += weight * summand[i];\n"
     "      pieces.write(out, first, count, sum);\n"
     "      pieces.read(out, first, count, sum);\n",
     "api_test_experts"),
    ("gradients of scores are made from any scores", "src/parallel/experts/router.cpp",
     "    if (found.reason != RefusedRow::kNone) return found;\n", "", "api_test_experts_refusals"),
    ("a bad row is counted from its leaf", "src/parallel/experts/router.cpp",
     "refused->row = first_row + row;", "refused->row = row;", "api_test_experts_refusals"),
    ("weights are rounded to the dtype of rows", "src/parallel/experts/expert_rows.cpp",
     "  add_weighted_rows(dtype, &from, &weight, 1, width, to);",
     "  std::uint16_t bits = 0;\n"
     "  if (kernels::is_narrow(dtype)) {\n"
     "    kernels::narrow(dtype, &bits, &weight, 1);\n"
     "    kernels::widen(dtype, &weight, &bits, 1);\n"
     "  }\n"
     "  add_weighted_rows(dtype, &from, &weight, 1, width, to);",
     "api_test_experts"),
    ("a sum of rows begins with 0", "src/parallel/experts/expert_rows.cpp",
     "sum[i] = weight * sum[i];", "sum[i] = Number{0} + weight * sum[i];", "api_test_experts"),
    ("kept bytes do not tell their rank", "src/parallel/experts/experts.cpp",
     "mix(mix(mix(shape_, rank()), layout_.ranks()), serial_);",
     "mix(mix(shape_, layout_.ranks()), serial_);", "faults_test_kill_experts"),
    ("kept bytes do not tell their layer", "src/parallel/experts/experts.cpp",
     "mix(mix(mix(shape_, rank()), layout_.ranks()), serial_);",
     "mix(mix(shape_, rank()), layout_.ranks());", "api_test_experts_refusals"),
]
