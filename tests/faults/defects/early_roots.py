"""Small collectives with a root between hosts, whose ranks leave early; and ranks that leave the
group in the middle of a large one."""

ROOTED = "src/backends/slots/rooted.cpp"
FRAMES = "src/backends/frames/slot_frames.cpp"
CELLS = "src/backends/frames/cell_frames.cpp"
TEST = ("faults_test_rooted TRIREME_TEST_QUICK=1 TRIREME_TESTS_NETWORK=1 "
        "TRIREME_TOKEN=a-token-for-tests-of-27-bytes TRIREME_TESTS_HOSTS=abcdefgh")

LONG = TEST.replace("faults_test_rooted", "faults_test_long_broadcast")

DEFECTS = [
    ("early roots: a rank tells no steps", CELLS,
     "knows_all || position < told + local::kStepsUntold) continue;", "knows_all || position) continue;",
     TEST),
    ("early roots: a cell is taken again before it has been read", ROOTED,
     "if (last != 0 && lanes[rank].position.load(std::memory_order_acquire) <= last)", "if (false)",
     TEST),
    ("early roots: a wait for all outlasts a call that differs",
     "src/backends/slots/arrivals.cpp",
     "return !call.awaits(rank) || call.has_published(rank) || call.sees_another_call();",
     "return !call.awaits(rank) || call.has_published(rank);", TEST),
    ("early roots: a rank that tells no steps is taken for late", "src/backends/slots/blame.cpp",
     "if (!waits) return ranks;", "if (!waits && taken == 0) return ranks;", TEST),
    ("early roots: a wait ends with any call that differs", "src/backends/slots/run.cpp",
     "if (has_published(rank) && hash(rank) != hash(me) && (mine || told_to_some(rank)))",
     "if (has_published(rank) && hash(rank) != hash(me) && (mine || rank >= 0))",
     TEST.replace("faults_test_rooted", "faults_test_mismatch")),
    ("early roots: a rank that leaves waits 300 ms in all", "src/backends/frames/frame_link.cpp",
     "if (flushed != before) end = Deadline::after(kStuckNs);",
     "if (flushed < before) end = Deadline::after(kStuckNs);", "unit_test_engine"),
    ("early roots: every rank gets the first block of a scatter", ROOTED,
     "op.kind == OperationKind::scatter ? block * static_cast<std::uint64_t>(rank) : 0;", "0;",
     TEST),
    ("early roots: a call that was not announced goes only to ranks that need data", ROOTED,
     "const bool needs_data = from_root ? op.root == me : op.root == rank;",
     "const bool needs_data = from_root ? op.root == me : op.root == rank; if (!needs_data) continue;",
     TEST),
    ("early roots: the slot of a call is chosen by its position", FRAMES,
     "lane.slots[stamp(0) > stamp(1) ? 1 : 0];", "lane.slots[(header.position - 1) & 1];", TEST),
    ("early roots: the end of a connection hides that its rank has left",
     "src/backends/slots/arrivals.cpp",
     "TRIREME_RETURN_IF_ERROR(look()); const Deadline pause",
     "const Deadline pause", "api_test_many_ranks TRIREME_TEST_QUICK=1"),
    ("early roots: a call asks room of ranks that it does not go to", ROOTED,
     "for (RankBits rest = to; rest != 0;", "for (RankBits rest = 0xff; rest != 0;", LONG),
    ("early roots: a long broadcast is passed on before it has come", ROOTED,
     "if (!is_root) TRIREME_RETURN_IF_ERROR(broadcast.receive());",
     "if (!is_root && call.n == 2) TRIREME_RETURN_IF_ERROR(broadcast.receive());", LONG),
    ("early roots: a long broadcast goes to the root's own ranks alone",
     "src/backends/slots/broadcast_tree.hpp",
     "(place == 0 || bit < lowest) && place + bit < n_", "place == 0 && place + bit < n_", LONG),
    ("early roots: a rank blames the one above it, which has come",
     "src/backends/slots/arrivals.cpp",
     "if (call.in_tree) missing = call.late_above();", "", LONG),
    ("early roots: a rank blames the one above it, which has no bytes either",
     "src/backends/slots/long_broadcast.cpp",
     "if (!is_from_above(transfer) || !call_.awaits_all) return {transfer.peer};",
     "if (transfer.peer >= 0) return {transfer.peer};", LONG),
    ("early roots: a rank that has come and has no bytes is told as not come",
     "src/backends/slots/long_broadcast.cpp",
     "is_from_above(transfer) ? passed_nothing_on(ranks)",
     "ranks.size() > 9 ? passed_nothing_on(ranks)", LONG),
    ("early roots: a rank that waits for long tells nobody",
     "src/backends/frames/slot_frames.cpp",
     "if (in_cell) return fail_by_engine(cells_.tell_come(channel));", "if (in_cell) return;", LONG),
]
