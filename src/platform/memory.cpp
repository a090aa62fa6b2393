#include "platform/memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "platform/file.hpp"

namespace trireme {
namespace {

// The number at the beginning of a cgroup file; false for "max" and for no file.
bool read_number(const char* path, std::uint64_t* out) {
  const std::string text = read_small_file(path);
  if (text.empty() || text[0] < '0' || text[0] > '9') return false;
  *out = std::strtoull(text.c_str(), nullptr, 10);
  return true;
}

}  // namespace

std::uint64_t available_memory() {
  std::uint64_t available = UINT64_MAX;
  const std::string info = read_small_file("/proc/meminfo");
  if (const std::size_t at = info.find("MemAvailable:"); at != std::string::npos) {
    available = std::strtoull(info.c_str() + at + std::strlen("MemAvailable:"), nullptr, 10) * 1024;
  }
  // A container sees its own cgroup at the root of this file system.
  std::uint64_t limit = 0;
  std::uint64_t used = 0;
  if (read_number("/sys/fs/cgroup/memory.max", &limit) &&
      read_number("/sys/fs/cgroup/memory.current", &used)) {
    // Cached files that are not in use count as used, but the kernel drops them on demand.
    const std::string statistics = read_small_file("/sys/fs/cgroup/memory.stat");
    constexpr std::string_view kFiles = "\ninactive_file ";
    if (const std::size_t at = statistics.find(kFiles); at != std::string::npos) {
      const char* const digits = statistics.c_str() + at + kFiles.size();
      used -= std::min<std::uint64_t>(used, std::strtoull(digits, nullptr, 10));
    }
    available = std::min(available, limit > used ? limit - used : 0);
  }
  return available;
}

void prefer_huge_pages(void* address, std::uint64_t bytes) noexcept {
  constexpr std::uint64_t kWorthwhile = 4u << 20;
  if (bytes < kWorthwhile) return;
  const int error_number = errno;
  madvise(address, bytes, MADV_HUGEPAGE);
#ifdef MADV_COLLAPSE
  madvise(address, bytes, MADV_COLLAPSE);
#else
  madvise(address, bytes, 25);  // MADV_COLLAPSE of Linux 6.1
#endif
  errno = error_number;
}

}  // namespace trireme
