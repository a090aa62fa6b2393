#include "platform/token.hpp"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>

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

Status read_file(const std::string& path, std::string* out) {
  const std::string what = "the token's file \"" + path + "\" (TRIREME_TOKEN_FILE)";
  const Open file{system_table().open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK,
                                      0)};
  if (file.descriptor < 0) return Status::system(errno, what);
  struct stat about {};
  if (fstat(file.descriptor, &about) != 0) return Status::system(errno, what);
  if (!S_ISREG(about.st_mode)) return refused(what + " is no regular file");
  if ((about.st_mode & 077) != 0) {
    return refused(what + " can be read or written by others: its mode must be 600 or 400");
  }
  char bytes[kMaxTokenBytes + 2];
  const ssize_t got = system_table().read_at(file.descriptor, bytes, sizeof bytes, 0);
  if (got < 0) return Status::system(errno, what);
  out->assign(bytes, static_cast<std::size_t>(got));
  explicit_bzero(bytes, sizeof bytes);
  while (!out->empty() && (out->back() == '\n' || out->back() == '\r')) out->pop_back();
  return Status::success();
}

}  // namespace

void Token::wipe() noexcept {
  explicit_bzero(secret_.data(), secret_.size());
  secret_.clear();
}

Status Token::from_environment(Token* out) {
  const char* const path = std::getenv("TRIREME_TOKEN_FILE");
  const char* const text = std::getenv("TRIREME_TOKEN");
  const bool from_file = path != nullptr && *path != 0;
  out->wipe();
  if (from_file) {
    TRIREME_RETURN_IF_ERROR(read_file(path, &out->secret_));
  } else if (text != nullptr) {
    out->secret_ = text;
  }
  const std::string where = from_file ? "the token's file (TRIREME_TOKEN_FILE)" : "TRIREME_TOKEN";
  const std::size_t bytes = out->secret_.size();
  if (bytes >= kMinTokenBytes && bytes <= kMaxTokenBytes) return Status::success();
  out->wipe();
  if (!from_file && bytes == 0) {
    return refused(
        "ranks that meet over a network need the job's token: a file named by TRIREME_TOKEN_FILE, "
        "or TRIREME_TOKEN");
  }
  return refused("the token in " + where + " has " + std::to_string(bytes) + " bytes, not " +
                 std::to_string(kMinTokenBytes) + " to " + std::to_string(kMaxTokenBytes));
}

}  // namespace trireme
