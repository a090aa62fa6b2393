"""Layers that ranks split, in a whole model, in a failing one and beside other rules."""

REGION = "src/parallel/tensor/region.cpp"
MEMORY, KILLS, WIDE = (
    "faults_test_out_of_memory_layers", "faults_test_kill_layers", "gpt_test_wide")

DEFECTS = [
    ("wide layers: peers wait for a context without a thread", "src/parallel/context/context.cpp",
     "communicator_->fail(TRIREME_ERROR_SYSTEM, status.message());", "", MEMORY),
    ("wide layers: peers wait for a context without memory", "src/parallel/context/context.cpp",
     "communicator_->fail(TRIREME_ERROR_OUT_OF_MEMORY, kNoMemory);\n    throw;", "throw;", MEMORY),
    ("wide layers: a forward pass fits another rank's pass for weights", REGION,
     "for (const char* letter = called.name; *letter != 0; ++letter) {",
     "for (const char* letter = \"\"; *letter != 0; ++letter) {", KILLS),
    ("wide layers: a rank has one key/value head alone", "src/sharding/blocks.cpp",
     "result.kv_heads = {first, (result.heads.end() - 1) / group + 1 - first};",
     "result.kv_heads = {first, 1};", WIDE),
    ("wide layers: the square in GELU's exponent is rounded", "src/kernels/loops_activation.inc",
     "const Doubles r = (a - upper) * (a + upper);", "const Doubles r = 0.0 * a;", "api_test_mlp"),
    ("wide layers: ADAFACTOR's step is as long as a part says",
     "src/optimizer/rules/adafactor_rule.cpp",
     "sharding::whole_elements(shard_.registry().parameters()[piece.parameter])",
     "shard_.registry().parameters()[piece.parameter].elements", WIDE),
    ("wide layers: ADAFACTOR's rows and columns are those of a part",
     "src/optimizer/rules/adafactor_whole.cpp",
     "TRIREME_RETURN_IF_ERROR(run(along, first, sums, TRIREME_REDUCTION_SUM));", "", WIDE),
]
