// Region: a place of a model where an array changes its form. Its two passes are moves, and each
// move is one operation of the communicator.
#pragma once

#include <trireme/tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/tensor/split.hpp"
#include "parallel/tensor/tensor.hpp"
#include "parallel/tensor/tree_sum.hpp"

namespace trireme::parallel {

struct RegionOptions {
  std::string name;
  trireme_region_kind kind = 0;
  trireme_region_dimension dimension = 0;
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
  trireme_dtype dtype = 0;
  std::uint32_t parts = 0;        // summands of all ranks; 0: the tensor's blocks
  std::uint64_t row_unit = 0;     // rows that stay together; 0: one
  std::uint64_t column_unit = 0;  // columns that stay together; 0: one
  std::uint64_t also = 0;         // what else ranks compare
};

enum class Direction { forward, backward };

// One thread at a time.
class Region {
 public:
  static Status create(std::shared_ptr<Tensor> tensor, RegionOptions options,
                       std::shared_ptr<Region>* out);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  // Arrays at `parts` of a pass, the elements of each and those of its result, and the bytes that
  // peers read of this rank.
  struct PassPlan {
    std::uint32_t parts = 1;
    std::uint64_t from = 0;
    std::uint64_t to = 0;
    std::uint64_t bytes = 0;
  };
  PassPlan plan(Direction direction) const;
  std::uint64_t passes(Direction direction) const { return passes_[index(direction)]; }

  // Checks the arguments, and makes the pass. Ranks compare its name: a layer makes passes of one
  // region in several calls.
  Status pass(Direction direction, const void* const* parts, std::uint32_t part_count, void* out,
              std::uint64_t timeout_ns, const char* pass_name = nullptr);

  const Tensor& tensor() const { return *tensor_; }
  // Another region may have the name from now on. Any thread, once.
  void drop_name() noexcept;

  // The moves of a pass. part: this rank's part of the array.
  enum class Move { keep, sum, sum_to_part, gather, take_part, to_columns, to_rows };

 private:
  Region(std::shared_ptr<Tensor> tensor, RegionOptions options);

  static std::size_t index(Direction direction) { return direction == Direction::forward ? 0 : 1; }
  const Split& split() const;
  Move move_of(Direction direction) const;
  std::uint64_t exchange_bytes(const Split& from) const;
  Status check_arguments(Direction direction, const PassPlan& plan, const void* const* parts,
                         std::uint32_t part_count, const void* out) const;
  // The pass as peers compare it.
  struct Called {
    Direction direction;
    const char* name;
  };
  std::string describe(const Called& called) const;
  Operation operation_of(Move move, const Called& called, const char* what) const;
  Status pass_checked(const Called& called, const PassPlan& plan, const void* const* parts,
                      std::uint32_t part_count, void* out, std::uint64_t timeout_ns);
  Status communicate(Move move, const Called& called, const void* const* parts,
                     std::uint32_t part_count, void* out, std::uint64_t timeout_ns);

  // Moves; `step` is a step of the called operation, with its kind and without memory.
  Status sum(Steps& steps, const Operation& step, const void* const* parts, void* out);
  Status sum_to_part(Steps& steps, const Operation& step, const void* const* parts, void* out);
  Status gather(Steps& steps, const Operation& step, const void* part, void* out) const;
  Status to_columns(Steps& steps, const Operation& step, const void* part, void* out) const;
  Status to_rows(Steps& steps, const Operation& step, const void* part, void* out) const;

  const std::shared_ptr<Tensor> tensor_;
  const RegionOptions options_;
  const std::size_t rank_;
  const Array whole_;
  const Split rows_;     // parts by rows, and
  const Split columns_;  // by columns
  const Split pieces_;   // of a sum that every rank gets whole
  std::optional<TreeSum> sum_;
  bool named_ = false;
  std::uint64_t passes_[2] = {0, 0};
};

}  // namespace trireme::parallel
