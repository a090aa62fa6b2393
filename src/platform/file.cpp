#include "platform/file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "platform/failpoint.hpp"
#include "platform/limits.hpp"
#include "platform/system.hpp"

namespace trireme {
namespace {

struct Freed {
  void operator()(void* memory) const { std::free(memory); }
};

// Zero pages that a direct write takes.
std::unique_ptr<char, Freed> aligned_pages(std::size_t bytes) {
  void* const memory = std::aligned_alloc(UnnamedFile::kAlignment, bytes);
  if (memory != nullptr) std::memset(memory, 0, bytes);
  return std::unique_ptr<char, Freed>(static_cast<char*>(memory));
}

std::string error_text(int error_number) { return Status::system(error_number, "").message(); }

}  // namespace

UnnamedFile::~UnnamedFile() {
  if (descriptor_ >= 0) system_table().close(descriptor_);
}

// Where the file system has no nameless files, the file has a name for a moment.
Status UnnamedFile::open_descriptor(const std::string& directory, int flags) {
  const System& system = system_table();
  do {
    descriptor_ =
        system.open(directory.c_str(), O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC | flags, 0600);
  } while (descriptor_ < 0 && errno == EINTR);
  if (descriptor_ >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) {
    return descriptor_ >= 0 ? Status::success() : Status::system(errno, directory);
  }
  for (int attempt = 0; attempt < 16; ++attempt) {
    std::uint64_t number = 0;
    if (!system.random_bytes(&number, sizeof number)) break;
    const std::string path = directory + "/.trireme-" + std::to_string(number);
    descriptor_ = system.open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | flags, 0600);
    if (descriptor_ >= 0) {
      unlink(path.c_str());
      return Status::success();
    }
    const int refusal = errno;
    if (refusal == EEXIST) continue;
    unlink(path.c_str());  // some file systems make the file before they refuse the flags
    errno = refusal;
    if (refusal != EINTR) break;
  }
  return Status::system(errno, directory);
}

// Returns 0 or an errno. Some file systems accept O_DIRECT at the opening and refuse the transfer.
int UnnamedFile::try_direct() const {
  const auto page = aligned_pages(kAlignment);
  if (page == nullptr) return ENOMEM;
  const System& system = system_table();
  ssize_t moved = 0;
  do {
    moved = system.write_at(descriptor_, page.get(), kAlignment, 0);
  } while (moved < 0 && errno == EINTR);
  if (moved == static_cast<ssize_t>(kAlignment)) {
    do {
      moved = system.read_at(descriptor_, page.get(), kAlignment, 0);
    } while (moved < 0 && errno == EINTR);
  }
  if (moved == static_cast<ssize_t>(kAlignment)) return 0;
  return moved < 0 ? errno : EINVAL;
}

Status UnnamedFile::reserve(const std::string& directory, std::uint64_t bytes) {
  const auto refused = [&](int error_number) {
    std::string text = "a file of " + std::to_string(bytes) + " bytes in \"" + directory + "\"";
    struct statvfs space = {};
    if (fstatvfs(descriptor_, &space) == 0) {
      text += ", where " + std::to_string(std::uint64_t{space.f_bavail} * space.f_frsize) +
              " bytes are free";
    }
    return Status::system(error_number, text);
  };
  if (!file_may_have(std::max<std::uint64_t>(bytes, kAlignment))) return refused(EFBIG);
  if (bytes > static_cast<std::uint64_t>(INT64_MAX)) return refused(EFBIG);
  const Status visit = failpoint("file", "reserve");
  if (const int error_number = failed_with(visit); error_number > 0) return refused(error_number);
  int reserved = 0;
  do {
    reserved = system_table().reserve(descriptor_, bytes);
  } while (reserved != 0 && errno == EINTR);
  if (reserved == 0) return Status::success();
  if (errno != EOPNOTSUPP && errno != ENOSYS) return refused(errno);
  // Reserves room by writing zeros.
  constexpr std::uint64_t kAtOnce = 1u << 20;
  const auto zeros = aligned_pages(kAtOnce);
  if (zeros == nullptr) return refused(ENOMEM);
  for (std::uint64_t done = 0; done < bytes;) {
    const ssize_t moved = system_table().write_at(
        descriptor_, zeros.get(), std::min(kAtOnce, bytes - done), static_cast<off_t>(done));
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return refused(moved < 0 ? errno : ENOSPC);
    done += static_cast<std::uint64_t>(moved) / kAlignment * kAlignment;
  }
  return Status::success();
}

Status UnnamedFile::open(const std::string& directory, std::uint64_t bytes) {
  const std::string what = "a file without a name in \"" + directory + "\"";
  const auto named = [&](const Status& status) {
    const int error_number = status.details() != nullptr ? status.details()->system_error : EIO;
    return Status::system(error_number, what);
  };
  if (const int injected = failed_with(failpoint("file", "open")); injected > 0) {
    return Status::system(injected, what);
  }
  int refusal = failed_with(failpoint("file", "direct"));
  if (refusal == 0) {
    const Status opened = open_descriptor(directory, O_DIRECT);
    refusal = opened.ok() ? 0 : failed_with(opened);
    if (!opened.ok() && refusal != EINVAL && refusal != EOPNOTSUPP) return named(opened);
  }
  if (refusal == 0) {
    TRIREME_RETURN_IF_ERROR(reserve(directory, bytes));
    refusal = try_direct();
    if (refusal == 0) return Status::success();
    system_table().close(std::exchange(descriptor_, -1));
  }
  why_not_direct_ = "O_DIRECT is refused" + error_text(refusal);
  const Status opened = open_descriptor(directory, 0);
  if (!opened.ok()) return named(opened);
  return reserve(directory, bytes);
}

std::string read_small_file(const char* path) {
  const int descriptor = ::open(path, O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return "";
  char text[8192];
  ssize_t length = 0;
  do {
    length = ::read(descriptor, text, sizeof text);
  } while (length < 0 && errno == EINTR);
  ::close(descriptor);
  return length <= 0 ? "" : std::string(text, static_cast<std::size_t>(length));
}

}  // namespace trireme
