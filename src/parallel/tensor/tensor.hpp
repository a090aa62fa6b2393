// Tensor: how the ranks of one communicator split extents, the names of their regions, and what
// their layers share: the provider of products and memory.
#pragma once

#include <trireme/types.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "collectives/communicator.hpp"
#include "parallel/tensor/gemm.hpp"
#include "parallel/tensor/row_tiles.hpp"
#include "parallel/tensor/workspace.hpp"
#include "sharding/blocks.hpp"

namespace trireme::parallel {

struct TensorOptions {
  std::uint32_t blocks = 0;    // 0: one block a rank
  std::uint32_t row_tile = 0;  // rows of a layer's tiles; 0: what tiles_of() takes
  bool sequence = false;
  bool keep_gathered = false;
  std::uint64_t timeout_ns = 0;       // 0: the communicator's
  std::optional<GemmOptions> gemm{};  // without, there are no layers
};

// Any thread.
class Tensor {
 public:
  static Status create(std::shared_ptr<Communicator> communicator, const TensorOptions& options,
                       std::shared_ptr<Tensor>* out);

  Communicator& communicator() const { return *communicator_; }
  std::uint32_t rank() const { return static_cast<std::uint32_t>(communicator_->rank()); }
  std::uint32_t world_size() const {
    return static_cast<std::uint32_t>(communicator_->world_size());
  }
  std::uint32_t blocks() const { return blocks_; }
  // Whether every number of ranks up to blocks() has the same bits.
  bool promises_bits() const { return options_.blocks > 0; }
  std::uint64_t timeout_ns() const { return options_.timeout_ns; }  // 0: the communicator's
  bool sequence() const { return options_.sequence; }
  bool keep_gathered() const { return options_.keep_gathered; }
  Gemm* gemm() const { return gemm_.get(); }  // null: there are no layers
  Workspace& workspace() { return workspace_; }
  sharding::Range own_blocks() const {
    return sharding::blocks_of_rank(blocks_, world_size(), rank());
  }
  sharding::Range range(std::uint64_t extent, std::uint32_t rank) const {
    return sharding::range_of_rank(extent, blocks_, world_size(), rank);
  }
  // The same with `unit` elements that stay together; it divides the extent.
  sharding::Range range_in_units(std::uint64_t extent, std::uint64_t unit,
                                 std::uint32_t rank) const {
    const sharding::Range units = range(extent / unit, rank);
    return {units.first * unit, units.count * unit};
  }

  Status check_rank(std::int32_t rank) const;
  Status check_block(std::uint32_t block) const;
  Status find_heads(std::uint64_t heads, std::uint64_t kv_heads, std::int32_t rank,
                    sharding::HeadRanges* out) const;

  // The tiles in which a layer multiplies and exchanges its rows. All ranks have the same ones.
  RowTiles tiles_of(std::uint64_t rows) const;
  // Whether passes of this group may have to use a transport; the same on all ranks, at any time.
  bool may_use_transport() const;

  // A region has the name until it drops it.
  Status take_name(const std::string& name);
  void drop_name(const std::string& name) noexcept;
  std::uint32_t regions() const;

 private:
  Tensor(std::shared_ptr<Communicator> communicator, const TensorOptions& options)
      : communicator_(std::move(communicator)),
        options_(options),
        blocks_(options.blocks != 0 ? options.blocks : world_size()) {}

  const std::shared_ptr<Communicator> communicator_;
  const TensorOptions options_;
  const std::uint32_t blocks_;
  std::unique_ptr<Gemm> gemm_;
  Workspace workspace_{*communicator_};
  mutable std::mutex mutex_;
  std::set<std::string> names_;
};

}  // namespace trireme::parallel
