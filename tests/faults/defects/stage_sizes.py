"""Ranks of a pipeline without layers, and sizes that vary with each micro-batch."""

SUMS = "src/parallel/executor/gradient_sums.cpp"
PASS = "src/parallel/executor/pass.cpp"

DEFECTS = [
    ("stage sizes: a model without layers makes no passes", SUMS,
     "i < passes && layers_.size() == 0", "i < passes && layers_.size() == 1",
     "api_test_pipeline_trainer"),
    ("stage sizes: an empty stage sends no gradient on", PASS,
     "if (computes(here) && used > 0) std::memcpy", "if (false) std::memcpy",
     "api_test_pipeline_trainer"),
    ("stage sizes: a shape is not sent", "src/parallel/executor/stage_message.cpp",
     "header.shape = news.extent.shape;", "", "api_test_pipeline_trainer"),
    ("stage sizes: the next stage of this rank does not hear what is used", PASS,
     "extents_.input(*next.shape, next.micro_batch) = extent;", "", "api_test_pipeline_trainer"),
    ("stage sizes: a longer output passes", "src/trainer/extent.hpp",
     "if (output_.used > call.output_bytes) return LayerFailure::too_long;", "",
     "api_test_pipeline_failures"),
    ("stage sizes: a second forward may say something else", "src/trainer/extent.hpp",
     "call.phase == TRIREME_PHASE_RECOMPUTE &&", "call.phase < 0 &&",
     "api_test_pipeline_failures"),
    ("stage sizes: bytes behind the used ones count as unwritten", PASS,
     "if (computes(here)) look_for_gaps(layer, used, here.micro_batch);",
     "if (computes(here)) look_for_gaps(layer, input, here.micro_batch);",
     "api_test_pipeline_trainer"),
]
