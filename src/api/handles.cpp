#include "api/handles.hpp"

#include <pthread.h>

#include <atomic>
#include <cstdio>
#include <iterator>
#include <mutex>
#include <vector>

#include "collectives/communicator.hpp"

namespace trireme::api::detail {
namespace {

constexpr std::uint32_t kChunkSlots = 1024;
constexpr std::uint32_t kChunks = 4096;
constexpr std::uint32_t kGenerations = 1u << 24;

struct Slot {
  std::atomic_flag lock = ATOMIC_FLAG_INIT;  // held for a few instructions, never across a call out
  HandleType type{};
  std::uint32_t generation = 0;
  std::shared_ptr<void> object;
};

class SlotLock {
 public:
  explicit SlotLock(Slot& slot) : slot_(slot) {
    while (slot_.lock.test_and_set(std::memory_order_acquire)) {
    }
  }
  ~SlotLock() { slot_.lock.clear(std::memory_order_release); }
  SlotLock(const SlotLock&) = delete;
  SlotLock& operator=(const SlotLock&) = delete;

 private:
  Slot& slot_;
};

struct Table {
  std::atomic<Slot*> chunks[kChunks] = {};
  std::mutex mutex;  // guards the two below
  std::vector<std::uint32_t> free;
  std::size_t free_head = 0;  // first in, first out: a stale token stays invalid for as long as
                              // possible
  std::uint32_t used = 0;
};

// Set in the child of a fork: the threads behind its handles are gone, and their locks stay locked.
// In a program that had not used the library, the child begins like any other program.
std::atomic<bool> forked{false};

// Never destroyed: handles may be used while the process ends.
Table& table() {
  static Table* const instance = [] {
    pthread_atfork(nullptr, nullptr, [] { forked.store(true, std::memory_order_relaxed); });
    return new Table;
  }();
  return *instance;
}

Slot* slot_at(std::uint32_t index) {
  if (index / kChunkSlots >= kChunks) return nullptr;
  Slot* const chunk = table().chunks[index / kChunkSlots].load(std::memory_order_acquire);
  return chunk == nullptr ? nullptr : &chunk[index % kChunkSlots];
}

std::uintptr_t make_token(HandleType type, std::uint32_t generation, std::uint32_t index) {
  return static_cast<std::uintptr_t>(type) << 56 | static_cast<std::uintptr_t>(generation) << 32 |
         index;
}

Slot* slot_of(HandleType type, std::uintptr_t token) {
  if (token >> 56 != static_cast<std::uintptr_t>(type)) return nullptr;
  if (forked.load(std::memory_order_relaxed)) return nullptr;
  return slot_at(static_cast<std::uint32_t>(token));
}

bool is_live(const Slot& slot, HandleType type, std::uintptr_t token) {
  return slot.object != nullptr && slot.type == type &&
         slot.generation == (token >> 32 & (kGenerations - 1));
}

std::uint32_t take_index() {
  Table& all = table();
  const std::lock_guard lock(all.mutex);
  // The room for returning the index is made here, so that destruction never allocates.
  if (all.free_head > all.free.size() / 2 && all.free_head > 64) {
    all.free.erase(all.free.begin(), all.free.begin() + static_cast<std::ptrdiff_t>(all.free_head));
    all.free_head = 0;
  }
  all.free.reserve(static_cast<std::size_t>(all.used) * 2 + 256);
  if (all.free.size() - all.free_head > 32) return all.free[all.free_head++];
  if (all.used == kChunkSlots * kChunks) throw std::bad_alloc();
  if (all.used % kChunkSlots == 0) {
    all.chunks[all.used / kChunkSlots].store(new Slot[kChunkSlots], std::memory_order_release);
  }
  return all.used++;
}

}  // namespace

std::uintptr_t insert_handle(HandleType type, std::shared_ptr<void> object) {
  const std::uint32_t index = take_index();
  Slot& slot = *slot_at(index);
  const SlotLock lock(slot);
  slot.generation = (slot.generation + 1) % kGenerations;
  slot.type = type;
  slot.object = std::move(object);
  return make_token(type, slot.generation, index);
}

std::shared_ptr<void> find_handle(HandleType type, std::uintptr_t token) noexcept {
  Slot* const slot = slot_of(type, token);
  if (slot == nullptr) return nullptr;
  const SlotLock lock(*slot);
  return is_live(*slot, type, token) ? slot->object : nullptr;
}

std::shared_ptr<void> remove_handle(HandleType type, std::uintptr_t token) noexcept {
  Slot* const slot = slot_of(type, token);
  if (slot == nullptr) return nullptr;
  std::shared_ptr<void> object;
  {
    const SlotLock lock(*slot);
    if (!is_live(*slot, type, token)) return nullptr;
    object = std::move(slot->object);
    slot->object = nullptr;
  }
  Table& all = table();
  const std::lock_guard lock(all.mutex);
  // take_index() reserved twice the number of slots; indices taken from the front are dropped first
  // if necessary.
  if (all.free.size() == all.free.capacity()) {
    all.free.erase(all.free.begin(), all.free.begin() + static_cast<std::ptrdiff_t>(all.free_head));
    all.free_head = 0;
  }
  all.free.push_back(static_cast<std::uint32_t>(token));
  return object;
}

Status refuse_after_fork() {
  static_cast<void>(table());  // from here on a fork is noticed
  if (!forked.load(std::memory_order_relaxed)) return Status::success();
  return invalid_state(
      "this process was forked by one that had used the library; fork before its first use, or "
      "start another program");
}

Status no_such_handle(const char* name, std::uintptr_t token) {
  if (token == 0) {
    return Status::failure(TRIREME_ERROR_INVALID_HANDLE, std::string(name) + " is NULL");
  }
  if (forked.load(std::memory_order_relaxed)) {
    return Status::failure(
        TRIREME_ERROR_INVALID_HANDLE,
        std::string(name) + " was made before fork, whose child has none of its threads");
  }
  // Names a live handle of another type: the caller has mixed up two variables.
  static constexpr const char* kNames[] = {
      "",        "communicator", "request", "buffer",
      "model",   "optimizer",    "mesh",    "trainer",
      "store",   "tensor",       "region",  "vocabulary",
      "linear",  "context",      "mlp",     "pipeline_schedule",
      "experts", "parallel"};
  const auto type = static_cast<std::size_t>(token >> 56);
  const bool known = type > 0 && type < std::size(kNames);
  if (known && std::string(kNames[type]) != name &&
      find_handle(static_cast<HandleType>(type), token) != nullptr) {
    const auto with_article = [](const std::string& noun) {
      return (std::string("aeiou").find(noun[0]) == std::string::npos ? "a " : "an ") + noun;
    };
    return Status::failure(TRIREME_ERROR_INVALID_HANDLE, with_article(kNames[type]) +
                                                             " handle was given where " +
                                                             with_article(name) + " is expected");
  }
  char text[96];
  std::snprintf(text, sizeof text, "%s %#llx is not live: destroyed, or never one", name,
                static_cast<unsigned long long>(token));
  return Status::failure(TRIREME_ERROR_INVALID_HANDLE, text);
}

}  // namespace trireme::api::detail

void trireme::api::fail_to_hand_out(Communicator& communicator) noexcept {
  communicator.fail_to_hand_out();
  try {
    static_cast<void>(communicator.failure());  // the peers know it before the call returns
  } catch (...) {                               // no memory for the words of a failure
  }
}
