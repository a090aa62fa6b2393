// HierarchicalEngine: collectives of a group whose ranks share hosts. The ranks of one host reduce
// and gather in memory that all of them map; between hosts go shards, each to the rank of the same
// place on the next host. So only a part of the bytes crosses a wire.
//
// Ranks copy their data, piece by piece, to a shelf for the other ranks of their host, and meet at
// the host's barrier: only a rank itself touches its caller's memory.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/engine.hpp"
#include "backends/hierarchical/hosts.hpp"
#include "backends/tcp/exchange.hpp"
#include "backends/wire/ring.hpp"

namespace trireme::hierarchical {

class HierarchicalEngine final : public host::Engine {
 public:
  struct Options {
    int rank = 0;
    int world_size = 1;
    std::string name;                   // of the group, for messages
    std::shared_ptr<tcp::Lines> lines;  // to the ranks that open() asked for
    // Whether there are lines between all ranks, and no library uses them: then algorithms run over
    // them, and calls are carried.
    bool uses_wire = false;
    // Of these lines only those to near ranks are there from the beginning.
    bool few_connections = false;
    // The engine of another library for all ranks. It runs the collectives if no two ranks share a
    // host, or all do; else one of its engines connects the hosts. Null: a ring of this library
    // connects the hosts, and else there are no such collectives.
    std::shared_ptr<host::Engine> library;
    // Whether its wire connects all ranks, whatever hosts they share.
    bool library_reaches_all = false;
    std::function<Status(Members, std::unique_ptr<host::Engine>*)> open_library;
    // The ranks without a sign of life for a while: a rank that waits in vain is often several
    // ranks away from the stopped one. The function may be empty.
    std::function<std::vector<std::int32_t>()> silent;
  };
  explicit HierarchicalEngine(Options options);
  Status open();  // before anything else

  // Call it once, before the ranks are ready. `identities` tell which ranks share a host.
  // `host_name` is the secret name of a group of this host's ranks. *neighbours: the ranks to which
  // the engine needs a line.
  Status open(const std::vector<Digest>& identities, const std::string& host_name,
              std::vector<int>* neighbours);

  const char* name() const override { return "hierarchical"; }
  Wire* wire() override;
  bool carries_slots() const override { return options_.uses_wire; }
  void take_by(Take take) override;
  Status publish(std::uint32_t channel, const void* frame, std::uint64_t bytes,
                 bool later) override;
  bool publishes_to_one() const override { return options_.uses_wire; }
  bool has_few_connections() const override { return options_.few_connections; }
  bool is_on_one_host() const override { return on_one_host_.load(std::memory_order_acquire); }
  Status publish_to(int rank, const void* frame, std::uint64_t bytes, bool later) override {
    return wire_->publish_to(rank, frame, bytes, later);
  }
  void after_taking(std::function<void()> taken, std::uint64_t longest_frame) override;
  Status fetch(std::uint32_t channel, bool* any) override;
  bool can_rest() const override { return options_.uses_wire; }
  std::uint64_t taken() const override { return wire_ == nullptr ? 0 : wire_->taken_calls(); }
  void rest(std::uint64_t seen, Deadline deadline) override { wire_->rest(seen, deadline); }
  bool has_ended() const override { return options_.uses_wire && wire_->has_ended(); }
  std::uint64_t ended_ns(int rank) const override {
    return options_.uses_wire ? wire_->ended_ns(rank) : 0;
  }
  Status loss_of(int rank) override { return wire_->loss_of(rank); }
  void say_goodbye() noexcept override {
    if (options_.few_connections) wire_->say_goodbye();
  }
  bool has_left(int rank) const override {
    return options_.few_connections && wire_->has_left(rank);
  }
  bool flush(std::uint64_t* flushed) noexcept override {
    const bool all = wire_ == nullptr || wire_->flush_calls();
    *flushed = wire_ == nullptr ? 0 : wire_->moved_bytes();
    return all;
  }
  // A late rank may itself wait for another one. A rank that gives no sign of life is the cause.
  Status explained(const Status& status) const override;
  std::string description() const override;
  bool offers(const Operation& operation) const override;
  bool prefers(const Operation& operation) const override;
  std::uint32_t channels() const override {
    return options_.library == nullptr ? kChannels : options_.library->channels();
  }
  bool tells_apart() const override { return library() != nullptr && library()->tells_apart(); }
  Status run(const Operation& operation, std::uint64_t ticket, Deadline deadline) override;
  TrafficCounters traffic() const override;  // between hosts
  void abort() noexcept override;

 private:
  // The memory that the ranks of a host share, by channel. It has room for two pieces: each with a
  // rank's data, and with the result of its shard.
  struct Shelf {
    std::shared_ptr<Memory> own;
    std::vector<std::shared_ptr<Memory>> others;  // by place
    std::vector<std::byte*> first;                // by place
    std::uint64_t pieces = 0;
    std::uint64_t sequence = 0;  // of the host's own group
    std::unique_ptr<std::byte[]> sums;
    std::uint64_t sums_bytes = 0;
  };
  // One collective, see run.hpp.
  class Run;

  const Hosts* hosts() const { return hosts_seen_.load(std::memory_order_acquire); }
  // The engine that runs the collectives instead, or null.
  host::Engine* library() const { return hosts() == nullptr ? options_.library.get() : nullptr; }
  bool column_offers(const Operation& operation) const;
  Status local_step(std::uint32_t channel, Operation step, Deadline deadline);
  Status open_shelf(std::uint32_t channel, Deadline deadline);
  Status barrier(std::uint32_t channel, Deadline deadline);
  Status as_group(const Status& status) const;
  std::vector<int> others() const;

  const Options options_;
  const std::shared_ptr<tcp::Exchange> wire_;  // null: a library uses the lines
  std::mutex mutex_;                           // guards the setting of the fields below
  std::unique_ptr<Hosts> hosts_;
  std::unique_ptr<Backend> local_;
  std::unique_ptr<host::Engine> column_;
  std::atomic<const Hosts*> hosts_seen_{nullptr};
  std::atomic<bool> on_one_host_{false};
  std::atomic<bool> aborted_{false};
  std::array<Shelf, kChannels> shelves_;
};

}  // namespace trireme::hierarchical
