// Mesh: two connections between every two ranks of a group: one for frames, and one for signs of
// life. Both ends of each have proved that they know the job's token. The mesh is the transport of
// a host::HostBackend, to which it also reports lost ranks. An engine of that backend may get a
// third one to each peer, or to some: its line. Two ranks with several interfaces have a line
// between each two of these; see Lines.
//
// In a large group only near ranks have these connections. Another one for frames, or for the
// engine, is made when one of its two ranks needs it. The rank with the higher number calls; the
// lower one asks it to. A rank that does not answer is called again until it refuses: a slow rank
// is not lost, and near ranks tell of a death.
//
// It has three threads: one makes connections; one lets peers in, and leaves the group; one sends
// signs of life and receives those of peers. In a large group a fourth one makes further lines. The
// backend's threads send and receive frames.
#pragma once

#include <trireme/transport.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backends/rank_set.hpp"
#include "backends/tcp/address.hpp"
#include "backends/tcp/entrances.hpp"
#include "backends/tcp/line_watch.hpp"
#include "backends/tcp/lines.hpp"
#include "backends/tcp/losses.hpp"
#include "backends/tcp/meeting.hpp"
#include "backends/tcp/seal.hpp"
#include "backends/tcp/signs.hpp"
#include "backends/tcp/wanted.hpp"
#include "schedules/overlay.hpp"

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
    // The backend that all ranks must have been asked to use, or the group fails as MISMATCH:
    // "gloo"; kFrames or "": none.
    std::string engine;
    // Lines for the engine; null: none. Filled when the group is ready.
    std::shared_ptr<Lines> lines;
    // The ranks to which the engine wants a line, by all ranks' entries: of two ranks, both must
    // want it or none. Null: no lines. Called once, on a thread of the mesh, before any frame is
    // received; a failure is the group's.
    LinePeers line_peers;
    // Connections to ranks that are not near are made when they are needed, and have no signs of
    // life: see schedules/overlay.hpp. The same on all ranks, or the group fails as MISMATCH.
    bool few_connections = false;
  };
  // Makes the threads and does not wait. A call of leave() must follow.
  static Status open(const Options& options, std::shared_ptr<Mesh>* out);
  explicit Mesh(const Options& options);

  // The transport for the backend; `released` is leave().
  trireme_transport transport();
  // The reason for a rank's PEER_LOST from receive(), or for a failed send(); -1: for all ranks.
  // CORRUPT: bytes arrived that the rank did not send.
  Status loss(int rank);
  // A place at this rank's address where other ranks may meet: "ADDRESS:PORT".
  Status open_meeting(std::string* place, std::shared_ptr<const void>* out) const;
  // The place where this process serves meetings for this rank, while it is held; may be null.
  std::shared_ptr<const void> served() { return meeting_->served(); }
  // Waits until the system has sent all bytes, while they move. `because_of_another`: the rank
  // leaves because it lost another one, and ranks that wait for it shall learn of that loss.
  void settle(bool because_of_another) noexcept;
  // The rank has said goodbye, so the end of its connections is no loss.
  void note_left(int rank) noexcept { losses_.note_left(rank); }
  // The same as Meeting's.
  std::optional<std::vector<std::int32_t>> absent(bool gives_up, Deadline deadline,
                                                  const std::function<bool()>& ended) {
    return meeting_->absent(gives_up, deadline, ended);
  }
  // The ranks without a sign of life for some time, which are not given up yet.
  std::vector<std::int32_t> silent();
  // Delivers the sent bytes, and closes everything; does not wait: a thread does it.
  void leave() noexcept;

 private:
  struct Peer {
    std::mutex mutex;  // guards the next few
    Socket data;
    Seal sent;               // of the next frame
    std::vector<char> rest;  // the rest of a frame, from rest_at on
    std::size_t rest_at = 0;
    // Only the receiving thread uses these.
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

  // For joining.
  void join() noexcept;
  Status make_further_lines(int rank, const Entry& entry, const Socket& caller,
                            std::uint64_t call_ns);
  bool same_terms(const std::vector<Entry>& entries);
  bool dial(int rank, const Entry& entry, Purpose purpose);
  bool dial_near(const std::vector<Entry>& entries, const std::vector<bool>& line);
  void dial_wanted(WantedConnections& wanted, const std::vector<Entry>& entries);
  bool try_wanted(WantedConnections::Wanted* wanted, const Entry& entry);
  bool is_made(int rank, Purpose purpose);
  void note_connected(int rank);
  RankSet connected();
  bool is_near(int rank) const { return !options_.few_connections || are_near(me_, rank, n_); }
  bool wants(int rank, Purpose purpose);
  void enter(int rank, Purpose purpose, Socket socket, const SessionKeys& keys);
  void adopt(int rank, Purpose purpose, Socket socket, const SessionKeys& keys);

  // For watching.
  void watch() noexcept;
  // `heard`: a turn before has read the directory's news.
  void turn(bool* heard, LineWatch* lines);
  void receive_gone(bool was_in);  // was_in: all were connected before the news
  bool has_data(int rank);
  bool all_are_in();
  void linger() noexcept;

  void lose(int rank, const std::string& why,
            trireme_status code = TRIREME_ERROR_PEER_LOST) noexcept;
  void fail(const Status& status) noexcept;

  const Options options_;
  const int me_;
  const int n_;
  const std::string name_;  // "rank 1 of "job""
  const std::shared_ptr<Lines> lines_;
  Entry own_{};
  Socket epoll_;
  Waker news_;   // for the receiving thread
  Waker waker_;  // for the watching thread
  Signs signs_;
  const std::string silent_;  // the reason for the loss of a rank that was given up
  std::unique_ptr<Entrances> entrances_;
  std::unique_ptr<Meeting> meeting_;
  std::vector<std::unique_ptr<Peer>> peers_;
  Losses losses_;
  RankSet unread_;  // ranks whose bytes may hold a whole frame; only for the receiving thread
  int next_ = 0;    // the rank whose frame is taken next
  // Each has a thread that makes them: a network that leads nowhere delays further lines alone.
  struct {
    WantedConnections connections;
    WantedConnections lines;  // the further ones of an engine
  } wanted_;
  std::mutex connected_mutex_;  // guards the next one; no other lock is taken under it
  RankSet connected_;           // ranks with a connection for frames, or for the engine

  std::atomic<bool> stop_{false};
  std::atomic<bool> met_{false};        // frames may come
  std::atomic<bool> has_new_{false};    // a connection for frames, since the last receive()
  std::atomic<bool> was_whole_{false};  // all were connected, and none had gone before
  std::atomic<int> joiners_{0};
};

}  // namespace trireme::tcp
