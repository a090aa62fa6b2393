"""Parameters that stages of several ranks share."""

TIED = "src/parallel/executor/tied_gradients.cpp"
FOUND = "src/model/tied_parameters.cpp"
HELD = "src/model/gradients/held_back.cpp"
REDUCER = "src/model/gradients/reducer.cpp"
PASS = "src/parallel/executor/pass.cpp"

DEFECTS = [
    ("tied: a gradient of another rank is forgotten", TIED,
     "kernels::add(gradient_dtype(parameter.dtype), sum, more, parameter.elements);",
     "if (use.rank == link_->rank()) kernels::add(gradient_dtype(parameter.dtype), sum, more, "
     "parameter.elements);", "api_test_tied_parameters"),
    ("tied: gradients are added from the last layer on", TIED,
     "return std::tie(a.layer, a.place) < std::tie(b.layer, b.place);",
     "return std::tie(a.layer, a.place) > std::tie(b.layer, b.place);",
     "api_test_tied_parameters"),
    ("tied: a norm counts each copy", FOUND,
     "static_cast<std::uint32_t>(found->holders.size())", "1", "api_test_tied_parameters"),
    ("tied: all leaves have the place of the first", HELD,
     "hook_.before(bucket, data, held_back_rounds_);\n"
     "    TRIREME_RETURN_IF_ERROR(exchange_.start(bucket, data, held_back_rounds_, true));",
     "hook_.before(bucket, data, held_back_rounds_);\n"
     "    TRIREME_RETURN_IF_ERROR(exchange_.start(bucket, data, 0, true));",
     "api_test_tied_parameters"),
    ("tied: copies with other values are trained", TIED,
     "TRIREME_RETURN_IF_ERROR(strategies::check_tied_copies(model_.shard()));", "",
     "api_test_tied_parameters"),
    ("tied: a rank that does not tie the name is not told", FOUND,
     "TRIREME_RETURN_IF_ERROR(check_untied(line, registry, first_holders));", "",
     "api_test_tied_parameters"),
    ("tied: the holders' rates are not compared", TIED,
     "header.rates == moment.rates &&", "true &&", "api_test_tied_parameters"),
    ("tied: the holders compare no rate factors of groups", PASS,
     "optimizer_->rates_at(rate)});", "0});", "api_test_tied_parameters"),
    ("tied: a discarded step launches what is held back", REDUCER,
     "if (status.ok() && passes_.reproducible()) status = launch_absent();\n"
     "  if (status.ok()) status = exchange_.wait_all();",
     "held_back_.clear();\n  if (status.ok()) status = wait_reductions();",
     "api_test_tied_parameters"),
    ("tied: a move fills the first copy alone", "src/parallel/rebalance/moves.cpp",
     "for (const Piece& target : to) {",
     "for (const PartOfPiece& copy : parts_once(to)) {\n    const Piece& target = copy.piece;",
     "api_test_rebalance"),
]
