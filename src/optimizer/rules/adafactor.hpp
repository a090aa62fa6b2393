// ADAFACTOR: the numbers of a step, and the second moments of a matrix by the sums of its squares.
// Formulas: trireme/optimizer.h.
#pragma once

#include <cstdint>
#include <vector>

#include "optimizer/rules/settings.hpp"

namespace trireme::optimizers {

inline bool is_factored(const Settings& settings) {
  return settings.rule.kind == TRIREME_RULE_ADAFACTOR;
}

// Rows and columns of a parameter; a parameter with less than two dimensions is no matrix.
struct MatrixShape {
  std::uint64_t rows = 0, columns = 0;
};
bool is_matrix(const std::vector<std::uint64_t>& shape);
MatrixShape matrix_of(const std::vector<std::uint64_t>& shape);

// base^exponent for a base of 1 or more and a negative exponent, from IEEE operations alone: the
// same bits with every C library.
double falling_power(double base, double exponent);

// The weight with which the means of squares move in this step of the parameter.
double mean_weight(const Settings& settings, std::uint64_t step);

// The largest factor of a gradient: 1 / eps.
double largest_factor(const Settings& settings, trireme_dtype dtype);

inline double moved_mean(double before, double mean, double weight) {
  return before + weight * (mean - before);
}

// Turns means of rows and columns, in place, into numbers whose products are 1 / sqrt(v).
void make_factors(const Settings& settings, trireme_dtype dtype, MatrixShape shape, double* rows,
                  double* columns);

// The factor of the direction of a parameter with so many elements, from the L2 norms of both.
double step_length(const Settings& settings, double learning_rate, std::uint64_t step,
                   std::uint64_t elements, double parameter_norm, double direction_norm);

}  // namespace trireme::optimizers
