// Activations, biases and sums of columns: the same bits at every vector level, length and address.
// Results of activations lie next to those of the standard library in long double. The others are
// those of plain loops.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/activation.hpp"
#include "kernels/columns.hpp"
#include "kernels/reduce.hpp"
#include "kernels/vector.hpp"
#include "levels.hpp"
#include "platform/names.hpp"

// Last: its macros take names like `fail`.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
extern "C" {
#include <cmocka.h>
}

namespace {

using namespace trireme::kernels;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr ActivationFormula kFormulas[] = {ActivationFormula::relu, ActivationFormula::gelu_tanh,
                                           ActivationFormula::silu, ActivationFormula::swiglu,
                                           ActivationFormula::gelu};

// --- the formulas in long double, as textbooks have them ----------------------------------------

using Real = long double;
const Real kPi = std::acos(Real{-1});

Real tanh_share(Real x) {
  return 1 / (1 + std::exp(-2 * std::sqrt(2 / kPi) * (x + 0.044715L * x * x * x)));
}

Real plain_value(ActivationFormula formula, Real x) {
  switch (formula) {
    case ActivationFormula::relu: return x > 0 ? x : 0;
    case ActivationFormula::gelu_tanh: return x * tanh_share(x);
    case ActivationFormula::gelu: return x * std::erfc(-x / std::sqrt(Real{2})) / 2;
    default: return x / (1 + std::exp(-x));
  }
}

Real plain_slope(ActivationFormula formula, Real x) {
  if (formula == ActivationFormula::relu) return x > 0 ? 1 : 0;
  if (formula == ActivationFormula::gelu) {
    return std::erfc(-x / std::sqrt(Real{2})) / 2 + x * std::exp(-x * x / 2) / std::sqrt(2 * kPi);
  }
  const bool silu = formula != ActivationFormula::gelu_tanh;
  const Real s = silu ? 1 / (1 + std::exp(-x)) : tanh_share(x);
  const Real inner = silu ? 1 : 2 * std::sqrt(2 / kPi) * (1 + 3 * 0.044715L * x * x);
  return s + x * s * (1 - s) * inner;
}

// --- arrays -------------------------------------------------------------------------------------

double random_unit(std::uint64_t* state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return static_cast<double>(*state >> 11) * 0x1p-53;
}

// Elements of `dtype` as memory has them.
std::vector<unsigned char> stored(trireme_dtype dtype, const std::vector<double>& numbers) {
  std::vector<unsigned char> bytes(numbers.size() * trireme::dtype_size(dtype));
  if (bytes.empty()) return bytes;
  if (dtype == TRIREME_DTYPE_F64) {
    std::memcpy(bytes.data(), numbers.data(), bytes.size());
    return bytes;
  }
  std::vector<float> wide(numbers.begin(), numbers.end());
  if (dtype == TRIREME_DTYPE_F32) {
    std::memcpy(bytes.data(), wide.data(), bytes.size());
  } else {
    narrow(dtype, bytes.data(), wide.data(), wide.size());
  }
  return bytes;
}

std::vector<double> numbers_of(trireme_dtype dtype, const std::vector<unsigned char>& bytes) {
  std::vector<double> numbers(bytes.size() / trireme::dtype_size(dtype));
  if (numbers.empty()) return numbers;
  if (dtype == TRIREME_DTYPE_F64) {
    std::memcpy(numbers.data(), bytes.data(), bytes.size());
    return numbers;
  }
  std::vector<float> wide(numbers.size());
  if (dtype == TRIREME_DTYPE_F32) {
    std::memcpy(wide.data(), bytes.data(), bytes.size());
  } else {
    widen(dtype, wide.data(), bytes.data(), wide.size());
  }
  return std::vector<double>(wide.begin(), wide.end());
}

struct Results {
  std::vector<unsigned char> output, input_gradient, value_gradient;
  bool operator==(const Results&) const = default;
};

// All results of the first `count` elements. Arrays begin `apart` bytes behind aligned memory.
Results run(ActivationFormula formula, trireme_dtype dtype, const std::vector<double>& x,
            const std::vector<double>& values, const std::vector<double>& gradients,
            std::uint64_t count, std::size_t apart) {
  const std::size_t bytes = count * trireme::dtype_size(dtype);
  const auto moved = [&](const std::vector<double>& numbers) {
    std::vector<unsigned char> all = stored(dtype, numbers);
    all.insert(all.begin(), apart, 0);
    return all;
  };
  const std::vector<unsigned char> in = moved(x), by = moved(values), up = moved(gradients);
  constexpr unsigned char kMark = 0x5a;
  std::vector<unsigned char> results[3];
  for (auto& result : results) result.assign(apart + bytes + 1, kMark);
  activate(formula, dtype, in.data() + apart, by.data() + apart, count, results[0].data() + apart);
  activate_back(formula, dtype,
                {in.data() + apart, by.data() + apart, up.data() + apart, results[1].data() + apart,
                 results[2].data() + apart},
                count);
  for (auto& result : results) {
    assert_true(result.back() == kMark);
    result.pop_back();
    result.erase(result.begin(), result.begin() + static_cast<std::ptrdiff_t>(apart));
  }
  return {results[0], results[1], results[2]};
}

// --- tests --------------------------------------------------------------------------------------

void bits_depend_on_no_level_length_or_address(void**) {
  std::uint64_t state = 1;
  std::vector<double> x, values, gradients;
  for (int i = 0; i < 2100; ++i) {
    x.push_back(std::ldexp(random_unit(&state) - 0.5, i % 12 - 2));
    values.push_back(8 * random_unit(&state) - 4);
    gradients.push_back(std::ldexp(random_unit(&state) - 0.5, i % 7 == 0 ? -120 : 1));
  }
  const double odd[] = {0.0,   -0.0,  NAN,   -NAN,  kInfinity, -kInfinity, 1e-40, -1e-40, 3e38,
                        -3e38, -13.5, -18.9, -19.1, -37.4,     -37.6,      -90.0, -708.5, 1e-320};
  for (std::size_t i = 0; i < std::size(odd); ++i) x[3 * i] = odd[i];
  gradients[1] = NAN;
  for (const trireme_dtype dtype :
       {TRIREME_DTYPE_F32, TRIREME_DTYPE_F64, TRIREME_DTYPE_F16, TRIREME_DTYPE_BF16}) {
    for (const ActivationFormula formula : kFormulas) {
      force_vector_level(VectorLevel::scalar);
      const Results all = run(formula, dtype, x, values, gradients, x.size(), 0);
      for (const VectorLevel level : levels()) {
        force_vector_level(level);
        for (const std::uint64_t count : {0, 1, 2, 3, 7, 8, 9, 31, 1025, 2100}) {
          Results part = run(formula, dtype, x, values, gradients, count, count % 3);
          const auto has_beginning = [&](const auto& whole, const auto& beginning) {
            return std::equal(beginning.begin(), beginning.end(), whole.begin());
          };
          assert_true(has_beginning(all.output, part.output));
          assert_true(has_beginning(all.input_gradient, part.input_gradient));
          if (formula == ActivationFormula::swiglu) {
            assert_true(has_beginning(all.value_gradient, part.value_gradient));
          }
        }
      }
    }
  }
  force_vector_level(best_vector_level());
}

// Half a unit in the last place for f32, and a little.
bool is_rounded(double result, Real right) {
  if (std::fabs(right) < 0x1p-126L) return result == 0;
  const int exponent = std::ilogb(right);
  return std::fabs(static_cast<Real>(result) - right) <=
         0.5001L * std::ldexp(Real{1}, exponent - 23) + 0x1p-50L;
}

// Near 2^-126 a last bit decides what counts as 0.
bool is_at_the_end(Real right) { return std::fabs(std::fabs(right) / 0x1p-126L - 1) < 1e-9L; }

void results_of_f32_are_rounded_once(void**) {
  std::uint64_t state = 2;
  std::vector<double> x, values, ones;
  for (int i = 0; i < 40'000; ++i) {
    const double most = i % 4 == 0 ? 100 : (i % 4 == 1 ? 20 : 4);
    x.push_back(static_cast<double>(static_cast<float>(most * (2 * random_unit(&state) - 1))));
    values.push_back(static_cast<double>(static_cast<float>(4 * random_unit(&state) - 2)));
    ones.push_back(i % 2 == 0 ? 1 : 0x1p40);
  }
  for (const ActivationFormula formula : kFormulas) {
    const Results found = run(formula, TRIREME_DTYPE_F32, x, values, ones, x.size(), 0);
    const auto output = numbers_of(TRIREME_DTYPE_F32, found.output);
    const auto gradient = numbers_of(TRIREME_DTYPE_F32, found.input_gradient);
    const auto of_value = numbers_of(TRIREME_DTYPE_F32, found.value_gradient);
    const bool gated = formula == ActivationFormula::swiglu;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const Real by = gated ? Real{values[i]} : 1, value = plain_value(formula, x[i]);
      const Real slope = plain_slope(formula, x[i]);
      const struct {
        double found;
        Real right, unit;
      } pairs[] = {{output[i], value * by, 1},
                   {gradient[i], ones[i] * by * slope, ones[i]},
                   {gated ? of_value[i] : 0, gated ? ones[i] * value : 0, ones[i]}};
      for (const auto& pair : pairs) {
        // The rest of a difference of two summands weighs with the gradient.
        const bool near =
            std::fabs(static_cast<Real>(pair.found) - pair.right) < 0x1p-50L * pair.unit;
        const bool normal = std::fabs(pair.right) >= 0x1p-126L;
        if (is_at_the_end(pair.right) || is_rounded(pair.found, pair.right) || (normal && near)) {
          continue;
        }
        fail_msg("formula %d of %.9g: %.9g, not %.12Lg", static_cast<int>(formula), x[i],
                 pair.found, pair.right);
      }
    }
  }
}

void results_of_f64_are_near(void**) {
  std::uint64_t state = 3;
  std::vector<double> x, ones(20'000, 1);
  for (std::size_t i = 0; i < ones.size(); ++i) {
    x.push_back((i % 3 == 0 ? 37 : 4) * (2 * random_unit(&state) - 1));
  }
  for (const ActivationFormula formula : kFormulas) {
    const Results found = run(formula, TRIREME_DTYPE_F64, x, ones, ones, x.size(), 0);
    const auto output = numbers_of(TRIREME_DTYPE_F64, found.output);
    const auto gradient = numbers_of(TRIREME_DTYPE_F64, found.input_gradient);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const Real value = plain_value(formula, x[i]), slope = plain_slope(formula, x[i]);
      // Rounding of the exponent's argument weighs with its size.
      const Real size = std::fabs(x[i]);
      const Real argument = formula == ActivationFormula::gelu_tanh
                                ? 1.6L * (size + 0.044715L * size * size * size)
                                : (formula == ActivationFormula::gelu ? 0 : size);
      const Real bound = 0x1p-51L * (2 + argument);
      if (std::fabs(static_cast<Real>(output[i]) - value) > bound * std::fabs(value) + 1e-300L ||
          std::fabs(static_cast<Real>(gradient[i]) - slope) > bound * (1 + std::fabs(slope))) {
        fail_msg("formula %d of %.17g: %.17g and %.17g, not %.20Lg and %.20Lg",
                 static_cast<int>(formula), x[i], output[i], gradient[i], value, slope);
      }
    }
  }
}

// Other types have the results of f32, rounded.
void narrow_types_have_rounded_results_of_f32(void**) {
  std::uint64_t state = 4;
  for (const trireme_dtype dtype : {TRIREME_DTYPE_F16, TRIREME_DTYPE_BF16}) {
    std::vector<double> arrays[3];
    for (auto& array : arrays) {
      for (int i = 0; i < 1500; ++i) array.push_back(12 * random_unit(&state) - 6);
      array = numbers_of(dtype, stored(dtype, array));
    }
    for (const ActivationFormula formula : kFormulas) {
      const Results narrow =
          run(formula, dtype, arrays[0], arrays[1], arrays[2], arrays[0].size(), 0);
      const Results wide =
          run(formula, TRIREME_DTYPE_F32, arrays[0], arrays[1], arrays[2], arrays[0].size(), 0);
      const auto rounded = [&](const std::vector<unsigned char>& bytes) {
        return stored(dtype, numbers_of(TRIREME_DTYPE_F32, bytes));
      };
      assert_true(narrow.output == rounded(wide.output));
      assert_true(narrow.input_gradient == rounded(wide.input_gradient));
      if (formula != ActivationFormula::swiglu) continue;
      assert_true(narrow.value_gradient == rounded(wide.value_gradient));
    }
  }
}

void relu_keeps_every_number(void**) {
  const std::vector<double> x = {1e-40, -1e-40, 3, -3, 0x1p-149, 0}, ones(6, 1);
  const std::vector<double> gradients = {1e-40, 1e-40, -1e-40, 1, 5, 5};
  const Results found =
      run(ActivationFormula::relu, TRIREME_DTYPE_F32, x, ones, gradients, x.size(), 0);
  const std::vector<double> values = {1e-40, 0, 3, 0, 0x1p-149, 0};
  const std::vector<double> slopes = {1e-40, 0, -1e-40, 0, 5, 0};
  assert_true(numbers_of(TRIREME_DTYPE_F32, found.output) ==
              numbers_of(TRIREME_DTYPE_F32, stored(TRIREME_DTYPE_F32, values)));
  assert_true(numbers_of(TRIREME_DTYPE_F32, found.input_gradient) ==
              numbers_of(TRIREME_DTYPE_F32, stored(TRIREME_DTYPE_F32, slopes)));
}

// --- biases and sums of columns -----------------------------------------------------------------

// Large numbers come and go, so another order of additions has other bits. Sums of f16 are exact.
std::vector<double> rough_numbers(trireme_dtype dtype, std::size_t count, std::size_t step) {
  const double size = dtype == TRIREME_DTYPE_F16 ? 0x1p14 : 0x1p45;
  std::uint64_t state = 5;
  std::vector<double> numbers;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t row = step == 0 ? 1 : i / step;  // step 0: small numbers
    const double large = row % 5 == 0 ? 1 : (row % 5 == 3 ? -1 : 0);
    const double small = std::ldexp(random_unit(&state) - 0.5, -static_cast<int>(i % 9));
    numbers.push_back(large == 0 ? small : large * size);
  }
  const double odd[] = {NAN, -NAN, kInfinity, -kInfinity, 1e-40, -0.0};
  for (std::size_t i = 0; i < std::size(odd) && 7 * i + 3 < count; ++i) numbers[7 * i + 3] = odd[i];
  return numbers;
}

// The bytes that the type stores. Every NaN is the positive quiet one.
std::vector<unsigned char> stored_once(trireme_dtype dtype, std::vector<double> numbers) {
  for (double& number : numbers) {
    if (number != number) number = std::numeric_limits<double>::quiet_NaN();
  }
  return stored(dtype, numbers);
}

struct Shape {
  std::uint64_t rows, columns, step;
};

// Runs `work` with copies that begin `apart` bytes behind aligned memory, and end with it.
template <class Work>
std::vector<unsigned char> result_of(std::vector<unsigned char> input,
                                     std::vector<unsigned char> result, std::size_t apart,
                                     const Work& work) {
  input.insert(input.begin(), apart, 0);
  result.insert(result.begin(), apart, 0);
  result.push_back(0x5a);
  work(input.data() + apart, result.data() + apart);
  assert_true(result.back() == 0x5a);
  return {result.begin() + static_cast<std::ptrdiff_t>(apart), result.end() - 1};
}

void check_columns(trireme_dtype dtype, const Shape& shape, bool add, std::size_t apart) {
  const bool wide = dtype == TRIREME_DTYPE_F64;
  const trireme_dtype kept = wide ? TRIREME_DTYPE_F64 : TRIREME_DTYPE_F32;
  const std::uint64_t count = shape.rows * shape.step;
  const std::vector<unsigned char> matrix = stored(dtype, rough_numbers(dtype, count, shape.step));
  const std::vector<double> numbers = numbers_of(dtype, matrix);
  std::vector<double> sums = numbers_of(kept, stored(kept, rough_numbers(kept, shape.columns, 0)));
  const std::vector<unsigned char> before = stored(kept, sums);
  for (std::uint64_t j = 0; j < shape.columns; ++j) {
    double sum = 0;
    for (std::uint64_t i = 0; i < shape.rows; ++i) sum += numbers[i * shape.step + j];
    sums[j] = add ? sums[j] + sum : sum;
  }
  const auto found = result_of(matrix, before, apart, [&](const void* from, void* to) {
    add_columns(dtype, from, shape.step, shape.rows, shape.columns, add, to);
  });
  assert_true(found == stored_once(kept, sums));
}

void check_bias(trireme_dtype dtype, const Shape& shape, std::size_t apart) {
  const auto bias = numbers_of(dtype, stored(dtype, rough_numbers(dtype, shape.columns, 0)));
  const std::uint64_t count = shape.rows * shape.columns;
  auto matrix = numbers_of(dtype, stored(dtype, rough_numbers(dtype, count, shape.columns)));
  const std::vector<unsigned char> before = stored(dtype, matrix);
  // A sum of two numbers of f32 has the same bits if it is rounded to f64 first.
  for (std::uint64_t i = 0; i < count; ++i) matrix[i] += bias[i % shape.columns];
  const auto found = result_of(stored(dtype, bias), before, apart, [&](const void* from, void* to) {
    add_bias(dtype, from, shape.rows, shape.columns, to);
  });
  assert_true(found == stored_once(dtype, matrix));
}

void columns_have_the_bits_of_plain_loops(void**) {
  for (const VectorLevel level : levels()) {
    force_vector_level(level);
    for (const std::uint64_t columns : {0, 1, 2, 3, 7, 8, 9, 31, 511, 1025}) {
      for (const std::uint64_t rows : {0, 1, 2, 3, 4, 5, 11}) {
        const std::size_t apart = (rows + columns) % 4;
        for (const trireme_dtype dtype :
             {TRIREME_DTYPE_F32, TRIREME_DTYPE_F64, TRIREME_DTYPE_F16, TRIREME_DTYPE_BF16}) {
          check_columns(dtype, {rows, columns, columns + rows % 3}, rows % 2 == 1, apart);
        }
        check_bias(TRIREME_DTYPE_F32, {rows, columns, columns}, apart);
        check_bias(TRIREME_DTYPE_F64, {rows, columns, columns}, apart);
      }
    }
  }
  force_vector_level(best_vector_level());
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(bits_depend_on_no_level_length_or_address),
      cmocka_unit_test(results_of_f32_are_rounded_once),
      cmocka_unit_test(results_of_f64_are_near),
      cmocka_unit_test(narrow_types_have_rounded_results_of_f32),
      cmocka_unit_test(relu_keeps_every_number),
      cmocka_unit_test(columns_have_the_bits_of_plain_loops),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
