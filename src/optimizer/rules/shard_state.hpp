// The pieces that a rank updates: the places of their parameters, gradients, masters and vectors of
// state, in memory or in a file.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "model/shard_view.hpp"
#include "optimizer/rules/settings.hpp"
#include "optimizer/rules/shard_update.hpp"
#include "optimizer/rules/state_file.hpp"
#include "platform/status.hpp"

namespace trireme::strategies {

// Elements of a kind that is saved and restored.
struct StateRange {
  std::int32_t kind = 0;
  std::uint32_t vector = 0;
  std::uint64_t parameter = 0, first = 0, count = 0;
  void* data = nullptr;                  // null: they lie in a file
  std::uint64_t piece = 0, skipped = 0;  // whose state it is; its elements before these
};

class ShardState {
 public:
  using Piece = optimizers::Piece;
  using UpdatePiece = std::function<Status(const Piece& piece)>;

  ShardState(ShardView& shard, const optimizers::Settings& settings)
      : shard_(shard), settings_(settings) {}
  ShardState(const ShardState&) = delete;
  ShardState& operator=(const ShardState&) = delete;

  // The planned bytes of the masters.
  std::uint64_t plan_masters() const;
  // Allocates masters, and `state_bytes` of state, all zeros.
  Status allocate(std::uint64_t state_bytes, std::uint64_t master_bytes);
  const std::vector<Piece>& pieces() const { return pieces_; }
  std::vector<Piece>& pieces() { return pieces_; }
  // The part of a piece that no other rank owns.
  sharding::Range own_part(std::uint64_t piece) const { return own_parts_[piece]; }
  const std::vector<sharding::Range>& own_parts() const { return own_parts_; }
  // The arena of the vectors.
  char* data() const { return state_.data(); }

  // Update in backward: the pieces of a bucket, whose gradients lie in `reduced`.
  sharding::Range pieces_of(std::uint64_t bucket, char* reduced);

  // Visits the stretches of the piece whose parameters are in memory, in order; the piece itself,
  // if all are.
  template <class Act>
  Status visit(const Piece& piece, ParameterFile::Access access, const Act& act) const {
    if (!shard_.lie_in_file(piece.parameter)) return act(piece);
    return visit_windows(piece, access, std::cref(act));
  }
  // The caller has set the parameters; sets their masters, too.
  Status refresh_masters();

  bool in_file() const { return file_ != nullptr; }
  // Updates some pieces, as their state comes from the file, while *answer is 0. `is_skipped`: the
  // piece stays as it was. The peers learn of a failure.
  Status stream(const sharding::Range& pieces, const UpdatePiece& update,
                const std::function<bool(const Piece&)>& is_skipped, const std::int32_t* answer);
  void read_ahead();
  Status file_info(trireme_offload_info* out) const;
  // A block that could not be written stays in memory; the model counts it.
  void count_file();

  // The number of vectors of state that a piece may have, its masters last; keeps() tells whether
  // it has one on this rank.
  std::uint32_t all_vectors() const {
    return settings_.states + (settings_.master_weights ? 1 : 0);
  }
  bool keeps(std::uint64_t piece, std::uint32_t vector) const;
  // A range of elements of one vector of a piece.
  StateRange stretch_of(std::uint64_t piece, std::uint32_t vector, sharding::Range in_piece) const;
  // Copies between state in a file or on a device and memory of the caller: `read`, or `written` to
  // the file.
  Status copy_from_file(const StateRange& range, char* read, const char* written) const;

  // All state, one vector after the other, as it would lie in memory.
  std::uint64_t bytes() const { return bytes_ + masters_.bytes(); }
  Status save(char* to) const;
  Status load(const char* from);
  // Hashes of each parameter's state, where all ranks keep all of it.
  Status hash(std::vector<std::uint64_t>* out) const;

 private:
  // The place of an element of a vector in memory.
  char* vector_at(std::uint64_t piece, std::uint32_t vector, std::uint64_t element) const;
  Status allocate_arena(Arena* out, std::uint64_t bytes) const;
  Status load_arena(const Arena& arena, std::uint64_t bytes, const char* from) const;
  Status save_arena(const Arena& arena, std::uint64_t bytes, char* to) const;
  // The place of a piece's first vector in the saved state, and the distance to the next.
  struct SavedPlace {
    std::uint64_t offset = 0, stride = 0;
  };

  void place();
  const sharding::WholeNumbers* numbers_of(std::uint64_t parameter);
  Status visit_windows(const Piece& piece, ParameterFile::Access access,
                       const UpdatePiece& act) const;
  std::uint64_t saved_place(const Offload::Visited& visited, std::uint32_t vector) const;

  ShardView& shard_;
  const optimizers::Settings& settings_;
  Arena state_;
  std::uint64_t bytes_ = 0;  // of all state, in memory or in the file
  Arena masters_;            // of parameters of 16 bits, piece by piece, if the options ask for
                             // them
  std::unique_ptr<Offload> file_;  // null: state_ holds all state
  std::vector<std::unique_ptr<const sharding::WholeNumbers>> numbers_;  // that pieces name
  std::vector<Piece> pieces_;
  std::vector<sharding::Range> own_parts_;  // by piece
  std::vector<SavedPlace> saved_places_;    // by piece
  // With update in backward: the first piece of each bucket, with an end, and the place of each
  // piece's gradients in `reduced`.
  std::vector<std::uint64_t> first_pieces_, gradient_places_;
};

}  // namespace trireme::strategies
