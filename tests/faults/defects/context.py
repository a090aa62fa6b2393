"""Attention over positions of several ranks."""

DEFECTS = [
    ("results of pairs are merged without their maxima", "src/parallel/context/partial.cpp",
     "return maximum == larger_one ? 1.0f : exponential(maximum - larger_one);", "return 1.0f;",
     "api_test_context"),
    ("queries of a diagonal pair see all keys", "src/parallel/context/pair_worker.cpp",
     "end[row] = first[row] + seen.count;", "end[row] = keys.count;", "api_test_context"),
    ("gradients of keys do not return to their rank", "src/parallel/context/walk.hpp",
     "if (step >= 2) take_sums(", "if (step > chunks_.ranks()) take_sums(", "api_test_context"),
    ("ranks take the mean of the keys' gradients", "src/parallel/context/backward.cpp",
     "    const std::uint64_t count = keys_count(kv) / 2;\n",
     "    const std::uint64_t count = keys_count(kv) / 2;\n"
     "    kernels::scale(TRIREME_DTYPE_F32, keys_slot(slot), 1.0 / chunks().ranks(), 2 * count);\n",
     "api_test_context"),
    ("sequences see each other", "src/parallel/context/visibility.cpp",
     "starts_(std::move(starts)) {", "starts_() {", "api_test_context"),
    ("the second stretch of a zigzag goes forward", "src/parallel/context/chunks.cpp",
     "2 * ranks - 1 - rank", "ranks + rank", "api_test_context"),
    ("query heads take key heads in turn", "src/parallel/context/builtin_attention.cpp",
     "head / (call.heads / call.kv_heads);\n  const auto scale = static_cast<float>(call.scale);\n"
     "  const std::uint64_t number",
     "head % call.kv_heads;\n  const auto scale = static_cast<float>(call.scale);\n"
     "  const std::uint64_t number",
     "api_test_context"),
    ("scores have gradients of their own", "src/parallel/context/builtin_attention.cpp",
     "(dot(gradient, v, call.width) - call.delta[number])", "dot(gradient, v, call.width)",
     "api_test_context"),
    ("pairs are merged in the order of arrival", "src/parallel/context/tree_order.hpp",
     "    waiting_[node.first] = {node, slot};\n",
     "    if (node.width() < chunks_.count() && !waiting_.empty()) {\n"
     "      merge(waiting_.begin()->second.slot, slot);\n"
     "      slot = waiting_.begin()->second.slot;\n"
     "      waiting_.clear();\n"
     "    }\n"
     "    waiting_[node.first] = {node, slot};\n",
     "api_test_context"),
    ("starts of sequences are not compared", "src/parallel/context/context.cpp",
     "for (const std::uint64_t start : starts) hash = mixed(hash, start);", "",
     "api_test_context_refusals"),
    ("a failed callback stays with its rank", "src/parallel/context/pair_worker.cpp",
     "if (words[0] != 0) return failed_pair(other, words);",
     "if (words[0] != 0 && other == rank()) return failed_pair(other, words);",
     "api_test_context_refusals"),
    ("the next pass of a callback's failure fails, too", "src/platform/pass_guard.hpp",
     "    if (entered_) runs_ = false;\n", "", "api_test_context_refusals"),
]
