// Exchange: a wire between some ranks, over lines. A short piece is sent at once, and waits in this
// rank's memory until it is asked for. A longer one goes when its receiver has announced the memory
// for it. So one operation never waits behind another. There is no thread: a thread that waits
// moves the bytes of all operations. All bytes are under codes: bytes that were changed on the way
// are CORRUPT.
#pragma once

#include <poll.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
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
  // `polls`: how often a thread looks for bytes before it sleeps.
  Exchange(Members members, std::shared_ptr<const Lines> lines, int polls = 0);
  ~Exchange() override;
  Status open();

  int size() const { return static_cast<int>(members_.ranks.size()); }
  int own() const { return members_.own; }

  Status send(Transfer& transfer) override;
  Status receive(Transfer& transfer) override;
  Status wait(Transfer& transfer, Deadline deadline) override;
  void drop(Transfer& transfer) noexcept override;
  // --- calls: short frames that each member sends to all others ---
  // Receives them, on a thread that moves bytes. Set it before the first call.
  using TakeCall = std::function<void(int member, const std::byte* frame, std::uint64_t bytes)>;
  void take_calls_by(TakeCall take) { take_call_ = std::move(take); }
  static constexpr std::uint64_t kMostCallBytes = 4608;  // of a frame, unless after_calls() says so
  // `taken` is called after calls were taken, outside of all locks. Set it as take_calls_by().
  void after_calls(std::function<void()> taken, std::uint64_t most_call_bytes) {
    after_calls_ = std::move(taken);
    most_call_bytes_ = most_call_bytes;
  }
  // Never waits: a copy waits where a connection has no room.
  Status publish(const void* frame, std::uint64_t bytes);
  Status publish_to(int member, const void* frame, std::uint64_t bytes);
  // Moves what can be moved now, unless another thread does. *any: whether calls have come.
  Status fetch(bool* any);
  // How many calls have come.
  std::uint64_t taken_calls() const { return taken_calls_.load(std::memory_order_acquire); }
  // Moves bytes, or waits while another thread does: until something happens, but not long. Returns
  // at once if a call has come since taken_calls() was `seen`.
  void rest(std::uint64_t seen, Deadline deadline);
  // Sends the bytes for which there was no room. True: there are none left.
  bool flush_calls() noexcept;
  // When the connection to that member ended; 0: it has not. Any thread.
  std::uint64_t ended_ns(int member) const {
    return peers_[static_cast<std::size_t>(member)]->ended_ns.load(std::memory_order_acquire);
  }
  Status loss_of(int member);

  // The bytes of the pieces, and all messages. Any thread.
  TrafficCounters traffic() const {
    return {sent_bytes_.load(), received_bytes_.load(), sent_messages_.load()};
  }
  // Ends the exchange. Any thread, more than once.
  void abort() noexcept;

 private:
  enum class Kind : std::uint32_t { ready = 1, data, call };

  struct Header {
    Kind kind;
    std::uint32_t reserved;  // 0
    std::uint64_t ticket;
    std::uint64_t slot;
    std::uint64_t bytes;
  };
  static_assert(sizeof(Header) == 32);

  static constexpr std::size_t kAheadBytes = 2048;
  // Up to here a copy costs less than to wait for the peer's announcement. Both ends know the
  // length of a piece, so they agree.
  static constexpr std::uint64_t kShortBytes = 16u << 10;
  static bool is_short(std::uint64_t bytes) { return bytes <= kShortBytes; }

  // A piece goes in parts of a known length, each with its code before it; the header stands before
  // the first.
  struct Start {
    Seal::Head of_header;
    Header header;
    Seal::Head of_part;  // 0 if the header is all
  };
  static_assert(sizeof(Start) == 64);

  struct Outgoing {
    const std::byte* data() const { return transfer == nullptr ? call.data() : transfer->data; }
    std::uint64_t bytes() const { return transfer == nullptr ? call.size() : transfer->bytes; }

    Header header;
    Transfer* transfer;           // null: the header and the call are all
    std::vector<std::byte> call;  // empty: there is none
    std::uint64_t begun = 0;      // bytes of parts that have been sent or are on their way
  };

  // Bytes that came with others, and are not used yet. No poll tells of them.
  struct Ahead {
    std::array<std::byte, kAheadBytes> bytes{};
    std::size_t begin = 0;
    std::size_t end = 0;
  };

  // A short piece that came, or comes, before it was asked for.
  struct Early {
    Transfer piece;
    std::vector<std::byte> memory;
    Transfer* taker = nullptr;  // asked for it meanwhile
  };

  struct Peer {
    std::mutex mutex;  // guards the fields below, and the memory of transfers with this peer
    int member = 0;
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
    std::deque<std::unique_ptr<Early>> early;  // in the order of their arrival
    Start start{};                             // of what comes; then of_part alone
    std::uint64_t got = 0;                     // bytes of the header, or of the part behind it
    bool of_part = false;                      // whether the part is arriving
    Transfer* incoming = nullptr;              // whose parts come
    Transfer call;                             // the place of an incoming call
    std::vector<std::byte> call_bytes;
    Ahead ahead;
    std::uint64_t arrived = 0;  // bytes of the piece before this part
    bool broken = false;        // it takes no more bytes
    std::atomic<bool> ended{false};
    std::atomic<std::uint64_t> ended_ns{0};
    int error_number = 0;
    std::atomic<short> events{0};  // the events that a moving thread has to wait for
    short queued = 0;              // those that the queue knows
  };

  Peer& peer(int member) { return *peers_[static_cast<std::size_t>(member)]; }
  Status connect(Peer& peer);
  Status prepare(Peer& peer, const Transfer& transfer);
  void begin_part(Peer& peer);
  void flush(Peer& peer);
  void read(int member, const Transfer* awaited);
  static Moved receive_some(Peer& peer, std::byte* to, std::size_t wanted, std::size_t* moved);
  bool take_start(int member);
  bool take_part(int member);
  bool take_ready(int member);
  bool begin_early(int member);
  static void finish_early(Peer& peer, const Transfer* piece);
  bool take_call(int member);
  void end(Peer& peer, int error_number) noexcept;
  void update_events(Peer& peer) const noexcept;
  void refresh(Peer& peer);
  void open_queue() noexcept;
  void serve(int member, short happened, const Transfer* awaited);
  void poke();
  void move_bytes(const Transfer* awaited, Deadline deadline);
  bool begin_driving() noexcept;
  void end_driving(std::uint64_t calls_before) noexcept;
  void enqueue(Peer& peer, Outgoing&& outgoing);
  Status listen_to_all();
  Status look(const Transfer& transfer);
  Status lost(int member);
  void corrupt(int member, const char* what);
  void fail(const Status& status) noexcept;

  const Members members_;
  const std::shared_ptr<const Lines> lines_;
  const int polls_;
  // Made beforehand: there may be no memory when it is needed.
  const Status aborted_ =
      Status::failure(TRIREME_ERROR_ABORTED, "the group ended during a collective of its engine");
  const Status no_memory_ =
      Status::failure(TRIREME_ERROR_OUT_OF_MEMORY, "no memory for a message of an engine's peer");
  std::vector<std::unique_ptr<Peer>> peers_;
  Waker waker_;
  TakeCall take_call_;                 // empty: no calls come
  std::function<void()> after_calls_;  // may be empty
  std::uint64_t most_call_bytes_ = kMostCallBytes;
  std::atomic<std::uint64_t> taken_calls_{0};
  std::atomic<bool> listens_{false};  // to all members

  std::mutex mutex_;  // taken after that of a peer
  std::condition_variable changed_;
  std::atomic<bool> driven_{false};  // somebody moves bytes; written under the mutex
  int waiting_ = 0;                  // others who wait meanwhile
  Status failure_ = Status::success();
  std::atomic<bool> failed_{false};
  std::atomic<int> queue_{-1};  // of epoll; -1: the peers are polled
  std::vector<pollfd> polled_;  // of the moving thread
  std::vector<int> polled_members_;
  std::atomic<std::uint64_t> sent_bytes_{0};
  std::atomic<std::uint64_t> received_bytes_{0};
  std::atomic<std::uint64_t> sent_messages_{0};
};

}  // namespace trireme::tcp
