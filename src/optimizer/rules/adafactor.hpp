// ADAFACTOR: the numbers of a step, and the second moments of a matrix from the sums of its squares.
// Formulas: trireme/optimizer.h.
#pragma once

#include <cstdint>
#include <vector>

#include "optimizer/rules/settings.hpp"

namespace trireme::optimizers {

inline bool is_factored(const Settings& settings) {
  return settings.rule.kind == TRIREME_RULE_ADAFACTOR;
}

// Rows and columns of a parameter; it is no matrix with less than two dimensions.
struct MatrixShape {
  std::uint64_t rows = 0, columns = 0;
};
bool is_matrix(const std::vector<std::uint64_t>& shape);
MatrixShape matrix_of(const std::vector<std::uint64_t>& shape);

// base^exponent for a base of 1 or more and a negative exponent, from IEEE operations alone: the
// same bits with every C library.
double falling_power(double base, double exponent);

// How far the means of squares move in this step of the parameter.
double mean_weight(const Settings& settings, std::uint64_t step);

// The most by which a gradient is multiplied: 1 / eps.
double largest_factor(const Settings& settings, trireme_dtype dtype);

inline double moved_mean(double before, double mean, double weight) {
  return before + weight * (mean - before);
}

// From means of rows and columns to 1 / sqrt(v) as the product of a number of each, in place.
void make_factors(const Settings& settings, trireme_dtype dtype, MatrixShape shape, double* rows,
                  double* columns);

// By what the direction of a parameter of so many elements is multiplied, from L2 norms of both.
double step_length(const Settings& settings, double learning_rate, std::uint64_t step,
                   std::uint64_t elements, double parameter_norm, double direction_norm);

}  // namespace trireme::optimizers
