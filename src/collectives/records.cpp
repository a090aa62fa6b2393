#include "collectives/records.hpp"

#include <utility>

namespace trireme {

Status make_failure(const Records& records, OperationKind kind, std::uint64_t sequence,
                    trireme_status code, const char* text,
                    std::vector<std::int32_t> blamed) noexcept {
  try {
    FailureDetails details;
    details.operation = operation_name(kind);
    details.communicator = records.name;
    details.sequence = sequence;
    details.blamed = std::move(blamed);
    return Status::failure(code, text).with_details(std::move(details));
  } catch (...) {
    return Status::failure(code, "out of memory");  // short enough to need no memory
  }
}

Status with_operation(const Records& records, OperationKind kind, std::uint64_t sequence,
                      const Status& failure) noexcept {
  try {
    const FailureDetails* const known = failure.details();
    FailureDetails details = known == nullptr ? FailureDetails{} : *known;
    details.operation = operation_name(kind);
    details.communicator = records.name;
    details.sequence = sequence;
    return Status::failure(failure.code(), failure.message() + " during " + details.operation +
                                               ", sequence " + std::to_string(sequence) + " of \"" +
                                               records.name + "\"")
        .with_details(std::move(details));
  } catch (...) {
    return Status::failure(failure.code(), "out of memory");
  }
}

}  // namespace trireme
