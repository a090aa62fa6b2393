// communicator.h.
#include "collectives/communicator.hpp"

#include <trireme/communicator.h>

#include <cstring>

#include "api/boundary.hpp"
#include "api/handles.hpp"
#include "platform/utf8.hpp"

using namespace trireme;

namespace {

constexpr std::uint32_t kOptionsSize10 = 56;
static_assert(sizeof(trireme_communicator_options) == kOptionsSize10);
constexpr std::uint32_t kStatisticsSize10 = 40;
static_assert(sizeof(trireme_communicator_statistics) == kStatisticsSize10);

constexpr std::uint64_t kDefaultTimeoutNs = 300'000'000'000;
constexpr std::size_t kMaxNameBytes = 63;
constexpr std::size_t kMaxReasonBytes = 127;

Status read_text(const char* text, const char* field, std::string* out) {
  if (text == nullptr) return Status::success();
  if (!is_utf8(text)) return invalid_argument(std::string("options.") + field + " is not UTF-8");
  *out = text;
  return Status::success();
}

Status check_device(const trireme_device& device) {
  if (device.kind == TRIREME_DEVICE_CUDA) {
    return unsupported("options.device is CUDA, but this build works on host memory");
  }
  if (device.kind != TRIREME_DEVICE_DEFAULT && device.kind != TRIREME_DEVICE_HOST) {
    return invalid_argument("options.device.kind is " + std::to_string(device.kind) +
                            ", not one of TRIREME_DEVICE_*");
  }
  if (device.index != 0) {
    return invalid_argument("options.device.index is " + std::to_string(device.index) +
                            ", but the host has only 0");
  }
  return Status::success();
}

// Rank and world size are checked below, because the environment may give them.
Status read_options(const trireme_communicator_options* caller, GroupOptions* group,
                    std::uint64_t* timeout_ns) {
  trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
  TRIREME_RETURN_IF_ERROR(api::read_struct(caller, "options", kOptionsSize10, &options));
  if (options.flags != 0) {
    return invalid_argument("options.flags is " + std::to_string(options.flags) +
                            ", but must be 0");
  }
  TRIREME_RETURN_IF_ERROR(api::require(options.rendezvous, "options.rendezvous"));
  TRIREME_RETURN_IF_ERROR(read_text(options.rendezvous, "rendezvous", &group->rendezvous));
  TRIREME_RETURN_IF_ERROR(read_text(options.backend, "backend", &group->backend));
  TRIREME_RETURN_IF_ERROR(read_text(options.name, "name", &group->name));
  if (group->name.size() > kMaxNameBytes) {
    return invalid_argument("options.name has " + std::to_string(group->name.size()) +
                            " bytes, more than " + std::to_string(kMaxNameBytes));
  }
  TRIREME_RETURN_IF_ERROR(check_device(options.device));
  group->rank = options.rank;
  group->world_size = options.world_size;
  *timeout_ns = options.timeout_ns == 0 ? kDefaultTimeoutNs : options.timeout_ns;
  return Status::success();
}

// A call that asks one thing of a communicator.
template <class Body>
trireme_status ask(const char* function, const trireme_communicator* handle, Body body) noexcept {
  return api::guard(function, [&]() -> Status {
    std::shared_ptr<Communicator> communicator;
    TRIREME_RETURN_IF_ERROR(api::find(handle, &communicator));
    return body(*communicator);
  });
}

}  // namespace

trireme_status trireme_communicator_create(const trireme_communicator_options* options,
                                           trireme_communicator** out_communicator) {
  return api::guard(__func__, [&]() -> Status {
    GroupOptions group;
    std::uint64_t timeout_ns = 0;
    TRIREME_RETURN_IF_ERROR(read_options(options, &group, &timeout_ns));
    TRIREME_RETURN_IF_ERROR(api::require(out_communicator, "out_communicator"));
    std::shared_ptr<Communicator> communicator;
    TRIREME_RETURN_IF_ERROR(Communicator::create(group, timeout_ns, &communicator));
    *out_communicator = api::insert<trireme_communicator>(std::move(communicator));
    return Status::success();
  });
}

void trireme_communicator_destroy(trireme_communicator* communicator) {
  // Children keep the object, but the place in the group is given back now.
  if (const auto object = api::remove(communicator)) object->leave();
}

trireme_status trireme_communicator_wait_ready(const trireme_communicator* communicator,
                                               uint64_t timeout_ns) {
  return ask(__func__, communicator, [&](const Communicator& object) {
    return object.wait_ready(Deadline::after(timeout_ns));
  });
}

trireme_status trireme_communicator_rank(const trireme_communicator* communicator,
                                         int32_t* out_rank) {
  return ask(__func__, communicator, [&](const Communicator& object) -> Status {
    TRIREME_RETURN_IF_ERROR(api::require(out_rank, "out_rank"));
    *out_rank = object.rank();
    return Status::success();
  });
}

trireme_status trireme_communicator_world_size(const trireme_communicator* communicator,
                                               int32_t* out_world_size) {
  return ask(__func__, communicator, [&](const Communicator& object) -> Status {
    TRIREME_RETURN_IF_ERROR(api::require(out_world_size, "out_world_size"));
    *out_world_size = object.world_size();
    return Status::success();
  });
}

trireme_status trireme_communicator_backend(const trireme_communicator* communicator, char* text,
                                            uint64_t capacity, uint64_t* out_length) {
  return ask(__func__, communicator, [&](const Communicator& object) {
    return api::write_text(object.description(), text, capacity, out_length);
  });
}

trireme_status trireme_communicator_abort(trireme_communicator* communicator, const char* reason) {
  return ask(__func__, communicator, [&](Communicator& object) {
    std::string text(reason == nullptr ? "" : reason,
                     reason == nullptr ? 0 : strnlen(reason, kMaxReasonBytes));
    // One line of UTF-8, whatever was handed in: a cut letter goes, a control character becomes a
    // space.
    while (!text.empty() && !is_utf8(text)) text.pop_back();
    for (char& letter : text) {
      if (static_cast<unsigned char>(letter) < 0x20) letter = ' ';
    }
    object.abort(text);
    return Status::success();
  });
}

trireme_status trireme_communicator_get_statistics(
    const trireme_communicator* communicator, trireme_communicator_statistics* out_statistics) {
  return ask(__func__, communicator, [&](const Communicator& object) -> Status {
    TRIREME_RETURN_IF_ERROR(api::check_info(out_statistics, "out_statistics", kStatisticsSize10));
    const CommunicatorStatistics now = object.statistics();
    trireme_communicator_statistics statistics = TRIREME_COMMUNICATOR_STATISTICS_INIT;
    statistics.operations = now.operations;
    statistics.failures = now.failures;
    statistics.bytes_sent = now.traffic.bytes_sent;
    statistics.bytes_received = now.traffic.bytes_received;
    api::write_info(statistics, out_statistics);
    return Status::success();
  });
}

trireme_status trireme_communicator_flight_record(const trireme_communicator* communicator,
                                                  char* text, uint64_t capacity,
                                                  uint64_t* out_length) {
  return ask(__func__, communicator, [&](const Communicator& object) {
    return api::write_text(object.flight_record(), text, capacity, out_length);
  });
}
