// HostCopies: layers of the host for a model on a device. It copies what a layer reads, lets the
// host compute it, and copies back what the layer wrote. A program with kernels of its own queues
// them in the stream of the call instead, and copies nothing.
#pragma once

#include <trireme/trireme.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "layer_set.hpp"

namespace gpt {

class HostCopies : public LayerSet {
 public:
  HostCopies(trireme_communicator* communicator, std::unique_ptr<LayerSet> layers)
      : communicator_(communicator), layers_(std::move(layers)) {}
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  std::uint64_t output_bytes(int layer) const override { return layers_->output_bytes(layer); }
  std::uint64_t saved_bytes(int layer) const override { return layers_->saved_bytes(layer); }
  void forward(const trireme_layer_call& call) override;
  void backward(const trireme_layer_call& call) override;

 private:
  // The call with memory of the host: its arrays are undefined, but for those that are read.
  trireme_layer_call on_host(const trireme_layer_call& call, bool is_backward);
  void* room(const void* device, std::uint64_t bytes, bool is_read);
  void copy(void* to, const void* from, std::uint64_t bytes) const;

  trireme_communicator* const communicator_;
  const std::unique_ptr<LayerSet> layers_;
  std::vector<std::vector<char>> rooms_;
  std::size_t used_ = 0;
  std::vector<const void*> parameters_;
  std::vector<void*> gradients_;
};

// Sets and gets all parameters of a model on the communicator's device, by values of the host.
void set_on_device(trireme_communicator* communicator, trireme_model* model,
                   const std::vector<float>& values);
void get_from_device(trireme_communicator* communicator, trireme_model* model,
                     std::vector<float>* values);

}  // namespace gpt
