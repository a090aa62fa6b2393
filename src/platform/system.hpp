// The system table: every call of the system goes through it, so that tests can replace a clock, a
// disk or a socket by one that fails. Entries keep the meaning and the errno of the system's calls.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace trireme {

struct System {
  std::uint64_t (*now_ns)();
  bool (*random_bytes)(void* data, std::size_t bytes);

  // Memory. `map` of a negative descriptor maps private zero pages.
  int (*memory_file)(const char* label,
                     std::uint64_t bytes);            // sealed memfd with allocated pages, or -1
  void* (*map)(int descriptor, std::uint64_t bytes);  // nullptr on failure
  void (*unmap)(void* address, std::uint64_t bytes);

  // Reads memory of another process, as process_vm_readv(): all of it, or -1.
  ssize_t (*read_process)(pid_t process, void* to, std::uint64_t address, std::uint64_t bytes);

  // Unix sockets.
  int (*socket)(int domain, int type, int protocol);
  int (*bind)(int socket, const sockaddr* address, socklen_t length);
  int (*listen)(int socket, int backlog);
  int (*connect)(int socket, const sockaddr* address, socklen_t length);
  int (*accept)(int socket, sockaddr* address, socklen_t* length, int flags);
  ssize_t (*send_message)(int socket, const msghdr* message, int flags);
  ssize_t (*receive_message)(int socket, msghdr* message, int flags);
  int (*close)(int descriptor);

  // Descriptors for event loops.
  int (*event_fd)();

  // Files. `reserve` makes sure that later writes within the first `bytes` find room.
  int (*open)(const char* path, int flags, unsigned mode);
  int (*reserve)(int descriptor, std::uint64_t bytes);  // 0, or -1
  ssize_t (*read_at)(int descriptor, void* data, std::size_t bytes, off_t offset);
  ssize_t (*write_at)(int descriptor, const void* data, std::size_t bytes, off_t offset);
};

// The table in use. Tests may change entries before the library is used.
System& system_table();

}  // namespace trireme
