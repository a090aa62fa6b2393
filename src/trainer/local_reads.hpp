// LocalReads: the outputs that layers of one rank read past others, and their gradients, in one
// micro-batch at a time.
#pragma once

#include <trireme/trainer.h>

#include <cstdint>
#include <vector>

#include "trainer/call_reads.hpp"
#include "trainer/extent.hpp"
#include "trainer/gaps.hpp"
#include "trainer/layer_table.hpp"

namespace trireme::strategies {

// Adds up gradients of the output of call.layer: `sources` in their order, and then that of the
// next layer, call.output_gradient. A gap in this one is a gap in the sum: only a layer that
// computes a gradient from it fails.
void sum_gradients(const trireme_layer_call& call, trireme_dtype dtype, const GapSearch& gaps,
                   std::vector<const void*>* sources, void* sum);

// Adds the bytes of `places` for the output of a layer, or its gradients, to *sum. All outputs that
// are read may have 2^60 bytes: their places are added up in 64 bits.
Status add_read_places(std::uint64_t layer, std::uint64_t bytes, std::uint64_t places,
                       std::uint64_t* sum);

class LocalReads {
 public:
  explicit LocalReads(const LayerTable& layers) : layers_(layers) {}

  // Once the layers are checked.
  Status place();
  std::uint64_t bytes() const { return bytes_; }
  void use(char* memory) { memory_ = memory; }

  // After the first forward of a layer.
  void keep(const trireme_layer_call& call, const Extent& extent);
  // Before a call.
  void tell(trireme_layer_call* call, bool for_input);
  const CallReads& told() const { return told_; }
  // Before backward of a layer: its output_gradient becomes the sum of all gradients.
  void add_gradients(trireme_layer_call* call, const GapSearch& gaps) const;

 private:
  struct Output {
    bool is_read = false;
    std::uint64_t value = 0;                 // its place
    std::vector<std::uint64_t> gradients{};  // places; the last reader comes first
    Extent extent{};
  };
  struct Read {
    std::uint64_t layer = 0, gradient = 0;  // which of the gradients
  };

  const LayerTable& layers_;
  std::vector<Output> outputs_{};           // by layer
  std::vector<std::vector<Read>> reads_{};  // by layer, in its order
  std::uint64_t bytes_ = 0;
  char* memory_ = nullptr;
  CallReads told_{};
};

}  // namespace trireme::strategies
