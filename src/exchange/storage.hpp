// The memory of a model, counted by kind where it is allocated, and the model's way to its peers.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "collectives/communicator.hpp"
#include "devices/device.hpp"
#include "platform/clock.hpp"
#include "platform/status.hpp"

namespace trireme::strategies {

enum class MemoryKind { parameters, gradients, optimizer_state, working };

struct AllocatedBytes {
  std::uint64_t by_kind[4] = {};
  std::uint64_t& of(MemoryKind kind) { return by_kind[static_cast<int>(kind)]; }
};

// One piece of memory that peers read in place. It counts until it is released here; operations
// that still run keep the bytes themselves.
class Arena {
 public:
  Arena() = default;
  ~Arena() { reset(); }
  Arena(Arena&& other) noexcept { swap(other); }
  Arena& operator=(Arena&& other) noexcept {
    swap(other);
    return *this;
  }

  Status allocate(Communicator& communicator, const std::shared_ptr<AllocatedBytes>& counter,
                  MemoryKind kind, std::uint64_t bytes);
  // Memory that all of `ranks` map; this rank counts `bytes` of it. prepare_to_share() does the
  // part that may fail on one rank alone: rank 0 makes the memory. When all ranks have succeeded,
  // share() maps it; share() is collective, on `channel`.
  Status prepare_to_share(Communicator& ranks, std::uint64_t total_bytes);
  Status share(Communicator& ranks, std::uint32_t channel, Deadline deadline,
               const std::shared_ptr<AllocatedBytes>& counter, MemoryKind kind,
               std::uint64_t total_bytes, std::uint64_t bytes);
  // Memory of a device, which no peer reads.
  void take(std::unique_ptr<devices::Block> block, const std::shared_ptr<AllocatedBytes>& counter,
            MemoryKind kind, std::uint64_t bytes);
  void reset();

  char* data() const {
    if (block_) return static_cast<char*>(block_->data());
    return memory_ ? static_cast<char*>(memory_->data()) : nullptr;
  }
  std::uint64_t bytes() const { return bytes_; }
  const std::shared_ptr<Memory>& memory() const { return memory_; }
  explicit operator bool() const { return memory_ != nullptr || block_ != nullptr; }

 private:
  void swap(Arena& other) noexcept;

  std::shared_ptr<Memory> memory_;
  std::shared_ptr<Memory> word_;  // the key by which it is shared
  std::unique_ptr<devices::Block> block_;
  std::shared_ptr<AllocatedBytes> counter_;
  MemoryKind kind_ = MemoryKind::working;
  std::uint64_t bytes_ = 0;  // that are counted
};

// The memory of a sealed model. Operations under way share it, so that a model may be destroyed at
// any time.
struct Storage {
  std::shared_ptr<AllocatedBytes> allocated = std::make_shared<AllocatedBytes>();
  Arena parameters;
  Arena gradients;
  Arena working;
  Arena reshard;  // see reshard_ranks of the model's options
  // The parameters of a model on a device. `parameters` is then memory of the host, at the same
  // places, through which they go to peers.
  Arena on_device;

  // Keeps the memory alive, not the count.
  std::shared_ptr<const void> hold() const;
};

// The way of one model to its peers. Channel `gathers` carries parameters and the ranks'
// agreements, `reductions` carries gradients and the step; so a gather during backward does not
// wait for reductions.
struct Link {
  std::shared_ptr<Communicator> communicator;
  std::uint32_t gathers = 0;
  std::uint32_t reductions = 0;
  // hybrid_shard: the ranks that share one copy of the parameters, and the ranks that hold the same
  // part of a copy. Both are the model's own, so their channel 0 is free. Null where a transport
  // carries the ranks: then all ranks make one operation, see model/units/team_gather.hpp.
  std::shared_ptr<Communicator> shard, replicas;
  // Also the model's own: the ranks that spread a unit between them after its gather
  // (reshard_ranks).
  std::shared_ptr<Communicator> reshard;
  // The ranks that share one copy of the parameters.
  Communicator& holders() const { return shard ? *shard : *communicator; }
  // All groups; those that are not there are null.
  std::array<const std::shared_ptr<Communicator>*, 4> groups() const {
    return {&communicator, &shard, &replicas, &reshard};
  }
  std::uint64_t timeout_ns = 0;
  std::uint64_t given_bytes = 0;  // sent to peers for parameters and gradients since the last step
  mutable std::uint64_t exposed_ns = 0;  // time that calls waited for operations
  mutable bool waited_for_cause = false;
  std::uint64_t step = 0;  // that are done
  // The caller's hook or rule runs, and must not call the model.
  std::atomic<bool> in_callback = false;

  std::uint32_t rank() const { return static_cast<std::uint32_t>(communicator->rank()); }
  std::uint32_t world_size() const {
    return static_cast<std::uint32_t>(communicator->world_size());
  }
  Deadline deadline() const { return Deadline::after(timeout_ns); }
  // Runs one operation from beginning to end.
  Status run(Communicator& ranks, Operation&& operation) const;
  Status run(Operation&& operation) const { return run(*communicator, std::move(operation)); }
  // Fails the group: this rank cannot take the step that all ranks take.
  void fail(trireme_status code, std::string_view why) const noexcept;
  // Translates a failure of `ranks`, which may be a group of the model's own, into numbers of the
  // model's ranks: the caller knows no others.
  Status in_model_ranks(const Communicator& ranks, Status status) const;
  // A barrier on the reductions' channel, in which ranks may compare a named value.
  Status meet(std::uint64_t agreement = 0, const char* agreement_name = "") const;
  // A started operation has its own deadline, whose failure names the missing ranks; that deadline
  // passes before this wait ends.
  Status wait(const Request& request) const;
  Status of_step(Status status) const;
  Status of_deadline(Status status) const;
};

// One collective in memory that `owner` keeps, where this rank's own elements already lie: those of
// an all_gather at element count * rank, and all others at the beginning. A reduction adds up, and
// a broadcast comes from rank 0, unless the caller sets `reduction` or `root`.
Operation in_place(const Link& link, std::uint32_t channel, OperationKind kind, trireme_dtype dtype,
                   void* memory, std::uint64_t count, std::shared_ptr<const void> owner);

// While it lives, code of the caller runs for the model.
class CallbackScope {
 public:
  explicit CallbackScope(Link& link) : link_(link) {
    link_.in_callback.store(true, std::memory_order_relaxed);
  }
  ~CallbackScope() { link_.in_callback.store(false, std::memory_order_relaxed); }
  CallbackScope(const CallbackScope&) = delete;
  CallbackScope& operator=(const CallbackScope&) = delete;

 private:
  Link& link_;
};

}  // namespace trireme::strategies
