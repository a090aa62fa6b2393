#include "platform/death_word.hpp"

#include <sys/syscall.h>
#include <unistd.h>

namespace trireme {

void DeathWord::hold(std::atomic<std::uint32_t>* word) noexcept {
  if (syscall(SYS_get_robust_list, 0, &before_, &before_bytes_) != 0) return;
  entry_.next = &head_.list;
  head_.list.next = &entry_;
  head_.futex_offset = static_cast<long>(reinterpret_cast<std::uintptr_t>(word) -
                                         reinterpret_cast<std::uintptr_t>(&entry_));
  word->store(static_cast<std::uint32_t>(syscall(SYS_gettid)), std::memory_order_release);
  if (syscall(SYS_set_robust_list, &head_, sizeof head_) == 0) {
    word_ = word;
  } else {
    word->store(0, std::memory_order_release);
  }
}

void DeathWord::let_go() noexcept {
  if (word_ == nullptr) return;
  syscall(SYS_set_robust_list, before_, before_bytes_);
  word_->store(0, std::memory_order_release);
  word_ = nullptr;
}

}  // namespace trireme
