// DeathWord: a word of shared memory in which the kernel reports the death of one thread. The
// kernel reports it before it frees the memory of a killed process. Freeing takes long, and
// descriptors close only after it.
//
// It is a robust futex (get_robust_list(2)) that is never released in life. The list that the
// kernel walks lies in memory of the thread's own: a peer that writes rubbish to the word harms no
// list, and reports no death.
#pragma once

#include <linux/futex.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace trireme {

class DeathWord {
 public:
  DeathWord() = default;
  ~DeathWord() { let_go(); }
  DeathWord(const DeathWord&) = delete;
  DeathWord& operator=(const DeathWord&) = delete;

  bool held() const { return word_ != nullptr; }
  // hold() and let_go() act for the calling thread, which uses no robust mutex besides. Best
  // effort: without the word, peers notice a death later.
  void hold(std::atomic<std::uint32_t>* word) noexcept;
  void let_go() noexcept;

  // Whether the word's thread ended while it held the word: the value that only the kernel leaves.
  static bool tells_death(std::uint32_t value) {
    return (value & ~std::uint32_t{FUTEX_WAITERS}) == FUTEX_OWNER_DIED;
  }

 private:
  std::atomic<std::uint32_t>* word_ = nullptr;
  robust_list entry_{};
  robust_list_head head_{};
  void* before_ = nullptr;  // the C library's list
  std::size_t before_bytes_ = 0;
};

}  // namespace trireme
