// Twin: the pages of a buffer at a second address, for a library that cannot give back an address.
// Once it is revoked, other pages lie at that address. So the library never touches the buffer
// again, whatever it still does there.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

namespace trireme {

class Twin {
 public:
  // `data` maps all of that file, which has so many bytes. Null: the system gives no second
  // address.
  static std::shared_ptr<Twin> map(int descriptor, const void* data, std::uint64_t bytes);
  Twin(const Twin&) = delete;
  Twin& operator=(const Twin&) = delete;
  // Unmaps the second address, unless it was revoked: then it stays until the process ends.
  ~Twin();

  // The second address of a byte of the buffer.
  std::byte* of(const void* data) const noexcept {
    return twin_ + (static_cast<const std::byte*>(data) - data_);
  }

  // After this no thread of this process, and no later access of another one, reaches the buffer by
  // the second address. Any thread, more than once.
  void revoke() noexcept;
  // Whoever has used the second address asks this before it trusts what it wrote or read there.
  bool is_revoked() const noexcept {
    std::atomic_thread_fence(std::memory_order_seq_cst);  // after all accesses so far
    return revoked_.load(std::memory_order_seq_cst);
  }

 private:
  Twin(const std::byte* data, std::byte* twin, std::uint64_t bytes)
      : data_(data), twin_(twin), bytes_(bytes) {}

  const std::byte* const data_;
  std::byte* const twin_;
  const std::uint64_t bytes_;
  std::mutex mutex_;  // held while the pages are replaced
  std::atomic<bool> revoked_{false};
};

}  // namespace trireme
