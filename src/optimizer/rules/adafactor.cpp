#include "optimizer/rules/adafactor.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace trireme::optimizers {
namespace {

// Both polynomials leave out less than the last bit of an f64.
double natural_logarithm(double value) {
  int exponent = 0;
  double mantissa = std::frexp(value, &exponent);
  if (mantissa < 0x1.6a09e667f3bcdp-1) {  // sqrt(1/2)
    mantissa *= 2;
    --exponent;
  }
  // 2 artanh(z)
  const double z = (mantissa - 1) / (mantissa + 1);
  const double square = z * z;
  double sum = 0;
  for (int k = 25; k >= 3; k -= 2) sum = (sum + 1.0 / k) * square;
  const double fraction = 2 * (z + z * sum);
  // The upper part has few enough bits for its product to be exact.
  return exponent * 0x1.62e42fefap-1 + (exponent * 0x1.cf79abc9e3b3ap-40 + fraction);
}

double exponential(double value) {
  const double count = std::floor(value * 0x1.71547652b82fep+0 + 0.5);
  const double rest = (value - count * 0x1.62e42fefap-1) - count * 0x1.cf79abc9e3b3ap-40;
  double sum = 1;
  for (int k = 16; k >= 1; --k) sum = 1 + sum * rest / k;
  return std::ldexp(sum, static_cast<int>(count));
}

}  // namespace

bool is_matrix(const std::vector<std::uint64_t>& shape) { return shape.size() >= 2; }

MatrixShape matrix_of(const std::vector<std::uint64_t>& shape) {
  MatrixShape matrix{shape[0], 1};
  for (std::size_t i = 1; i < shape.size(); ++i) matrix.columns *= shape[i];
  return matrix;
}

double falling_power(double base, double exponent) {
  constexpr double kNothing = -745;  // e to this power is 0
  const double power = exponent * natural_logarithm(base);
  return power > kNothing ? exponential(power) : 0;
}

double mean_weight(const Settings& settings, std::uint64_t step) {
  return falling_power(static_cast<double>(step), settings.rule.beta2_decay);
}

double largest_factor(const Settings& settings, trireme_dtype dtype) {
  double epsilon = settings.rule.epsilon;
  if (epsilon == 0) epsilon = dtype == TRIREME_DTYPE_F64 ? 0x1p-52 : 0x1p-23;
  // A gradient of 0 times this must be 0.
  return std::min(1 / epsilon, std::numeric_limits<double>::max());
}

void make_factors(const Settings& settings, trireme_dtype dtype, MatrixShape shape, double* rows,
                  double* columns) {
  double sum = 0;
  for (std::uint64_t i = 0; i < shape.rows; ++i) sum += rows[i];
  double mean = sum / static_cast<double>(shape.rows);
  const double least = 1 / largest_factor(settings, dtype);
  if (mean < least) mean = least;  // NaN stays
  for (std::uint64_t i = 0; i < shape.rows; ++i) rows[i] = 1 / std::sqrt(rows[i] / mean);
  for (std::uint64_t j = 0; j < shape.columns; ++j) columns[j] = 1 / std::sqrt(columns[j]);
}

// NaN makes only its own elements NaN.
double step_length(const Settings& settings, double learning_rate, std::uint64_t step,
                   std::uint64_t elements, double parameter_norm, double direction_norm) {
  const double root = std::sqrt(static_cast<double>(elements));
  const double size = parameter_norm / root;
  const double change = direction_norm / root / settings.rule.max_update_rms;
  const double most = 1 / std::sqrt(static_cast<double>(step));
  const double rate = learning_rate < most ? learning_rate : most;
  const double length =
      (size > settings.rule.min_parameter_rms ? size : settings.rule.min_parameter_rms) * rate;
  return change > 1 ? length / change : length;
}

}  // namespace trireme::optimizers
