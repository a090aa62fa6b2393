#include "platform/log.hpp"

#include <atomic>
#include <condition_variable>
#include <mutex>

namespace trireme {
namespace {

struct Listener {
  std::mutex mutex;
  std::condition_variable idle;
  trireme_log_callback callback = nullptr;
  void* user_data = nullptr;
  int inside = 0;  // threads in `callback`
};

std::atomic<trireme_log_level> wanted_level{0};
thread_local bool t_inside = false;

// Never destroyed: threads may log while the process ends.
Listener& listener() {
  static Listener* const instance = new Listener;
  return *instance;
}

}  // namespace

bool log_wanted(trireme_log_level level) noexcept {
  return level <= wanted_level.load(std::memory_order_relaxed);
}

void log_line(trireme_log_level level, const std::string& message) noexcept {
  // a callback that makes the library log would not end
  if (!log_wanted(level) || t_inside) return;
  Listener& all = listener();
  trireme_log_callback callback = nullptr;
  void* user_data = nullptr;
  {
    const std::lock_guard lock(all.mutex);
    if (all.callback == nullptr) return;
    callback = all.callback;
    user_data = all.user_data;
    ++all.inside;
  }
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
  wanted_level.store(callback == nullptr ? 0 : level, std::memory_order_relaxed);
  if (!t_inside) all.idle.wait(lock, [&] { return all.inside == 0; });
}

}  // namespace trireme
