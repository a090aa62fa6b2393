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

// The lowest status: what a peer or a file says is one if it lies from here to TRIREME_OK.
constexpr trireme_status kLowestStatus = TRIREME_ERROR_DEVICE;

// The parts of trireme_error_info beyond code and message.
struct FailureDetails {
  std::string operation;
  std::string communicator;
  std::uint64_t sequence = 0;
  std::vector<std::int32_t> blamed;  // ascending
  int system_error = 0;
  bool try_again = false;
};

// Every operation makes and passes on dozens of them, and nearly all say success: that costs a few
// words and no call. The words of a failure lie apart.
class [[nodiscard]] Status {
 public:
  static Status success() { return Status(); }
  // Does not throw: if memory is out, the code still arrives, and the message says so.
  static Status failure(trireme_status code, std::string message) noexcept;
  // A refusal of the operating system. Appends its reason to the message, as in "cannot open x:
  // Permission denied", and keeps errno.
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

#define TRIREME_RETURN_IF_ERROR(expression)            \
  do {                                                 \
    ::trireme::Status trireme_status_ = (expression);  \
    if (!trireme_status_.ok()) return trireme_status_; \
  } while (false)

}  // namespace trireme
