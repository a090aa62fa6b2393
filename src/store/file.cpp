#include "store/file.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "platform/limits.hpp"
#include "platform/system.hpp"
#include "store/wire.hpp"

namespace trireme::cluster {
namespace {

// The list only grows: a store serves a job's start, not its data.
constexpr std::uint64_t kMostFileBytes = 256u << 20;
// The system does not tell when the file has changed or is unlocked: a waiter looks again after a
// pause, drawn below a bound that doubles.
constexpr std::uint64_t kFirstLookNs = 500'000;
constexpr std::uint64_t kLongestLookNs = 20'000'000;
// Even a look with a deadline of 0 may wait so long for a writer.
constexpr std::uint64_t kWriterNs = 1'000'000'000;

Digest key_of_file(const Token& token) {
  return hmac_sha256(token.secret(), "trireme key of the store's file");
}

}  // namespace

// Locks the file, and a mutex: threads of one process share the file's lock. The lock ends if the
// process dies.
class StoreFile::Lock {
 public:
  Lock() = default;
  ~Lock() {
    struct flock all {};
    all.l_type = F_UNLCK;
    if (file_ != nullptr) ::fcntl(file_->file_.get(), F_OFD_SETLK, &all);
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  // `kind`: F_RDLCK or F_WRLCK.
  Status take(StoreFile& file, short kind, Deadline deadline) {
    std::uint64_t longest_pause = kFirstLookNs;
    while (true) {
      if (!threads_.owns_lock()) threads_ = std::unique_lock(file.mutex_, std::try_to_lock);
      if (threads_.owns_lock()) {
        struct flock all {};
        all.l_type = kind;
        if (::fcntl(file.file_.get(), F_OFD_SETLK, &all) == 0) {
          file_ = &file;
          return Status::success();
        }
        if (errno != EAGAIN && errno != EACCES) {
          return Status::system(errno, "a lock of " + file.what());
        }
      }
      if (deadline.passed()) {
        return Status::failure(TRIREME_ERROR_TIMEOUT,
                               "others had " + file.what() + " locked all the time");
      }
      TRIREME_RETURN_IF_ERROR(file.pause(&longest_pause));
    }
  }

 private:
  std::unique_lock<std::mutex> threads_;  // let go of last
  StoreFile* file_ = nullptr;
};

StoreFile::StoreFile(std::string path, const Token& token)
    : path_(std::move(path)), key_(key_of_file(token)) {}

std::string StoreFile::what() const { return "the store's file \"" + path_ + "\""; }

void StoreFile::stop() noexcept { stopped_.wake(); }

Status StoreFile::open(Deadline deadline) {
  TRIREME_RETURN_IF_ERROR(stopped_.open());
  if (!system_table().random_bytes(lane_.data(), lane_.size())) {
    return Status::failure(TRIREME_ERROR_SYSTEM, "the system gives no random numbers");
  }
  file_ = tcp::Socket(system_table().open(
      path_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600));
  if (!file_) return Status::system(errno, what());
  struct stat about {};
  if (fstat(file_.get(), &about) != 0) return Status::system(errno, what());
  if (!S_ISREG(about.st_mode)) return invalid_argument(what() + " is no regular file");
  if ((about.st_mode & 077) != 0) {
    return Status::failure(TRIREME_ERROR_AUTHENTICATION,
                           what() + " can be read or written by others: its mode must be 600");
  }
  reader_.emplace(key_, kMaxStoreRequestBytes);
  Lock lock;
  TRIREME_RETURN_IF_ERROR(lock.take(*this, F_RDLCK, deadline));
  return read_new();
}

Status StoreFile::pause(std::uint64_t* longest_ns) const {
  std::uint64_t drawn = 0;
  static_cast<void>(system_table().random_bytes(&drawn, sizeof drawn));
  pollfd entry{stopped_.get(), POLLIN, 0};
  const timespec time{0, static_cast<long>(drawn % *longest_ns)};
  *longest_ns = std::min(*longest_ns * 2, kLongestLookNs);
  if (::ppoll(&entry, 1, &time, nullptr) > 0) {
    return Status::failure(TRIREME_ERROR_CANCELLED, "the store's handle was destroyed meanwhile");
  }
  return Status::success();
}

Status StoreFile::read_new() {
  StoreReply reply;
  for (bool whole = true; whole;) TRIREME_RETURN_IF_ERROR(read_frame(&whole, &reply));
  return Status::success();
}

// *whole is false at the end of the file, and where a process died during its write.
Status StoreFile::read_frame(bool* whole, StoreReply* reply) {
  const auto read = [&](void* to, std::size_t bytes, std::uint64_t offset, bool* all) {
    std::size_t got = 0;
    while (got < bytes) {
      const ssize_t now = system_table().read_at(file_.get(), static_cast<char*>(to) + got,
                                                 bytes - got, static_cast<off_t>(offset + got));
      if (now < 0 && errno == EINTR) continue;
      if (now < 0) return Status::system(errno, what());
      if (now == 0) break;
      got += static_cast<std::size_t>(now);
    }
    *all = got == bytes;
    return Status::success();
  };
  unsigned char head[kFrameHead];
  TRIREME_RETURN_IF_ERROR(read(head, sizeof head, offset_, whole));
  if (!*whole) return Status::success();
  std::size_t length = 0;
  for (std::size_t i = 0; i < sizeof head; ++i) length |= std::size_t{head[i]} << (8 * i);
  const auto damaged = [&] {
    if (offset_ == 0) {
      return Status::failure(
          TRIREME_ERROR_AUTHENTICATION,
          what() + " was not written by this job: remove it or name another one");
    }
    return Status::failure(TRIREME_ERROR_CORRUPT,
                           what() + " is damaged at byte " + std::to_string(offset_));
  };
  if (length > kMaxStoreRequestBytes) return damaged();
  std::string frame(kFrameHead + length + kFrameCode, '\0');
  TRIREME_RETURN_IF_ERROR(read(frame.data(), frame.size(), offset_, whole));
  if (!*whole) return Status::success();
  std::size_t used = 0;
  StoreRequest request;
  StoreInstance instance = 0;
  if (!reader_->take(frame, &used).ok() || !reader_->whole() ||
      !decode(reader_->body(), &request, &instance) || !changes(request.operation)) {
    return damaged();
  }
  carry_out(request, reply);
  offset_ += frame.size();
  return Status::success();
}

void StoreFile::carry_out(const StoreRequest& request, StoreReply* reply) {
  std::vector<StoreState::Answer> answers;
  state_.take(0, request, 0, &answers);
  *reply = std::move(answers.front().reply);
}

// Call it under the writer's lock, after the whole file was read.
Status StoreFile::append(const StoreRequest& request) {
  std::string frame;
  FrameWriter writer(key_, reader_->sequence());
  writer.write(encode(request, 0), &frame);
  if (offset_ + frame.size() > kMostFileBytes) {
    return Status::failure(TRIREME_ERROR_OUT_OF_MEMORY, what() + " is full: it has " +
                                                            std::to_string(offset_) + " bytes of " +
                                                            std::to_string(kMostFileBytes));
  }
  if (!file_may_have(offset_ + frame.size())) return Status::system(EFBIG, what());
  // Cuts the half-written request of a process that died.
  if (::ftruncate(file_.get(), static_cast<off_t>(offset_)) != 0)
    return Status::system(errno, what());
  for (std::size_t at = 0; at < frame.size();) {
    const ssize_t now = system_table().write_at(file_.get(), frame.data() + at, frame.size() - at,
                                                static_cast<off_t>(offset_ + at));
    if (now < 0 && errno == EINTR) continue;
    if (now <= 0) {
      const int error_number = now < 0 ? errno : EIO;
      static_cast<void>(!::ftruncate(file_.get(), static_cast<off_t>(offset_)));
      return Status::system(error_number, what());
    }
    at += static_cast<std::size_t>(now);
  }
  return Status::success();
}

Status StoreFile::change(StoreRequest request, Deadline deadline, StoreReply* reply) {
  Lock lock;
  TRIREME_RETURN_IF_ERROR(lock.take(*this, F_WRLCK, deadline));
  TRIREME_RETURN_IF_ERROR(read_new());
  request.lane = lane_;
  request.number = ++number_;
  TRIREME_RETURN_IF_ERROR(append(request));
  // This process reads its own request back like all others, so it has the same effect here as
  // there.
  bool whole = false;
  TRIREME_RETURN_IF_ERROR(read_frame(&whole, reply));
  if (whole) return Status::success();
  return Status::failure(TRIREME_ERROR_SYSTEM,
                         what() + " does not keep the bytes that are written to it");
}

Status StoreFile::look(StoreRequest request, Deadline deadline, StoreReply* reply) {
  const std::uint64_t last = deadline.moment_ns();
  const auto backoff = Deadline::at(last > UINT64_MAX - kWriterNs ? UINT64_MAX : last + kWriterNs);
  request.timeout_ns = 0;
  std::uint64_t longest_pause = kFirstLookNs;
  while (true) {
    {
      Lock lock;
      TRIREME_RETURN_IF_ERROR(lock.take(*this, F_RDLCK, backoff));
      TRIREME_RETURN_IF_ERROR(read_new());
      carry_out(request, reply);
    }
    if (reply->code != TRIREME_ERROR_TIMEOUT || deadline.passed()) return Status::success();
    TRIREME_RETURN_IF_ERROR(pause(&longest_pause));
  }
}

Status StoreFile::ask(StoreRequest request, Deadline deadline, StoreReply* reply) {
  TRIREME_RETURN_IF_ERROR(check_store_request(request));
  TRIREME_RETURN_IF_ERROR(changes(request.operation) ? change(std::move(request), deadline, reply)
                                                     : look(std::move(request), deadline, reply));
  if (reply->code == TRIREME_OK) return Status::success();
  return Status::failure(reply->code, "the store at " + url() + ": " + reply->message);
}

}  // namespace trireme::cluster
