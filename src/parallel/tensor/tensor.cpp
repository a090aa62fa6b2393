#include "parallel/tensor/tensor.hpp"

#include <string>

namespace trireme::parallel {

Status Tensor::create(std::shared_ptr<Communicator> communicator, const TensorOptions& options,
                      std::shared_ptr<Tensor>* out) {
  const std::uint32_t blocks = options.blocks;
  const auto world_size = static_cast<std::uint32_t>(communicator->world_size());
  if (blocks != 0 && blocks < world_size) {
    return invalid_argument("options.blocks is " + std::to_string(blocks) + ", below the " +
                            std::to_string(world_size) + " ranks: each needs a block");
  }
  if (blocks > sharding::kMostBlocks) {
    return invalid_argument("options.blocks is " + std::to_string(blocks) + ", above " +
                            std::to_string(sharding::kMostBlocks));
  }
  if (options.keep_gathered && !options.sequence) {
    return invalid_argument("KEEP_GATHERED without SEQUENCE: nothing is gathered");
  }
  std::shared_ptr<Tensor> tensor(new Tensor(std::move(communicator), options));
  if (options.gemm.has_value()) {
    TRIREME_RETURN_IF_ERROR(make_gemm(*options.gemm, &tensor->gemm_));
    const GemmInfo& gemm = tensor->gemm_->info();
    if (blocks > 0 && !gemm.repeatable) {
      return unsupported("options.blocks is " + std::to_string(blocks) +
                         ", which promises the same bits, but " + gemm.library +
                         " is not repeatable: " + gemm.difference);
    }
  }
  *out = std::move(tensor);
  return Status::success();
}

Status Tensor::check_rank(std::int32_t rank) const {
  if (rank >= 0 && rank < communicator_->world_size()) return Status::success();
  return invalid_argument("rank is " + std::to_string(rank) + ", but the ranks are 0 to " +
                          std::to_string(communicator_->world_size() - 1));
}

Status Tensor::check_block(std::uint32_t block) const {
  if (block < blocks_) return Status::success();
  return invalid_argument("block is " + std::to_string(block) + ", but the blocks are 0 to " +
                          std::to_string(blocks_ - 1));
}

Status Tensor::find_heads(std::uint64_t heads, std::uint64_t kv_heads, std::int32_t rank,
                          sharding::HeadRanges* out) const {
  if (heads == 0) return invalid_argument("heads is 0, but attention has one at least");
  if (kv_heads == 0 || heads % kv_heads != 0) {
    return invalid_argument("kv_heads is " + std::to_string(kv_heads) +
                            ", which does not divide the " + std::to_string(heads) + " heads");
  }
  TRIREME_RETURN_IF_ERROR(check_rank(rank));
  *out = sharding::heads_of_rank(heads, kv_heads, blocks_, world_size(),
                                 static_cast<std::uint32_t>(rank));
  return Status::success();
}

bool Tensor::may_use_transport() const {
  const OneMemory memory = communicator_->one_memory();
  return world_size() > 1 && !(memory.known_at_once && memory.is_there);
}

// Between ranks that share memory there is nothing to hide: their own threads make the exchange.
// Products of several tiles may have other bits than one product, and one process has no tiles. So
// with `blocks` only the provider for which a cut changes nothing has them unasked.
RowTiles Tensor::tiles_of(std::uint64_t rows) const {
  if (options_.row_tile > 0) return RowTiles(rows, options_.row_tile);
  const bool keeps_bits = gemm_ != nullptr && gemm_->info().provider == "builtin";
  if (!may_use_transport() || (options_.blocks > 0 && !keeps_bits)) return RowTiles(rows, rows);
  return RowTiles::automatic(rows);
}

Status Tensor::take_name(const std::string& name) {
  const std::lock_guard lock(mutex_);
  if (names_.insert(name).second) return Status::success();
  return invalid_argument("options.name is \"" + name + "\", which another region has");
}

void Tensor::drop_name(const std::string& name) noexcept {
  const std::lock_guard lock(mutex_);
  names_.erase(name);
}

std::uint32_t Tensor::regions() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::uint32_t>(names_.size());
}

}  // namespace trireme::parallel
