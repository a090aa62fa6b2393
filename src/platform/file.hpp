// Files: one without a name, which vanishes with its process however that ends, and the small files
// by which the kernel reports.
#pragma once

#include <cstdint>
#include <string>

#include "platform/status.hpp"

namespace trireme {

class UnnamedFile {
 public:
  // Direct reads and writes are aligned to this, in the file and in memory.
  static constexpr std::uint64_t kAlignment = 4096;

  UnnamedFile() = default;
  ~UnnamedFile();
  UnnamedFile(const UnnamedFile&) = delete;
  UnnamedFile& operator=(const UnnamedFile&) = delete;

  // In `directory`, with room for `bytes`, a multiple of the alignment. It is read past the
  // system's cache (O_DIRECT) where the file system takes that, else through it.
  Status open(const std::string& directory, std::uint64_t bytes);

  int descriptor() const { return descriptor_; }
  bool direct() const { return why_not_direct_.empty(); }
  const std::string& why_not_direct() const { return why_not_direct_; }

 private:
  Status open_descriptor(const std::string& directory, int flags);
  Status reserve(const std::string& directory, std::uint64_t bytes);
  int try_direct() const;

  int descriptor_ = -1;
  std::string why_not_direct_;
};

// Returns a whole file of the kernel, of 8 KiB at the most; "" if there is none.
std::string read_small_file(const char* path);

}  // namespace trireme
