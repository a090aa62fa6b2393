#include "platform/status.hpp"

#include <cerrno>
#include <new>
#include <system_error>

namespace trireme {

Status Status::failure(trireme_status code, std::string message) noexcept {
  Status status;
  status.code_ = code;
  try {
    status.words_ = std::make_shared<const Words>(Words{std::move(message), nullptr});
  } catch (...) {  // message() then says that memory is out
  }
  return status;
}

const std::string& Status::message() const {
  // Never destroyed: threads may read them while the process ends. There may be no memory for them.
  alignas(std::string) static unsigned char places[2][sizeof(std::string)];
  static const std::string& none = *new (places[0]) std::string;
  static const std::string& no_memory = *new (places[1]) std::string("out of memory");
  return words_ != nullptr ? words_->message : ok() ? none : no_memory;
}

const FailureDetails* Status::details() const {
  return words_ == nullptr ? nullptr : words_->details.get();
}

Status&& Status::with_details(FailureDetails details) && {
  words_ = std::make_shared<const Words>(
      Words{message(), std::make_shared<const FailureDetails>(std::move(details))});
  return std::move(*this);
}

Status Status::system(int error_number, const std::string& message) {
  const trireme_status code =
      error_number == ENOMEM ? TRIREME_ERROR_OUT_OF_MEMORY : TRIREME_ERROR_SYSTEM;
  FailureDetails details;
  details.system_error = error_number;
  const char* hint = "";
  if (error_number == EMFILE) hint = " (this process has no descriptor left: raise ulimit -n)";
  if (error_number == EFBIG) hint = " (perhaps larger than the process may make any: ulimit -f)";
  // generic_category().message() is strerror without its static buffer.
  return Status::failure(code,
                         message + ": " + std::generic_category().message(error_number) + hint)
      .with_details(std::move(details));
}

}  // namespace trireme
