// FurtherLine: a line beside the first one of an exchange's peer. It carries stretches of announced
// pieces alone, in both directions. Calls, short pieces and announcements go over the first line.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "backends/tcp/event_queue.hpp"
#include "backends/tcp/lines.hpp"
#include "backends/tcp/stretches.hpp"

namespace trireme::tcp {

class FurtherLine {
 public:
  // --- any thread ---
  // As those of ExchangePeer.
  short events() const { return events_.load(); }
  int socket() const { return socket_->get(); }

  // --- under the mutex of the peer ---
  void take(const Lines::Line& line);
  bool is_there() const { return socket_ != nullptr; }
  // Whether bytes may come. The mesh tells whether the end is a loss: the peer may have left, and
  // have said so over the first line.
  bool is_open() const { return is_there() && !has_ended_; }
  bool can_send() const { return is_open() && !is_broken_ && stretch_.of == nullptr; }
  bool is_sending() const { return is_open() && !is_broken_ && stretch_.of != nullptr; }
  std::uint64_t bytes_under_way() const { return socket_->unanswered_bytes(); }
  void send(const Stretches::Stretch& stretch);
  // Sends what there is room for. True: all of it has gone, and *out is the stretch.
  bool flush(Stretches::Stretch* out) noexcept;

  enum class Came {
    nothing,   // no more bytes for now
    some,      // call it again
    header,    // of a stretch: call place() before the next read
    stretch,   // all of it
    end,       // of the line, between two stretches
    cut_short  // the line has ended within a stretch; errno says why
  };
  Came read(std::uint64_t* moved);
  // Whether the header, or the stretch, is what the peer sent. Call it once for each.
  bool is_intact();
  const Stretches::Header& header() const { return in_.start.header; }
  // Where the bytes of the stretch belong.
  void place(std::byte* into) { in_.into = into; }
  // The events that a moving thread has to wait for. False: the system has no memory for it.
  bool watch(const EventQueue& queue, int key, short events);

 private:
  const Socket* socket_ = nullptr;
  bool has_ended_ = false;
  bool is_broken_ = false;  // it takes no more bytes
  std::atomic<short> events_{0};
  short watched_ = 0;  // the events that the queue knows

  Seal sent_;
  Stretches::Stretch stretch_;  // on its way
  ExchangeMessage::Start start_{};
  std::uint64_t moved_ = 0;  // bytes of both

  Seal received_;
  struct {
    ExchangeMessage::Start start{};
    std::byte* into = nullptr;  // null: the header comes
    std::uint64_t got = 0;      // bytes of the start, or of the stretch
  } in_;
};

}  // namespace trireme::tcp
