#include "optimizer/rules/state_file.hpp"

#include <algorithm>
#include <cstring>
#include <system_error>
#include <utility>

#include "kernels/hash.hpp"
#include "platform/file.hpp"
#include "platform/mix.hpp"
#include "platform/names.hpp"

namespace trireme::strategies {

using optimizers::Piece;
using sharding::Bucket;
using sharding::Segment;

namespace {

constexpr std::uint64_t kPage = UnnamedFile::kAlignment;
constexpr std::uint64_t kLine = 64;  // vectors begin at multiples of it
// One is updated, some are read before it and some are written behind it.
constexpr std::uint64_t kSlots = optimizers::kOffloadSlots;
// With fewer blocks the rank would wait for the disk.
constexpr std::uint64_t kWantedBlocks = 32;
constexpr std::uint64_t kLeastBlock = 256u << 10;
// The state that is checked, updated and summed while it is in the second-level cache, beside at
// most as many gradients and parameters.
constexpr std::uint64_t kTileBytes = 128u << 10;

std::uint64_t round_up(std::uint64_t bytes, std::uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

OffloadPlan::OffloadPlan(const std::vector<Size>& pieces, const optimizers::Settings& settings) {
  const std::uint64_t states = settings.states;
  std::uint64_t all = 0;
  for (const Size& piece : pieces) all += states * piece.count * piece.element;
  const std::uint64_t most = settings.offload_buffer_bytes / kSlots / kPage * kPage;
  const std::uint64_t capacity =
      std::min(most, std::max(kLeastBlock, round_up(all / kWantedBlocks, kPage)));
  Block open;
  const auto close = [&] {
    if (open.bytes == 0) return;
    open.end = stretches.size();
    open.bytes = round_up(open.bytes, kPage);
    blocks.push_back(open);
    open = {};
    open.begin = stretches.size();
  };
  for (std::uint64_t number = 0; number < pieces.size(); ++number) {
    const Size& piece = pieces[number];
    if (piece.apart) close();
    for (std::uint64_t first = 0; first < piece.count;) {
      // Each vector takes whole lines.
      const std::uint64_t lines = (capacity - open.bytes) / states / kLine;
      const std::uint64_t fits = lines * kLine / piece.element;
      if (fits == 0) {
        close();
        continue;
      }
      Stretch stretch;
      stretch.piece = number;
      stretch.first = first;
      stretch.count = std::min(fits, piece.count - first);
      stretch.offset = open.bytes;
      stretch.stride = round_up(stretch.count * piece.element, kLine);
      stretches.push_back(stretch);
      open.bytes += states * stretch.stride;
      first += stretch.count;
    }
  }
  close();
  std::uint64_t passed = 0;
  for (Block& block : blocks) {
    passed += block.bytes;
    // Spreads the blocks in memory evenly among the others, because their updates give the disk
    // time.
    block.in_file =
        static_cast<double>(file_bytes) < settings.offload_ratio * static_cast<double>(passed);
    std::uint64_t& place = block.in_file ? file_bytes : resident_bytes;
    block.offset = place;
    place += block.bytes;
    if (!block.in_file) continue;
    slots = std::min(slots + 1, kSlots);
    slot_bytes = std::max(slot_bytes, block.bytes);
  }
}

std::vector<OffloadPlan::Size> piece_sizes(const sharding::Layout& layout, std::uint32_t rank) {
  std::vector<OffloadPlan::Size> sizes;
  for (const Bucket& bucket : layout.buckets) {
    bool apart = layout.spread.update_in_backward;
    for (const Segment& segment : bucket.segments) {
      if (!layout.spread.whole_state() && segment.owner != rank) continue;
      sizes.push_back({segment.count, dtype_size(bucket.dtype), std::exchange(apart, false)});
    }
  }
  return sizes;
}

Offload::Offload(const Link& link, const std::vector<Piece>& pieces,
                 const std::vector<OffloadPlan::Size>& sizes, const optimizers::Settings& settings)
    : link_(link),
      pieces_(pieces),
      states_(settings.states),
      whole_stretches_(settings.update != nullptr),
      tile_bytes_(std::max(kLine, kTileBytes / settings.states / kLine * kLine)),
      plan_(sizes, settings),
      file_(link, settings.offload_path, "the state") {}

Offload::~Offload() = default;

Status Offload::open(const Link& link, const std::shared_ptr<AllocatedBytes>& counter,
                     const std::vector<Piece>& pieces, const std::vector<OffloadPlan::Size>& sizes,
                     const optimizers::Settings& settings, std::unique_ptr<Offload>* out) {
  std::unique_ptr<Offload> made(new Offload(link, pieces, sizes, settings));
  Offload& offload = *made;
  const OffloadPlan& plan = offload.plan_;
  offload.counter_ = counter;
  offload.buffers_ = std::make_shared<Buffers>();
  TRIREME_RETURN_IF_ERROR(offload.resident_.allocate(
      *link.communicator, counter, MemoryKind::optimizer_state, plan.resident_bytes));
  TRIREME_RETURN_IF_ERROR(offload.buffers_->arena.allocate(
      *link.communicator, counter, MemoryKind::working, plan.buffer_bytes()));
  TRIREME_RETURN_IF_ERROR(offload.file_.open(std::max(plan.file_bytes, kPage), offload.buffers_));
  offload.file_bytes_ = plan.file_bytes;
  offload.resident_bytes_ = plan.resident_bytes;
  offload.buffers_bytes_ = plan.buffer_bytes();
  offload.buffers_->slots.resize(plan.slots);
  for (std::uint64_t i = 0; i < plan.slots; ++i) {
    offload.buffers_->slots[i].data = offload.buffers_->arena.data() + i * plan.slot_bytes;
  }
  offload.blocks_.resize(plan.blocks.size());
  std::uint64_t most_tiles = 0;
  for (std::size_t i = 0; i < plan.blocks.size(); ++i) {
    Block& block = offload.blocks_[i];
    block.in_file = plan.blocks[i].in_file;
    if (!block.in_file) {
      block.data = offload.resident_.data() + plan.blocks[i].offset;
      continue;
    }
    std::uint64_t tiles = 0;
    for (std::uint64_t k = plan.blocks[i].begin; k < plan.blocks[i].end; ++k) {
      tiles += offload.tiles_of(plan.stretches[k]);
    }
    block.hashes.resize(tiles);
    most_tiles = std::max(most_tiles, tiles);
  }
  offload.hashes_before_.reserve(most_tiles);  // steps allocate nothing
  offload.files_.reserve(plan.blocks.size());
  *out = std::move(made);
  return Status::success();
}

// ---- one transfer ----

void Offload::start(Slot* slot, bool write) {
  const OffloadPlan::Block& block = plan_.blocks[slot->block];
  slot->use = write ? Slot::Use::writing : Slot::Use::reading;
  slot->noted = false;
  file_.start(&slot->transfer, write, slot->data, block.offset, block.bytes);
}

// Slots that become free meanwhile may be loaded.
Status Offload::wait(Slot* slot, bool loads_ahead) {
  return file_.wait(slot->transfer,
                    [&] { return loads_ahead ? load_ahead(false) : Status::success(); });
}

void Offload::begin_load(Slot* slot, std::uint64_t block) {
  slot->block = block;
  if (!blocks_[block].fresh) return start(slot, false);
  clear(slot, block);
}

// Fills the slot with zeros, as if they had been read.
void Offload::clear(Slot* slot, std::uint64_t number) {
  slot->block = number;
  slot->use = Slot::Use::loaded;
  std::memset(slot->data, 0, plan_.blocks[number].bytes);
  Tile tile;
  for (std::uint64_t i = plan_.blocks[number].begin; i < plan_.blocks[number].end; ++i) {
    tile.stretch = &plan_.stretches[i];
    for (std::uint64_t k = tiles_of(*tile.stretch), begin = 0; k > 0; --k, begin = tile.end) {
      tile.begin = begin;
      tile.end = std::min(begin + tile_bytes_, tile.stretch->stride);
      blocks_[number].hashes[tile.number] = hash_of(tile, number, slot->data);
      ++tile.number;
    }
  }
}

// A block that cannot be read is read once more: a cable may be the cause. So is a block that
// differs from the written one, as its visit finds.
Status Offload::end_load(Slot* slot) {
  if (slot->use == Slot::Use::loaded) return Status::success();
  for (int attempt = 1;; ++attempt) {
    TRIREME_RETURN_IF_ERROR(wait(slot, slot != &buffers_->again));
    if (slot->transfer.error_number == 0) {
      slot->use = Slot::Use::loaded;
      return Status::success();
    }
    if (attempt == 1) {
      start(slot, false);
      continue;
    }
    slot->use = Slot::Use::free;
    return file_.read_failure(slot->transfer);
  }
}

Status Offload::end_write(Slot* slot) {
  if (slot->use != Slot::Use::writing) return Status::success();
  TRIREME_RETURN_IF_ERROR(wait(slot, false));
  if (slot->transfer.error_number != 0) {
    if (!slot->noted) file_.note_failed(slot->transfer);
    slot->noted = true;
    TRIREME_RETURN_IF_ERROR(keep_in_memory(slot->block, slot));
  }
  slot->use = Slot::Use::free;
  return Status::success();
}

// The slot still holds the block: no data is lost, and it stays. Without memory for it, it stays in
// its slot until the next try.
Status Offload::keep_in_memory(std::uint64_t number, Slot* slot) {
  Block& block = blocks_[number];
  const std::uint64_t bytes = plan_.blocks[number].bytes;
  TRIREME_RETURN_IF_ERROR(
      block.own.allocate(*link_.communicator, counter_, MemoryKind::optimizer_state, bytes));
  file_.report_kept(slot->transfer);
  block.data = block.own.data();
  std::memcpy(block.data, slot->data, bytes);
  block.in_file = false;
  file_bytes_ -= bytes;
  resident_bytes_ += bytes;
  return Status::success();
}

// Waits for all transfers under way, and drops the blocks that were read; no data to be written is
// lost.
Status Offload::settle() {
  torn_ = true;
  const auto end = [this](Slot* slot) -> Status {
    if (slot->use == Slot::Use::reading) TRIREME_RETURN_IF_ERROR(wait(slot, false));
    TRIREME_RETURN_IF_ERROR(end_write(slot));
    slot->use = Slot::Use::free;
    return Status::success();
  };
  for (Slot& slot : buffers_->slots) TRIREME_RETURN_IF_ERROR(end(&slot));
  TRIREME_RETURN_IF_ERROR(end(&buffers_->again));
  buffers_->spare.reset();
  ahead_ = 0;
  next_ = 0;
  files_.clear();
  torn_ = false;
  return Status::success();
}

// ---- sweeps ----

void Offload::read_ahead() {
  if (torn_ || !files_.empty()) return;  // the sweep settles first, or has begun
  for (std::uint64_t i = 0; i < blocks_.size(); ++i) {
    if (blocks_[i].in_file) files_.push_back(i);
  }
  for (Slot& slot : buffers_->slots) {
    if (ahead_ == files_.size()) return;
    begin_load(&slot, files_[ahead_++]);
  }
}

// Begins to load up to a round of slots from file block next_ on, as far as slots are free; waits
// for the slot of next_ itself if it may.
Status Offload::load_ahead(bool may_wait) {
  std::vector<Slot>& slots = buffers_->slots;
  while (ahead_ < files_.size() && ahead_ < next_ + slots.size()) {
    Slot& slot = slots[ahead_ % slots.size()];
    if (slot.use == Slot::Use::writing) {
      if (!file_.done(slot.transfer) && !(may_wait && ahead_ == next_)) break;
      TRIREME_RETURN_IF_ERROR(end_write(&slot));
    }
    begin_load(&slot, files_[ahead_++]);
  }
  return Status::success();
}

// ---- one block ----

std::uint64_t Offload::tiles_of(const OffloadPlan::Stretch& stretch) const {
  return (stretch.stride + tile_bytes_ - 1) / tile_bytes_;
}

std::uint64_t Offload::hash_of(const Tile& tile, std::uint64_t block, const char* data) const {
  std::uint64_t hash = mix(block, tile.number);
  for (std::uint32_t vector = 0; vector < states_; ++vector) {
    const std::uint64_t begin = tile.stretch->offset + vector * tile.stretch->stride + tile.begin;
    hash = kernels::hash(data + begin, tile.end - tile.begin, hash);
  }
  return hash;
}

Status Offload::check(Visiting* at, const Tile& tile) {
  const std::uint64_t wanted = blocks_[at->block].hashes[tile.number];
  if (hash_of(tile, at->block, at->data) == wanted) return Status::success();
  if (at->read_again) return file_.corrupt(plan_.blocks[at->block].offset);
  TRIREME_RETURN_IF_ERROR(read_again(at, tile));
  return hash_of(tile, at->block, at->data) == wanted
             ? Status::success()
             : file_.corrupt(plan_.blocks[at->block].offset);
}

// The elements before `from` may have been updated, and stay.
Status Offload::read_again(Visiting* at, const Tile& from) {
  at->read_again = true;
  const OffloadPlan::Block& block = plan_.blocks[at->block];
  Buffers& buffers = *buffers_;
  TRIREME_RETURN_IF_ERROR(
      buffers.spare.allocate(*link_.communicator, counter_, MemoryKind::working, block.bytes));
  buffers.again.block = at->block;
  buffers.again.data = buffers.spare.data();
  start(&buffers.again, false);
  const Status loaded = end_load(&buffers.again);
  if (!loaded.ok()) {
    // A disk that has not answered may still write there.
    if (buffers.again.use == Slot::Use::free) buffers.spare.reset();
    return loaded;
  }
  buffers.again.use = Slot::Use::free;
  const OffloadPlan::Stretch* const last = &plan_.stretches[block.end - 1];
  for (const OffloadPlan::Stretch* stretch = from.stretch; stretch <= last; ++stretch) {
    const std::uint64_t begin = stretch == from.stretch ? from.begin : 0;
    for (std::uint32_t vector = 0; vector < states_; ++vector) {
      const std::uint64_t place = stretch->offset + vector * stretch->stride + begin;
      std::memcpy(at->data + place, buffers.again.data + place, stretch->stride - begin);
    }
  }
  buffers.spare.reset();
  return Status::success();
}

// Visits the elements of `tile`, which may span several stretches.
Status Offload::visit_elements(Visiting* at, const Tile& tile, const Visit& visit, bool* go_on) {
  const OffloadPlan::Stretch& stretch = *tile.stretch;
  const auto each_tile = [&](const auto& act) -> Status {
    Tile one = tile;
    for (; one.begin < tile.end; one.begin = one.end, ++one.number) {
      one.end = std::min(one.begin + tile_bytes_, tile.end);
      TRIREME_RETURN_IF_ERROR(act(one));
    }
    return Status::success();
  };
  if (at->checks) {
    TRIREME_RETURN_IF_ERROR(each_tile([&](const Tile& one) { return check(at, one); }));
  }
  const Piece& whole = pieces_[stretch.piece];
  const std::uint64_t size = dtype_size(gradient_dtype(whole.dtype));
  const std::uint64_t first = tile.begin / size;
  Visited visited;
  visited.number = stretch.piece;
  visited.skipped = stretch.first + first;
  visited.piece =
      optimizers::part_of(whole, visited.skipped, std::min(tile.end / size, stretch.count) - first);
  for (std::uint32_t vector = 0; vector < states_; ++vector) {
    visited.piece.states[vector] = at->data + stretch.offset + vector * stretch.stride + tile.begin;
  }
  *go_on = visit(&visited);
  if (!visited.changed) return Status::success();
  at->changed = true;
  if (at->slot == nullptr) return Status::success();
  return each_tile([&](const Tile& one) {
    blocks_[at->block].hashes[one.number] = hash_of(one, at->block, at->data);
    return Status::success();
  });
}

Status Offload::visit_block(Visiting* at, const Visit& visit, bool* go_on) {
  const OffloadPlan::Block& block = plan_.blocks[at->block];
  Tile tile;
  for (std::uint64_t i = block.begin; i < block.end; ++i) {
    tile.stretch = &plan_.stretches[i];
    const std::uint64_t stride = tile.stretch->stride;
    const std::uint64_t at_once = whole_stretches_ ? stride : tile_bytes_;
    for (std::uint64_t begin = 0; begin < stride; begin = tile.end) {
      tile.begin = begin;
      tile.end = std::min(begin + at_once, stride);
      TRIREME_RETURN_IF_ERROR(visit_elements(at, tile, visit, go_on));
      if (!*go_on) return Status::success();
      tile.number += (tile.end - tile.begin + tile_bytes_ - 1) / tile_bytes_;
      TRIREME_RETURN_IF_ERROR(load_ahead(false));
    }
  }
  return Status::success();
}

// ---- all of them ----

Status Offload::sweep(Access access, const Visit& visit) {
  if (access != Access::update || torn_) TRIREME_RETURN_IF_ERROR(settle());
  if (access == Access::update) read_ahead();
  return sweep_blocks(access, 0, blocks_.size(), visit);
}

std::uint64_t Offload::block_of(std::uint64_t stretch) const {
  const auto found =
      std::partition_point(plan_.blocks.begin(), plan_.blocks.end(),
                           [&](const OffloadPlan::Block& block) { return block.end <= stretch; });
  return static_cast<std::uint64_t>(found - plan_.blocks.begin());
}

Status Offload::sweep_pieces(Access access, std::uint64_t first, std::uint64_t end,
                             const Visit& visit) {
  TRIREME_RETURN_IF_ERROR(settle());
  const auto stretch_of = [&](std::uint64_t piece) {
    const auto found = std::partition_point(
        plan_.stretches.begin(), plan_.stretches.end(),
        [&](const OffloadPlan::Stretch& stretch) { return stretch.piece < piece; });
    return static_cast<std::uint64_t>(found - plan_.stretches.begin());
  };
  const std::uint64_t begin_stretch = stretch_of(first), end_stretch = stretch_of(end);
  if (begin_stretch == end_stretch) return Status::success();
  return sweep_blocks(access, block_of(begin_stretch), block_of(end_stretch - 1) + 1,
                      [&](Visited* visited) {
                        return visited->number < first || visited->number >= end || visit(visited);
                      });
}

Status Offload::sweep_piece(Access access, std::uint64_t piece, sharding::Range range,
                            const Visit& visit) {
  TRIREME_RETURN_IF_ERROR(settle());
  const auto& stretches = plan_.stretches;
  const auto first = static_cast<std::uint64_t>(
      std::partition_point(stretches.begin(), stretches.end(),
                           [&](const OffloadPlan::Stretch& stretch) {
                             return stretch.piece < piece ||
                                    (stretch.piece == piece &&
                                     stretch.first + stretch.count <= range.first);
                           }) -
      stretches.begin());
  std::uint64_t last = first;
  while (last < stretches.size() && stretches[last].piece == piece &&
         stretches[last].first < range.end()) {
    ++last;
  }
  if (first == last) return Status::success();
  return sweep_blocks(access, block_of(first), block_of(last - 1) + 1,
                      [&](Visited* visited) { return visited->number != piece || visit(visited); });
}

Status Offload::sweep_blocks(Access access, std::uint64_t begin, std::uint64_t end,
                             const Visit& visit) {
  torn_ = true;  // until it is settled; every other way out leaves it so
  if (files_.empty()) {
    for (std::uint64_t i = begin; i < end; ++i) {
      if (blocks_[i].in_file) files_.push_back(i);
    }
  }
  if (access == Access::write) ahead_ = files_.size();  // nothing is loaded
  bool go_on = true;
  for (std::uint64_t number = begin; go_on && number < end; ++number) {
    Block& block = blocks_[number];
    Visiting at;
    at.block = number;
    at.data = block.data;
    if (!block.in_file) {
      TRIREME_RETURN_IF_ERROR(visit_block(&at, visit, &go_on));
      continue;
    }
    hashes_before_ = block.hashes;
    const Status visited = visit_in_slot(access, &at, visit, &go_on);
    if (!visited.ok() || !at.changed) {
      // It is not written, and its hashes are those of the file.
      std::copy(hashes_before_.begin(), hashes_before_.end(), block.hashes.begin());
      TRIREME_RETURN_IF_ERROR(visited);
    }
    Slot& slot = *at.slot;
    ++next_;
    slot.use = Slot::Use::free;
    if (at.changed) {
      block.fresh = false;
      start(&slot, true);
    }
    TRIREME_RETURN_IF_ERROR(load_ahead(false));
  }
  return settle();
}

Status Offload::visit_in_slot(Access access, Visiting* at, const Visit& visit, bool* go_on) {
  Slot& slot = buffers_->slots[next_ % buffers_->slots.size()];
  if (access != Access::write) {
    TRIREME_RETURN_IF_ERROR(load_ahead(true));
    TRIREME_RETURN_IF_ERROR(end_load(&slot));
  } else {
    TRIREME_RETURN_IF_ERROR(end_write(&slot));
    clear(&slot, at->block);
  }
  at->data = slot.data;
  at->slot = &slot;
  at->checks = access != Access::write && !blocks_[at->block].fresh;
  return visit_block(at, visit, go_on);
}

void Offload::info(trireme_offload_info* out) const {
  file_.info(out);
  out->file_bytes = file_bytes_;
  out->resident_bytes = resident_bytes_;
  out->buffer_bytes = buffers_bytes_;
  out->block_bytes = plan_.slot_bytes;
}

}  // namespace trireme::strategies
