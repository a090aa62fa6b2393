#include "backends/twin.hpp"

#include <sys/mman.h>

#include <cerrno>

#include "platform/memory.hpp"
#include "platform/system.hpp"

namespace trireme {

std::shared_ptr<Twin> Twin::map(int descriptor, const void* data, std::uint64_t bytes) {
  void* const twin = system_table().map(descriptor, bytes);
  if (twin == nullptr) return nullptr;
  prefer_huge_pages(twin, bytes);
  try {
    return std::shared_ptr<Twin>(
        new Twin(static_cast<const std::byte*>(data), static_cast<std::byte*>(twin), bytes));
  } catch (...) {
    system_table().unmap(twin, bytes);
    throw;
  }
}

Twin::~Twin() {
  if (!is_revoked()) system_table().unmap(twin_, bytes_);
}

// The flag comes first: who finds it unset after the last access has reached the buffer itself.
void Twin::revoke() noexcept {
  const std::lock_guard lock(mutex_);
  if (revoked_.exchange(true)) return;
  const int error_number = errno;
  const void* const other = mmap(twin_, bytes_, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  // The system has no other pages: then a later access there fails.
  if (other == MAP_FAILED) mprotect(twin_, bytes_, PROT_NONE);
  errno = error_number;
}

}  // namespace trireme
