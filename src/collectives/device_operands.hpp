// The memory of one call to a communicator that works on a device, and where it lies in pinned
// memory of the host.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "backends/backend.hpp"
#include "collectives/communicator.hpp"
#include "collectives/composite.hpp"
#include "collectives/device_buffers.hpp"
#include "platform/clock.hpp"

namespace trireme {

// A call of a collective. The addresses are those of its caller.
struct DeviceCall {
  Operation operation;         // without a program
  bool is_list = false;        // the addresses and counts are those of the entries
  std::vector<Entry> entries;  // of a list
  trireme_dtype wire_dtype = 0;
  void* stream = nullptr;
  std::uint64_t timeout_ns = 0;

  // NCCL may move it, where it can be used.
  bool may_go_by_nccl() const;
  // Whether it is one collective as it stands: no list, and none that is made of several.
  bool is_plain() const {
    return !is_list && wire_dtype == 0 && operation.kind != OperationKind::all_to_all_v;
  }
};

// Memory that is read before the operation, and memory that is written after it.
struct DeviceOperand {
  const void* send = nullptr;
  void* receive = nullptr;
  std::uint64_t send_bytes = 0, receive_bytes = 0;
  std::uint64_t send_at = 0, receive_at = 0;  // in the pinned memory; in place they are the same
};

class DeviceOperands {
 public:
  DeviceOperands(const Communicator& communicator, const DeviceCall& call);
  explicit DeviceOperands(const MessageArguments& message);
  DeviceOperands(const MessageArguments& sent, const MessageArguments& received);

  OperationKind kind() const { return kind_; }
  std::uint64_t bytes() const { return bytes_; }
  const std::vector<DeviceOperand>& all() const { return all_; }
  // "send", or "entry 3: send".
  std::string name_of(std::size_t index, bool sends) const;
  // The message that was received is shorter.
  void shorten(std::uint64_t bytes) { all_.back().receive_bytes = bytes; }
  // The call with the addresses of the pinned memory, as the host runs it.
  Operation on_host(const DeviceCall& call, std::byte* pinned, int rank, int world_size) const;
  // Keeps buffers among them.
  std::vector<HeldBuffers> hold() const;

 private:
  void add(const Communicator& communicator, const Operation& operation);
  void add_message(const MessageArguments& message);
  void place();

  const OperationKind kind_;
  const bool is_list_ = false;
  const char *send_name_ = "send", *receive_name_ = "receive";
  std::vector<DeviceOperand> all_;
  std::uint64_t bytes_ = 0;
};

// At least a nanosecond: 0 would only ask whether the peers are there.
inline std::uint64_t rest_ns(Deadline deadline) {
  return std::max<std::uint64_t>(1, deadline.remaining_ns());
}
inline Deadline rest_of(Deadline deadline) { return Deadline::after(rest_ns(deadline)); }

// An operation of no elements has no sums.
Operation without_native(const Operation& operation);
// The algorithm of NCCL's own sums is none of the host's. Instead all ranks agree about it.
Operation as_called_on_device(const Operation& operation);

}  // namespace trireme
