// Status: how a failure travels inside the library. Nothing inside throws on purpose; the
// boundary in api/ turns what the standard library throws into a status.
#pragma once

#include <trireme/status.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

// What trireme_error_info tells beyond code and message.
struct FailureDetails {
  std::string operation;
  std::string communicator;
  std::uint64_t sequence = 0;
  std::vector<std::int32_t> blamed;  // ascending
  int system_error = 0;
  bool try_again = false;
};

// Made and passed on some dozen times in every operation, nearly always to say that all is well:
// that costs a few words and no call. What a failure has to say lies apart.
class [[nodiscard]] Status {
 public:
  static Status success() { return Status(); }
  // Does not throw: without memory the code still arrives, and the message says so.
  static Status failure(trireme_status code, std::string message) noexcept;
  // A refusal of the operating system: "MESSAGE: Permission denied", with errno kept.
  static Status system(int error_number, const std::string& message);

  bool ok() const { return code_ == TRIREME_OK; }
  trireme_status code() const { return code_; }
  const std::string& message() const;

  // Never null after with_details(); null means no details.
  const FailureDetails* details() const;
  Status&& with_details(FailureDetails details) &&;

 private:
  struct Words {
    std::string message;
    std::shared_ptr<const FailureDetails> details;
  };

  Status() = default;

  trireme_status code_ = TRIREME_OK;
  std::shared_ptr<const Words> words_;  // null: success, or no memory for words
};

inline Status invalid_argument(std::string message) {
  return Status::failure(TRIREME_ERROR_INVALID_ARGUMENT, std::move(message));
}
inline Status invalid_state(std::string message) {
  return Status::failure(TRIREME_ERROR_INVALID_STATE, std::move(message));
}
inline Status unsupported(std::string message) {
  return Status::failure(TRIREME_ERROR_UNSUPPORTED, std::move(message));
}

#define TRIREME_RETURN_IF_ERROR(expression)                \
  do {                                                     \
    ::trireme::Status trireme_status_ = (expression);      \
    if (!trireme_status_.ok()) return trireme_status_;     \
  } while (false)

}  // namespace trireme
