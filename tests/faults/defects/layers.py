"""Layers that ranks split."""

LINEAR = "src/parallel/tensor/linear.cpp"
EXACT, REFUSALS = "api_test_layers", "api_test_layers_refusals"

DEFECTS = [
    ("layers: a bias is added to each summand", LINEAR,
     "TRIREME_RETURN_IF_ERROR(merge_block(tile, split, i, weight, set[i]));",
     "TRIREME_RETURN_IF_ERROR(merge_block(tile, split, i, weight, set[i]));\n"
     "    if (added != nullptr) kernels::add_bias(wide_, added, tile.count, full_, set[i]);", EXACT),
    ("layers: a sum over ranks is forgotten", LINEAR,
     "sequence ? TRIREME_REGION_KIND_REDUCE_SCATTER : TRIREME_REGION_KIND_REDUCE",
     "sequence ? TRIREME_REGION_KIND_REDUCE_SCATTER : TRIREME_REGION_KIND_COPY", EXACT),
    ("layers: gradients of weights are not added", LINEAR, "call.add = to.add;",
     "call.add = false;", EXACT),
    ("layers: the gradient of a row layer's bias is not added", LINEAR,
     "add_columns(options_.dtype, full, full_, options_.rows, full_, to.add, to.bias_gradient);",
     "add_columns(options_.dtype, full, full_, options_.rows, full_, false, to.bias_gradient);",
     EXACT),
    ("layers: a stretch replaces the one before", LINEAR, "call.add = stretch > 0;",
     "call.add = false;", EXACT),
    ("layers: the blocks of a rank are one product", LINEAR,
     "return {range.first - own_.first, range.count};",
     "return number > 0 ? Range{own_.count, 0 * range.count} : Range{0, own_.count};", EXACT),
    ("layers: the gathered input is not kept", LINEAR,
     "keeps_in_forward() ? call.kept : nullptr", "nullptr", EXACT),
    ("layers: sums of columns are made in f32", "src/kernels/loops_columns.inc",
     "keep_lanes<double>(sum, sums,", "keep_lanes<double>(widen(shorten(sum)), sums,", EXACT),
    ("layers: peers wait for a rank whose product has failed", LINEAR,
     "tensor.communicator().fail(status.code(), told);", "", REFUSALS),
    ("layers: options of ranks are not compared", LINEAR,
     "region.also ^= region.also >> 29;", "region.also = 0;", REFUSALS),
    ("layers: backward needs no forward", LINEAR,
     "if (passes < forward_passes_) return Status::success();", "return Status::success();",
     REFUSALS),
    ("layers: a gate's value has no gradient", "src/kernels/loops_activation.inc",
     "gradient * Formula::value(x)", "0.0 * gradient", "api_test_mlp"),
    ("layers: the second layer's gradient reads the activation's input",
     "src/parallel/tensor/mlp.cpp",
     "once more.\n    const auto second = [&] {\n      return second_->backward_weight_in(use,\n"
     "                                         {kept.activated,",
     "once more.\n    const auto second = [&] {\n      return second_->backward_weight_in(use,\n"
     "                                         {kept.hidden,",
     "api_test_mlp"),
    ("layers: blocks are promised without a repeatable library",
     "src/parallel/tensor/tensor.cpp", "if (blocks > 0 && !gemm.repeatable) {", "if (false) {",
     "unit_test_gemm"),
    ("an MLP plans its activations beside one layer alone", "src/parallel/tensor/mlp.cpp",
     "Workspace::rounded(activated_bytes()) +\n              std::max(fc1_.workspace_bytes,"
     " fc2_.workspace_bytes)",
     "std::max(fc1_.workspace_bytes,\n              Workspace::rounded(activated_bytes()) +"
     " fc2_.workspace_bytes)", "api_test_mlp"),
    ("ranks may have different activations", "src/parallel/tensor/mlp.cpp",
     "layer.also = std::uint64_t{", "layer.also = 0 * std::uint64_t{", "api_test_mlp"),
]
