#include "offload/activation_window.hpp"

#include <algorithm>
#include <cstring>
#include <new>

#include "kernels/hash.hpp"
#include "platform/failpoint.hpp"
#include "platform/file.hpp"

namespace trireme::strategies {

static_assert(kWindowAlignment == UnnamedFile::kAlignment);

void ActivationWindow::Free::operator()(void* memory) const { ::operator delete(memory); }

ActivationWindow::ActivationWindow(const Link& link, const WindowPlan& plan,
                                   const std::string& directory)
    : plan_(plan), items_(plan.items.size()), file_(link, directory, "the activations") {}

Status ActivationWindow::open(char* memory, const std::shared_ptr<const void>& owner) {
  memory_ = memory;
  slots_->memory = owner;
  slots_->all.resize(plan_.slots);
  return file_.open(std::max(plan_.file_bytes, kWindowAlignment), slots_);
}

std::uint64_t ActivationWindow::hash_of(std::uint64_t item) const {
  return kernels::hash(data_of(item), plan_.items[item].bytes, item);
}

void ActivationWindow::start(Slot* slot, bool write) {
  const WindowPlan::Item& item = plan_.items[slot->item];
  slot->use = write ? Slot::Use::writing : Slot::Use::reading;
  file_.start(&slot->transfer, write, data_of(slot->item), item.offset, item.bytes);
}

// A micro-batch that ended early leaves items in slots.
Status ActivationWindow::begin() {
  for (Slot& slot : slots_->all) {
    if (slot.use == Slot::Use::reading || slot.use == Slot::Use::writing) {
      TRIREME_RETURN_IF_ERROR(file_.wait(slot.transfer));
      const bool written = slot.use == Slot::Use::writing;
      if (written && slot.transfer.error_number != 0) file_.note_failed(slot.transfer);
    }
    slot.use = Slot::Use::free;
  }
  return Status::success();
}

Status ActivationWindow::make_room(std::uint64_t item, Trouble* trouble) {
  Slot& slot = slot_of(item);
  if (slot.use == Slot::Use::writing) {
    TRIREME_RETURN_IF_ERROR(file_.wait(slot.transfer));
    if (slot.transfer.error_number != 0) {
      file_.note_failed(slot.transfer);
      if (!keep(slot.item, slot.transfer)) trouble->error_number = slot.transfer.error_number;
    }
  }
  slot.item = item;
  slot.use = Slot::Use::held;
  return Status::success();
}

// An item that could not be written is still in its slot. It moves to memory of its own, if there
// is any.
bool ActivationWindow::keep(std::uint64_t number, const Transfer& transfer) {
  const std::uint64_t bytes = plan_.items[number].bytes;
  Item& item = items_[number];
  if (failed_with(failpoint("trainer", "keep")) > 0) return false;
  item.kept.reset(static_cast<char*>(::operator new(bytes, std::nothrow)));
  if (item.kept == nullptr) return false;
  kept_bytes_ += bytes;
  std::memcpy(item.kept.get(), data_of(number), bytes);
  file_.report_kept(transfer);
  return true;
}

void ActivationWindow::store(std::uint64_t number) {
  const std::uint64_t bytes = plan_.items[number].bytes;
  if (!plan_.in_file(number) || bytes == 0) return;
  Item& item = items_[number];
  if (item.kept != nullptr) {
    std::memcpy(item.kept.get(), data_of(number), bytes);
    return;
  }
  item.hash = hash_of(number);
  start(&slot_of(number), true);
}

void ActivationWindow::drop(std::uint64_t number) {
  Slot& slot = slot_of(number);
  slot.use = Slot::Use::free;
  if (number < plan_.slots) return;
  slot.item = number - plan_.slots;
  const Item& item = items_[slot.item];
  const std::uint64_t bytes = plan_.items[slot.item].bytes;
  if (bytes > 0 && item.kept == nullptr) return start(&slot, false);
  if (bytes > 0) std::memcpy(data_of(slot.item), item.kept.get(), bytes);
  slot.use = Slot::Use::held;
}

// An item that cannot be read, or differs from the written one, is read once more: a cable may be
// the cause.
Status ActivationWindow::need(std::uint64_t number, Trouble* trouble) {
  Slot& slot = slot_of(number);
  if (slot.use != Slot::Use::reading) return Status::success();
  for (int attempt = 1;; ++attempt) {
    TRIREME_RETURN_IF_ERROR(file_.wait(slot.transfer));
    const int error_number = slot.transfer.error_number;
    if (error_number == 0 && hash_of(number) == items_[number].hash) break;
    if (attempt == 1) {
      start(&slot, false);
      continue;
    }
    trouble->error_number = error_number;
    trouble->corrupt = error_number == 0;
    slot.use = Slot::Use::free;
    return Status::success();
  }
  slot.use = Slot::Use::held;
  return Status::success();
}

void ActivationWindow::info(trireme_offload_info* out) const {
  file_.info(out);
  out->file_bytes = plan_.file_bytes - kept_bytes_;
  out->resident_bytes = kept_bytes_;
  out->buffer_bytes = plan_.bytes;
  out->block_bytes = plan_.largest_item;
}

}  // namespace trireme::strategies
