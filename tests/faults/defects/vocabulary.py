"""Vocabularies that ranks split."""

ENTROPY = "src/parallel/tensor/cross_entropy.cpp"
VOCABULARY = "src/parallel/tensor/vocabulary.cpp"

DEFECTS = [
    ("vocabulary: labels are smoothed over the classes of the rank", ENTROPY,
     "part.linear *= smoothing / static_cast<double>(options_.classes);",
     "part.linear *= smoothing / static_cast<double>(own_.count);", "api_test_vocabulary"),
    ("vocabulary: a target is counted from class 0 on each rank", ENTROPY,
     "part.linear += (1 - smoothing) * element(row, target - own_.first);",
     "part.linear += (1 - smoothing) * element(row, target % own_.count);", "api_test_vocabulary"),
    ("vocabulary: the gradient knows no z-loss", ENTROPY,
     "factor *= 1 + 2 * options_.z_loss * (kept.largest + kernels::logarithm(kept.sum));", "",
     "api_test_vocabulary"),
    ("vocabulary: sums of other ranks are not added", "src/kernels/softmax.cpp",
     " + b.sum * exponential(b.largest - both.largest);", ";",
     "api_test_vocabulary"),
    ("vocabulary: sums keep the scale of their own largest element", "src/kernels/softmax.cpp",
     "a.sum * exponential(a.largest - both.largest) +", "a.sum +",
     "api_test_vocabulary"),
    ("vocabulary: an ignored row has a gradient", ENTROPY,
     "      std::memset(to, 0, row_bytes);\n      continue;\n", "", "api_test_vocabulary"),
    ("vocabulary: a NaN is no largest element", "src/kernels/loops_softmax.inc",
     "sums[v] = x == x ? sums[v] : x;", "sums[v] = sums[v];", "unit_test_softmax"),
    ("vocabulary: lanes depend on the level", "src/kernels/loops_softmax.inc",
     "const std::uint64_t lane = i - whole;", "const std::uint64_t lane = (i - whole) % kLanes;",
     "unit_test_softmax"),
    ("vocabulary: tokens are not compared", VOCABULARY,
     "std::uint64_t hash = tokens_.hash();", "std::uint64_t hash = 0;",
     "api_test_vocabulary_refusals"),
    ("vocabulary: rows of a token are added in any order", VOCABULARY,
     "tokens_[a] < tokens_[b] : a < b;", "tokens_[a] < tokens_[b] : a > b;", "api_test_vocabulary"),
    ("vocabulary: a token one too large is read", "src/parallel/tensor/token_list.cpp",
     "static_cast<std::uint64_t>(token) < classes_", "static_cast<std::uint64_t>(token) <= classes_",
     "api_test_vocabulary_refusals"),
]
