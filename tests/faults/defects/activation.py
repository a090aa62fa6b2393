"""Activations between two linear layers, and the sums that are gradients of biases."""

LOOPS = "src/kernels/loops_activation.inc"
CAUGHT = "unit_test_activation"

DEFECTS = [
    ("activations: elements behind the last whole vector are left out", LOOPS,
     "if (whole < count) work(whole, (count - whole) * sizeof(T));", "", CAUGHT),
    ("activations: results below the normal numbers of f32 stay", LOOPS,
     "number * 0.0 : number", "number : number", CAUGHT),
    ("activations: the tail of a normal distribution ends too early", LOOPS,
     "static constexpr double kMost = 19;", "static constexpr double kMost = 6;", CAUGHT),
    ("activations: one level contracts", LOOPS,
     "sum = sum * x + highest_first[i];",
     "{\n#if TRIREME_LEVEL_BYTES == 32\n"
     "    sum = _mm256_fmadd_pd(sum, x, highest_first[i] + Doubles{});\n"
     "#else\n    sum = sum * x + highest_first[i];\n#endif\n  }", CAUGHT),
    ("activations: a narrow gate takes the values of its first piece", "src/kernels/activation.cpp",
     "if (gated) widened(arrays.values, values);",
     "if (gated && first == 0) widened(arrays.values, values);", CAUGHT),
    ("columns: a group of rows is added from its last row on", "src/kernels/loops_columns.inc",
     "lanes_at<T>(matrix, i * step + j, bytes)",
     "lanes_at<T>(matrix, (kRows - 1 - i) * step + j, bytes)", CAUGHT),
]
