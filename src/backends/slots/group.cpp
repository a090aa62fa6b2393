#include "backends/slots/group.hpp"

#include <utility>

namespace trireme::local {

void Group::attach(const Segment& segment, std::shared_ptr<void> owner) {
  take(segment, std::move(owner));
  presence_.attach();
  failure_.attach(*this->segment());
  bells_.wake_everybody();
}

void Group::wait_activity(std::uint32_t seen, Deadline deadline) const noexcept {
  while (bells_.activity() == seen && !failure_.happened() && !deadline.passed()) {
    bells_.sleep(bells_.message_bell(), seen, deadline);
  }
}

}  // namespace trireme::local
