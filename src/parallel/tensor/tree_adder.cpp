#include "parallel/tensor/tree_adder.hpp"

#include <algorithm>
#include <utility>

#include "kernels/reduce.hpp"
#include "platform/names.hpp"

namespace trireme::parallel {
namespace {

constexpr std::uint64_t kPiece = 4096;  // elements
constexpr std::size_t kSpares = 3;      // two operands that are widened, and a result to narrow

const std::byte* bytes_at(const void* memory, std::uint64_t offset) {
  return static_cast<const std::byte*>(memory) + offset;
}

}  // namespace

trireme_dtype sum_dtype(trireme_dtype dtype) {
  return kernels::is_narrow(dtype) ? trireme_dtype{TRIREME_DTYPE_F32} : dtype;
}

TreeAdder::TreeAdder(sharding::TreeProgram program, trireme_dtype given, trireme_dtype result)
    : program_(std::move(program)),
      given_(given),
      result_(result),
      sum_(sum_dtype(given)),
      memory_((program_.temporaries + kSpares) * kPiece * dtype_size(sum_)) {}

void TreeAdder::add(const void* const* given, std::uint64_t count, void* result) {
  for (std::uint64_t first = 0; first < count; first += kPiece) {
    const std::uint64_t here = std::min(kPiece, count - first);
    add_piece(given, first, here, static_cast<std::byte*>(result) + first * dtype_size(result_));
  }
}

void TreeAdder::add_piece(const void* const* given, std::uint64_t first, std::uint64_t count,
                          void* result) {
  std::byte* const left_spare = temporary(program_.temporaries);
  std::byte* const right_spare = temporary(program_.temporaries + 1);
  const bool narrows = result_ != sum_;
  std::byte* const last =
      narrows ? temporary(program_.temporaries + 2) : static_cast<std::byte*>(result);
  const void* sources[2];
  // A single summand goes the same way, so that its NaN become the same bits.
  if (program_.additions.empty()) {
    sources[0] = find(program_.result, given, first, count, left_spare);
    kernels::reduce_few(sum_, TRIREME_REDUCTION_SUM, last, sources, 1, count, 1, 0);
  }
  for (const auto& addition : program_.additions) {
    sources[0] = find(addition.left, given, first, count, left_spare);
    sources[1] = find(addition.right, given, first, count, right_spare);
    const bool ends = &addition == &program_.additions.back();
    kernels::reduce_few(sum_, TRIREME_REDUCTION_SUM, ends ? last : temporary(addition.to), sources,
                        2, count, 1, 0);
  }
  if (narrows) kernels::narrow(result_, result, reinterpret_cast<const float*>(last), count);
}

const void* TreeAdder::find(const sharding::TreeProgram::Operand& operand, const void* const* given,
                            std::uint64_t first, std::uint64_t count, std::byte* spare) {
  if (!operand.given) return temporary(operand.index);
  const void* const source = bytes_at(given[operand.index], first * dtype_size(given_));
  if (given_ == sum_) return source;
  kernels::widen(given_, reinterpret_cast<float*>(spare), source, count);
  return spare;
}

std::byte* TreeAdder::temporary(std::size_t number) {
  return memory_.data() + number * kPiece * dtype_size(sum_);
}

}  // namespace trireme::parallel
