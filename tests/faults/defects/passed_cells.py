"""Small collectives with a root whose cells ranks pass on, also where other calls go in rounds; and
calls that earlier ones announce."""

CELLS = "src/backends/frames/cell_frames.cpp"
FRAMES = "src/backends/frames/slot_frames.cpp"
GOODBYES = "src/backends/frames/goodbyes.cpp"
LINK = "src/backends/frames/frame_link.cpp"
ROUNDS = "src/backends/frames/call_rounds.cpp"
PATTERN = "src/backends/slots/call_pattern.hpp"
ROOTED = ("faults_test_rooted TRIREME_TEST_QUICK=1 TRIREME_TESTS_NETWORK=1 "
          "TRIREME_TOKEN=a-token-for-tests-of-27-bytes")
LONG = ROOTED.replace("faults_test_rooted", "faults_test_long_broadcast")
MISMATCH = ROOTED.replace("faults_test_rooted", "faults_test_mismatch")

DEFECTS = [
    ("passed cells: a rank keeps a cell to itself", CELLS,
     "waiting_.push_back({child, std::move(frame)});", "if (child < 0) waiting_.push_back({child, std::move(frame)});",
     LONG),
    ("passed cells: the blocks of a scatter lie in the order of ranks", CELLS,
     "const int whose = tree.rank_at(tree.place_of(child) + static_cast<int>(block));",
     "const int whose = (child + static_cast<int>(block)) % group_.world_size() > child"
     " ? (child + static_cast<int>(block)) % group_.world_size() : child;", ROOTED),
    ("passed cells: a rank passes on its own block of a scatter", CELLS,
     "payload + skipped * block, more);", "payload + 0 * skipped * block, more);", ROOTED),
    ("passed cells: the rank above may be any", CELLS,
     "if (tree.above(me) != from || call.bytes % blocks != 0 ||",
     "if (call.bytes % blocks != 0 ||", "unit_test_cell_frames"),
    ("passed cells: a call that comes first counts as the next one", FRAMES,
     "const std::uint64_t last = last_slot(lane);",
     "const std::uint64_t last = lane.position.load(std::memory_order_relaxed);", ROOTED),
    ("passed cells: a rank finds slots in rounds by their position", ROUNDS,
     "return segment_->lane(channel, rank).slot_at(position) != nullptr;",
     "return segment_->lane(channel, rank).slots[(position - 1) & 1].stamp.load("
     "std::memory_order_acquire) == position;", ROOTED),
    ("passed cells: a rank with a slot waits for ranks with cells", "src/backends/slots/run.cpp",
     "if (passes_slots && in_slot(rank) != in_slot(me)) return true;", "", ROOTED),
    ("passed cells: a rank waits for cells of a rank that has left",
     "src/backends/slots/arrivals.cpp",
     "if (call.is_passed) TRIREME_RETURN_IF_ERROR(look_for_gone_above());", "", LONG),
    ("passed cells: a call in the middle of a loop is remembered", PATTERN,
     "if (follower.pair != pair() || follower.call == call || follower.missed) {",
     "if (follower.pair != pair() || follower.call != 1) {", "unit_test_call_pattern"),
    ("passed cells: two new calls announce nothing", PATTERN,
     "return follower.pair == pair() ? follower.call : steady_;", "return follower.call;",
     "unit_test_call_pattern"),
    ("passed cells: a pair of calls keeps its first follower", PATTERN,
     "follower.missed = true;", "follower.missed = false;", "unit_test_call_pattern"),
    ("passed cells: a place of the tree has one rank too many", "src/backends/slots/spread_tree.hpp",
     "std::min(number & -number, n_ - 1 - number)", "std::min(number & -number, n_ - number)",
     "unit_test_dissemination"),
    ("passed cells: a wait for all outlasts slots that differ", "src/backends/slots/arrivals.cpp",
     "if (taken != seen) differs = call.sees_another_slot();", "",
     MISMATCH + " TRIREME_TESTS_HOSTS=aabb"),
    ("passed cells: a rank that leaves goes past cells on their way", CELLS,
     "all.swap(waiting_);", "all.swap(waiting_); has_waiting_.store(false);",
     "unit_test_cell_frames"),
    ("passed cells: a root that has left counts as lost though a rank may pass its cell on", LINK,
     "const bool over_others = slots_.in_rounds() || slots_.spreads_cells(); const bool has_all",
     "const bool over_others = slots_.in_rounds(); const bool has_all", LONG),
    ("passed cells: a root that has left is awaited for ever", LINK,
     "may_miss_for_ever(group_, leaver.rank, leaver.last)", "false", LONG),
    ("passed cells: ranks that have left pass on all that they gave to others", GOODBYES,
     "!local::has_come(*group.segment(), channel, rank, last.steps[channel])", "false",
     "unit_test_cell_frames"),
    ("passed cells: a goodbye without the cells counts as complete", FRAMES,
     "if (cells_.has(channel) && cells_.taken(channel, rank) < last.cells[channel]) return false;",
     "", "unit_test_cell_frames"),
    ("passed cells: a goodbye may tell fewer steps than its rank before", GOODBYES,
     "steps < taken(leaver) ||", "", "unit_test_cell_frames"),
    ("passed cells: a goodbye may tell any number of steps", GOODBYES,
     "steps > taken(group.rank()) + kMostStepsAhead ||", "", "unit_test_cell_frames"),
    ("passed cells: a word of steps behind a goodbye makes no sense", FRAMES,
     "if (header.kind == FrameKind::steps) return Status::success();", "",
     "unit_test_cell_frames"),
    ("passed cells: a slot may come before this rank has made the call before it", FRAMES,
     "header.position > last && last <= last_slot(mine) &&", "header.position > last &&",
     "unit_test_cell_frames"),
    ("passed cells: a rank passes on a slot that is not there any more", ROUNDS,
     "if (slot == nullptr) {", "if (false) {", "unit_test_cell_frames"),
    ("passed cells: a rank that waits for a cell does not look at the ranks between",
     "src/backends/slots/spread_tree.hpp",
     "if (has_come(segment, channel, root, position)) ranks = tree.between(me);", "", LONG),
    ("out of memory: a rank builds a text when it has no memory", "src/backends/slots/collective.cpp",
     "group_.failure().tell(no_memory_left(group_.rank()));",
     "group_.failure().tell(Status::failure(TRIREME_ERROR_OUT_OF_MEMORY,"
     " \"rank \" + std::to_string(group_.rank()) + \" has no memory left\"));",
     "unit_test_blame"),
]
