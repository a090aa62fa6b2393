// One step of the update rule over one piece of a shard.
#pragma once

#include <cstdint>

#include "devices/device.hpp"
#include "optimizer/rules/settings.hpp"
#include "platform/status.hpp"
#include "sharding/whole_numbers.hpp"

namespace trireme::optimizers {

// A stretch of one parameter that a rank updates.
struct Piece {
  trireme_dtype dtype = 0;  // of parameters
  std::uint64_t parameter = 0;
  std::uint64_t draw_key = 0;                       // of the parameter in all models
  const sharding::WholeNumbers* numbers = nullptr;  // of its elements; null: those here
  std::uint64_t group = 0;                          // of parameters
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  bool matrix = false;  // the rule needs the whole matrix
  void* parameters = nullptr;
  // The parameters of 16 bits, if `parameters` are their f32 masters; else null.
  void* rounded = nullptr;
  trireme_dtype rounded_dtype = 0;
  // These are of gradient_dtype(dtype).
  void* gradients = nullptr;
  void* states[TRIREME_MAX_STATES] = {};
};

// `count` elements of the piece from `first` on.
Piece part_of(const Piece& piece, std::uint64_t first, std::uint64_t count);

// Returns 0, or the answer of the caller's rule; that rule finds the gradients scaled in place.
// `trust` multiplies the learning rate; with ADAFACTOR it is the length of the step. With LAMB and
// ADAFACTOR the gradients are the direction. So they are for a matrix of MUON, to be multiplied by
// gradient_scale.
std::int32_t update_piece(const Settings& settings, const Piece& piece, std::uint64_t step,
                          double gradient_scale, double trust = 1);

// The same for memory of a device, without a rule of the caller; the work is queued in its stream.
Status update_piece_on(devices::Stream& stream, const Settings& settings, const Piece& piece,
                       std::uint64_t step, double gradient_scale, double trust = 1);

// Masters that do not round to their parameters take the parameters' values. update_piece() does
// it, too.
void adopt_written(const Piece& piece);

// LAMB, and matrices of MUON: the first half of a step.
void find_direction(const Settings& settings, const Piece& piece, std::uint64_t step,
                    double gradient_scale);

// For the piece's parameter; the rate is without trust.
double rate_of(const Settings& settings, const Piece& piece);
double weight_decay_of(const Settings& settings, const Piece& piece);

}  // namespace trireme::optimizers
