// Update rules as loops over the owned shard. Formulas: trireme/optimizer.h.
#pragma once

#include <trireme/types.h>

#include <cstdint>

#include "kernels/rules.hpp"

namespace trireme::kernels {

// Rounds parameters of bf16 by chance: element i takes draw `first` + i of the stream `key`.
struct RandomRounding {
  std::uint64_t key = 0, first = 0;
};

// State vectors the rule keeps per element. Those of ADAFACTOR are in kernels/factored.hpp, so it
// counts 0 here. A matrix of MUON needs only the first of its two.
int state_count(const UpdateRule& rule);

// One step of `count` elements. LARS has the trust ratio in the learning rate. ADAFACTOR steps
// along its direction, and so does a matrix of MUON. LAMB, MUON and USER are not for this function.
// All vectors have dtype f32 or f64; with f16 or bf16 only the parameters have it, and all else is
// f32. A parameter is then rounded once at the end: to nearest even, or for bf16 as `random` says.
// step counts from 1. gradient_scale multiplies each gradient first (clipping, averaging); 1 leaves
// the bits alone. states[i] is null past state_count(). An element gets the same bits wherever it
// lies: vector body and tail do the same IEEE operations, without contraction.
void update(const UpdateRule& rule, trireme_dtype dtype, void* parameters, const void* gradients,
            void* const* states, std::uint64_t count, std::uint64_t step, double learning_rate,
            double gradient_scale, const RandomRounding* random = nullptr);

// The first half of a step of LAMB: updates the states, and writes the direction over the
// gradients. The second half is SGD along it. The rest is as for update().
void lamb_direction(const UpdateRule& rule, trireme_dtype dtype, const void* parameters,
                    void* gradients, void* const* states, std::uint64_t count, std::uint64_t step,
                    double gradient_scale);

// The first half of a step of MUON for a part of a matrix: updates its one state, and writes the
// matrix to orthogonalise over the gradients, which are f32 or f64 as `dtype` is.
void muon_direction(const UpdateRule& rule, trireme_dtype dtype, void* gradients,
                    void* const* states, std::uint64_t count, double gradient_scale);

}  // namespace trireme::kernels
