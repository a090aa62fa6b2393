#include "offload/file.hpp"

#include <exception>
#include <utility>

#include "platform/clock.hpp"
#include "platform/log.hpp"

namespace trireme::strategies {

OffloadFile::OffloadFile(const Link& link, std::string directory, std::string contents)
    : link_(link), directory_(std::move(directory)), contents_(std::move(contents)) {}

Status OffloadFile::open(std::uint64_t bytes, std::shared_ptr<const void> owner) {
  if (const Status status = file_.open(directory_, bytes); !status.ok()) {
    if (status.details() == nullptr) {
      return Status::failure(status.code(), "options.offload.path: " + status.message());
    }
    return Status::failure(status.code(), "options.offload.path: " + status.message())
        .with_details(*status.details());
  }
  file_.set_owner(std::move(owner));
  return Status::success();
}

void OffloadFile::start(Transfer* transfer, bool write, char* data, std::uint64_t offset,
                        std::uint64_t bytes) {
  transfer->write = write;
  transfer->data = data;
  transfer->offset = offset;
  transfer->bytes = bytes;
  (write ? written_bytes_ : read_bytes_) += bytes;
  file_.start(transfer);
}

Status OffloadFile::wait(const Transfer& transfer, const std::function<Status()>& meanwhile) {
  if (file_.done(transfer)) return Status::success();
  const std::uint64_t begin = now_ns();
  const Status status = file_.wait(transfer, link_.deadline(), [&]() -> Status {
    TRIREME_RETURN_IF_ERROR(link_.communicator->failure());
    return meanwhile();
  });
  waited_ns_ += now_ns() - begin;
  return status;
}

void OffloadFile::note_failed(const Transfer& transfer) {
  failed_errno_ = transfer.error_number;
  failed_offset_ = transfer.error_offset;
  ++failed_writes_;
}

// Memory may be short: then the log has no line.
void OffloadFile::report_kept(const Transfer& transfer) const noexcept {
  if (!log_wanted(TRIREME_LOG_WARNING)) return;
  try {
    const std::string what = "writing " + where(transfer.error_offset);
    log_line(TRIREME_LOG_WARNING, Status::system(transfer.error_number, what).message() + "; " +
                                      std::to_string(transfer.bytes) + " bytes of " + contents_ +
                                      " stay in memory from now on");
  } catch (const std::exception&) {
  }
}

Status OffloadFile::read_failure(const Transfer& transfer) const {
  return Status::system(transfer.error_number, "reading " + where(transfer.error_offset));
}

Status OffloadFile::corrupt(std::uint64_t offset) const {
  return Status::failure(TRIREME_ERROR_CORRUPT,
                         "the bytes read at " + where(offset) +
                             " are not those written there: its checksum is another one");
}

std::string OffloadFile::where(std::uint64_t offset) const {
  return "byte " + std::to_string(offset) + " of the file of " + contents_ + " in \"" + directory_ +
         "\"";
}

void OffloadFile::info(trireme_offload_info* out) const {
  out->path = directory_.c_str();
  out->direct = file_.why_not_direct().empty() ? 1 : 0;
  out->io_uring = file_.why_not_ring().empty() ? 1 : 0;
  out->why_not_direct = file_.why_not_direct().c_str();
  out->why_not_io_uring = file_.why_not_ring().c_str();
  out->read_bytes = read_bytes_;
  out->written_bytes = written_bytes_;
  out->waited_seconds = static_cast<double>(waited_ns_) * 1e-9;
  out->failed_writes = failed_writes_;
  out->failed_offset = failed_offset_;
  out->failed_errno = failed_errno_;
}

}  // namespace trireme::strategies
