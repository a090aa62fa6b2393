// Linear: a product with a weight that ranks hold in parts. Every product is made block by block,
// by the same calls for every number of ranks.
//
// One extent of the weight is split between the ranks: the outputs of a column-parallel layer, the
// inputs of a row-parallel one. The other extent is full. So there are three kinds of work:
// - spread: an array of the full extent becomes one of the split extent. Each rank makes its part.
// - merge: an array of the split extent becomes one of the full extent. Each block is a summand.
// - the weight's gradient, of one array of each.
// A column-parallel layer spreads forward and merges backward. A row-parallel layer merges forward
// and spreads backward.
//
// Rows are cut into tiles. The exchange of a tile goes on while the next tile is multiplied. The
// last exchanges of the input's gradient go on while the weight's gradient is made, if one call
// makes both.
#pragma once

#include <trireme/layers.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "parallel/tensor/layer_arrays.hpp"
#include "parallel/tensor/region.hpp"
#include "parallel/tensor/row_tiles.hpp"
#include "parallel/tensor/tensor.hpp"
#include "parallel/tensor/tile_passes.hpp"
#include "parallel/tensor/workspace.hpp"
#include "platform/clock.hpp"

namespace trireme::parallel {

struct LinearOptions {
  std::string name{};
  trireme_linear_kind kind = 0;
  std::uint64_t input = 0;
  std::uint64_t output = 0;
  std::uint64_t rows = 0;
  std::uint32_t stretches = 1;  // equal parts of the outputs that are split one by one
  trireme_dtype dtype = 0;
  bool bias = false;
  bool gathered_output = false;
  bool input_split = false;
  std::uint64_t also = 0;  // another number that ranks compare
};

// One thread at a time, and one call at a time for all layers of a tensor object.
class Linear {
 public:
  static Status create(std::shared_ptr<Tensor> tensor, LinearOptions options,
                       std::shared_ptr<Linear>* out);

  struct Forward {
    const void* input;
    const void* weight;
    const void* bias;
    void* output;
    void* kept;
  };
  struct BackwardInput {
    const void* output_gradient;
    const void* weight;
    void* input_gradient;
    void* kept;
  };
  struct BackwardWeight {
    const void* input;
    const void* output_gradient;
    const void* kept;
    void* weight_gradient;
    void* bias_gradient;
    bool add;
  };
  Status forward(const Forward& call, Deadline deadline);
  Status backward_input(const BackwardInput& call, Deadline deadline);
  Status backward_weight(const BackwardWeight& call, Deadline deadline);
  // Both of these.
  Status backward(const BackwardInput& input, const BackwardWeight& weight, Deadline deadline);

  // Work beside an exchange; none if empty.
  using Meanwhile = std::function<Status()>;

  // The same inside a call of another layer, which has checked the arguments.
  Status forward_in(Workspace::Use& use, const Forward& call, Deadline deadline);
  Status backward_input_in(Workspace::Use& use, const BackwardInput& call, Deadline deadline);
  Status backward_weight_in(Workspace::Use& use, const BackwardWeight& call,
                            const Meanwhile& meanwhile, Deadline deadline);
  Status backward_in(Workspace::Use& use, const BackwardInput& input, const BackwardWeight& weight,
                     const Meanwhile& meanwhile, Deadline deadline);

  trireme_linear_info info() const;
  const Tensor& tensor() const { return *tensor_; }
  // Other layers may have the names of its regions from now on. Any thread, once.
  void drop_names() noexcept;

 private:
  Linear(std::shared_ptr<Tensor> tensor, LinearOptions options);

  // The array of the split extent in a product: of this rank, or with the columns of all ranks.
  struct SplitArray {
    const void* data;
    std::uint64_t step;     // from row to row
    std::uint64_t stretch;  // from a stretch to the next one
    std::uint64_t first;    // this rank's first column of a stretch
  };

  // A pass with the exchanges of an input or an output.
  struct Pass {
    Workspace::Use& use;
    Deadline deadline;
    const char* name = "forward";  // of the call, as ranks compare it
    Meanwhile meanwhile{};         // comes behind the last product, beside the last exchanges
  };

  bool is_column() const { return options_.kind == TRIREME_LINEAR_KIND_COLUMN; }
  std::uint64_t split_columns() const { return options_.stretches * own_.count; }
  bool keeps_in_forward() const;
  bool keeps_in_backward() const;
  SplitArray split_array(const void* data) const;
  sharding::Range block(std::uint64_t number) const;
  const void* block_of(const SplitArray& split, std::uint32_t stretch,
                       const sharding::Range& range) const;
  std::uint64_t weight_place(std::uint32_t stretch, const sharding::Range& range) const;

  Status make_region(const char* what, trireme_region_kind kind, trireme_region_dimension dimension,
                     std::uint64_t rows, std::uint64_t columns, trireme_dtype dtype,
                     std::shared_ptr<Region>* out);
  Status make_regions();
  Status reserve_memory();
  Status check_pass(const char* what, std::uint64_t passes) const;

  // Tiles of the products of spread().
  RowTiles spread_tiles() const;
  // Whether exchanges go on while this thread computes, if there is something to compute.
  bool starts_passes(bool computes) const;
  std::uint64_t sets_of_summands(bool starts) const;
  // The rank's rows of a tile in an array of its own rows.
  sharding::Range own_of(const sharding::Range& tile) const;
  // The whole array of the full extent: `part` itself, or what the ranks' rows are gathered to.
  void* whole_of(Workspace::Use& use, const void* part, void* kept) const;
  Status begin_gather(const sharding::Range& tile, const void* part, void* whole,
                      TilePasses* gathers) const;
  // The array of the full extent that the weight's product reads, once `gather` is over.
  Status begin_full(Workspace::Use& use, const BackwardWeight& call, TilePasses* gather,
                    const void** full) const;
  // `part` is the rank's array of the full extent.
  Status spread(const Pass& pass, const void* part, void* kept, const void* weight,
                const void* bias, void* out);
  Status spread_blocks(const sharding::Range& tile, const void* full, const void* weight,
                       void* out);
  Status merge(const Pass& pass, const SplitArray& split, const void* weight, const void* bias,
               void* out);
  Status merge_block(const sharding::Range& tile, const SplitArray& split, std::uint64_t number,
                     const void* weight, void* out);
  Status find_input_gradient(const Pass& pass, const BackwardInput& call);
  Status weigh(const void* full, const SplitArray& split, const BackwardWeight& to);
  // The bias in the type of products; NULL of none.
  const void* widened(Workspace::Use& use, const void* bias, std::uint64_t columns) const;
  void finish(const void* bias, const sharding::Range& rows, std::uint64_t columns, void* wide,
              void* out) const;

  const std::shared_ptr<Tensor> tensor_;
  const LinearOptions options_;
  const std::uint64_t full_;        // the extent that every rank has
  const std::uint64_t extent_;      // of a stretch of the other one
  const sharding::Range blocks_;    // of this rank
  const sharding::Range own_;       // of each stretch, on this rank
  const sharding::Range own_rows_;  // of the array of the full extent, between layers
  const trireme_dtype wide_;        // of products
  const RowTiles tiles_;
  const bool may_start_;          // exchanges beside products, as far as is known at creation
  std::shared_ptr<Region> rows_;  // gathers the array of the full extent; null without SEQUENCE
  std::shared_ptr<Region> sum_;
  std::shared_ptr<Region>
      columns_;                  // gathers the array of the split extent; null if it stays split
  std::uint64_t sum_bytes_ = 0;  // of the passes through sum_, as PassPlan::bytes
  std::uint64_t memory_ = 0;     // of the workspace
  std::uint64_t forward_passes_ = 0;
  std::uint64_t backward_input_passes_ = 0;
  std::uint64_t backward_weight_passes_ = 0;
};

// Checks the name of a layer.
Status check_layer_name(const std::string& name);

// Runs the work of a call of a layer. A failure names the layer, and fails the group unless a pass
// was refused.
Status run_layer(Tensor& tensor, const std::string& name, const char* what,
                 const std::function<Status(Workspace::Use& use)>& work);

}  // namespace trireme::parallel
