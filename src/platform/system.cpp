#include "platform/system.hpp"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

#include "platform/clock.hpp"

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

// fallocate makes a lack of memory an error here instead of a SIGBUS at the first touch, and the
// seals keep a peer from cutting the file under our mapping.
int sealed_memory_file(const char* label, std::uint64_t bytes) {
  const int descriptor = memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor < 0) return -1;
  int result = 0;
  do {
    result = fallocate(descriptor, 0, 0, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  if (result == 0) result = fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  if (result != 0) {
    const int error_number = errno == ENOSPC ? ENOMEM : errno;
    ::close(descriptor);
    errno = error_number;
    return -1;
  }
  return descriptor;
}

void* map_memory(int descriptor, std::uint64_t bytes) {
  const int flags = descriptor < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, descriptor, 0);
  return address == MAP_FAILED ? nullptr : address;
}

void unmap_memory(void* address, std::uint64_t bytes) { munmap(address, bytes); }

int make_event_fd() { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); }

System table = {
    monotonic_now, random_from_kernel, sealed_memory_file, map_memory, unmap_memory,
    ::socket,      ::bind,             ::listen,           ::connect,  ::accept4,
    ::sendmsg,     ::recvmsg,          ::close,            make_event_fd,
};

}  // namespace

System& system_table() { return table; }

std::uint64_t now_ns() { return table.now_ns(); }

}  // namespace trireme
