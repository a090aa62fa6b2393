"""Collectives of device memory: their order with the caller's stream, and whose memory they take."""

MOVES = "src/collectives/device_moves.cpp"
TEST = "api_test_device_collectives"

DEFECTS = [
    ("device moves: the copy in does not wait for the caller's stream", MOVES,
     "  TRIREME_RETURN_IF_ERROR(slot.stream->wait(*slot.before));\n", "", TEST),
    ("device moves: peers read before the copy in is done", MOVES,
     "  TRIREME_RETURN_IF_ERROR(slot.stream->record(*slot.moved));\n"
     "  return devices::finish(*slot.moved, deadline);\n}\n\nStatus DeviceMoves::move_out",
     "  return Status::success();\n}\n\nStatus DeviceMoves::move_out", TEST),
    ("device moves: pinned memory is used again before the copy out is done", MOVES,
     "later work in any stream follows.\n  return devices::finish(*slot.moved, deadline);",
     "later work in any stream follows.\n  return Status::success();", TEST),
    ("device moves: pinned memory of a failed device is given back", MOVES,
     "if (slot.pinned != nullptr) slot.pinned->abandon();", "", TEST),
    ("device moves: only the begin of an operand is looked at", MOVES,
     "{std::uint64_t{0}, bytes - 1}", "{std::uint64_t{0}}", TEST),
    ("device moves: memory of another device is taken", MOVES,
     "info.kind == TRIREME_MEMORY_KIND_DEVICE && place == device_->place()",
     "info.kind == TRIREME_MEMORY_KIND_DEVICE", TEST),
    ("device moves: memory of a device reaches loops of the host", "src/api/operation_call.hpp",
     "  return check_on_host(operation);", "  return Status::success();", TEST),
    ("device moves: the peers do not hear of a failed device", MOVES,
     "  communicator.fail(why.code(), why.message());  // before anything that can throw\n", "", TEST),
    ("device moves: the peers do not hear of a device that had failed before", MOVES,
     "  if (status.code() == TRIREME_ERROR_DEVICE) return fail(communicator, slot, status);\n", "",
     TEST),
    ("device moves: a child works on the host", "src/api/communicator.cpp",
     "moves != nullptr && child != nullptr", "moves != nullptr && child == nullptr", TEST),
    ("device moves: a started call takes addresses of a device", "src/api/operation_call.cpp",
     "if (moves != nullptr && !on_devices) [[unlikely]]", "if (false) [[unlikely]]", TEST),
    ("device moves: a model on a device trains on the host", "src/api/operation_call.cpp",
     "return moves == nullptr ? Status::success() : refuse_on_device(*moves);",
     "return Status::success();", TEST),
    ("device moves: the result of a reduce-scatter is as long as its operand", MOVES,
     "case OperationKind::reduce_scatter: send_bytes = all; break;",
     "case OperationKind::reduce_scatter: send_bytes = receive_bytes = all; break;", TEST),
    ("device moves: a result replaces the operand that peers read", MOVES,
     "return in_place ? 0 : rounded(send_bytes);", "return 0;", TEST),
]
