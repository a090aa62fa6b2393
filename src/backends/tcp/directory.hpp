// Directory: how the ranks of a group learn each other's addresses. One process of the job, that of
// a rank 0, serves it where the ranks have agreed to meet. A rank stays connected until all ranks of
// its group are there; then each is told everybody's address, and the group is forgotten. So nothing
// stale is ever read: who has gone before that was never there.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "backends/tcp/gate.hpp"

namespace trireme::tcp {

// How peers reach a rank.
struct Entry {
  char endpoint[64];  // "10.0.0.2:4711"
  Digest nonce;       // which of all that ever listened there
  char engine[16];    // that the rank was asked to use: "gloo"; "": none
  Digest host;        // ranks with the same one reach each other by memory
};
static_assert(sizeof(Entry) == 144);

class Directory {
 public:
  // The one that this process serves at the endpoint, a new one, or null where it cannot: another
  // process serves there, or it is an address of another host.
  static Status serve(const Endpoint& endpoint, const Token& token,
                      std::shared_ptr<Directory>* out);
  // A new one at an address of this host, at a port that is free; *bound: which.
  static Status open(Endpoint address, const Token& token, Endpoint* bound,
                     std::shared_ptr<Directory>* out);
  ~Directory();
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

 private:
  class Server;
  static Status start(Socket listener, const Endpoint& endpoint, const Token& token,
                      std::shared_ptr<Directory>* out);
  explicit Directory(std::shared_ptr<Server> server) : server_(std::move(server)) {}

  const std::shared_ptr<Server> server_;  // its thread has a share, too
};

// One rank's visit there.
struct Visit {
  std::string name;
  std::int32_t rank = 0;
  std::int32_t world_size = 0;
  Entry own{};
};
// Comes back when all ranks of the group have come, too, or when this attempt has failed. *refused: it
// was the directory that said no, and would again.
Status visit(const Endpoint& endpoint, const Token& token, const Visit& own,
             const std::atomic<bool>& stop, std::vector<Entry>* out, bool* refused);

}  // namespace trireme::tcp
