#include "offload/parameter_file.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "kernels/hash.hpp"
#include "kernels/reduce.hpp"
#include "platform/file.hpp"
#include "platform/names.hpp"

namespace trireme::strategies {

using sharding::FilePlan;
using sharding::kNone;
using sharding::Range;

static_assert(FilePlan::kPage == UnnamedFile::kAlignment);

ParameterFile::ParameterFile(const Link& link, const sharding::Layout& layout,
                             const std::string& directory)
    : link_(link),
      layout_(layout),
      plan_(layout, link.rank()),
      file_(link, directory, "the parameters") {}

Status ParameterFile::open(const std::shared_ptr<AllocatedBytes>& counter) {
  counter_ = counter;
  Communicator& ranks = *link_.communicator;
  TRIREME_RETURN_IF_ERROR(
      resident_.allocate(ranks, counter, MemoryKind::parameters, plan_.resident_bytes));
  TRIREME_RETURN_IF_ERROR(
      buffers_->arena.allocate(ranks, counter, MemoryKind::working, plan_.buffer_bytes()));
  TRIREME_RETURN_IF_ERROR(file_.open(std::max(plan_.file_bytes, FilePlan::kPage), buffers_));
  buffers_->slots.resize(plan_.slots);
  for (std::uint64_t i = 0; i < plan_.slots; ++i) {
    buffers_->slots[i].data = buffers_->arena.data() + i * plan_.slot_bytes;
  }
  blocks_.resize(plan_.blocks.size());
  expected_.reserve(blocks_.size());
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    blocks_[i].in_file = plan_.blocks[i].in_file;
    if (!blocks_[i].in_file) blocks_[i].data = resident_.data() + plan_.blocks[i].offset;
  }
  return Status::success();
}

// ---- what comes next ----

Status ParameterFile::expect(const std::vector<std::uint64_t>& groups) {
  expected_.clear();
  for (const std::uint64_t group : groups) {
    for (std::uint64_t i = plan_.first_block[group]; i < plan_.first_block[group + 1]; ++i) {
      if (blocks_[i].in_file) expected_.push_back(i);
    }
  }
  next_ = 0;
  return read_ahead();
}

Status ParameterFile::expect_all() {
  std::vector<std::uint64_t> groups(layout_.groups.size());
  std::iota(groups.begin(), groups.end(), std::uint64_t{0});
  return expect(groups);
}

Status ParameterFile::expect_updates() {
  expected_.clear();
  for (const sharding::Bucket& bucket : layout_.buckets) {
    for (const std::uint64_t number : bucket.groups) {
      const sharding::Group& group = layout_.groups[number];
      const Range owned = {group.owned.first - group.held.first, group.owned.count};
      for (std::uint64_t i = plan_.first_block[number]; i < plan_.first_block[number + 1]; ++i) {
        if (!blocks_[i].in_file || intersect(owned, plan_.blocks[i].range).count == 0) continue;
        expected_.push_back(i);
      }
    }
  }
  next_ = 0;
  return read_ahead();
}

std::uint64_t ParameterFile::end_of_window() const {
  return std::min<std::uint64_t>(next_ + plan_.slots, expected_.size());
}

// The place of a block among those that may be read ahead now, or the end of these.
std::uint64_t ParameterFile::place_of(std::uint64_t block) const {
  std::uint64_t at = next_;
  while (at < end_of_window() && expected_[at] != block) ++at;
  return at;
}

bool ParameterFile::is_expected(std::uint64_t block) const {
  return place_of(block) < end_of_window();
}

// The block is opened now. An unexpected block leaves the expected ones as they are.
void ParameterFile::pass(std::uint64_t block) {
  const std::uint64_t at = place_of(block);
  if (at < end_of_window()) next_ = at + 1;
}

// Begins to read the expected blocks, as far as there are slots for them now.
Status ParameterFile::read_ahead() {
  const std::uint64_t end = end_of_window();
  for (std::uint64_t i = next_; i < end; ++i) {
    const std::uint64_t block = expected_[i];
    if (!blocks_[block].in_file || blocks_[block].fresh || find(block) != nullptr) continue;
    Slot* slot = nullptr;
    TRIREME_RETURN_IF_ERROR(look_for_slot(&slot));
    if (slot == nullptr) break;
    if (!blocks_[block].in_file) {  // the write of its slot failed
      slot->use = Slot::Use::free;
      continue;
    }
    slot->block = block;
    start(slot, false);
  }
  return Status::success();
}

// ---- one transfer ----

ParameterFile::Slot* ParameterFile::find(std::uint64_t block) {
  for (Slot& slot : buffers_->slots) {
    if (slot.use != Slot::Use::free && slot.block == block) return &slot;
  }
  return nullptr;
}

void ParameterFile::start(Slot* slot, bool write) {
  const FilePlan::Block& block = plan_.blocks[slot->block];
  slot->use = write ? Slot::Use::writing : Slot::Use::reading;
  slot->noted = false;
  file_.start(&slot->transfer, write, slot->data, block.offset, block.room());
}

bool ParameterFile::holds_what_was_written(const Slot& slot) const {
  const std::uint64_t bytes = plan_.blocks[slot.block].bytes;
  return kernels::hash(slot.data, bytes, slot.block) == blocks_[slot.block].hash;
}

// A block that cannot be read, or differs from the written one, is read once more: a cable may be
// the cause.
Status ParameterFile::end_read(Slot* slot) {
  if (slot->use != Slot::Use::reading) return Status::success();
  for (int attempt = 1;; ++attempt) {
    TRIREME_RETURN_IF_ERROR(file_.wait(slot->transfer));
    const bool read = slot->transfer.error_number == 0;
    if (read && holds_what_was_written(*slot)) break;
    if (attempt == 1) {
      start(slot, false);
      continue;
    }
    slot->use = Slot::Use::free;
    return read ? file_.corrupt(plan_.blocks[slot->block].offset)
                : file_.read_failure(slot->transfer);
  }
  slot->use = Slot::Use::loaded;
  return Status::success();
}

// The slot still holds the written block, which need not be read while it does.
Status ParameterFile::end_write(Slot* slot) {
  if (slot->use != Slot::Use::writing) return Status::success();
  TRIREME_RETURN_IF_ERROR(file_.wait(slot->transfer));
  if (slot->transfer.error_number == 0) {
    slot->use = Slot::Use::loaded;
    return Status::success();
  }
  if (!slot->noted) file_.note_failed(slot->transfer);
  slot->noted = true;
  return keep_in_memory(slot);
}

// No data is lost: without memory for it the block stays in its slot, until the next try.
Status ParameterFile::keep_in_memory(Slot* slot) {
  Block& block = blocks_[slot->block];
  const std::uint64_t bytes = plan_.blocks[slot->block].bytes;
  TRIREME_RETURN_IF_ERROR(
      block.own.allocate(*link_.communicator, counter_, MemoryKind::parameters, bytes));
  file_.report_kept(slot->transfer);
  block.data = block.own.data();
  std::memcpy(block.data, slot->data, bytes);
  block.in_file = false;
  kept_bytes_ += block.own.bytes();
  slot->use = Slot::Use::free;
  return Status::success();
}

// A slot that is free by now, and whose block is not expected; null if there is none.
Status ParameterFile::look_for_slot(Slot** out) {
  *out = nullptr;
  for (Slot& slot : buffers_->slots) {
    if (&slot == held_) continue;
    if (slot.use == Slot::Use::writing && file_.done(slot.transfer)) {
      TRIREME_RETURN_IF_ERROR(end_write(&slot));
    }
    if (slot.use == Slot::Use::free) {
      *out = &slot;
      return Status::success();
    }
    const bool writes = slot.use == Slot::Use::writing;
    if (!writes && file_.done(slot.transfer) && !is_expected(slot.block)) *out = &slot;
  }
  return Status::success();
}

// A slot for the wanted block, even one in use: first a slot that is being written, then the one
// whose block is expected last.
Status ParameterFile::take_slot(Slot** out) {
  TRIREME_RETURN_IF_ERROR(look_for_slot(out));
  if (*out != nullptr) return Status::success();
  Slot* writing = nullptr;
  Slot* last = nullptr;
  std::uint64_t place = 0;
  for (Slot& slot : buffers_->slots) {
    if (&slot == held_) continue;
    if (slot.use == Slot::Use::writing) {
      writing = &slot;
      continue;
    }
    const std::uint64_t at = place_of(slot.block);
    if (last == nullptr || at > place) {
      place = at;
      last = &slot;
    }
  }
  if (writing != nullptr) {
    TRIREME_RETURN_IF_ERROR(end_write(writing));
    last = writing;
  }
  // The disk owns its memory until the read is over.
  if (last->use == Slot::Use::reading) TRIREME_RETURN_IF_ERROR(file_.wait(last->transfer));
  last->use = Slot::Use::free;
  *out = last;
  return Status::success();
}

// ---- windows ----

// Puts a block into a slot, unless it stays in memory.
Status ParameterFile::acquire(std::uint64_t number, Access access) {
  pass(number);
  Slot* slot = find(number);
  // The disk may order two writes of one place in either way.
  if (slot != nullptr && access != Access::read) TRIREME_RETURN_IF_ERROR(end_write(slot));
  Block& block = blocks_[number];
  if (!block.in_file) return read_ahead();
  const bool loads = access != Access::write;
  if (slot == nullptr) {
    TRIREME_RETURN_IF_ERROR(take_slot(&slot));
    slot->block = number;
    slot->use = Slot::Use::free;
    if (loads && !block.fresh) start(slot, false);
  } else if (!loads && slot->use == Slot::Use::reading) {
    // The result of this read does not matter: all values will be overwritten.
    TRIREME_RETURN_IF_ERROR(file_.wait(slot->transfer));
    slot->use = Slot::Use::free;
  }
  if (slot->use == Slot::Use::free) {
    slot->use = Slot::Use::loaded;
    std::memset(slot->data, 0, plan_.blocks[number].room());
  }
  held_ = slot;
  Status status = read_ahead();  // first, to keep the disk busy
  if (status.ok()) status = end_read(slot);
  if (status.ok()) return status;
  held_ = nullptr;
  // The slot does not hold the file's contents.
  if (!loads) slot->use = Slot::Use::free;
  return status;
}

Status ParameterFile::close_window() {
  if (open_ == kNone) return Status::success();
  const std::uint64_t number = std::exchange(open_, kNone);
  Slot* const slot = std::exchange(held_, nullptr);
  if (!std::exchange(changed_, false) || slot == nullptr) return Status::success();
  blocks_[number].fresh = false;
  blocks_[number].hash = kernels::hash(slot->data, plan_.blocks[number].bytes, number);
  start(slot, true);
  return read_ahead();
}

Status ParameterFile::open_block(std::uint64_t group, std::uint64_t index, Access access,
                                 Window* out) {
  const std::uint64_t number = plan_.first_block[group] + index;
  const bool reading = access == Access::read;
  // A block that is being written must not change meanwhile.
  const bool stays = open_ == number && (reading || changed_ || held_ == nullptr);
  if (!stays) {
    TRIREME_RETURN_IF_ERROR(close_window());
    TRIREME_RETURN_IF_ERROR(acquire(number, access));
    open_ = number;
  }
  changed_ = changed_ || !reading;
  const Block& block = blocks_[number];
  out->range = plan_.blocks[number].range;
  out->data = held_ != nullptr ? held_->data : block.data;
  out->memory = held_ != nullptr ? buffers_->arena.memory()
                : block.own      ? block.own.memory()
                                 : resident_.memory();
  return Status::success();
}

Status ParameterFile::open_window(std::uint64_t group, std::uint64_t element, Access access,
                                  Window* out) {
  const auto first = plan_.blocks.begin() + static_cast<std::ptrdiff_t>(plan_.first_block[group]);
  const auto end = plan_.blocks.begin() + static_cast<std::ptrdiff_t>(plan_.first_block[group + 1]);
  const auto found = std::partition_point(
      first, end, [&](const FilePlan::Block& block) { return block.range.end() <= element; });
  return open_block(group, static_cast<std::uint64_t>(found - first), access, out);
}

Status ParameterFile::read_part(std::uint64_t group, char* to) {
  for (std::uint64_t index = 0; index < blocks_of(group); ++index) {
    Window window;
    TRIREME_RETURN_IF_ERROR(open_block(group, index, Access::read, &window));
    const std::uint64_t size = dtype_size(layout_.groups[group].dtype);
    kernels::copy(to + window.range.first * size, window.data, window.range.count * size);
  }
  return close_window();
}

Status ParameterFile::write_part(std::uint64_t group, const char* from) {
  for (std::uint64_t index = 0; index < blocks_of(group); ++index) {
    Window window;
    TRIREME_RETURN_IF_ERROR(open_block(group, index, Access::write, &window));
    const std::uint64_t size = dtype_size(layout_.groups[group].dtype);
    kernels::copy(window.data, from + window.range.first * size, window.range.count * size);
  }
  return close_window();
}

void ParameterFile::info(trireme_offload_info* out) const {
  file_.info(out);
  std::uint64_t in_file = 0;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    if (blocks_[i].in_file) in_file += plan_.blocks[i].room();
  }
  out->file_bytes = in_file;
  out->resident_bytes = plan_.resident_bytes + kept_bytes_;
  out->buffer_bytes = plan_.buffer_bytes();
  out->block_bytes = plan_.slot_bytes;
}

}  // namespace trireme::strategies
