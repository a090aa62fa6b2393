#include "optimizer/rules/shard_state.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/hash.hpp"
#include "kernels/reduce.hpp"
#include "optimizer/rules/adafactor.hpp"
#include "platform/names.hpp"
#include "sharding/plan.hpp"

namespace trireme::strategies {

using optimizers::Piece;
using sharding::Bucket;
using sharding::Group;
using sharding::Parameter;
using sharding::Range;
using sharding::Segment;

namespace {

std::uint64_t state_size(const Piece& piece) {  // of one vector
  return piece.count * dtype_size(gradient_dtype(piece.dtype));
}

}  // namespace

std::uint64_t ShardState::plan_masters() const {
  if (!settings_.master_weights) return 0;
  return plan_master_bytes(shard_.registry(), shard_.layout(), shard_.link().rank());
}

Status ShardState::allocate(std::uint64_t state_bytes, std::uint64_t master_bytes) {
  bytes_ = state_bytes;
  if (master_bytes > 0) {
    TRIREME_RETURN_IF_ERROR(allocate_arena(&masters_, master_bytes));
  }
  const bool in_memory = settings_.offload_path.empty();
  if (in_memory) {
    TRIREME_RETURN_IF_ERROR(allocate_arena(&state_, state_bytes));
  }
  place();
  if (in_memory) return refresh_masters();
  return Offload::open(shard_.link(), shard_.storage()->allocated, pieces_,
                       piece_sizes(shard_.layout(), shard_.link().rank()), settings_, &file_);
}

// Makes the pieces that this rank updates: with data_parallel all of them, else those of its
// blocks. The state of a bucket lies vector by vector where an arena of one vector would have the
// bucket; saved state has the same order, even if it lies in a file.
// Null: the parameter is not split.
const sharding::WholeNumbers* ShardState::numbers_of(std::uint64_t parameter) {
  numbers_.resize(shard_.registry().parameters().size());
  auto& numbers = numbers_[parameter];
  if (numbers == nullptr) {
    numbers =
        std::make_unique<const sharding::WholeNumbers>(shard_.registry().parameters()[parameter]);
  }
  return numbers->same() ? nullptr : numbers.get();
}

void ShardState::place() {
  const sharding::Layout& layout = shard_.layout();
  const bool whole = layout.spread.whole_state();
  const Storage& storage = *shard_.storage();
  const Arena& arena = shard_.on_device() != nullptr ? storage.on_device : storage.parameters;
  char* master = masters_.data();
  for (const Bucket& bucket : layout.buckets) {
    const std::uint64_t size = dtype_size(bucket.dtype);
    const std::uint64_t begin = whole ? 0 : bucket.block_first[layout.spread.rank];
    const std::uint64_t elements = whole ? bucket.elements : bucket.counts[layout.spread.rank];
    const std::uint64_t offset = whole ? bucket.whole_offset : bucket.shard_offset;
    const std::uint64_t states = settings_.states_of_all() * offset;
    char* gradients = nullptr;
    if (shard_.updates_in_backward()) {
      first_pieces_.push_back(pieces_.size());
    } else {
      gradients = shard_.gradients().buckets().kept(bucket);
    }
    for (const Segment& segment : bucket.segments) {
      if (!whole && segment.owner != layout.spread.rank) continue;
      const Parameter& parameter = shard_.registry().parameters()[segment.parameter];
      const Group& group = layout.group_of_parameter(parameter);
      const std::uint64_t element = layout.first_in_group(parameter) + segment.first;
      const std::uint64_t in_arena =
          group.offset + (element - group.kept.first) * dtype_size(parameter.dtype);
      const std::uint64_t position = segment.position - begin;
      Piece piece;
      piece.dtype = parameter.dtype;
      piece.parameter = segment.parameter;
      piece.draw_key = parameter.draw_key;
      piece.numbers = numbers_of(segment.parameter);
      piece.group = parameter.parameter_group;
      piece.first = segment.first;
      piece.count = segment.count;
      piece.matrix = settings_.is_matrix(parameter.shape, parameter.parameter_group);
      if (!group.in_file) piece.parameters = arena.data() + in_arena;
      if (gradients != nullptr) {
        piece.gradients = gradients + position * size;
      } else {
        gradient_places_.push_back(position * size);
      }
      for (std::uint32_t i = 0; i < settings_.states_of_all(); ++i) {
        if (!state_ || settings_.has_matrices()) break;
        piece.states[i] = state_.data() + states + (i * elements + position) * size;
      }
      saved_places_.push_back({states + position * size, elements * size});
      const sharding::Range own = sharding::intersect(
          {bucket.block_first[layout.spread.rank], bucket.counts[layout.spread.rank]},
          {segment.position, segment.count});
      own_parts_.push_back({own.count > 0 ? own.first - segment.position : 0, own.count});
      if (settings_.master_weights && parameter.dtype != bucket.dtype) {
        piece.rounded = std::exchange(piece.parameters, master);
        piece.rounded_dtype = std::exchange(piece.dtype, bucket.dtype);
        master += piece.count * size;
      }
      pieces_.push_back(piece);
    }
  }
  if (!first_pieces_.empty()) first_pieces_.push_back(pieces_.size());
}

Range ShardState::pieces_of(std::uint64_t bucket, char* reduced) {
  const std::uint64_t first = first_pieces_[bucket], end = first_pieces_[bucket + 1];
  for (std::uint64_t i = first; i < end; ++i) pieces_[i].gradients = reduced + gradient_places_[i];
  return {first, end - first};
}

Status ShardState::visit_windows(const Piece& piece, ParameterFile::Access access,
                                 const std::function<Status(const Piece& part)>& act) const {
  const sharding::Layout& layout = shard_.layout();
  const Parameter& parameter = shard_.registry().parameters()[piece.parameter];
  const std::uint64_t first = layout.first_in_group(parameter) + piece.first;
  Status acted = Status::success();
  TRIREME_RETURN_IF_ERROR(shard_.visit(
      layout.group_of[parameter.unit], {first, piece.count}, access, [&](char* data, Range range) {
        if (!acted.ok()) return;
        Piece part = optimizers::part_of(piece, range.first - first, range.count);
        (piece.rounded_dtype != 0 ? part.rounded : part.parameters) = data;
        acted = act(part);
      }));
  return acted;
}

Status ShardState::refresh_masters() {
  if (!settings_.master_weights) return Status::success();
  TRIREME_RETURN_IF_ERROR(shard_.expect_updates());
  if (shard_.on_device() != nullptr) TRIREME_RETURN_IF_ERROR(shard_.on_device()->begin());
  for (const Piece& piece : pieces_) {
    if (piece.rounded_dtype == 0) continue;
    if (DeviceShard* const there = shard_.on_device(); there != nullptr) {
      ModelDevice& device = there->device();
      Status queued = device.told(device.stream().cast(
          devices::Cast::widen, piece.rounded_dtype, piece.parameters, piece.rounded, piece.count));
      TRIREME_RETURN_IF_ERROR(there->report(queued.ok() ? device.finish() : std::move(queued)));
      continue;
    }
    TRIREME_RETURN_IF_ERROR(visit(piece, ParameterFile::Access::read, [](const Piece& part) {
      kernels::widen(part.rounded_dtype, static_cast<float*>(part.parameters), part.rounded,
                     part.count);
      return Status::success();
    }));
  }
  return Status::success();
}

// ---- in a file ----

Status ShardState::stream(const Range& pieces, const UpdatePiece& update,
                          const std::function<bool(const Piece&)>& is_skipped,
                          const std::int32_t* answer) {
  Status updated = Status::success();
  const Offload::Visit visit = [&](Offload::Visited* visited) {
    updated = update(visited->piece);
    visited->changed = updated.ok() && !is_skipped(visited->piece);
    return updated.ok() && *answer == 0;
  };
  Status streamed =
      pieces.count == pieces_.size()
          ? file_->sweep(Offload::Access::update, visit)
          : file_->sweep_pieces(Offload::Access::update, pieces.first, pieces.end(), visit);
  count_file();
  TRIREME_RETURN_IF_ERROR(updated);
  if (!streamed.ok()) shard_.fail_groups(streamed.code(), streamed.message());
  return streamed;
}

void ShardState::read_ahead() {
  if (file_ != nullptr) file_->read_ahead();
}

Status ShardState::file_info(trireme_offload_info* out) const {
  if (file_ == nullptr) {
    return invalid_state("the optimizer was created without options.offload");
  }
  file_->info(out);
  return Status::success();
}

void ShardState::count_file() {
  if (file_ == nullptr) return;
  shard_.planned().state = file_->resident_bytes();
  shard_.planned().offload = file_->buffer_bytes();
}

// ---- saved and compared ----

bool ShardState::keeps(std::uint64_t number, std::uint32_t vector) const {
  const optimizers::Piece& piece = pieces_[number];
  if (vector == settings_.states) return piece.rounded_dtype != 0;
  // A matrix has rows and columns instead, or fewer vectors.
  if (optimizers::is_factored(settings_) && piece.states[vector] == nullptr) return false;
  return vector < settings_.states_of(piece.matrix);
}

StateRange ShardState::stretch_of(std::uint64_t number, std::uint32_t vector,
                                  Range in_piece) const {
  const optimizers::Piece& piece = pieces_[number];
  const bool is_here = shard_.on_device() == nullptr;
  return {TRIREME_STATE_KIND_OPTIMIZER,
          vector,
          piece.parameter,
          piece.first + in_piece.first,
          in_piece.count,
          is_here ? vector_at(number, vector, in_piece.first) : nullptr,
          number,
          in_piece.first};
}

char* ShardState::vector_at(std::uint64_t number, std::uint32_t vector,
                            std::uint64_t element) const {
  const Piece& piece = pieces_[number];
  const bool is_master = vector == settings_.states;
  char* const states = static_cast<char*>(is_master ? piece.parameters : piece.states[vector]);
  return states == nullptr ? nullptr : states + element * dtype_size(gradient_dtype(piece.dtype));
}

Status ShardState::copy_from_file(const StateRange& range, char* read, const char* written) const {
  const std::uint64_t size = dtype_size(gradient_dtype(pieces_[range.piece].dtype));
  if (DeviceShard* const shard = shard_.on_device(); shard != nullptr) {
    char* const there = vector_at(range.piece, range.vector, range.skipped);
    ModelDevice& device = shard->device();
    return shard->report(read != nullptr ? device.read(read, there, range.count * size)
                                         : device.write(there, written, range.count * size));
  }
  const Range wanted = {range.skipped, range.count};
  return file_->sweep_piece(
      read != nullptr ? Offload::Access::read : Offload::Access::update, range.piece, wanted,
      [&](Offload::Visited* visited) {
        const Range part = intersect(wanted, {visited->skipped, visited->piece.count});
        if (part.count == 0) return true;
        char* const there = static_cast<char*>(visited->piece.states[range.vector]) +
                            (part.first - visited->skipped) * size;
        const std::uint64_t at = (part.first - wanted.first) * size;
        if (read != nullptr) {
          std::memcpy(read + at, there, part.count * size);
        } else {
          std::memcpy(there, written + at, part.count * size);
        }
        visited->changed = read == nullptr;
        return true;
      });
}

// The place of one vector of a stretch in the saved state.
std::uint64_t ShardState::saved_place(const Offload::Visited& visited, std::uint32_t vector) const {
  const SavedPlace& place = saved_places_[visited.number];
  return place.offset + vector * place.stride +
         visited.skipped * dtype_size(gradient_dtype(visited.piece.dtype));
}

Status ShardState::allocate_arena(Arena* out, std::uint64_t bytes) const {
  DeviceShard* const there = shard_.on_device();
  return there != nullptr ? there->allocate_state(out, bytes, settings_.pinned)
                          : strategies::allocate(shard_, out, MemoryKind::optimizer_state, bytes);
}

Status ShardState::save_arena(const Arena& arena, std::uint64_t bytes, char* to) const {
  if (bytes == 0) return Status::success();
  if (DeviceShard* const there = shard_.on_device(); there != nullptr) {
    return there->report(there->device().read(to, arena.data(), bytes));
  }
  std::memcpy(to, arena.data(), bytes);
  return Status::success();
}

Status ShardState::load_arena(const Arena& arena, std::uint64_t bytes, const char* from) const {
  if (bytes == 0) return Status::success();
  if (DeviceShard* const there = shard_.on_device(); there != nullptr) {
    return there->report(there->device().write(arena.data(), from, bytes));
  }
  std::memcpy(arena.data(), from, bytes);
  return Status::success();
}

Status ShardState::save(char* to) const {
  if (file_ == nullptr) {
    TRIREME_RETURN_IF_ERROR(save_arena(state_, bytes_, to));
    return save_arena(masters_, masters_.bytes(), to + bytes_);
  }
  // Writes it as it would lie in memory, with the gaps between pieces.
  if (bytes() > 0) std::memset(to, 0, bytes());
  return file_->sweep(Offload::Access::read, [&](Offload::Visited* visited) {
    for (std::uint32_t vector = 0; vector < settings_.states; ++vector) {
      std::memcpy(to + saved_place(*visited, vector), visited->piece.states[vector],
                  state_size(visited->piece));
    }
    return true;
  });
}

Status ShardState::load(const char* from) {
  if (file_ == nullptr) {
    TRIREME_RETURN_IF_ERROR(load_arena(state_, bytes_, from));
    return load_arena(masters_, masters_.bytes(), from + bytes_);
  }
  const Status written = file_->sweep(Offload::Access::write, [&](Offload::Visited* visited) {
    for (std::uint32_t vector = 0; vector < settings_.states; ++vector) {
      std::memcpy(visited->piece.states[vector], from + saved_place(*visited, vector),
                  state_size(visited->piece));
    }
    visited->changed = true;
    return true;
  });
  count_file();
  return written;
}

// All ranks have the same pieces where all of them keep all state, and visit them in the same
// order.
Status ShardState::hash(std::vector<std::uint64_t>* out) const {
  out->assign(shard_.registry().parameters().size(), 0);
  const auto add = [&](const Piece& piece, const void* data) {
    std::uint64_t& hash = (*out)[piece.parameter];
    hash = kernels::hash(data, state_size(piece), hash + 1);
  };
  if (file_ != nullptr) {
    return file_->sweep(Offload::Access::read, [&](Offload::Visited* visited) {
      for (std::uint32_t vector = 0; vector < settings_.states; ++vector) {
        add(visited->piece, visited->piece.states[vector]);
      }
      return true;
    });
  }
  std::vector<char> copy;  // of what lies on a device
  for (std::uint64_t number = 0; number < pieces_.size(); ++number) {
    for (std::uint32_t vector = 0; vector < all_vectors(); ++vector) {
      if (!keeps(number, vector)) continue;
      const void* data = vector_at(number, vector, 0);
      if (DeviceShard* const there = shard_.on_device(); there != nullptr) {
        copy.resize(state_size(pieces_[number]));
        TRIREME_RETURN_IF_ERROR(
            there->report(there->device().read(copy.data(), data, copy.size())));
        data = copy.data();
      }
      add(pieces_[number], data);
    }
  }
  return Status::success();
}

}  // namespace trireme::strategies
