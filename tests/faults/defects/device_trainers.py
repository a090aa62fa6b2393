"""Trainers on a device: order of callbacks' work and the trainer's, memory, and streams."""

DEVICE = "src/trainer/trainer_device.cpp"
STEP = "src/trainer/device_step.cpp"
MODEL = "src/exchange/model_device.cpp"
TEST = "api_test_device_trainer"

DEFECTS = [
    ("device trainers: a callback gets another stream than the caller's", DEVICE,
     "shard_.device().native_stream()}", "nullptr}", TEST),
    ("device trainers: gradients are read before the callback's work is done", DEVICE,
     "  TRIREME_RETURN_IF_ERROR(told(shard_.report(shard_.device().wait_for(native))));\n  works_ = false;",
     "  works_ = false;", TEST),
    ("device trainers: losses are read before the callback's work is done",
     "src/trainer/step.cpp",
     "    if (device_ != nullptr) TRIREME_RETURN_IF_ERROR(wait_for_device());\n",
     "    if (device_ != nullptr) std::copy_n(device_->losses(), rounds_, losses_.data());\n", TEST),
    ("device trainers: memory goes back while a callback's work uses it", DEVICE,
     "    is_over = wait().ok();", "    is_over = true;", TEST),
    ("device trainers: places of gradients are not marked", DEVICE,
     "    TRIREME_RETURN_IF_ERROR(stream.copy(first, pattern, done));",
     "    TRIREME_RETURN_IF_ERROR(stream.fill(first, 0, done));", TEST),
    ("device trainers: memory of the host is taken as a gradient", STEP,
     "if (!gradients_.is_own(number))", "if (false)", TEST),
    ("device trainers: a stream that a callback records is used", STEP,
     "  if (failure_.kind == LayerFailure::none) fail(LayerFailure::stream, phase, layer, 0);\n",
     "", TEST),
    ("device trainers: an input gradient that was left out is not searched", STEP,
     "  if (word != mark) return Status::success();", "  return Status::success();", TEST),
    ("device models: state for pinned memory lies on the device",
     "src/optimizer/rules/shard_state.cpp", "allocate_state(out, bytes, settings_.pinned)",
     "allocate_state(out, bytes, false)", TEST),
    ("device models: pinned state begins with any bits", "src/model/device_shard.cpp",
     "    std::memset(out->data(), 0, bytes);\n", "", TEST),
    ("device models: the default stream is waited for, and not the one that was named", MODEL,
     "(adopt(native, &stream))", "(adopt(nullptr, &stream))", TEST),
    ("device models: a stream that the driver does not know is a failure of the device",
     "src/devices/cuda/plugin/open_device.cpp",
     "if (asked == kInvalidHandle ||", "if (false ||", TEST),
]
