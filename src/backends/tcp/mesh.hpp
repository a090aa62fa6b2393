// Mesh: two connections between every two ranks of a group: one for frames, one on which each says
// now and then that it lives. Both ends of each have proved that they know the job's token. It is the
// transport of a host::HostBackend, which it also tells whom it lost. An engine of that backend may
// get a third one to each peer, or to some.
//
// Three threads of its own: one gets the rank in, and ends then; one lets peers in, and takes the rank
// out; one gives signs of life and hears those of peers. The backend's threads send and receive frames.
#pragma once

#include <trireme/transport.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/tcp/address.hpp"
#include "backends/tcp/directory.hpp"
#include "backends/tcp/gate.hpp"
#include "backends/tcp/lines.hpp"
#include "backends/tcp/seal.hpp"
#include "backends/tcp/signs.hpp"

namespace trireme::tcp {

class Mesh : public std::enable_shared_from_this<Mesh> {
 public:
  using LinePeers = std::function<Status(const std::vector<Entry>&, std::vector<int>* ranks)>;
  struct Options {
    int rank = 0;
    int world_size = 1;
    Place place;
    std::string name;  // for messages
    Token token;
    // What all ranks must have been asked to use, or the group fails as MISMATCH: "gloo"; "": none.
    std::string engine;
    // For the engine; null: none. Filled when the group is ready.
    std::shared_ptr<Lines> lines;
    // To whom a line is wanted, of all ranks by everybody's entries: two ranks answer alike of each
    // other. Null: to none. Called once, on a thread of the mesh, before any frame is received; a
    // failure is the group's.
    LinePeers line_peers;
  };
  // Makes the threads and waits for nobody. leave() has to follow.
  static Status open(const Options& options, std::shared_ptr<Mesh>* out);
  explicit Mesh(const Options& options);

  // What it offers to the backend; `released` is leave().
  trireme_transport transport();
  // Why receive() answered PEER_LOST, or send() failed, for this rank; -1: of all. CORRUPT: bytes came
  // that the rank did not send.
  Status loss(int rank);
  // A place at this rank's address where others may meet: "ADDRESS:PORT".
  Status open_meeting(std::string* place, std::shared_ptr<const void>* out) const;
  // Waits until the system has what was sent, as long as that goes on.
  void settle() noexcept;
  // Who has given no sign of life for some time, but is not given up yet.
  std::vector<std::int32_t> silent();
  // Hands over what was sent, and closes everything; without a wait, on a thread of its own.
  void leave() noexcept;

 private:
  struct Peer {
    std::mutex mutex;  // guards the next few
    Socket data;
    Seal sent;               // of the next frame
    std::vector<char> rest;  // of a frame that was taken, from rest_at
    std::size_t rest_at = 0;
    // The receiving thread's.
    Seal received;
    std::vector<char> in;
    std::size_t begin = 0;
    std::size_t end = 0;
    bool ended = false;
  };

  std::int32_t send(int to, const void* data, std::uint64_t bytes, std::uint64_t timeout_ns);
  std::int32_t receive(std::int32_t* from, void* data, std::uint64_t capacity, std::uint64_t* bytes,
                       std::uint64_t timeout_ns);
  bool flush(Peer& peer);
  bool take_frame(int rank, void* data, std::uint64_t capacity, std::uint64_t* bytes);
  void read(int rank);
  void end(int rank, trireme_status code, const std::string& why);
  void arm(int rank, bool for_room);

  // Getting in.
  void join() noexcept;
  bool meet(std::vector<Entry>* out);
  bool same_engine(const std::vector<Entry>& entries);
  bool dial(int rank, const Entry& entry, Purpose purpose);
  bool pause(int attempt);  // false: the rank leaves
  Digest job_of(const Digest& nonce) const;
  bool wants(int rank, Purpose purpose);
  void adopt(int rank, Purpose purpose, Socket socket, const SessionKeys& keys);

  // Watching.
  void watch() noexcept;
  void turn();
  bool all_are_in();
  void linger() noexcept;

  void lose(int rank, const std::string& why,
            trireme_status code = TRIREME_ERROR_PEER_LOST) noexcept;
  void fail(const Status& status) noexcept;

  const int me_;
  const int n_;
  const Place place_;
  const std::string name_;  // "rank 1 of "job""
  const Token token_;
  const std::string engine_;
  const std::shared_ptr<Lines> lines_;
  const LinePeers line_peers_;
  const std::string silent_;  // why a rank is lost that was given up
  Endpoint meeting_;
  Entry own_{};
  Socket epoll_;
  Waker news_;   // for the receiving thread
  Waker waker_;  // for the watching thread
  Signs signs_;
  std::unique_ptr<Gate> gate_;
  std::shared_ptr<Directory> directory_;
  std::vector<std::unique_ptr<Peer>> peers_;
  int next_ = 0;  // whose frame is next, if it has one

  std::atomic<bool> stop_{false};
  std::atomic<bool> met_{false};  // frames may come
  std::atomic<int> joiners_{0};
  std::mutex mutex_;  // guards the following; taken after that of a peer
  std::vector<std::string> where_;     // by rank: "10.0.0.2:4711"
  std::vector<std::string> reasons_;   // by rank: why it is lost
  std::vector<trireme_status> codes_;  // by rank: as what; 0: it is not
  std::vector<int> lost_;              // not yet told to the backend
  Status failure_ = Status::success();
  bool failure_told_ = false;
};

}  // namespace trireme::tcp
