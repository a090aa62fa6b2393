#include "offload/activation_window.hpp"

#include "platform/file.hpp"

namespace trireme::strategies {

static_assert(kWindowAlignment == UnnamedFile::kAlignment);

ActivationWindow::ActivationWindow(const Link& link, const WindowPlan& plan,
                                   const std::string& directory)
    : plan_(plan), file_(link, directory) {}

Status ActivationWindow::open(char* memory, const std::shared_ptr<const void>& owner) {
  memory_ = memory;
  holds_.assign(plan_.slots, plan_.items.size());
  std::vector<ItemFile::Place> places;
  for (const WindowPlan::Item& item : plan_.items) places.push_back({item.bytes, item.offset});
  return file_.open(places, plan_.file_bytes, owner);
}

Status ActivationWindow::begin() {
  holds_.assign(plan_.slots, plan_.items.size());
  return file_.begin();
}

Status ActivationWindow::make_room(std::uint64_t item, Trouble* trouble) {
  std::uint64_t& slot = holds_[item % plan_.slots];
  if (slot < plan_.items.size()) TRIREME_RETURN_IF_ERROR(file_.settle(slot, trouble));
  slot = item;
  return Status::success();
}

void ActivationWindow::store(std::uint64_t item) {
  if (plan_.in_file(item)) file_.store(item, data_of(item));
}

void ActivationWindow::drop(std::uint64_t item) {
  if (item < plan_.slots) return;
  const std::uint64_t before = item - plan_.slots;
  holds_[item % plan_.slots] = before;
  file_.fetch(before, data_of(before));
}

void ActivationWindow::info(trireme_offload_info* out) const {
  file_.info(out);
  out->file_bytes = plan_.file_bytes - file_.kept_bytes();
  out->resident_bytes = file_.kept_bytes();
  out->buffer_bytes = plan_.bytes;
  out->block_bytes = plan_.largest_item;
}

}  // namespace trireme::strategies
