// Reads and writes of one unnamed file in the background: by io_uring, or where that is not
// permitted by threads of its own.
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
  // Of the first part that failed.
  int error_number = 0;
  std::uint64_t error_offset = 0;
};

class AsyncFile {
 public:
  AsyncFile() = default;
  // Waits for what is under way. What the disk does not answer within seconds is left to itself,
  // with the owner of its memory.
  ~AsyncFile();
  AsyncFile(const AsyncFile&) = delete;
  AsyncFile& operator=(const AsyncFile&) = delete;

  // See UnnamedFile::open().
  Status open(const std::string& directory, std::uint64_t bytes);
  // Of all memory of transfers.
  void set_owner(std::shared_ptr<const void> owner);

  // Interrupted and partial calls are continued; what fails is told by the transfer, memory for its
  // parts included.
  void start(Transfer* transfer);
  bool done(const Transfer& transfer);  // does not block
  // Until it is done; `stop` is asked several times a second whether to go on.
  Status wait(const Transfer& transfer, Deadline deadline, const std::function<Status()>& stop);

  const std::string& directory() const;
  // "" where it is in use.
  const std::string& why_not_direct() const;
  const std::string& why_not_ring() const;

  // Somebody who moves bytes. In async_file.cpp.
  class Engine;

 private:
  std::shared_ptr<Engine> engine_;
};

}  // namespace trireme
