#include "net/acceptor.hpp"

#include <cerrno>

#include "platform/descriptors.hpp"
#include "platform/log.hpp"
#include "platform/system.hpp"

namespace trireme::tcp {
namespace {

constexpr std::uint64_t kNoDescriptorsNs = 50'000'000;

}  // namespace

Socket Acceptor::accept() {
  while (true) {
    Socket caller(
        system_table().accept(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (caller) {
      note_refusal(0);
      return caller;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    // The caller stays in the queue, and poll() would not wait.
    note_refusal(errno == EAGAIN ? 0 : errno);  // 0: the queue is empty
    if (errno != EAGAIN) {
      closed_until_ns_ = now_ns() + kNoDescriptorsNs;
    }
    return caller;
  }
}

void Acceptor::turned_away() {
  if (warnings_ >= kMostWarnings || !log_wanted(TRIREME_LOG_WARNING)) return;
  ++warnings_;
  log_line(TRIREME_LOG_WARNING,
           name_ + ": a caller that does not know the job's token, or has gone, was turned away");
}

}  // namespace trireme::tcp
