#include "backends/local/messages.hpp"

namespace trireme::local {

struct Messages::State {};

Messages::Messages(Group&) {}
Messages::~Messages() = default;

void Messages::post(Message& message) {
  message.status = unsupported("messages are not in this build");
  message.done.store(true, std::memory_order_release);
}
void Messages::progress() {}
bool Messages::withdraw(Message&) { return false; }

}  // namespace trireme::local
