#include "offload/item_file.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "kernels/hash.hpp"
#include "platform/failpoint.hpp"
#include "platform/file.hpp"

namespace trireme::strategies {

void ItemFile::Free::operator()(void* memory) const { ::operator delete(memory); }

ItemFile::ItemFile(const Link& link, const std::string& directory)
    : file_(link, directory, "the activations") {}

Status ItemFile::open(const std::vector<Place>& items, std::uint64_t bytes,
                      std::shared_ptr<const void> memory) {
  shared_->memory = std::move(memory);
  shared_->items = std::vector<Item>(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) at(i).place = items[i];
  return file_.open(std::max<std::uint64_t>(bytes, UnnamedFile::kAlignment), shared_);
}

void ItemFile::start(Item* item, bool write) {
  item->use = write ? Item::Use::writing : Item::Use::reading;
  file_.start(&item->transfer, write, item->data, item->place.offset, item->place.bytes);
}

// A micro-batch that ended early leaves transfers.
Status ItemFile::begin() {
  for (Item& item : shared_->items) {
    const bool writes = item.use == Item::Use::writing;
    if (writes || item.use == Item::Use::reading) {
      TRIREME_RETURN_IF_ERROR(file_.wait(item.transfer));
      if (writes && item.transfer.error_number != 0) file_.note_failed(item.transfer);
    }
    item.use = Item::Use::idle;
  }
  return Status::success();
}

void ItemFile::store(std::uint64_t number, char* data) {
  Item& item = at(number);
  if (item.place.bytes == 0) return;
  item.data = data;
  if (item.kept != nullptr) {
    std::memcpy(item.kept.get(), data, item.place.bytes);
    return;
  }
  item.hash = kernels::hash(data, item.place.bytes, number);
  start(&item, true);
}

Status ItemFile::settle(std::uint64_t number, Trouble* trouble) {
  Item& item = at(number);
  if (item.use != Item::Use::writing) return Status::success();
  TRIREME_RETURN_IF_ERROR(file_.wait(item.transfer));
  item.use = Item::Use::idle;
  if (item.transfer.error_number == 0) return Status::success();
  file_.note_failed(item.transfer);
  if (!keep(&item)) {
    *trouble = {item.transfer.error_number, /*corrupt=*/false, /*writing=*/true, number};
  }
  return Status::success();
}

// An item that could not be written is still where it was. It moves to memory of its own, if there
// is any.
bool ItemFile::keep(Item* item) {
  const std::uint64_t bytes = item->place.bytes;
  if (failed_with(failpoint("trainer", "keep")) > 0) return false;
  item->kept.reset(static_cast<char*>(::operator new(bytes, std::nothrow)));
  if (item->kept == nullptr) return false;
  kept_bytes_ += bytes;
  std::memcpy(item->kept.get(), item->data, bytes);
  file_.report_kept(item->transfer);
  return true;
}

void ItemFile::fetch(std::uint64_t number, char* data) {
  Item& item = at(number);
  if (item.place.bytes == 0) return;
  item.data = data;
  if (item.kept == nullptr) return start(&item, false);
  std::memcpy(data, item.kept.get(), item.place.bytes);
}

// An item that cannot be read, or differs from the written one, is read once more: a cable may be
// the cause.
Status ItemFile::need(std::uint64_t number, Trouble* trouble) {
  Item& item = at(number);
  if (item.use != Item::Use::reading) return Status::success();
  for (int attempt = 1;; ++attempt) {
    TRIREME_RETURN_IF_ERROR(file_.wait(item.transfer));
    const int error_number = item.transfer.error_number;
    const bool same =
        error_number == 0 && kernels::hash(item.data, item.place.bytes, number) == item.hash;
    if (!same && attempt == 1) {
      start(&item, false);
      continue;
    }
    item.use = Item::Use::idle;
    if (!same) *trouble = {error_number, error_number == 0, /*writing=*/false, number};
    return Status::success();
  }
}

}  // namespace trireme::strategies
