"""Stages of a pipeline that compute forward again."""

PLAN = "src/parallel/executor/plan.cpp"
LAYOUT = "src/parallel/executor/stage_layout.cpp"
PASS = "src/parallel/executor/pass.cpp"
AGAIN = "src/parallel/executor/recompute.cpp"
CHECKPOINTS = "api_test_pipeline_checkpoints"
MIXED = (
    CHECKPOINTS + " TRIREME_TEST_QUICK=1 TRIREME_TESTS_NETWORK=memory TRIREME_TESTS_HOSTS=aaab"
    " TRIREME_TOKEN=a-token-for-tests-of-27-bytes")

DEFECTS = [
    ("stages: a checkpoint lies in memory that stretches use in turn", LAYOUT,
     "const bool checkpoint = ends_stretch(i) && !is_last(i);",
     "const bool checkpoint = i + 1 == out_.recomputed && !is_last(i);", CHECKPOINTS),
    ("stages: another micro-batch's stretch is taken for the last one", PLAN,
     "has_last_stretch = in_work_ == at && !elsewhere;", "has_last_stretch = !elsewhere;",
     CHECKPOINTS),
    ("stages: a second forward writes where others lie", PLAN,
     "plan_.places[at].again = slots_.take(layout(at).again_bytes);",
     "plan_.places[at].again = 0;", CHECKPOINTS),
    ("stages: R computes nothing", PASS,
     "action.kind == TRIREME_PIPELINE_KIND_R ? recompute(action) : backward(action);",
     "action.kind == TRIREME_PIPELINE_KIND_R ? Status::success() : backward(action);", CHECKPOINTS),
    ("stages: I computes nothing again", PASS,
     "if (!weights_alone && here.place->recomputes) TRIREME_RETURN_IF_ERROR(recompute(action));",
     "", CHECKPOINTS),
    ("stages: a budget does not count the stretch", "src/parallel/executor/plan.hpp",
     "return slots + work + sent_bytes;", "return slots + sent_bytes;", CHECKPOINTS),
    ("stages: each rank takes layers for a budget by itself", "src/parallel/executor/memory_plan.cpp",
     "    TRIREME_RETURN_IF_ERROR(\n        find_largest(copies, "
     "\"create of a trainer with a pipeline\", ready, &bytes));\n", "", MIXED),
    ("stages: a second forward passes for a first one", AGAIN,
     "forward_layers(here, 0, here.layout->recomputed, TRIREME_PHASE_RECOMPUTE);",
     "forward_layers(here, 0, here.layout->recomputed, TRIREME_PHASE_FORWARD);",
     "api_test_pipeline_failures"),
    ("stages: ranks of a model may have other checkpoints",
     "src/parallel/executor/pipeline_trainer.cpp",
     '{"options.checkpoint_every", std::to_string(options_.checkpoints.every)},\n', "", CHECKPOINTS),
]
