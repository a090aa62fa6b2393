#include "parallel/tensor/split.hpp"

#include <cstring>
#include <utility>

#include "kernels/reduce.hpp"

namespace trireme::parallel {

void copy_rows(void* to, std::uint64_t to_step, const void* from, std::uint64_t from_step,
               std::uint64_t rows, std::uint64_t bytes) {
  if (rows == 0 || bytes == 0) return;
  if (to_step == bytes && from_step == bytes) {
    kernels::copy(to, from, rows * bytes);
    return;
  }
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  for (std::uint64_t row = 0; row < rows; ++row) {
    std::memcpy(target + row * to_step, source + row * from_step, bytes);
  }
}

Split::Split(const Array& whole, bool by_rows, std::vector<sharding::Range> ranges)
    : whole_(whole), by_rows_(by_rows), ranges_(std::move(ranges)) {
  std::uint64_t sum = 0;
  for (const sharding::Range& range : ranges_) {
    counts_.push_back(range.count * (by_rows ? whole.columns : whole.rows));
    before_.push_back(sum);
    sum += counts_.back();
  }
}

void Split::take_columns(std::size_t rank, const void* whole, sharding::Range rows,
                         void* part) const {
  const std::uint64_t step = whole_.columns * whole_.size;
  const std::uint64_t bytes = ranges_[rank].count * whole_.size;
  copy_rows(static_cast<std::byte*>(part) + rows.first * bytes, bytes,
            static_cast<const std::byte*>(whole) + ranges_[rank].first * whole_.size, step,
            rows.count, bytes);
}

void Split::put_columns(std::size_t rank, void* whole, const void* part) const {
  const std::uint64_t step = whole_.columns * whole_.size;
  const std::uint64_t bytes = ranges_[rank].count * whole_.size;
  copy_rows(static_cast<std::byte*>(whole) + ranges_[rank].first * whole_.size, step, part, bytes,
            whole_.rows, bytes);
}

void Split::take(std::size_t rank, const void* whole, void* part) const {
  if (counts_[rank] == 0) return;
  if (by_rows_) {
    kernels::copy(part, static_cast<const std::byte*>(whole) + before_[rank] * whole_.size,
                  counts_[rank] * whole_.size);
  } else {
    take_columns(rank, whole, {0, whole_.rows}, part);
  }
}

}  // namespace trireme::parallel
