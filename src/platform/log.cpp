#include "platform/log.hpp"

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <iterator>
#include <mutex>

namespace trireme {
namespace {

struct Listener {
  std::mutex mutex;
  std::condition_variable idle;
  trireme_log_callback callback = nullptr;
  void* user_data = nullptr;
  bool was_set = false;  // the program has set a callback or NULL
  int inside = 0;        // threads in `callback`
};

constexpr trireme_log_level kNotAsked = -1;
constexpr const char* kNames[] = {"", "error", "warning", "info", "debug"};

std::atomic<trireme_log_level> wanted_level{kNotAsked};
thread_local bool t_inside = false;

// Never destroyed: threads may log while the process ends.
Listener& listener() {
  static Listener* const instance = new Listener;
  return *instance;
}

// The level for stderr where the program has set no callback: the launcher or the user sets it.
trireme_log_level level_of_environment() noexcept {
  const char* const text = std::getenv("TRIREME_LOG");
  if (text == nullptr) return 0;
  for (std::size_t level = 1; level < std::size(kNames); ++level) {
    if (std::string(text) == kNames[level]) return static_cast<trireme_log_level>(level);
  }
  return 0;
}

// One write, so that lines of several threads and processes do not mix.
void write_to_stderr(trireme_log_level level, const std::string& message) noexcept {
  try {
    const std::string line = std::string("trireme: ") + kNames[level] + ": " + message + '\n';
    [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, line.data(), line.size());
  } catch (...) {  // no memory for a line
  }
}

}  // namespace

bool log_wanted(trireme_log_level level) noexcept {
  trireme_log_level wanted = wanted_level.load(std::memory_order_relaxed);
  if (wanted == kNotAsked) {
    trireme_log_level expected = kNotAsked;
    wanted = level_of_environment();
    // The program may have set a callback meanwhile.
    if (!wanted_level.compare_exchange_strong(expected, wanted)) wanted = expected;
  }
  return level <= wanted;
}

void log_line(trireme_log_level level, const std::string& message) noexcept {
  // a callback that makes the library log would never end
  if (!log_wanted(level) || t_inside) return;
  Listener& all = listener();
  trireme_log_callback callback = nullptr;
  void* user_data = nullptr;
  {
    const std::lock_guard lock(all.mutex);
    if (all.callback == nullptr && all.was_set) return;
    callback = all.callback;
    user_data = all.user_data;
    if (callback != nullptr) ++all.inside;
  }
  if (callback == nullptr) return write_to_stderr(level, message);
  t_inside = true;
  callback(level, message.c_str(), user_data);
  t_inside = false;
  const std::lock_guard lock(all.mutex);
  if (--all.inside == 0) all.idle.notify_all();
}

void set_log_callback(trireme_log_callback callback, trireme_log_level level, void* user_data) {
  Listener& all = listener();
  std::unique_lock lock(all.mutex);
  all.callback = callback;
  all.user_data = user_data;
  all.was_set = true;
  // NULL means silence, because the program asked for it.
  wanted_level.store(callback == nullptr ? 0 : level, std::memory_order_relaxed);
  if (!t_inside) all.idle.wait(lock, [&] { return all.inside == 0; });
}

}  // namespace trireme
