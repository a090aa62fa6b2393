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

// An array, or some rows of it, and what each rank has of these.
struct Cut {
  std::uint64_t first_row;
  Array whole;
  Split rows;     // parts by rows, and
  Split columns;  // by columns
  Split pieces;   // of a sum that every rank gets whole
};

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

  // Checks the arguments, and makes the pass.
  Status pass(Direction direction, const void* const* parts, std::uint32_t part_count, void* out,
              std::uint64_t timeout_ns);

  // A forward pass of some rows alone, for layers: its arguments are checked, and it is not
  // counted. `parts` and `out` hold what the rank has of these rows. Ranks compare the name of the
  // call: a layer makes passes of one region in several calls.
  struct TilePass {
    const char* name;
    sharding::Range rows;
    std::vector<const void*> parts;
    void* out;
  };
  // With `started`, the pass goes on after this call, unless it fails: *started ends it. Arrays of
  // the pass, and the region, live until then.
  Status pass_tile(TilePass pass, Deadline deadline, std::shared_ptr<Request>* started);
  // The failure of a pass, with the region's name.
  Status named(const char* pass_name, const Status& status) const;
  std::uint64_t tile_bytes(sharding::Range rows) const;  // as PassPlan::bytes

  const Tensor& tensor() const { return *tensor_; }
  // Another region may have the name from now on. Any thread, once.
  void drop_name() noexcept;

  // The moves of a pass. part: this rank's part of the array.
  enum class Move { keep, sum, sum_to_part, gather, take_part, to_columns, to_rows };

 private:
  Region(std::shared_ptr<Tensor> tensor, RegionOptions options);

  // One pass of some rows, while it runs.
  struct Work {
    Move move;
    Cut cut;
    std::string what;  // as peers compare it
    Operation called;
    Operation step;  // a step of the called operation, with its kind and without memory
    std::vector<const void*> parts;
    void* out;
  };

  static std::size_t index(Direction direction) { return direction == Direction::forward ? 0 : 1; }
  Cut cut(sharding::Range rows) const;
  const Split& split_of(const Cut& cut) const;
  Move move_of(Direction direction) const;
  PassPlan plan_of(Direction direction, const Cut& cut) const;
  std::uint64_t exchange_bytes(const Cut& cut, const Split& from) const;
  Status check_arguments(Direction direction, const PassPlan& plan, const void* const* parts,
                         std::uint32_t part_count, const void* out) const;
  // The pass as peers compare it.
  struct Called {
    Direction direction;
    const char* name;
  };
  std::string describe(const Called& called) const;
  Operation operation_of(const Work& work, const Called& called) const;
  Status pass_checked(const Called& called, const PassPlan& plan, const void* const* parts,
                      std::uint32_t part_count, void* out, std::uint64_t timeout_ns);
  // The operation of the communicator that makes the pass.
  Operation operation(const Called& called, sharding::Range rows, std::vector<const void*> parts,
                      void* out);
  Status run(Steps& steps, const Work& work);

  // Moves.
  Status sum(Steps& steps, const Work& work);
  Status sum_to_part(Steps& steps, const Work& work);
  Status gather(Steps& steps, const Work& work) const;
  Status to_columns(Steps& steps, const Work& work) const;
  Status to_rows(Steps& steps, const Work& work) const;

  const std::shared_ptr<Tensor> tensor_;
  const RegionOptions options_;
  const std::size_t rank_;
  const std::vector<sharding::Range> rows_;     // of each rank, and
  const std::vector<sharding::Range> columns_;  // its columns
  const Cut whole_;
  std::optional<TreeSum> sum_;
  bool named_ = false;
  std::uint64_t passes_[2] = {0, 0};
};

}  // namespace trireme::parallel
