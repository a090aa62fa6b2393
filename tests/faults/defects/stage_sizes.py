"""Ranks of a pipeline without layers, sizes that vary, and outputs that go past stages."""

SUMS = "src/parallel/executor/gradient_sums.cpp"
PASS = "src/parallel/executor/pass.cpp"

SKIPS = "src/parallel/executor/skip_passes.cpp"

DEFECTS = [
    ("skips: the gradient of the next layer is left out", "src/trainer/local_reads.cpp",
     "sources->push_back(call.output_gradient);", "", "api_test_pipeline_reads"),
    ("skips: gradients add up from the first reader on", SKIPS,
     "for (std::size_t r = 0; r < skips_[skip].readers.size(); ++r) {\n      sources",
     "for (std::size_t r = skips_[skip].readers.size(); r-- > 0;) {\n      sources",
     "api_test_pipeline_reads"),
    ("skips: an output has no place of its own", "src/parallel/executor/skip_plan.cpp",
     "const std::size_t end = end_of_readers(skip, m);", "const std::size_t end = 0;",
     "api_test_pipeline_reads"),
    ("skips: a layer may read a later one", "src/trainer/layer_table.cpp",
     "if (read > own) return", "if (read > total) return", "api_test_pipeline_reads"),
    ("skips: an unwritten gradient comes to others", "src/trainer/gaps.cpp",
     "if (!has_mark(told.gradient(i, true))) continue;", "continue;", "api_test_pipeline_reads"),
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
     "if (output_.used > call.output_bytes) {", "if (output_.used > 2 * call.output_bytes) {",
     "api_test_pipeline_failures"),
    ("stage sizes: a second forward may say something else", "src/trainer/extent.hpp",
     "call.phase == TRIREME_PHASE_RECOMPUTE &&", "call.phase < 0 &&",
     "api_test_pipeline_failures"),
    ("stage sizes: bytes behind the used ones count as unwritten", PASS,
     "if (computes(here)) look_for_gaps(layer, used, here.micro_batch);",
     "if (computes(here)) look_for_gaps(layer, input, here.micro_batch);",
     "api_test_pipeline_trainer"),
]
