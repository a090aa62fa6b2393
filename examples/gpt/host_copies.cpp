#include "host_copies.hpp"

#include "check.hpp"

namespace gpt {

namespace {

struct Room {
  Room(trireme_communicator* communicator, std::uint64_t bytes) {
    check(trireme_buffer_alloc(communicator, bytes, &buffer));
    check(trireme_buffer_get_data(buffer, &data));
  }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  ~Room() { trireme_buffer_destroy(buffer); }

  trireme_buffer* buffer = nullptr;
  void* data = nullptr;
};

}  // namespace

void set_on_device(trireme_communicator* communicator, trireme_model* model,
                   const std::vector<float>& values) {
  const std::uint64_t bytes = values.size() * sizeof(float);
  const Room room(communicator, bytes);
  check(trireme_memory_copy(communicator, room.data, values.data(), bytes, nullptr));
  check(trireme_model_broadcast_parameters(model, room.data, values.size(), TRIREME_DTYPE_F32, 0));
}

void get_from_device(trireme_communicator* communicator, trireme_model* model,
                     std::vector<float>* values) {
  const std::uint64_t bytes = values->size() * sizeof(float);
  const Room room(communicator, bytes);
  check(trireme_model_gather_parameters(model, room.data, values->size(), TRIREME_DTYPE_F32));
  check(trireme_memory_copy(communicator, values->data(), room.data, bytes, nullptr));
}

// The default stream, where the trainer's own work is.
void HostCopies::copy(void* to, const void* from, std::uint64_t bytes) const {
  check(trireme_memory_copy(communicator_, to, from, bytes, nullptr));
}

void* HostCopies::room(const void* device, std::uint64_t bytes, bool is_read) {
  if (device == nullptr) return nullptr;
  if (used_ == rooms_.size()) rooms_.emplace_back();
  std::vector<char>& memory = rooms_[used_++];
  if (memory.size() < bytes) memory.resize(bytes);
  if (is_read) copy(memory.data(), device, bytes);
  return memory.data();
}

trireme_layer_call HostCopies::on_host(const trireme_layer_call& call, bool is_backward) {
  trireme_layer_call here = call;
  used_ = 0;
  here.input = room(call.input, call.input_bytes, true);
  here.output = room(call.output, call.output_bytes, is_backward);
  here.saved = room(call.saved, call.saved_bytes, is_backward);
  here.output_gradient = room(call.output_gradient, call.output_bytes, true);
  here.input_gradient = room(call.input_gradient, call.input_bytes, false);
  parameters_.assign(call.parameter_count, nullptr);
  gradients_.assign(call.parameter_count, nullptr);
  for (std::uint64_t i = 0; i < call.parameter_count; ++i) {
    const std::uint64_t bytes = call.parameter_counts[i] * sizeof(float);
    parameters_[i] = room(call.parameters[i], bytes, true);
    if (call.gradients != nullptr) gradients_[i] = room(call.gradients[i], bytes, false);
  }
  here.parameters = parameters_.data();
  here.gradients = call.gradients == nullptr ? nullptr : gradients_.data();
  return here;
}

void HostCopies::forward(const trireme_layer_call& call) {
  const trireme_layer_call here = on_host(call, false);
  layers_->forward(here);
  if (call.output != nullptr) copy(call.output, here.output, call.output_bytes);
  if (call.saved != nullptr) copy(call.saved, here.saved, call.saved_bytes);
}

void HostCopies::backward(const trireme_layer_call& call) {
  const trireme_layer_call here = on_host(call, true);
  layers_->backward(here);
  if (call.input_gradient != nullptr)
    copy(call.input_gradient, here.input_gradient, call.input_bytes);
  for (std::uint64_t i = 0; call.gradients != nullptr && i < call.parameter_count; ++i) {
    const std::uint64_t bytes = call.parameter_counts[i] * sizeof(float);
    if (call.gradients[i] != nullptr) copy(call.gradients[i], gradients_[i], bytes);
  }
}

}  // namespace gpt
