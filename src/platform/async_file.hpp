// Reads and writes of one unnamed file in the background: io_uring moves them, or threads where the
// kernel does not permit io_uring.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "platform/clock.hpp"
#include "platform/status.hpp"

namespace trireme {

// One read or write under way. It and its memory belong to the caller and stay where they are until
// it is done. Place and size are multiples of UnnamedFile::kAlignment.
struct Transfer {
  bool write = false;
  char* data = nullptr;
  std::uint64_t offset = 0, bytes = 0;
  std::uint32_t parts = 0;  // not done yet
  // Errno and place of the first part that failed.
  int error_number = 0;
  std::uint64_t error_offset = 0;
};

class AsyncFile {
 public:
  AsyncFile() = default;
  // Waits until all transfers under way are done. Transfers that the disk does not answer within
  // seconds stay with the engine, which then owns their memory.
  ~AsyncFile();
  AsyncFile(const AsyncFile&) = delete;
  AsyncFile& operator=(const AsyncFile&) = delete;

  // See UnnamedFile::open().
  Status open(const std::string& directory, std::uint64_t bytes);
  // `owner` keeps the memory of all transfers alive.
  void set_owner(std::shared_ptr<const void> owner);

  // Continues interrupted and partial calls. The transfer tells every failure, lack of memory for
  // its parts included.
  void start(Transfer* transfer);
  bool done(const Transfer& transfer);  // does not block
  // Waits until the transfer is done; asks `stop` several times a second whether to go on.
  Status wait(const Transfer& transfer, Deadline deadline, const std::function<Status()>& stop);

  const std::string& directory() const;
  // The reason why it is not in use; "" where it is.
  const std::string& why_not_direct() const;
  const std::string& why_not_ring() const;

  // The part that moves bytes. See async_file.cpp.
  class Engine;

 private:
  std::shared_ptr<Engine> engine_;
};

}  // namespace trireme
