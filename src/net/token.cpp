#include "net/token.hpp"

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <mutex>

#include "platform/clock.hpp"
#include "platform/system.hpp"

namespace trireme {
namespace {

Status refused(std::string message) {
  return Status::failure(TRIREME_ERROR_AUTHENTICATION, std::move(message));
}

struct Open {
  int descriptor;
  ~Open() {
    if (descriptor >= 0) system_table().close(descriptor);
  }
};

void strip_end_of_line(std::string* text) {
  while (!text->empty() && (text->back() == '\n' || text->back() == '\r')) text->pop_back();
}

Status read_file(const std::string& path, std::string* out) {
  const std::string what = "the token's file \"" + path + "\" (TRIREME_TOKEN_FILE)";
  // A secret of Kubernetes is a symbolic link. The file behind the link tells the token's owner.
  const Open file{system_table().open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0)};
  if (file.descriptor < 0) return Status::system(errno, what);
  struct stat about {};
  if (fstat(file.descriptor, &about) != 0) return Status::system(errno, what);
  if (!S_ISREG(about.st_mode)) return refused(what + " is no regular file");
  if (about.st_uid != geteuid() && about.st_uid != 0) {
    return refused(what + " belongs to user " + std::to_string(about.st_uid) + ", not to user " +
                   std::to_string(geteuid()) + " or 0");
  }
  if ((about.st_mode & 077) != 0) {
    return refused(what + " can be read or written by others: its mode must be 600 or 400");
  }
  char bytes[kMaxTokenBytes + 2];
  const ssize_t got = system_table().read_at(file.descriptor, bytes, sizeof bytes, 0);
  if (got < 0) return Status::system(errno, what);
  out->assign(bytes, static_cast<std::size_t>(got));
  explicit_bzero(bytes, sizeof bytes);
  strip_end_of_line(out);
  return Status::success();
}

// Reads the descriptor in TRIREME_TOKEN_FD. It can be read only once, so a later call returns the
// first call's result.
Status read_descriptor(const std::string& number, std::string* out) {
  struct Read {
    std::mutex mutex;
    std::string number;
    std::string secret;
  };
  static Read* const before = new Read;  // never destroyed: threads may come at any time
  const std::lock_guard lock(before->mutex);
  if (before->number == number) {
    *out = before->secret;
    return Status::success();
  }
  const std::string what = "the token's descriptor " + number + " (TRIREME_TOKEN_FD)";
  int descriptor = -1;
  const char* const end = number.data() + number.size();
  if (const auto [stop, error] = std::from_chars(number.data(), end, descriptor);
      error != std::errc() || stop != end || descriptor < 0) {
    return refused(what + " is no number of a descriptor");
  }
  constexpr std::uint64_t kPatienceNs = 5'000'000'000;
  const Deadline deadline = Deadline::after(kPatienceNs);
  char bytes[kMaxTokenBytes + 2];
  std::size_t size = 0;
  Status status = Status::success();
  while (size < sizeof bytes) {
    pollfd entry{descriptor, POLLIN, 0};
    if (::poll(&entry, 1, static_cast<int>(deadline.remaining_ns() / 1'000'000)) == 0) {
      status = refused(what + " has no end: its writer must close it");
      break;
    }
    const ssize_t got = ::read(descriptor, bytes + size, sizeof bytes - size);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got < 0) status = Status::system(errno, what);
    if (got <= 0) break;
    size += static_cast<std::size_t>(got);
  }
  if (status.ok()) {
    out->assign(bytes, size);
    strip_end_of_line(out);
    before->number = number;
    before->secret = *out;
    system_table().close(descriptor);
  }
  explicit_bzero(bytes, sizeof bytes);
  return status;
}

}  // namespace

void Token::wipe() noexcept {
  explicit_bzero(secret_.data(), secret_.size());
  secret_.clear();
}

std::string how_to_make_a_token() {
  return "To make one, the same for all ranks: (umask 077; head -c 32 /dev/urandom | base64 > token); "
         "export TRIREME_TOKEN_FILE=$PWD/token";
}

Status Token::read(Token* out, std::string* where) {
  const auto value = [](const char* name) {
    const char* const text = std::getenv(name);
    return std::string(text == nullptr ? "" : text);
  };
  const std::string path = value("TRIREME_TOKEN_FILE"), number = value("TRIREME_TOKEN_FD");
  out->wipe();
  if (!path.empty()) {
    *where = "the token's file (TRIREME_TOKEN_FILE)";
    return read_file(path, &out->secret_);
  }
  if (!number.empty()) {
    *where = "the token's descriptor (TRIREME_TOKEN_FD)";
    return read_descriptor(number, &out->secret_);
  }
  const char* const text = std::getenv("TRIREME_TOKEN");
  if (text == nullptr || *text == 0) return Status::success();
  *where = "TRIREME_TOKEN";
  out->secret_ = text;
  return Status::success();
}

Status Token::from_environment(Token* out) {
  std::string where;
  TRIREME_RETURN_IF_ERROR(read(out, &where));
  const std::size_t bytes = out->secret_.size();
  if (bytes >= kMinTokenBytes && bytes <= kMaxTokenBytes) return Status::success();
  out->wipe();
  if (where.empty()) {
    return refused(
        "ranks that meet over a network need the job's token: a file named by TRIREME_TOKEN_FILE, "
        "a descriptor in TRIREME_TOKEN_FD, or TRIREME_TOKEN. " +
        how_to_make_a_token());
  }
  return refused("the token in " + where + " has " + std::to_string(bytes) + " bytes, not " +
                 std::to_string(kMinTokenBytes) + " to " + std::to_string(kMaxTokenBytes));
}

Status Token::from_environment_if_any(Token* out) {
  std::string where;
  return read(out, &where);
}

}  // namespace trireme
