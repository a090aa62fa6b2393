// The data that the parts of one communicator share: its name, its flight record, its tuned
// algorithms, and the words of a failure.
#pragma once

#include <cstdint>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "collectives/flight_record.hpp"
#include "collectives/tuning.hpp"
#include "platform/status.hpp"

namespace trireme {

struct Records {
  std::string name;
  int rank = 0;
  int world_size = 1;
  std::uint64_t stall_ns = UINT64_MAX;  // as GroupOptions::stall_warning_ns
  FlightRecord flight;
  Tuning tuning;

  Status left() const { return invalid_state("this rank has left \"" + name + "\""); }
};

// A failure with its details, for Backend::fail(), which adds operation and name to the text. Never
// throws: without memory the code still arrives.
Status make_failure(const Records& records, OperationKind kind, std::uint64_t sequence,
                    trireme_status code, const char* text,
                    std::vector<std::int32_t> blamed = {}) noexcept;

// The same failure in the words for this rank's caller: "TEXT during all_reduce, sequence 7 of
// "NAME"".
Status with_operation(const Records& records, OperationKind kind, std::uint64_t sequence,
                      const Status& failure) noexcept;

// Runs `body`, which returns a Status; turns an exception into one, too.
template <class Body>
Status caught(const Records& records, OperationKind kind, std::uint64_t sequence,
              Body&& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return make_failure(records, kind, sequence, TRIREME_ERROR_OUT_OF_MEMORY,
                        "host memory has run out");
  } catch (const std::exception& error) {
    return make_failure(records, kind, sequence, TRIREME_ERROR_INTERNAL, error.what());
  } catch (...) {
    return make_failure(records, kind, sequence, TRIREME_ERROR_INTERNAL, "unknown exception");
  }
}

}  // namespace trireme
