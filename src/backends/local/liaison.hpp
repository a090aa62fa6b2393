// Liaison: the thread of one process that meets the other processes of its group over unix sockets. The
// sockets stay open: one that closes before its rank has left is a death. Who waits for something
// hears of it earlier, by a word that the kernel writes (death_word.hpp).
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "backends/slots/group.hpp"
#include "backends/slots/memory.hpp"
#include "net/hmac.hpp"
#include "net/token.hpp"

namespace trireme::local {

// What goes over the sockets, always whole and of one size. Processes of one host share byte order.
struct Packet {
  enum Type : std::uint32_t { hello = 1, buffer, drop, failure, leave, other_token };
  static constexpr std::uint64_t kMagic = 0x31656d6572697274;  // "trireme1"

  std::uint64_t magic = kMagic;
  std::uint32_t version = kLayoutVersion;
  std::uint32_t type = 0;
  std::int32_t world_size = 0;
  std::int32_t rank = 0;
  std::uint64_t nonce = 0;  // hello: chosen by who connects, repeated in the answer
  Digest proof{};           // hello: that the sender knows the token; zeros without one
  std::uint64_t id = 0;     // buffer, drop
  std::uint64_t bytes = 0;  // buffer
  FailureRecord record{};   // failure
};

class Liaison {
 public:
  Liaison(const std::string& group_name, std::shared_ptr<const Token> token, Group& group,
          std::shared_ptr<Buffers> buffers);
  ~Liaison();  // tells the peers that this rank leaves, then waits for its own thread, never for a peer
  Liaison(const Liaison&) = delete;
  Liaison& operator=(const Liaison&) = delete;

  Status claim();  // takes the name of this rank
  Status start();
  // Whose process stands still, as far as the system tells.
  std::vector<std::int32_t> stopped() const;
  bool joined(int rank) const {
    return joined_[static_cast<unsigned>(rank)].load(std::memory_order_acquire);
  }
  bool has_other_token(int rank) const {
    return foreign_[static_cast<unsigned>(rank)].load(std::memory_order_acquire);
  }

 private:
  enum class State { absent, greeting, established, closed };
  struct Outgoing {
    Packet packet;
    int descriptor = -1;  // the segment's; buffers are looked up when the packet goes
  };
  // The way to one peer.
  struct Link {
    State state = State::absent;
    int socket = -1;
    int process = -1;  // notices a death even if a child of the peer holds its socket
    std::uint64_t nonce = 0;
    std::uint64_t retry_at = 0;
    std::uint64_t backoff_ns = 0;
    std::uint64_t refused_at = 0;  // since when its token has been another
    bool blocked = false;  // its socket is full
    std::deque<Outgoing> outbox;
  };
  // Somebody who connected and has not said who it is.
  struct Stranger {
    int socket;
    std::uint64_t expires_at;
  };
  // Outlives the liaison, so that its thread can say goodbye.
  struct Exit {
    std::mutex mutex;
    std::condition_variable gone;
    bool done = false;
  };

  std::string address(int rank) const;
  void loop();
  void wake();
  void wait_for_events();
  void take_requests();
  void bury();
  void accept_strangers();
  void connect_peers();
  bool hear_stranger(Stranger& stranger);  // false: it is done with
  void greet_back(Stranger& stranger, const Packet& theirs);
  bool falls_apart() const;
  void refuse(const Stranger& stranger, const Packet& theirs) const;
  Digest proof(const Packet& hello, bool answers) const;
  bool same_token(const Packet& theirs, bool answers) const;
  void refuse_token(const Stranger& stranger, const Packet& theirs);
  void hear_other_token(int rank);
  void hear_peer(int rank);
  void hear_answer(int rank, const Packet& packet, int descriptor);
  Status own_failure(int error_number, const std::string& what) const;
  void handle(int rank, const Packet& packet, int descriptor);
  Status check_same(const Packet& theirs) const;
  Status attach(int descriptor);
  void establish(int rank, int socket);
  void retry(int rank);
  void closed(int rank);
  void tell(Link& peer, const Packet& news);
  void tell_failure(Link& peer);
  void flush(int rank);
  void close_all();
  Packet packet(Packet::Type type) const;
  Link& link(int rank) { return links_[static_cast<std::size_t>(rank)]; }
  bool complete() const;

  const std::string group_name_;
  const std::shared_ptr<const Token> token_;  // null: none
  Group& group_;
  const std::shared_ptr<Buffers> buffers_;
  const Layout layout_;

  // The liaison thread's own.
  std::vector<Link> links_;
  std::vector<Stranger> strangers_;
  std::set<std::uint64_t> announced_;  // own buffers the peers know or are to know
  int listener_ = -1;
  int segment_file_ = -1;  // rank 0: to be passed on
  std::uint64_t random_ = 1;
  std::uint64_t accept_again_at_ = 0;

  std::array<std::atomic<bool>, kMaxRanks> joined_{};
  std::array<std::atomic<bool>, kMaxRanks> foreign_{};  // with another token
  std::array<std::atomic<int>, kMaxRanks> processes_{};  // their numbers; 0: unknown
  std::array<std::atomic<bool>, kMaxRanks> died_{};  // as a waiting thread has seen
  int wake_ = -1;  // eventfd
  const std::shared_ptr<Exit> exit_ = std::make_shared<Exit>();
  bool started_ = false;

  std::mutex mutex_;  // guards the requests of other threads
  std::vector<Packet> requests_;
  bool stopping_ = false;
};

}  // namespace trireme::local
