"""Small collectives with a root between hosts, whose ranks leave early; and ranks that leave the
group in the middle of a large one."""

ROOTED = "src/backends/slots/rooted.cpp"
FRAMES = "src/backends/frames/slot_frames.cpp"
CELLS = "src/backends/frames/cell_frames.cpp"
TEST = ("faults_test_rooted TRIREME_TEST_QUICK=1 TRIREME_TESTS_NETWORK=1 "
        "TRIREME_TOKEN=a-token-for-tests-of-27-bytes TRIREME_TESTS_HOSTS=abcdefgh")

DEFECTS = [
    ("early roots: a rank tells no steps", CELLS,
     "knows_all || position < told + local::kStepsUntold) continue;", "knows_all || position) continue;",
     TEST),
    ("early roots: a cell is taken again before it has been read", ROOTED,
     "if (lanes[rank].position.load(std::memory_order_acquire) <= last.position) return false;", "",
     TEST),
    ("early roots: a wait for all outlasts a call that differs",
     "src/backends/slots/arrivals.cpp",
     "return !call.awaits(rank) || call.has_published(rank) || call.sees_another_call();",
     "return !call.awaits(rank) || call.has_published(rank);", TEST),
    ("early roots: a rank that tells no steps is taken for late", "src/backends/slots/blame.cpp",
     "if (!waits) return ranks;", "if (!waits && taken == 0) return ranks;", TEST),
    ("early roots: a wait ends with any call that differs", "src/backends/slots/run.cpp",
     "if (has_published(rank) && hash(rank) != hash(me) && (own || told_to_some(rank)))",
     "if (has_published(rank) && hash(rank) != hash(me) && (own || rank >= 0))",
     TEST.replace("faults_test_rooted", "faults_test_mismatch")),
    ("early roots: a rank that leaves waits 300 ms in all", "src/backends/frames/frame_link.cpp",
     "if (flushed != before) end = Deadline::after(kStuckNs);",
     "if (flushed < before) end = Deadline::after(kStuckNs);", "unit_test_engine"),
    ("early roots: every rank gets the first block of a scatter", ROOTED,
     "op.kind == OperationKind::scatter ? block * static_cast<std::uint64_t>(rank) : 0;", "0;",
     TEST),
    ("early roots: a call that was not announced goes only to ranks that need data", ROOTED,
     "if (state.expected && !needs_data) continue;", "if (!needs_data) continue;", TEST),
    ("early roots: the slot of a call is chosen by its position", FRAMES,
     "lane.slots[stamp(0) > stamp(1) ? 1 : 0];", "lane.slots[(header.position - 1) & 1];", TEST),
    ("early roots: the end of a connection hides that its rank has left",
     "src/backends/slots/run.cpp",
     "TRIREME_RETURN_IF_ERROR(arrivals_.look_for_gone()); const Deadline pause",
     "const Deadline pause", "api_test_many_ranks TRIREME_TEST_QUICK=1"),
]
