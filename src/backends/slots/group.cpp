#include "backends/slots/group.hpp"

#include <utility>

namespace trireme::local {

void Group::attach(const Segment& segment, std::shared_ptr<void> owner) {
  take(segment, std::move(owner));
  presence_.attach();
  failure_.attach(*this->segment());
  bells_.wake_everybody();
}

std::atomic<std::uint32_t>* Group::begin_rest(std::uint32_t* out_seen) const noexcept {
  Bell& bell = bells_.message_bell();
  bell.sleepers.fetch_add(1, std::memory_order_seq_cst);
  *out_seen = bell.events.load(std::memory_order_seq_cst);
  return &bell.sleepers;
}

void Group::wait_activity(std::uint32_t seen, Deadline deadline) const noexcept {
  while (bells_.activity() == seen && !failure_.happened() && !deadline.passed()) {
    bells_.sleep(bells_.message_bell(), seen, deadline);
  }
}

}  // namespace trireme::local
