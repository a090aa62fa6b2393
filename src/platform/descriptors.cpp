#include "platform/descriptors.hpp"

#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "platform/clock.hpp"

namespace trireme {
namespace {

// The kernel gives no higher ones by default (fs.nr_open). Pages of the map that are never written
// cost no memory.
constexpr int kMost = 1 << 20;
constexpr int kBits = 64;
constinit std::atomic<std::uint64_t> map[kMost / kBits] = {};
constinit std::atomic<int> words_used{0};

constinit std::atomic<int> changes{0};  // threads between a call and its note
constinit std::atomic<int> forks{0};    // threads that fork

constinit std::atomic<int> refusal{0};  // an errno

// A signal handler may fork while its own thread is inside a change: that fork does not wait for
// ever.
constexpr std::uint64_t kLongestWaitNs = 200'000'000;

void before_fork() {
  const int error_number = errno;
  forks.fetch_add(1, std::memory_order_seq_cst);
  for (std::uint64_t begin = 0; changes.load(std::memory_order_seq_cst) > 0;) {
    const std::uint64_t now = now_ns();
    if (begin == 0) begin = now;
    if (now - begin > kLongestWaitNs) break;
    sched_yield();
  }
  errno = error_number;
}

void after_fork() { forks.fetch_sub(1, std::memory_order_seq_cst); }

// Nothing here but loads, stores and calls of the system: other threads may have held any lock.
void in_child() {
  const int error_number = errno;
  const int words = words_used.load(std::memory_order_relaxed);
  for (int word = 0; word < words; ++word) {
    std::uint64_t bits = map[word].exchange(0, std::memory_order_relaxed);
    for (; bits != 0; bits &= bits - 1) syscall(SYS_close, word * kBits + std::countr_zero(bits));
  }
  words_used.store(0, std::memory_order_relaxed);
  changes.store(0, std::memory_order_relaxed);
  forks.store(0, std::memory_order_relaxed);
  errno = error_number;
}

const bool handlers_set = [] {
  pthread_atfork(before_fork, after_fork, in_child);
  return true;
}();

}  // namespace

DescriptorChange::DescriptorChange() noexcept {
  while (true) {
    changes.fetch_add(1, std::memory_order_seq_cst);
    if (forks.load(std::memory_order_seq_cst) == 0) return;
    changes.fetch_sub(1, std::memory_order_seq_cst);
    sched_yield();
  }
}

DescriptorChange::~DescriptorChange() { changes.fetch_sub(1, std::memory_order_seq_cst); }

void note_descriptor(int descriptor) noexcept {
  if (descriptor < 0 || descriptor >= kMost) return;
  const int word = descriptor / kBits;
  map[word].fetch_or(1ull << (descriptor % kBits), std::memory_order_relaxed);
  int used = words_used.load(std::memory_order_relaxed);
  while (used <= word &&
         !words_used.compare_exchange_weak(used, word + 1, std::memory_order_relaxed)) {
  }
}

void note_refusal(int error_number) noexcept {
  switch (error_number) {
    case 0:
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM: refusal.store(error_number, std::memory_order_release);
    default: break;  // such as EINVAL of a listener that another thread closes: no shortage
  }
}

int system_refusal() noexcept { return refusal.load(std::memory_order_acquire); }

void forget_descriptor(int descriptor) noexcept {
  if (descriptor < 0 || descriptor >= kMost) return;
  map[descriptor / kBits].fetch_and(~(1ull << (descriptor % kBits)), std::memory_order_relaxed);
}

}  // namespace trireme
