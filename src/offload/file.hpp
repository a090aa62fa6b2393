// A file for state that does not stay in memory: its transfers, which end when the group fails or a
// deadline passes, and its counters.
#pragma once

#include <trireme/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "exchange/storage.hpp"
#include "platform/async_file.hpp"

namespace trireme::strategies {

class OffloadFile {
 public:
  // `contents` is for messages: "the state".
  OffloadFile(const Link& link, std::string directory, std::string contents);

  // `owner` keeps the memory of all transfers alive.
  Status open(std::uint64_t bytes, std::shared_ptr<const void> owner);

  // Place and size are multiples of UnnamedFile::kAlignment.
  void start(Transfer* transfer, bool write, char* data, std::uint64_t offset, std::uint64_t bytes);
  bool done(const Transfer& transfer) { return file_.done(transfer); }
  // `meanwhile` is called several times.
  Status wait(
      const Transfer& transfer,
      const std::function<Status()>& meanwhile = [] { return Status::success(); });

  // Call it once for each failed write.
  void note_failed(const Transfer& transfer);
  // Reports data that could not be written, and stays in memory from now on.
  void report_kept(const Transfer& transfer) const noexcept;
  Status read_failure(const Transfer& transfer) const;
  Status corrupt(std::uint64_t offset) const;
  // Fills the fields that the file knows.
  void info(trireme_offload_info* out) const;

 private:
  std::string where(std::uint64_t offset) const;

  const Link& link_;
  const std::string directory_, contents_;
  std::uint64_t read_bytes_ = 0, written_bytes_ = 0, waited_ns_ = 0;
  std::uint64_t failed_writes_ = 0, failed_offset_ = 0;
  int failed_errno_ = 0;
  AsyncFile file_;
};

}  // namespace trireme::strategies
