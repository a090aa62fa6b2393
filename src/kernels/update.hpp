// Update rules as loops over the owned shard. Formulas: trireme/optimizer.h.
#pragma once

#include <trireme/optimizer.h>
#include <trireme/types.h>

#include <cstdint>

namespace trireme::kernels {

struct UpdateRule {
  trireme_rule_kind kind = 0;
  bool nesterov = false;
  bool centered = false;
  double momentum = 0, beta1 = 0, beta2 = 0, epsilon = 0, weight_decay = 0;
  double step_size = 0;  // ADAFACTOR: by what its direction is multiplied
};

// How parameters of bf16 are rounded if not to nearest: by chance, element i with draw `first` + i of
// the stream `key`.
struct RandomRounding {
  std::uint64_t key = 0, first = 0;
};

// State vectors the rule keeps per element: SGD and LARS 0 or 1 (momentum), ADAM, ADAMW and LAMB 2
// (m, v), ADAGRAD and LION 1, RMSPROP 1 to 3. Those of ADAFACTOR are in kernels/factored.hpp: 0. MUON
// 2, as ADAMW, of which a matrix needs the first.
int state_count(const UpdateRule& rule);

// One step of `count` elements, of LARS with the trust ratio in the learning rate, of ADAFACTOR along
// its direction, of MUON that of a matrix along the gradients, whatever they are; not of LAMB.
// dtype f32 or f64 is that of all vectors; with f16 or bf16 it is the parameters', all else is f32,
// and a parameter is rounded once at the end: to nearest even, or of bf16 as `random` says. step
// counts from 1. gradient_scale multiplies each gradient first (clipping, averaging); 1 leaves the
// bits alone. states[i] is null past state_count(). An element gets the same bits wherever it lies:
// vector body and tail do the same IEEE operations, without contraction.
void update(const UpdateRule& rule, trireme_dtype dtype, void* parameters, const void* gradients,
            void* const* states, std::uint64_t count, std::uint64_t step, double learning_rate,
            double gradient_scale, const RandomRounding* random = nullptr);

// The first half of a step of LAMB: updates the states, and writes the direction over the gradients.
// The second is SGD along it. In all else as update().
void lamb_direction(const UpdateRule& rule, trireme_dtype dtype, const void* parameters,
                    void* gradients, void* const* states, std::uint64_t count, std::uint64_t step,
                    double gradient_scale);

// The first half of a step of MUON for a part of a matrix: updates its one state, and writes what is
// to be orthogonalised over the gradients, which are f32 or f64 as `dtype` is.
void muon_direction(const UpdateRule& rule, trireme_dtype dtype, void* gradients,
                    void* const* states, std::uint64_t count, double gradient_scale);

}  // namespace trireme::kernels
