// How a contribution travels to the rank that adds it up, if not as it was handed in.
//
// A row of the table in encoding.cpp encodes the contribution of one rank, and decodes those of all
// ranks on their way into a fold.
#pragma once

#include "exchange/storage.hpp"
#include "model/gradients/overflow.hpp"
#include "sharding/layout.hpp"

namespace trireme::strategies {

struct Encoding {
  trireme_dtype dtype;  // of the encoded elements
  // Elements that become inf are noted, as if they had been handed in so.
  void (*encode)(trireme_dtype dtype, const sharding::Bucket& bucket, const char* contribution,
                 char* to, OverflowWatch& overflow);
  // The fold of encoded contributions, from a fold of decoded ones.
  Fold (*decoding)(trireme_dtype dtype, Fold fold);
};

// Null: contributions travel as they are.
const Encoding* encoding_of(const sharding::Spread& spread);

}  // namespace trireme::strategies
