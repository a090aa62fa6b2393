#include "launch/output.hpp"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace trireme::cluster {

Output::Output(uv_loop_t* loop, int descriptor, std::function<void()> on_written)
    : loop_(loop), descriptor_(descriptor), on_written_(std::move(on_written)) {
  work_.data = this;
}

void Output::append(std::string_view text) {
  if (broken_) return;
  waiting_.append(text);
  if (writing_.empty()) write_next();
}

void Output::write_next() {
  if (waiting_.empty()) return;
  writing_.swap(waiting_);
  if (uv_queue_work(loop_, &work_, write_all, written) != 0) {
    write_all(&work_);
    take_result();
  }
}

// On a thread of the pool. It owns `writing_` and `refused_` until written() runs.
void Output::write_all(uv_work_t* work) {
  auto& self = *static_cast<Output*>(work->data);
  std::string_view rest = self.writing_;
  while (!rest.empty()) {
    const ssize_t length = write(self.descriptor_, rest.data(), rest.size());
    if (length >= 0) {
      rest.remove_prefix(static_cast<std::size_t>(length));
    } else if (errno == EAGAIN) {
      pollfd ready{self.descriptor_, POLLOUT, 0};
      poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      self.refused_ = true;
      return;
    }
  }
}

void Output::take_result() {
  writing_.clear();
  broken_ = refused_;
  if (broken_) waiting_.clear();
}

void Output::written(uv_work_t* work, int) {
  auto& self = *static_cast<Output*>(work->data);
  self.take_result();
  self.write_next();
  self.on_written_();
}

}  // namespace trireme::cluster
