"""The move of a training to other cuts."""

MOVE = "src/parallel/rebalance/rebalance.cpp"
MOVES = "src/parallel/rebalance/moves.cpp"
RANGES = "src/optimizer/state_ranges.cpp"
COSTS = "src/parallel/executor/layer_costs.cpp"

DEFECTS = [
    ("rebalance: the masters stay", MOVES,
     "if (source.rank != rank && target.rank != rank) continue;",
     "if ((source.rank != rank && target.rank != rank) || std::get<3>(key) >= 2) continue;",
     "api_test_rebalance_rules"),
    ("rebalance: the steps of a parameter are lost", MOVES, "each.steps = known.at(each.name)->steps;", "",
     "api_test_rebalance_rules"),
    ("rebalance: the second part of a range begins at its first", MOVES,
     "rest.from_first += piece.count;", "", "api_test_rebalance"),
    ("rebalance: a range in parts is written at its begin", RANGES,
     "cut.data = static_cast<char*>(cut.data) + part.first * element_bytes(range);", "",
     "api_test_rebalance"),
    ("rebalance: a buffer is filled again before its peer has read it", MOVE,
     "tell(link_.communicator->run_messages(sends, receives, link_.timeout_ns)));",
     "tell([&] { std::shared_ptr<Request> request; Status s = link_.communicator->start_message("
     "sends, Deadline::after(link_.timeout_ns), &request); return s.ok() ? "
     "link_.communicator->run_message(receives, link_.timeout_ns, nullptr) : std::move(s); }()));",
     "api_test_rebalance_rules"),
    ("rebalance: ranks do not compare the new cuts", MOVE,
     '{"options.cuts", std::move(cuts)},', "", "api_test_rebalance"),
    ("rebalance: two ranks may get one element", MOVES,
     'TRIREME_RETURN_IF_ERROR(check_once(key, to, "new"));', "", "api_test_rebalance"),
    ("rebalance: a rank that fails by itself does not say so", MOVE,
     "if (moved.ok()) moved = std::move(own_);", "", "api_test_rebalance"),
    ("rebalance: a new model that has parts of both layouts goes on", MOVE,
     "if (changes && shard_of(*to).failure().ok()) call.give_up(status);", "",
     "api_test_rebalance"),
    ("costs: those of other stages are not told", COSTS,
     "  status = find_largest(link_, kCostsCall, status, &numbers);\n", "", "api_test_rebalance"),
]
