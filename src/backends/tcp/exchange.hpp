// Exchange: a wire between some ranks, over lines. Unannounced bytes are an error, and one operation
// never waits behind another. There is no thread: a thread that waits moves the bytes of all
// operations. All bytes are under codes: bytes that were changed on the way are CORRUPT.
#pragma once

#include <poll.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "backends/backend.hpp"
#include "backends/tcp/lines.hpp"
#include "backends/wire.hpp"

namespace trireme::tcp {

// Some ranks of a group, ascending; all other functions here count them from 0.
struct Members {
  std::vector<int> ranks;
  int own = 0;  // this rank's index among them
};

class Exchange final : public Wire {
 public:
  // The peer of a transfer is an index among the members.
  using Transfer = Wire::Transfer;

  // The lines must be there, and stay, during every call but abort().
  Exchange(Members members, std::shared_ptr<const Lines> lines);
  Status open();

  int size() const { return static_cast<int>(members_.ranks.size()); }
  int own() const { return members_.own; }

  Status send(Transfer& transfer) override;
  Status receive(Transfer& transfer) override;
  Status wait(Transfer& transfer, Deadline deadline) override;
  void drop(Transfer& transfer) noexcept override;
  // Counts only the pieces' bytes. Any thread.
  TrafficCounters traffic() const { return {sent_bytes_.load(), received_bytes_.load()}; }
  // Ends the exchange. Any thread, more than once.
  void abort() noexcept;

 private:
  enum class Kind : std::uint32_t { ready = 1, data };

  struct Header {
    Kind kind;
    std::uint32_t reserved;  // 0
    std::uint64_t ticket;
    std::uint64_t slot;
    std::uint64_t bytes;
  };
  static_assert(sizeof(Header) == 32);

  // A piece goes in parts of a known length, each with its code before it; the header stands before
  // the first.
  struct Start {
    Seal::Head of_header;
    Header header;
    Seal::Head of_part;  // 0 if the header is all
  };
  static_assert(sizeof(Start) == 64);

  struct Outgoing {
    Header header;
    Transfer* transfer;       // null: the header is all
    std::uint64_t begun = 0;  // bytes of parts that have been sent or are on their way
  };

  struct Peer {
    std::mutex mutex;  // guards the fields below, and the memory of transfers with this peer
    const Socket* socket = nullptr;
    Seal sent;
    Seal received;
    std::deque<Outgoing> out;
    // The part of the first transfer that is on its way: the bytes before a part, and the part.
    std::array<std::byte, sizeof(Start)> before{};
    std::uint64_t before_bytes = 0;
    std::uint64_t part_bytes = 0;
    std::uint64_t moved = 0;         // bytes of both; all: the next part has to begin
    std::deque<Transfer*> sends;     // until the peer is ready
    std::deque<Transfer*> receives;  // until their data begin
    std::deque<Header> ready;        // the peer's announced receives, whose sends are not here yet
    Start start{};                   // of what comes; then of_part alone
    std::uint64_t got = 0;           // bytes of the header, or of the part behind it
    bool of_part = false;            // whether the part is arriving
    Transfer* incoming = nullptr;    // whose parts come
    std::uint64_t arrived = 0;       // bytes of the piece before this part
    std::atomic<bool> ended{false};
    int error_number = 0;
    std::atomic<short> events{0};  // the events that a moving thread has to poll
  };

  Peer& peer(int member) { return *peers_[static_cast<std::size_t>(member)]; }
  Status prepare(Peer& peer, const Transfer& transfer);
  void begin_part(Peer& peer);
  void flush(Peer& peer);
  void read(int member, const Transfer& awaited);
  bool take_start(int member);
  bool take_part(int member);
  bool take_ready(int member);
  void end(Peer& peer, int error_number) noexcept;
  static void update_events(Peer& peer);
  void poke();
  void move_bytes(const Transfer& awaited, Deadline deadline);
  Status look(const Transfer& transfer);
  Status lost(int member);
  void corrupt(int member, const char* what);
  void fail(const Status& status) noexcept;

  const Members members_;
  const std::shared_ptr<const Lines> lines_;
  // Made beforehand: there may be no memory when it is needed.
  const Status aborted_ =
      Status::failure(TRIREME_ERROR_ABORTED, "the group ended during a collective of its engine");
  const Status no_memory_ =
      Status::failure(TRIREME_ERROR_OUT_OF_MEMORY, "no memory for a message of an engine's peer");
  std::vector<std::unique_ptr<Peer>> peers_;
  Waker waker_;

  std::mutex mutex_;  // taken after that of a peer
  std::condition_variable changed_;
  std::atomic<bool> driven_{false};  // somebody moves bytes; written under the mutex
  int waiting_ = 0;                  // others who wait meanwhile
  Status failure_ = Status::success();
  std::atomic<bool> failed_{false};
  std::vector<pollfd> polled_;  // of the moving thread
  std::vector<int> polled_members_;
  std::atomic<std::uint64_t> sent_bytes_{0};
  std::atomic<std::uint64_t> received_bytes_{0};
};

}  // namespace trireme::tcp
