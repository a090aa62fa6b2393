// Directory: how the ranks of a group learn each other's addresses. One process of the job, that of
// a rank 0, serves it at the agreed meeting place. A rank stays connected until all ranks of its
// group are there; then each rank gets all addresses, and the group is forgotten. So no stale entry
// is ever read: a rank that has gone before was never there. A rank keeps its connection until it
// has one to every near rank: in a small group, to every peer (schedules/overlay.hpp). If it goes
// before that, the directory tells the others: perhaps none of them has another connection to it.
// The numbers of ranks are two bytes each.
//
// A rank whose deadline passes asks for the ranks that have come. It counts as one that came,
// though it may leave then: the rest then miss only the ranks for which it waited, too. Once these
// have come, the rest miss the rank itself.
//
//   rank                          directory
//   Request                  -->
//   ask, or give up          -->
//                            <--  Reply with the news
//                            <--  Reply, entries of all   when all are there
//                            <--  number of a rank        that has gone since
//   last word, own number    -->  it has all near connections, or knows the rank that has gone
//   last word, another one   -->  it has lost that rank; the directory tells the others
#pragma once

#include <atomic>
#include <bitset>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends/tcp/admission.hpp"

namespace trireme::tcp {

// One refusal may come from another program that has taken over an address.
constexpr int kMostRefusals = 3;

constexpr std::size_t kMostRanks = 1024;

// The directory's knowledge of a group that waits for ranks.
struct News {
  std::bitset<kMostRanks> came;     // waits there, or did until its deadline
  std::bitset<kMostRanks> gave_up;  // its deadline has passed
  std::bitset<kMostRanks> left;     // it has gone since
};

constexpr char kFrames[] = "frames";  // as Entry::engine; goes together with ""

// The way in which peers reach a rank.
struct Entry {
  char endpoint[64];              // "10.0.0.2:4711"
  Digest nonce;                   // distinguishes all processes that ever listened there
  char engine[16];                // the backend that the rank was asked to use: "gloo"; "": none
  Digest host;                    // equal for ranks that reach each other by memory
  std::uint16_t few_connections;  // 0: every rank is connected to all others
  // How many. The rank itself tells them to those that call it: the bytes of the directory grow
  // with the square of the ranks.
  std::uint16_t further_addresses;
};
static_assert(sizeof(Entry) == 148);

class Directory {
 public:
  // The directory that this process serves at the endpoint, or a new one. Null where it cannot
  // serve: another process serves there, or the address belongs to another host.
  static Status serve(const Endpoint& endpoint, const Token& token,
                      std::shared_ptr<Directory>* out);
  // A new directory at an address of this host, at a free port; *bound is its endpoint.
  static Status open(Endpoint address, const Token& token, Endpoint* bound,
                     std::shared_ptr<Directory>* out);
  ~Directory();
  // Waits a short time until the guests know the ranks that have gone by now.
  void settle() noexcept;
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

 private:
  class Server;
  static Status start(Socket listener, const Endpoint& endpoint, const Token& token,
                      std::shared_ptr<Directory>* out);
  explicit Directory(std::shared_ptr<Server> server) : server_(std::move(server)) {}

  const std::shared_ptr<Server> server_;  // shared with its thread
};

// One rank's visit to the directory.
struct Visit {
  std::string name;
  std::int32_t rank = 0;
  std::int32_t world_size = 0;
  Entry own{};
};
// Callbacks of a visit, on the thread that visits.
struct Wait {
  std::function<void(const Socket* seat)> sit;  // the connection, for ask(); null: no more
  std::function<void(const News& news)> receive;
};
// A rank's connection to the directory when its group has met.
class Seat {
 public:
  Seat() = default;
  explicit Seat(Socket socket) : socket_(std::move(socket)) {}

  explicit operator bool() const { return static_cast<bool>(socket_); }
  int get() const { return socket_.get(); }
  void reset() { socket_.reset(); }
  // Adds the ranks that have gone since the last call; does not wait. False if the seat has ended.
  bool receive_gone(std::vector<int>* gone);
  // The first of these ranks; -1: there is none. It needs no memory.
  int first_told() noexcept;
  // The rank's last word there: its own number, or the number of a rank that it has lost.
  void say_last(int rank) noexcept;

 private:
  bool next(int* rank) noexcept;

  Socket socket_;
  unsigned char number_[2] = {};  // of the rank that is being told
  std::size_t got_ = 0;           // bytes of it
};

// Returns when all ranks of the group have come, or when this attempt has failed. *refused: the
// directory has refused, and would again.
Status visit(const Endpoint& endpoint, const Token& token, const Visit& own, const Wait& wait,
             const std::atomic<bool>& stop, std::vector<Entry>* out, bool* refused, Seat* seat);
// The answer arrives as news. `gives_up`: the rank's deadline has passed.
void ask(const Socket& seat, bool gives_up) noexcept;

}  // namespace trireme::tcp
