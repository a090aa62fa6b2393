"""Matrices in parts, and a whole model on ranks along context or expert."""

MUON, PLAN = "src/optimizer/rules/muon.cpp", "src/optimizer/rules/matrix_plan.cpp"
PARTS, AXES = "api_test_split_muon", "gpt_test_axes"

DEFECTS = [
    ("wide axes: MUON leaves out the parts of other models", MUON,
     "    TRIREME_RETURN_IF_ERROR(shard_.axes().run_along(axis, std::move(operation)));\n",
     "", PARTS),
    ("wide axes: MUON's rate follows the rows of a part", MUON,
     "  const auto rows = static_cast<double>(matrix.rows);\n",
     "  const auto rows = static_cast<double>(matrix.elements / matrix.columns);\n", PARTS),
    ("wide axes: a model that skips its part does not come", MUON,
     "      TRIREME_RETURN_IF_ERROR(orthogonalise(matrix, nullptr));\n", "", PARTS),
    ("wide axes: a skipped part is gathered before the exchange", MUON,
     "  if (members.empty()) return gather_skipped();\n",
     "  TRIREME_RETURN_IF_ERROR(gather_skipped());\n  skipped.clear();\n"
     "  if (members.empty()) return Status::success();\n", PARTS),
    ("wide axes: a model without a matrix of others is not told", "src/optimizer/optimizer.cpp",
     "      facts.insert(facts.end(), parts.begin(), parts.end());\n", "", PARTS),
    ("wide axes: MUON's memory of whole matrices is not planned", PLAN,
     "  for (const auto& [axis, most] : gathered) sum += most;\n", "", PARTS),
    ("wide axes: an expert drops a row too many", "src/parallel/experts/router.cpp",
     "} else if (++taken_[expert] > options_.capacity) {",
     "} else if (++taken_[expert] >= options_.capacity) {", AXES),
    ("wide axes: weights of experts that others divide have no gradient",
     "src/parallel/experts/router.cpp",
     "(static_cast<double>(d_weights[k]) - mean) / sum;",
     "static_cast<double>(d_weights[k]) / sum;", AXES),
    ("wide axes: a gradient of attention takes outputs for their gradients",
     "src/parallel/context/backward.cpp",
     "static_cast<const float*>(gradient) + head * shape().width, shape().width);",
     "static_cast<const float*>(output) + head * shape().width, shape().width);", AXES),
]
