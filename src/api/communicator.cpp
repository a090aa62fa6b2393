// communicator.h.
#include "collectives/communicator.hpp"

#include <trireme/communicator.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "api/boundary.hpp"
#include "api/child_options.hpp"
#include "api/handles.hpp"
#include "collectives/device_moves.hpp"
#include "collectives/subgroup.hpp"
#include "collectives/survivors.hpp"
#include "platform/utf8.hpp"

using namespace trireme;

namespace {

constexpr std::uint64_t kDefaultTimeoutNs = 300'000'000'000;
constexpr std::uint64_t kDefaultStallWarningNs = 10'000'000'000;
constexpr std::size_t kMaxNameBytes = 63;
constexpr std::size_t kMaxReasonBytes = 127;

Status read_text(const char* text, const char* field, std::string* out) {
  if (text == nullptr) return Status::success();
  if (!is_utf8(text)) return invalid_argument(std::string("options.") + field + " is not UTF-8");
  *out = text;
  return Status::success();
}

Status read_name(const char* text, std::string* out) {
  TRIREME_RETURN_IF_ERROR(read_text(text, "name", out));
  if (out->size() > kMaxNameBytes) {
    return invalid_argument("options.name has " + std::to_string(out->size()) +
                            " bytes, more than " + std::to_string(kMaxNameBytes));
  }
  return Status::success();
}

Status check_flags(std::uint32_t flags) {
  if (flags == 0) return Status::success();
  return invalid_argument("options.flags is " + std::to_string(flags) + ", but must be 0");
}

Status check_device(const trireme_device& device) {
  if (device.kind == TRIREME_DEVICE_CUDA) return Status::success();
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

Status read_transport(const trireme_transport* caller, std::optional<trireme_transport>* out) {
  if (caller == nullptr) return Status::success();
  trireme_transport transport = TRIREME_TRANSPORT_INIT;
  TRIREME_RETURN_IF_ERROR(api::read_struct(caller, "transport", &transport));
  if (transport.flags != 0) {
    return invalid_argument("transport.flags is " + std::to_string(transport.flags) +
                            ", but must be 0");
  }
  if (transport.send == nullptr) return invalid_argument("transport.send is NULL");
  if (transport.receive == nullptr) return invalid_argument("transport.receive is NULL");
  if (transport.maximum_frame_bytes != 0 &&
      transport.maximum_frame_bytes < TRIREME_TRANSPORT_FRAME_BYTES_MIN) {
    return invalid_argument("transport.maximum_frame_bytes is " +
                            std::to_string(transport.maximum_frame_bytes) + ", below " +
                            std::to_string(TRIREME_TRANSPORT_FRAME_BYTES_MIN));
  }
  *out = transport;
  return Status::success();
}

// Rank and world size are checked below, because the environment may give them.
Status read_options(const trireme_communicator_options* caller, GroupOptions* group,
                    std::uint64_t* timeout_ns, trireme_device* device) {
  trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
  TRIREME_RETURN_IF_ERROR(api::read_struct(caller, "options", &options));
  TRIREME_RETURN_IF_ERROR(check_flags(options.flags));
  TRIREME_RETURN_IF_ERROR(api::require(options.rendezvous, "options.rendezvous"));
  TRIREME_RETURN_IF_ERROR(read_text(options.rendezvous, "rendezvous", &group->rendezvous));
  TRIREME_RETURN_IF_ERROR(read_text(options.backend, "backend", &group->backend));
  TRIREME_RETURN_IF_ERROR(read_name(options.name, &group->name));
  TRIREME_RETURN_IF_ERROR(check_device(options.device));
  *device = options.device;
  TRIREME_RETURN_IF_ERROR(read_transport(options.transport, &group->transport));
  group->rank = options.rank;
  group->world_size = options.world_size;
  group->stall_warning_ns =
      options.stall_warning_ns == 0 ? kDefaultStallWarningNs : options.stall_warning_ns;
  *timeout_ns = options.timeout_ns == 0 ? kDefaultTimeoutNs : options.timeout_ns;
  return Status::success();
}

}  // namespace

Status api::read_group_options(const trireme_child_options* caller, ChildOptions* out) {
  if (caller == nullptr) return Status::success();
  trireme_child_options options = TRIREME_CHILD_OPTIONS_INIT;
  TRIREME_RETURN_IF_ERROR(api::read_struct(caller, "options", &options));
  TRIREME_RETURN_IF_ERROR(check_flags(options.flags));
  out->timeout_ns = options.timeout_ns;
  return read_name(options.name, &out->name);
}

namespace {

// A call that reads one property of a communicator.
template <class Body>
trireme_status ask(const char* function, const trireme_communicator* handle, Body body) noexcept {
  return api::guard(function, [&]() -> Status {
    std::shared_ptr<Communicator> communicator;
    TRIREME_RETURN_IF_ERROR(api::find(handle, &communicator));
    return body(*communicator);
  });
}

// A call that makes a child, or none for this rank. make(parent, options, &child).
template <class Make>
trireme_status make_child(const char* function, const trireme_communicator* handle,
                          const trireme_child_options* caller, trireme_communicator** out,
                          Make make) noexcept {
  return api::guard(function, [&]() -> Status {
    std::shared_ptr<Communicator> held;
    TRIREME_RETURN_IF_ERROR(api::find(handle, &held));
    Communicator& parent = *held;
    ChildOptions options;
    TRIREME_RETURN_IF_ERROR(api::read_group_options(caller, &options));
    TRIREME_RETURN_IF_ERROR(api::require(out, "out_communicator"));
    std::shared_ptr<Communicator> child;
    TRIREME_RETURN_IF_ERROR(make(parent, options, &child));
    if (auto moves = moves_of(held); moves != nullptr && child != nullptr) {
      child = on_device(std::move(child), moves->of_child());
    }
    api::hand_out(parent, [&] {
      *out = child == nullptr ? nullptr : api::insert<trireme_communicator>(std::move(child));
    });
    return Status::success();
  });
}

}  // namespace

namespace {
constexpr char kNccl[] = "nccl";
}  // namespace

trireme_status trireme_communicator_create(const trireme_communicator_options* options,
                                           trireme_communicator** out_communicator) {
  return api::guard(__func__, [&]() -> Status {
    GroupOptions group;
    std::uint64_t timeout_ns = 0;
    trireme_device device{};
    TRIREME_RETURN_IF_ERROR(read_options(options, &group, &timeout_ns, &device));
    TRIREME_RETURN_IF_ERROR(api::require(out_communicator, "out_communicator"));
    TRIREME_RETURN_IF_ERROR(api::detail::refuse_after_fork());
    std::shared_ptr<DeviceMoves> moves;
    if (device.kind == TRIREME_DEVICE_CUDA) {
      const NcclWish wish = group.backend == kNccl  ? NcclWish::require
                            : group.backend.empty() ? NcclWish::choose
                                                    : NcclWish::refuse;
      const Status opened = DeviceMoves::open(device.index, wish, group.backend, &moves);
      if (!opened.ok()) {
        return Status::failure(opened.code(), "options.device is CUDA: " + opened.message());
      }
      if (wish == NcclWish::require) group.backend.clear();  // the host's is the best one
    } else if (group.backend == kNccl) {
      return unsupported("options.backend is \"nccl\", but options.device is not a device of CUDA");
    }
    std::shared_ptr<Communicator> communicator;
    TRIREME_RETURN_IF_ERROR(Communicator::create(group, timeout_ns, &communicator));
    if (moves != nullptr) communicator = on_device(std::move(communicator), std::move(moves));
    *out_communicator = api::insert<trireme_communicator>(std::move(communicator));
    return Status::success();
  });
}

void trireme_communicator_destroy(trireme_communicator* communicator) {
  const NoCancellation whole_call;
  // Children keep the object, but its place in the group is free from now on.
  if (const auto object = api::remove(communicator)) {
    if (const auto moves = moves_of(object)) moves->leave(*object);
    object->leave();
  }
}

trireme_status trireme_communicator_wait_ready(const trireme_communicator* communicator,
                                               uint64_t timeout_ns) {
  return ask(__func__, communicator, [&](const Communicator& object) {
    return object.wait_ready(Deadline::after(timeout_ns), nullptr);
  });
}

trireme_status trireme_communicator_get_rank(const trireme_communicator* communicator,
                                             int32_t* out_rank) {
  return ask(__func__, communicator, [&](const Communicator& object) -> Status {
    TRIREME_RETURN_IF_ERROR(api::require(out_rank, "out_rank"));
    *out_rank = object.rank();
    return Status::success();
  });
}

trireme_status trireme_communicator_get_world_size(const trireme_communicator* communicator,
                                                   int32_t* out_world_size) {
  return ask(__func__, communicator, [&](const Communicator& object) -> Status {
    TRIREME_RETURN_IF_ERROR(api::require(out_world_size, "out_world_size"));
    *out_world_size = object.world_size();
    return Status::success();
  });
}

trireme_status trireme_communicator_get_backend(const trireme_communicator* communicator,
                                                char* text, uint64_t capacity,
                                                uint64_t* out_length) {
  return api::guard(__func__, [&]() -> Status {
    std::shared_ptr<Communicator> object;
    TRIREME_RETURN_IF_ERROR(api::find(communicator, &object));
    std::string description = object->description();
    if (const auto moves = moves_of(object)) {
      description += "; " + moves->text() + ": " + moves->way_text();
    }
    return api::write_text(description, text, capacity, out_length);
  });
}

trireme_status trireme_communicator_abort(trireme_communicator* communicator, const char* reason) {
  return ask(__func__, communicator, [&](Communicator& object) {
    std::string text(reason == nullptr ? "" : reason,
                     reason == nullptr ? 0 : strnlen(reason, kMaxReasonBytes));
    // One line of UTF-8 from any text: a cut letter is dropped, a control character becomes a
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
    TRIREME_RETURN_IF_ERROR(api::check_info(out_statistics, "out_statistics"));
    const CommunicatorStatistics now = object.statistics();
    trireme_communicator_statistics statistics = TRIREME_COMMUNICATOR_STATISTICS_INIT;
    statistics.operations = now.operations;
    statistics.failures = now.failures;
    statistics.sent_bytes = now.traffic.sent_bytes;
    statistics.received_bytes = now.traffic.received_bytes;
    statistics.sent_messages = now.traffic.sent_messages;
    api::write_info(statistics, out_statistics);
    return Status::success();
  });
}

trireme_status trireme_communicator_get_flight_record(const trireme_communicator* communicator,
                                                      char* text, uint64_t capacity,
                                                      uint64_t* out_length) {
  return ask(__func__, communicator, [&](const Communicator& object) {
    return api::write_text(object.flight_record(), text, capacity, out_length);
  });
}

trireme_status trireme_communicator_get_last_calls(const trireme_communicator* communicator,
                                                   char* text, uint64_t capacity,
                                                   uint64_t* out_length) {
  return ask(__func__, communicator, [&](const Communicator& object) -> Status {
    std::string calls;
    TRIREME_RETURN_IF_ERROR(object.last_calls(&calls));
    return api::write_text(calls, text, capacity, out_length);
  });
}

trireme_status trireme_communicator_get_original_ranks(const trireme_communicator* communicator,
                                                       int32_t* out_ranks, uint64_t capacity) {
  return ask(__func__, communicator, [&](const Communicator& object) -> Status {
    TRIREME_RETURN_IF_ERROR(api::require(out_ranks, "out_ranks"));
    const std::vector<std::int32_t>& ranks = object.lineage().ranks;
    if (capacity < ranks.size()) {
      return invalid_argument("capacity is " + std::to_string(capacity) + ", below the " +
                              std::to_string(ranks.size()) + " ranks of the communicator");
    }
    std::copy(ranks.begin(), ranks.end(), out_ranks);
    return Status::success();
  });
}

trireme_status trireme_communicator_split(trireme_communicator* communicator, int32_t color,
                                          int32_t key, const trireme_child_options* options,
                                          trireme_communicator** out_communicator) {
  return make_child(__func__, communicator, options, out_communicator,
                    [&](Communicator& parent, const ChildOptions& child, auto* out) {
                      return split(parent, color, key, child, out);
                    });
}

trireme_status trireme_communicator_subgroup(trireme_communicator* communicator,
                                             const int32_t* ranks, uint64_t count,
                                             const trireme_child_options* options,
                                             trireme_communicator** out_communicator) {
  return make_child(
      __func__, communicator, options, out_communicator,
      [&](Communicator& parent, const ChildOptions& child, auto* out) -> Status {
        if (count > 0) TRIREME_RETURN_IF_ERROR(api::require(ranks, "ranks"));
        if (count > static_cast<std::uint64_t>(parent.world_size())) {
          return invalid_argument("count is " + std::to_string(count) + ", but the parent has " +
                                  std::to_string(parent.world_size()) + " ranks");
        }
        return subgroup(parent, std::vector<std::int32_t>(ranks, ranks + count), child, out);
      });
}

trireme_status trireme_communicator_duplicate(trireme_communicator* communicator,
                                              const trireme_child_options* options,
                                              trireme_communicator** out_communicator) {
  return make_child(__func__, communicator, options, out_communicator,
                    [&](Communicator& parent, const ChildOptions& child, auto* out) {
                      return duplicate(parent, child, out);
                    });
}

trireme_status trireme_communicator_agree(trireme_communicator* communicator, uint64_t* flags,
                                          uint64_t timeout_ns) {
  return ask(__func__, communicator, [&](Communicator& object) -> Status {
    TRIREME_RETURN_IF_ERROR(api::require(flags, "flags"));
    return agree(object, flags, timeout_ns);
  });
}

trireme_status trireme_communicator_shrink(trireme_communicator* communicator,
                                           const trireme_child_options* options,
                                           trireme_communicator** out_communicator) {
  return make_child(__func__, communicator, options, out_communicator,
                    [&](Communicator& parent, const ChildOptions& child, auto* out) {
                      return shrink(parent, child, out);
                    });
}
