"""Ranks of a pipeline without layers."""

SUMS = "src/parallel/executor/gradient_sums.cpp"
PASS = "src/parallel/executor/pass.cpp"

DEFECTS = [
    ("stage sizes: a model without layers makes no passes", SUMS,
     "i < passes && layers_.size() == 0", "i < passes && layers_.size() == 1",
     "api_test_pipeline_trainer"),
    ("stage sizes: an empty stage sends no gradient on", PASS,
     "if (computes(here) && here.shape->input_bytes > 0) {",
     "if (false && here.shape->input_bytes > 0) {", "api_test_pipeline_trainer"),
]
