"""Layers that ranks split."""

LINEAR = "src/parallel/tensor/linear.cpp"
EXACT, REFUSALS = "api_test_layers", "api_test_layers_refusals"

DEFECTS = [
    ("layers: a bias is added to each summand", LINEAR,
     "TRIREME_RETURN_IF_ERROR(merge_block(split, i, weight, summand));",
     "TRIREME_RETURN_IF_ERROR(merge_block(split, i, weight, summand));\n"
     "    if (bias != nullptr) add_bias(wide_, bias, options_.rows, full_, summand);", EXACT),
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
    ("layers: sums of columns are made in f32", "src/parallel/tensor/layer_arrays.cpp",
     "sums[j] += static_cast<double>(row[j]);",
     "sums[j] = static_cast<double>(static_cast<float>(sums[j] + static_cast<double>(row[j])));",
     EXACT),
    ("layers: peers wait for a rank whose product has failed", LINEAR,
     "tensor.communicator().fail(status.code(), told);", "", REFUSALS),
    ("layers: options of ranks are not compared", LINEAR,
     "region.also ^= region.also >> 29;", "region.also = 0;", REFUSALS),
    ("layers: backward needs no forward", LINEAR,
     "if (passes < forward_passes_) return Status::success();", "return Status::success();",
     REFUSALS),
    ("layers: a layer keeps its name", "src/api/layers.cpp", "found->drop_names();",
     "static_cast<void>(0);", REFUSALS),
    ("layers: blocks are promised without a repeatable library",
     "src/parallel/tensor/tensor.cpp", "if (blocks > 0 && !gemm.repeatable) {", "if (false) {",
     "unit_test_gemm"),
]
