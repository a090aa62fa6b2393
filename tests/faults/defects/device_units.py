"""Units of models on a device: their order with the caller's work. LAMB and LARS there."""

UNITS = "src/exchange/device_units.cpp"
SHARD = "src/optimizer/rules/device_update.cpp"
LAMB = "src/optimizer/rules/lamb_lars_rule.cpp"
MODEL = "src/model/model.cpp"
TEST = "api_test_device_units"
TRAINING = "api_test_device_model"
FAILURES = "api_test_device_model_failures"

DEFECTS = [
    ("device units: the caller's work does not wait for the copy of its unit", UNITS,
     "return use.meets(place); });\n  return device_.told(caller->wait(*given_));",
     "return use.meets(place); });\n  return Status::success();", TEST),
    ("device units: the copy is marked before it is queued", UNITS,
     "  TRIREME_RETURN_IF_ERROR(device_.queue(*stream_, place.data, from_host, place.bytes));\n"
     "  TRIREME_RETURN_IF_ERROR(device_.told(stream_->record(*given_)));",
     "  TRIREME_RETURN_IF_ERROR(device_.told(stream_->record(*given_)));\n"
     "  TRIREME_RETURN_IF_ERROR(device_.queue(*stream_, place.data, from_host, place.bytes));", TEST),
    ("device units: a copy does not wait for the last reader of its place", UNITS,
     "    TRIREME_RETURN_IF_ERROR(device_.told(stream_->wait(*use.last)));\n", "", TEST),
    ("device units: the end of a use is looked for in the wrong stream", UNITS,
     "caller->record(**out)", "stream_->record(**out)", TEST),
    ("device units: a copy is marked in the wrong stream", UNITS,
     "stream_->record(*given_)", "caller->record(*given_)", TEST),
    ("device units: an earlier use of a larger place is forgotten", UNITS,
     "earlier.first >= use.first &&", "", TEST),
    ("device units: memory of its own goes back before its last reader", UNITS,
     "  if (place.extra) return device_.wait(*use.last);\n",
     "  if (place.extra) return Status::success();\n", TEST),
    ("device units: a model ends before the last reader of its units", UNITS,
     "    if (!device_.wait(*use.last).ok()) return;\n", "", TEST),
    ("device units: a copy of the step before is taken for the new one",
     "src/model/units/unit_pool.cpp",
     "  if (on_device_ != nullptr) on_device_->forget(group);\n", "", TEST),
    ("device units: a recorded stream is found when peers have come", MODEL,
     "    if (gives) TRIREME_RETURN_IF_ERROR(keep(device_->check_caller()));\n", "",
     TEST),
    ("device units: peers gather the shard of the step before", "src/model/give_updated.cpp",
     "(alone && (device_ == nullptr || !group.gathered))", "alone", TRAINING),
    ("device units: shards on devices are shared", "src/model/shard_view.cpp",
     "device_ == nullptr && link_", "link_", TEST),
    ("device units: the limit forgets what a device needs", "src/model/memory_limit.cpp",
     "if (limit.device_working) {", "if (false) {", TEST),
    ("device lamb: directions stay on the device", SHARD,
     "    return device.read(on_host, part.gradients, part.count * size);\n",
     "    return Status::success();\n", TRAINING),
    ("device lamb: norms miss what the caller has written", LAMB,
     "    Status status = optimizers::adopt_on_device(device, piece);\n",
     "    Status status = Status::success();\n", TRAINING),
    ("device lamb: sums begin with any bits", SHARD,
     "    TRIREME_RETURN_IF_ERROR(device_.told(device_.stream().fill(sum, 0, kSumBytes)));\n", "",
     TRAINING),
    ("device lamb: the length of a step is forgotten", LAMB,
     "piece, step, scale, trust));\n  }\n", "piece, step, scale));\n  }\n", TRAINING),
    ("device lamb: sums of the device do not count", SHARD,
     "    kernels::ExactSum sum = GradientNorm::read(next);\n",
     "    kernels::ExactSum sum = {};\n", TRAINING),
]
