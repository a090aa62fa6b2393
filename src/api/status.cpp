// status.h: the last error of each thread.
#include <trireme/status.h>

#include <cstdio>
#include <cstring>

#include "api/boundary.hpp"
#include "platform/names.hpp"

namespace trireme::api {
namespace {

// Plain bytes: they need no constructor in threads older than the library, and no destructor that
// races with a thread's exit. They need no allocation when memory has just run out.
thread_local char t_message[2048];
thread_local trireme_error_info t_info;

void copy_text(char* to, std::size_t capacity, const char* from) noexcept {
  const std::size_t length = strnlen(from, capacity - 1);
  std::memcpy(to, from, length);
  std::memset(to + length, 0, capacity - length);
}

}  // namespace

trireme_status record_failure(const char* function, trireme_status code,
                              const char* message) noexcept {
  std::snprintf(t_message, sizeof t_message, "%s: %s", function, message);
  t_info = trireme_error_info TRIREME_ERROR_INFO_INIT;
  t_info.code = code;
  return code;
}

trireme_status record_failure(const char* function, const Status& status) noexcept {
  record_failure(function, status.code(), status.message().c_str());
  if (const FailureDetails* details = status.details()) {
    t_info.sequence = details->sequence;
    t_info.system_error = details->system_error;
    t_info.try_again = details->try_again ? 1 : 0;
    t_info.blamed_count = static_cast<std::uint32_t>(details->blamed.size());
    std::copy_n(details->blamed.begin(),
                std::min<std::size_t>(details->blamed.size(), TRIREME_MAX_BLAMED_RANKS),
                t_info.blamed);
    copy_text(t_info.operation, sizeof t_info.operation, details->operation.c_str());
    copy_text(t_info.communicator, sizeof t_info.communicator, details->communicator.c_str());
  }
  return status.code();
}

Status write_text(const std::string& text, char* memory, std::uint64_t capacity,
                  std::uint64_t* out_length) {
  if (memory == nullptr && capacity != 0) {
    return invalid_argument("text is NULL but capacity is " + std::to_string(capacity));
  }
  if (capacity > 0) {
    const std::size_t length = std::min<std::uint64_t>(text.size(), capacity - 1);
    std::memcpy(memory, text.data(), length);
    memory[length] = 0;
  }
  if (out_length != nullptr) *out_length = text.size();
  return Status::success();
}

}  // namespace trireme::api

using namespace trireme;

namespace {}  // namespace

const char* trireme_status_name(trireme_status status) { return status_name(status); }

const char* trireme_last_error() { return api::t_message; }

trireme_status trireme_last_error_info(trireme_error_info* out_info) {
  // Read before guard(): a refusal would replace the last error.
  const trireme_error_info info = api::t_info;
  return api::guard(__func__, [&]() -> Status {
    TRIREME_RETURN_IF_ERROR(api::check_info(out_info, "out_info"));
    api::write_info(info, out_info);
    return Status::success();
  });
}
