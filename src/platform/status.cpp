#include "platform/status.hpp"

#include <system_error>

namespace trireme {

Status Status::system(int error_number, const std::string& message) {
  const trireme_status code =
      error_number == ENOMEM ? TRIREME_ERROR_OUT_OF_MEMORY : TRIREME_ERROR_SYSTEM;
  FailureDetails details;
  details.system_error = error_number;
  // generic_category().message() is strerror without its static buffer.
  return Status::failure(code, message + ": " + std::generic_category().message(error_number))
      .with_details(std::move(details));
}

}  // namespace trireme
