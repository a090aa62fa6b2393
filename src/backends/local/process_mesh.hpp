// ProcessMesh: the thread of one process that meets the other processes of its group over unix
// sockets. The sockets stay open: one that closes before its rank has left is a death. A rank that
// waits learns of a death earlier, by a word that the kernel writes (death_word.hpp).
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "backends/local/greetings.hpp"
#include "backends/slots/group.hpp"
#include "backends/slots/memory.hpp"
#include "net/token.hpp"

namespace trireme::local {

class ProcessMesh {
 public:
  ProcessMesh(const std::string& group_name, std::shared_ptr<const Token> token, Group& group,
              std::shared_ptr<Buffers> buffers);
  ~ProcessMesh();  // tells the peers that this rank leaves, then waits for its own thread, never
                   // for a peer
  ProcessMesh(const ProcessMesh&) = delete;
  ProcessMesh& operator=(const ProcessMesh&) = delete;

  Status claim();  // takes the name of this rank
  Status start();
  // A call of this rank returns the group's failure: waits until this mesh's thread has told the
  // peers. It waits for no peer, and for 2 s at most, once.
  void spread_failure() noexcept;
  // The ranks whose process is stopped, as far as the system tells.
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
    int descriptor = -1;  // of the segment; a buffer's is looked up when the packet goes
  };
  // The way to one peer.
  struct Link {
    State state = State::absent;
    int socket = -1;
    int process = -1;  // notices a death even if a child of the peer holds its socket
    std::uint64_t nonce = 0;
    std::uint64_t retry_at = 0;
    std::uint64_t backoff_ns = 0;
    std::uint64_t refused_at = 0;  // when its token first was another
    bool blocked = false;          // its socket is full
    std::deque<Outgoing> outbox;
  };
  // A caller that has connected and has not introduced itself.
  struct Unauthenticated {
    int socket;
    std::uint64_t expires_at;
  };
  // Outlives the process mesh, so that the mesh's thread can say goodbye.
  struct Exit {
    std::mutex mutex;
    std::condition_variable gone;
    bool done = false;
    std::thread::id thread;  // the process mesh's
    bool telling = false;    // a failure; that thread's
    bool told = false;       // the peers have it, or callers no longer wait for that
  };

  void loop();
  void wake();
  void wait_for_events();
  bool take_requests();
  void reap();
  void accept_unauthenticated();
  void connect_peers();
  bool receive_unauthenticated(Unauthenticated& newcomer);  // false: it is done with
  void greet_back(Unauthenticated& newcomer, const Packet& theirs);
  bool falls_apart() const;
  void refuse(const Unauthenticated& newcomer, const Packet& theirs) const;
  void refuse_token(const Unauthenticated& newcomer, const Packet& theirs);
  void hear_other_token(int rank);
  void receive_from_peer(int rank);
  void receive_answer(int rank, const Packet& packet, int descriptor);
  Status own_failure(int error_number, const std::string& what) const;
  void handle(int rank, const Packet& packet, int descriptor);
  Status attach(int descriptor);
  void establish(int rank, int socket);
  void retry(int rank);
  void closed(int rank);
  void report(Link& peer, const Packet& news);
  void tell_failure(Link& peer);
  void flush(int rank);
  void close_all();
  Link& link(int rank) { return links_[static_cast<std::size_t>(rank)]; }
  bool complete() const;

  const Greetings greetings_;
  Group& group_;
  const std::shared_ptr<Buffers> buffers_;
  const Layout layout_;

  // Only the process mesh's thread uses these.
  std::vector<Link> links_;
  std::vector<Unauthenticated> unauthenticated_;
  std::set<std::uint64_t> announced_;  // own buffers that the peers know or shall know
  int listener_ = -1;
  int segment_file_ = -1;  // rank 0: to be passed on
  std::uint64_t random_ = 1;
  std::uint64_t accept_again_at_ = 0;

  std::array<std::atomic<bool>, kMaxRanks> joined_{};
  std::array<std::atomic<bool>, kMaxRanks> foreign_{};   // with another token
  std::array<std::atomic<int>, kMaxRanks> processes_{};  // their numbers; 0: unknown
  std::array<std::atomic<bool>, kMaxRanks> died_{};      // as a waiting thread has seen
  int wake_ = -1;                                        // eventfd
  const std::shared_ptr<Exit> exit_ = std::make_shared<Exit>();
  bool started_ = false;

  std::mutex mutex_;  // guards the requests of other threads
  std::vector<Packet> requests_;
  bool stopping_ = false;
};

}  // namespace trireme::local
