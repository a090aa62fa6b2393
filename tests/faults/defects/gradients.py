"""Both gradients of a layer in one call: exchanges that go on beside the products of weights."""

LINEAR = "src/parallel/tensor/linear.cpp"
EXACT, APART = "api_test_layers", "api_test_layers TRIREME_TESTS_TRANSPORT=1"
REFUSALS = "api_test_layers_refusals"

DEFECTS = [
    ("gradients: nobody waits for the input that is gathered once more", LINEAR,
     "TRIREME_RETURN_IF_ERROR(gather.end_all());\n    return weigh(", "return weigh(", APART),
    ("gradients: the gathered input is planned beside no sum", LINEAR,
     "Wide merged = gathered + Wide{sets_of_summands(may_start_)}",
     "Wide merged = Wide{sets_of_summands(may_start_)}", EXACT),
    ("gradients: ranks with one call meet ranks with two", LINEAR,
     'find_input_gradient({use, deadline, "backward", find_weight_gradient}, input)',
     'find_input_gradient({use, deadline, "forward", find_weight_gradient}, input)', REFUSALS),
    ("gradients: a failed product of the weight is forgotten", LINEAR,
     "if (pass.meanwhile != nullptr) TRIREME_RETURN_IF_ERROR(pass.meanwhile());\n"
     "  for (std::uint64_t k = tiles_.count() - sets;",
     "if (pass.meanwhile != nullptr) static_cast<void>(pass.meanwhile());\n"
     "  for (std::uint64_t k = tiles_.count() - sets;", REFUSALS),
    ("gradients: a pass for the weight too many is made", LINEAR,
     'TRIREME_RETURN_IF_ERROR(check_pass("backward input", backward_input_passes_));\n'
     '  TRIREME_RETURN_IF_ERROR(check_pass("backward weight", backward_weight_passes_));\n'
     '  return run_layer(*tensor_, options_.name, "backward",',
     'TRIREME_RETURN_IF_ERROR(check_pass("backward input", backward_input_passes_));\n'
     '  return run_layer(*tensor_, options_.name, "backward",', REFUSALS),
    ("gradients: the second layer of an MLP gets none", LINEAR,
     "const auto find_weight_gradient = [&]() -> Status {\n"
     "    if (meanwhile != nullptr) TRIREME_RETURN_IF_ERROR(meanwhile());",
     "const auto find_weight_gradient = [&]() -> Status {\n"
     "    if (meanwhile == nullptr) TRIREME_RETURN_IF_ERROR(gather.end_all());", "api_test_mlp"),
    ("gradients: a single tile is exchanged before the weight's product", LINEAR,
     "const bool starts = starts_passes(tiles_.count() > 1 || pass.meanwhile != nullptr);\n"
     "  const std::uint64_t row",
     "const bool starts = starts_passes(tiles_.count() > 1);\n  const std::uint64_t row", APART),
    ("gradients: automatic tiles are equal", "src/parallel/tensor/row_tiles.hpp",
     "constexpr std::uint64_t kLastTiles = 3;", "constexpr std::uint64_t kLastTiles = 1;", APART),
]
