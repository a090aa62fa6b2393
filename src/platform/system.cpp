#include "platform/system.hpp"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

#include "platform/clock.hpp"
#include "platform/descriptors.hpp"
#include "platform/limits.hpp"

namespace trireme {
namespace {

std::uint64_t monotonic_now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000u +
         static_cast<std::uint64_t>(time.tv_nsec);
}

bool random_from_kernel(void* data, std::size_t bytes) {
  auto* next = static_cast<unsigned char*>(data);
  while (bytes > 0) {
    const ssize_t got = getrandom(next, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    next += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

int close_descriptor(int descriptor) {
  const DescriptorChange change;
  forget_descriptor(descriptor);
  return ::close(descriptor);
}

constexpr std::uint64_t kHugePage = 2u << 20;
constexpr std::uint64_t kWorthHugePages = 2 * kHugePage;

// Huge pages of a file can only be mapped at a multiple of their size. The kernel does not choose
// such an address by itself.
void* map_at_huge_page(int descriptor, std::uint64_t bytes) {
  const std::uint64_t room = bytes + kHugePage;
  void* const reserved =
      mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return MAP_FAILED;
  const auto begin = reinterpret_cast<std::uintptr_t>(reserved);
  const std::uintptr_t at = (begin + kHugePage - 1) / kHugePage * kHugePage;
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const std::uintptr_t end = at + (bytes + page - 1) / page * page;
  void* const address = mmap(reinterpret_cast<void*>(at), bytes, PROT_READ | PROT_WRITE,
                             MAP_SHARED | MAP_FIXED, descriptor, 0);
  if (address == MAP_FAILED) {
    const int error_number = errno;
    munmap(reserved, room);
    errno = error_number;
    return MAP_FAILED;
  }
  if (at > begin) munmap(reserved, at - begin);
  if (begin + room > end) munmap(reinterpret_cast<void*>(end), begin + room - end);
  return address;
}

// Fills a new file with huge pages where the kernel gives them on demand (Linux 6.1), whatever its
// settings are. The kernel makes one huge page of every extent that has a page at all. That is far
// cheaper than after the extent is full. Where it does not, the file keeps its holes.
void begin_with_huge_pages(int descriptor, std::uint64_t bytes) {
  constexpr int kCollapse = 25;  // MADV_COLLAPSE, which older headers lack
  if (bytes < kWorthHugePages || ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) return;
  void* const address = map_at_huge_page(descriptor, bytes);
  if (address == MAP_FAILED) return;
  for (std::uint64_t at = 0; at + kHugePage <= bytes; at += kHugePage) {
    if (fallocate(descriptor, 0, static_cast<off_t>(at), 1) != 0) break;
    if (madvise(static_cast<char*>(address) + at, kHugePage, kCollapse) != 0) break;
  }
  munmap(address, bytes);
}

// fallocate makes a lack of memory an error here instead of a SIGBUS at the first touch. The seals
// keep a peer from cutting the file under the mapping.
int sealed_memory_file(const char* label, std::uint64_t bytes) {
  if (!file_may_have(bytes)) {
    errno = EFBIG;
    return -1;
  }
  const int descriptor =
      own_descriptor([=] { return memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING); });
  if (descriptor < 0) return -1;
  begin_with_huge_pages(descriptor, bytes);
  int result = 0;
  do {
    result = fallocate(descriptor, 0, 0, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  if (result == 0)
    result = fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  if (result != 0) {
    const int error_number = errno == ENOSPC ? ENOMEM : errno;
    close_descriptor(descriptor);
    errno = error_number;
    return -1;
  }
  return descriptor;
}

void* map_memory(int descriptor, std::uint64_t bytes) {
  const int flags = descriptor < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* address = MAP_FAILED;
  if (descriptor >= 0 && bytes >= kWorthHugePages) address = map_at_huge_page(descriptor, bytes);
  if (address == MAP_FAILED) {
    address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, descriptor, 0);
  }
  return address == MAP_FAILED ? nullptr : address;
}

void unmap_memory(void* address, std::uint64_t bytes) { munmap(address, bytes); }

// The kernel may read less than it was asked for.
ssize_t read_process_memory(pid_t process, void* to, std::uint64_t address, std::uint64_t bytes) {
  auto* next = static_cast<char*>(to);
  for (std::uint64_t left = bytes; left > 0;) {
    const iovec here{next, left};
    const iovec there{reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)), left};
    const ssize_t got = process_vm_readv(process, &here, 1, &there, 1, 0);
    if (got <= 0) {
      if (got == 0) errno = EFAULT;
      return -1;
    }
    next += got;
    address += static_cast<std::uint64_t>(got);
    left -= static_cast<std::uint64_t>(got);
  }
  return static_cast<ssize_t>(bytes);
}

int make_event_fd() {
  return own_descriptor([] { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
}

int make_socket(int domain, int type, int protocol) {
  return own_descriptor([=] { return ::socket(domain, type, protocol); });
}

int accept_caller(int socket, sockaddr* address, socklen_t* length, int flags) {
  return own_descriptor([=] { return ::accept4(socket, address, length, flags); });
}

int open_file(const char* path, int flags, unsigned mode) {
  return own_descriptor([=] { return ::open(path, flags, mode); });
}

int reserve_file(int descriptor, std::uint64_t bytes) {
  return fallocate(descriptor, 0, 0, static_cast<off_t>(bytes));
}

System table = {
    monotonic_now,      random_from_kernel,
    sealed_memory_file, map_memory,
    unmap_memory,       read_process_memory,
    make_socket,        ::bind,
    ::listen,           ::connect,
    accept_caller,      ::sendmsg,
    ::recvmsg,          close_descriptor,
    make_event_fd,      open_file,
    reserve_file,       ::pread,
    ::pwrite,
};

}  // namespace

System& system_table() { return table; }

std::uint64_t now_ns() { return table.now_ns(); }

}  // namespace trireme
