// Memories: the memory that a communicator has allocated, so that an operation can keep its memory
// alive: the caller may destroy a buffer while it is in use. Any thread.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "backends/backend.hpp"
#include "collectives/communicator.hpp"

namespace trireme {

class Memories {
 public:
  void add(const std::shared_ptr<Memory>& memory) {
    const std::lock_guard lock(mutex_);
    std::erase_if(by_address_, [](const auto& entry) { return entry.second.memory.expired(); });
    const std::uintptr_t begin = address_of(memory->data());
    by_address_[begin] = {memory->bytes(), memory};
    lowest_.store(std::min(lowest_.load(), begin));
    highest_.store(std::max(highest_.load(), begin + memory->bytes()));
  }

  // Most addresses lie outside of this memory, which these bounds show fast.
  bool may_hold(const void* data) const {
    return address_of(data) >= lowest_.load(std::memory_order_relaxed) &&
           address_of(data) < highest_.load(std::memory_order_relaxed);
  }

  // The memory that holds this address, or null.
  std::shared_ptr<const void> find(const void* data) const {
    if (!may_hold(data)) [[likely]]
      return nullptr;
    return search(data);
  }

  // The memory of both addresses of an operation, which mostly is one.
  using Both = std::array<std::shared_ptr<const void>, 2>;
  Both find(const PlainOperation& operation) const {
    if (!may_hold(operation.send) && !may_hold(operation.receive)) [[likely]]
      return {};
    const std::lock_guard lock(mutex_);
    const auto sent = entry_of(operation.send);
    const auto received = entry_of(operation.receive);
    Both both;
    if (sent != by_address_.end()) both[0] = sent->second.memory.lock();
    if (received != by_address_.end() && received != sent) {
      both[1] = received->second.memory.lock();
    }
    return both;
  }

  // The operation keeps its memory alive.
  void hold(Operation* operation) const {
    if (operation->also_uses.empty() && !may_hold(operation->send) &&
        !may_hold(operation->receive)) {
      return;
    }
    Held held;
    const auto add = [&](const void* data) {
      if (auto memory = find(data)) held.memories.push_back(std::move(memory));
    };
    add(operation->send);
    add(operation->receive);
    for (const void* const data : operation->also_uses) add(data);
    if (held.memories.empty()) return;
    held.owner = std::move(operation->owner);
    operation->owner = std::make_shared<const Held>(std::move(held));
  }
  MessageArguments hold(MessageArguments message) const {
    message.owner = find(message.data);
    return message;
  }

 private:
  struct Held {
    std::vector<std::shared_ptr<const void>> memories;
    std::shared_ptr<const void> owner;
  };

  std::shared_ptr<const void> search(const void* data) const {
    const std::lock_guard lock(mutex_);
    const auto found = entry_of(data);
    return found == by_address_.end() ? nullptr : found->second.memory.lock();
  }

  struct Entry {
    std::uint64_t bytes = 0;
    std::weak_ptr<const Memory> memory;
  };
  static std::uintptr_t address_of(const void* data) {
    return reinterpret_cast<std::uintptr_t>(data);
  }
  // The caller holds the lock.
  std::map<std::uintptr_t, Entry>::const_iterator entry_of(const void* data) const {
    if (!may_hold(data)) return by_address_.end();
    const auto after = by_address_.upper_bound(address_of(data));
    if (after == by_address_.begin()) return by_address_.end();
    const auto found = std::prev(after);
    return address_of(data) - found->first < found->second.bytes ? found : by_address_.end();
  }

  mutable std::mutex mutex_;
  std::map<std::uintptr_t, Entry> by_address_;
  // Bounds of all memory that was ever added.
  std::atomic<std::uintptr_t> lowest_{UINTPTR_MAX};
  std::atomic<std::uintptr_t> highest_{0};
};

}  // namespace trireme
