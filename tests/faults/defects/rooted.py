"""Small collectives with a root, whose ranks leave early."""

ROOTED = "src/backends/slots/rooted.cpp"
TEST = "faults_test_rooted"

DEFECTS = [
    ("a small call with a root compares no fingerprints", ROOTED,
     "return same ? Status::success() : disagreement(call);", "return Status::success();", TEST),
    ("a small call with a root sees no call of another kind", ROOTED,
     "    } else if (call.in_slot(rank)) {\n      same = false;\n", "", TEST),
    ("a call that was not announced does not wait", "src/backends/slots/call_pattern.hpp",
     "return next() == call && call != 0;", "return call != 0;", TEST),
    ("the window is not awaited", ROOTED,
     "return arrivals.wait_for_steps(position - kCells + 1);", "return Status::success();", TEST),
    ("the window is one cell too wide", ROOTED,
     "return position < state.seen + kCells;", "return position <= state.seen + kCells;", TEST),
    ("a rank that does not wait looks for no failure", "src/backends/local/backend.cpp",
     "if (!ready_.load(std::memory_order_acquire) || group_.failure().happened())",
     "if (!ready_.load(std::memory_order_acquire))", TEST),
    ("a slot call sees no small call with a root", "src/backends/slots/run.cpp",
     "same = same && !call_.in_cell(rank);", "", TEST),
]
