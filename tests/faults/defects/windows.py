"""Activations of a pipeline's stages in files."""

WINDOW = "src/parallel/executor/stage_window.cpp"
PLAN = "src/parallel/executor/window_plan.cpp"
TEST = "api_test_pipeline_windows"

DEFECTS = [
    ("windows: an item is used before it has come", WINDOW,
     "if (move.kind == Kind::need) TRIREME_RETURN_IF_ERROR(file_.need(move.item, &trouble));", "",
     TEST),
    ("windows: an evaluation writes", WINDOW,
     "return trains_ && plan_.items", "return plan_.items", TEST),
    ("windows: two items share a place in the file", PLAN,
     "file.take(move.step, read_last[move.item], item.bytes)",
     "file.take(move.step, move.step, item.bytes)", TEST),
    ("windows: the input of a layer does not stay with it", PLAN,
     "if (reads && empty_.items[item - 1].bytes > 0)", "if (false && reads)", TEST),
    ("windows: a stretch that is still there counts as computed again", PLAN,
     "if (!is_there) again(", "again(", "api_test_pipeline_checkpoints"),
]
