#include "collectives/tuning.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "backends/parts.hpp"
#include "collectives/algorithm_run.hpp"
#include "platform/system.hpp"

namespace trireme {
namespace {

struct Open {
  int descriptor;
  ~Open() {
    if (descriptor >= 0) system_table().close(descriptor);
  }
};

// "", or why not. To open a device may change it, and a file may become one after the first look.
std::string read_file(const std::string& path, std::string* out) {
  const auto error_text = [] { return Status::system(errno, "it cannot be read").message(); };
  constexpr char kOtherFile[] = "it is no regular file";
  struct stat about {};
  if (stat(path.c_str(), &about) != 0) return error_text();
  if (!S_ISREG(about.st_mode)) return kOtherFile;
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;  // waits for no pipe
  const Open file{system_table().open(path.c_str(), kFlags, 0)};
  if (file.descriptor < 0 || fstat(file.descriptor, &about) != 0) return error_text();
  if (!S_ISREG(about.st_mode)) return kOtherFile;
  out->resize(TuningTable::kMostBytes + 1);  // one more tells that it is too long
  std::size_t size = 0;
  while (size < out->size()) {
    const ssize_t got = system_table().read_at(file.descriptor, out->data() + size,
                                               out->size() - size, static_cast<off_t>(size));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return error_text();
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  out->resize(size);
  return "";
}

}  // namespace

Status read_tuning(std::shared_ptr<const TuningTable>* out) {
  const char* const variable = std::getenv("TRIREME_TUNING");
  if (variable == nullptr) return Status::success();
  const std::string path = variable;  // at once: the caller may set variables
  if (path.empty()) return Status::success();
  std::string text;
  std::string fault = read_file(path, &text);
  auto table = std::make_shared<TuningTable>();
  if (fault.empty()) fault = TuningTable::parse(text, table.get());
  if (!fault.empty()) {
    return invalid_argument("the tuning table \"" + path + "\" (TRIREME_TUNING): " + fault);
  }
  *out = std::move(table);
  return Status::success();
}

void Tuning::use(std::shared_ptr<const TuningTable> table) {
  table_ = std::move(table);
  if (table_ != nullptr) digest_ = table_->digest();
}

void Tuning::settle(const Backend& backend) {
  if (is_settled_.load(std::memory_order_acquire)) return;
  rules_.store(table_->find(backend.world_size(), backend.description()),
               std::memory_order_relaxed);
  is_settled_.store(true, std::memory_order_release);
}

Algorithm Tuning::choose(const Backend& backend, const Operation& operation) const {
  const TunedGroup* const rules = rules_.load(std::memory_order_relaxed);
  if (rules == nullptr || operation.algorithm != 0 || operation.kind == OperationKind::fold) {
    return Algorithm::automatic;
  }
  // The bits of a model do not depend on a table. Where ranks share memory, its gathers rely on the
  // backend's own way.
  const bool keeps = reduces(operation.kind) || backend.one_memory().is_there;
  if (operation.model != 0 && keeps) return Algorithm::automatic;
  const std::optional<Pattern> pattern = pattern_of(operation.kind);
  if (!pattern.has_value()) return Algorithm::automatic;
  const std::uint64_t bytes = whole_bytes(operation, *pattern, backend.world_size());
  // Without bytes there is nothing to be faster at.
  if (bytes == 0 && pattern != Pattern::barrier) return Algorithm::automatic;
  const Algorithm chosen = rules->choose(*pattern, bytes);
  const bool is_missing = chosen == Algorithm::native && !backend.has_native(operation);
  return is_missing ? Algorithm::automatic : chosen;
}

bool Tuning::leaves(const PlainOperation& operation, int world_size) const noexcept {
  if (table_ == nullptr) return true;
  if (!is_settled_.load(std::memory_order_acquire)) return false;
  const TunedGroup* const rules = rules_.load(std::memory_order_relaxed);
  if (rules == nullptr) return true;
  const std::optional<Pattern> pattern = pattern_of(operation.kind);
  return !pattern.has_value() ||
         rules->choose(*pattern, whole_bytes(operation, *pattern, world_size)) ==
             Algorithm::automatic;
}

}  // namespace trireme
