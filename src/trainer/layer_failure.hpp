// The first failure of one rank in a pass of a trainer.
#pragma once

#include <cstdint>

#include "offload/item_file.hpp"

namespace trireme::strategies {

// Parameters of a layer by their places in it: the first one, the others as bits from it on, and
// the first element of the first one.
struct LayerGaps {
  std::uint64_t first = 0, told = 0, element = 0;
};
constexpr std::uint64_t kToldGaps = 64;  // the bits of a word

// Its kind is `none` while the pass goes well.
struct LayerFailure {
  enum Kind : std::int32_t {
    none,
    answered,
    threw,
    left_out,   // gradients, so many as the answer
    refused,    // a gradient, which was refused
    unwritten,  // gradients, so many as the answer
    input,      // its gradient (the whole if the answer is 1) has come to those of layer
                // `gaps.first`
    stream,     // on a device: no work can be queued in the caller's stream any more
    foreign,    // a gradient that is no memory of the device
    no_rate,
    file,        // activations cannot be read
    corrupt,     // the file gave others
    full,        // activations cannot be written, nor kept
    too_long,    // an output, of gaps.element bytes
    other_size,  // the output of a second forward
    read         // the gradient for the output of layer gaps.first, in the whole model
  };
  Kind kind = none;
  std::int32_t phase = 0, answer = 0;
  std::uint64_t layer = 0;
  std::uint32_t leaf = 0;
  LayerGaps gaps = {};
};

// Of trouble with the file of activations.
inline LayerFailure::Kind kind_of(const ItemFile::Trouble& trouble) {
  if (trouble.corrupt) return LayerFailure::corrupt;
  return trouble.writing ? LayerFailure::full : LayerFailure::file;
}

}  // namespace trireme::strategies
