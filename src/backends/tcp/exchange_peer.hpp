// ExchangePeer: one peer of an exchange: what goes to it and what comes from it. It has one line,
// or several: then long pieces that are announced go over all of them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "backends/tcp/early_pieces.hpp"
#include "backends/tcp/event_queue.hpp"
#include "backends/tcp/exchange_message.hpp"
#include "backends/tcp/further_lines.hpp"
#include "backends/tcp/lines.hpp"
#include "backends/wire.hpp"

namespace trireme::tcp {

class ExchangePeer {
 public:
  using Transfer = Wire::Transfer;
  // A read takes so many bytes ahead, as short messages come together.
  static constexpr std::size_t kAheadBytes = 32u << 10;
  using TakeCall = std::function<void(int member, const std::byte* frame, std::uint64_t bytes)>;

  // The common part of an exchange's peers. It outlives them.
  struct Common {
    // Each is called under the peer's mutex. corrupt(): ends the exchange, as the peer sent `what`.
    std::function<void(ExchangePeer& peer, const char* what)> corrupt;
    std::function<void()> out_of_memory;  // ends the exchange
    std::function<void()> wake_all;       // threads that wait
    std::function<void()> wake_poll;      // the thread that polls
    TakeCall take_call;                   // empty: no calls come
    std::uint64_t most_call_bytes = 0;
    EventQueue queue;
    // Bytes that came with others. They are used before the read of the peer ends, and one thread
    // at a time reads.
    std::vector<std::byte> ahead;
    std::atomic<int> held{0};            // peers that have something for go()
    std::atomic<int> unsent_peers{0};    // those of has_unsent()
    std::atomic<bool> has_ended{false};  // the connection of some peer
    std::atomic<std::uint64_t> taken_calls{0};
    std::atomic<std::uint64_t> sent_bytes{0};  // of pieces, as the next one
    std::atomic<std::uint64_t> received_bytes{0};
    std::atomic<std::uint64_t> sent_messages{0};
    std::atomic<std::uint64_t> moved_bytes{0};  // all that the first lines took
  };

  // `member`: its index in the exchange; `rank`: the peer's in its group.
  ExchangePeer(int member, int rank, Common& common)
      : member_(member), rank_(rank), common_(common) {}

  // Guards this object but for the functions of any thread, and the memory of transfers with the
  // peer.
  std::mutex mutex;

  // --- any thread ---
  int rank() const { return rank_; }
  bool has_ended() const { return ended_.load(); }
  // When the connection ended; 0: it has not.
  std::uint64_t ended_ns() const { return ended_ns_.load(std::memory_order_acquire); }
  // Whether the peer has said goodbye: then the end of the connection is no loss.
  bool has_left() const { return left_.load(std::memory_order_acquire); }
  // The events that a moving thread has to wait for on the first line, as of poll().
  short events() const { return events_.load(); }
  const FurtherLines& further() const { return further_; }

  // --- under the mutex ---
  // Takes the first line, if there is one. Else it has one made, and keeps what is to go until it
  // is there. If none can be made, the connection has ended. Takes the further lines that are
  // there.
  Status connect(const Lines& lines);
  // All lines are.
  bool is_connected() const { return line_.socket != nullptr && further_.is_whole(); }
  bool is_asked() const { return line_.is_asked; }
  int socket() const { return line_.socket->get(); }
  int error_number() const { return line_.error_number; }
  // False, after corrupt(): the peer means another length.
  bool send(Transfer& transfer);
  bool receive(Transfer& transfer);
  // Whether all bytes of a short piece for it are here.
  bool has_early(const Transfer& transfer) const;
  void publish(std::vector<std::byte> frame, bool later);
  void say_goodbye();
  // The peer does not touch the transfer any more.
  void forget(const Transfer& transfer) noexcept;
  // Sends what goes, and what waits for it. True: something was done meanwhile.
  bool flush() noexcept;
  // Any thread. Whether something waits for flush(), and no moving thread sends it before.
  bool is_held() const { return held_.load(); }
  bool has_unsent() const {
    return !has_ended() && (has_more() || (!broken_ && further_.has_unsent()));
  }
  // Reads the bytes that have come over a line, until a look at the awaited transfer pays.
  void read(int line, const Transfer* awaited);
  void end(int error_number) noexcept;
  // Brings events() up to date. True: there are more. refresh() then wakes a thread that polls.
  bool update_events() noexcept;
  void refresh();

 private:
  using Kind = ExchangeMessage::Kind;
  using Header = ExchangeMessage::Header;
  using Start = ExchangeMessage::Start;

  struct Outgoing {
    const std::byte* data() const { return transfer == nullptr ? call.data() : transfer->data; }
    std::uint64_t bytes() const { return transfer == nullptr ? call.size() : transfer->bytes; }

    Header header;
    Transfer* transfer;           // null: the header and the call are all
    std::vector<std::byte> call;  // empty: there is none
    std::uint64_t begun = 0;      // bytes of parts that have been sent or are on their way
  };

  void enqueue(Outgoing&& outgoing, bool later);
  void release() noexcept;
  // On the first line, without stretches that no line has.
  bool has_more() const { return !out_.empty() || part_.moved < part_.whole(); }
  void send_in_stretches(Transfer& transfer, std::uint32_t number);
  bool begin_stretch(const Socket* first, bool* done) noexcept;
  void read_first(const Transfer* awaited);
  Status begin_part();
  void append_part(Outgoing& outgoing, bool copies);
  std::size_t most_ahead() const;
  Moved receive_some(std::byte* to, std::size_t wanted, std::size_t* moved);
  bool take_start();
  bool take_part();
  bool take_ready();
  void begin_incoming(Transfer* transfer);
  bool corrupt(const char* what);

  const int member_;
  const int rank_;
  Common& common_;
  struct {
    const Socket* socket = nullptr;
    bool is_asked = false;   // it is being made
    bool has_ended = false;  // the first one; bytes may still come over the others
    int error_number = 0;    // of its end
  } line_;
  std::atomic<bool> ended_{false};
  std::atomic<std::uint64_t> ended_ns_{0};
  std::atomic<bool> left_{false};
  std::atomic<short> events_{0};
  short watched_ = 0;     // the events that the queue knows
  bool counted_ = false;  // among those with unsent bytes

  Seal sent_;
  std::list<Outgoing>
      out_;  // takes no memory while it is empty, as for most peers of a large group
  // The bytes on their way over the first line: whole messages and the head of a part, then the
  // part of a transfer.
  struct {
    std::uint64_t whole() const { return before.size() + part_bytes; }

    std::vector<std::byte> before;
    bool of_transfer = false;    // the part, and the end of `before`, belong to the first transfer
    Stretches::Stretch stretch;  // or to this one
    const std::byte* part = nullptr;
    std::uint64_t part_bytes = 0;
    std::uint64_t moved = 0;  // bytes of both; all: the next part has to begin
  } part_;
  std::atomic<bool> held_{false};
  bool broken_ = false;           // it takes no more bytes
  std::vector<Transfer*> sends_;  // until the peer is ready
  std::vector<Header> ready_;     // the peer's announced receives, whose sends are not here yet

  Seal received_;
  std::vector<Transfer*> receives_;  // until their data begin
  EarlyPieces early_;
  FurtherLines further_;
  Start start_{};  // of what comes; then of_part alone
  // The piece or call that comes.
  struct {
    Transfer* into = nullptr;
    bool of_part = false;       // whether the part is arriving
    bool is_stretch = false;    // of a piece
    std::uint64_t got = 0;      // bytes of the header, or of the part behind it
    std::uint64_t arrived = 0;  // bytes of the piece before this part
  } incoming_;
  Transfer call_;  // the place of an incoming call
  std::vector<std::byte> call_bytes_;
  // Of the bytes ahead; equal outside of read().
  std::size_t ahead_begin_ = 0;
  std::size_t ahead_end_ = 0;
};

}  // namespace trireme::tcp
