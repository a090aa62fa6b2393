// DeathWord: a word of shared memory in which the kernel tells of the death of one thread. Of a
// process that is killed it does so before it gives back the memory, which may take long and is
// what must be over before its descriptors close.
//
// It is a robust futex (get_robust_list(2)) that is held for good. The list that the kernel walks
// lies in memory of the thread's own: rubbish in the word harms it in nothing, and is no death.
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
  // Of the calling thread, which has no robust mutex of its own and also lets go. Best effort:
  // without it a death is noticed later.
  void hold(std::atomic<std::uint32_t>* word) noexcept;
  void let_go() noexcept;

  // Whether its thread ended while it held the word: what the kernel leaves then, and nothing else.
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
