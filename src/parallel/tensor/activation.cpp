#include "parallel/tensor/activation.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <iterator>

#include "kernels/reduce.hpp"
#include "platform/names.hpp"

namespace trireme::parallel {
namespace {

constexpr std::uint64_t kElementsAtOnce = 256;

// Additions and multiplications of f64 alone, so that it has the same bits at every vector level.
// The error is below 2 units in the last place. Beyond +-708 the argument counts as +-708.
inline double exponential(double x) {
  constexpr double kLog2E = 0x1.71547652b82fep+0;
  constexpr double kLn2High = 0x1.62e42fefa0000p-1, kLn2Low = 0x1.cf79abc9e3b3ap-40;
  constexpr double kRound = 0x1.8p+52;  // adding it rounds to a whole number
  const double bounded = x < -708 ? -708 : (x > 708 ? 708 : x);
  const double shifted = bounded * kLog2E + kRound;
  const double power = shifted - kRound;
  const double r = bounded - power * kLn2High - power * kLn2Low;  // |r| <= ln 2 / 2
  // The series to r^13 / 13!; the rest is below 2^-55.
  double sum = 1.0 / 6227020800.0;
  sum = sum * r + 1.0 / 479001600.0;
  sum = sum * r + 1.0 / 39916800.0;
  sum = sum * r + 1.0 / 3628800.0;
  sum = sum * r + 1.0 / 362880.0;
  sum = sum * r + 1.0 / 40320.0;
  sum = sum * r + 1.0 / 5040.0;
  sum = sum * r + 1.0 / 720.0;
  sum = sum * r + 1.0 / 120.0;
  sum = sum * r + 1.0 / 24.0;
  sum = sum * r + 1.0 / 6.0;
  sum = sum * r + 0.5;
  sum = sum * r + 1;
  sum = sum * r + 1;
  const auto scale = (std::bit_cast<std::uint64_t>(shifted) + 1023) << 52;  // 2^power
  return sum * std::bit_cast<double>(scale);
}

struct Relu {
  static double value(double x) { return x < 0 ? 0 : x; }  // NaN stays
  static double slope(double x) { return x > 0 ? 1 : (x <= 0 ? 0 : x); }
};

struct Silu {
  static double value(double x) { return x / (1 + exponential(-x)); }
  static double slope(double x) {
    const double s = 1 / (1 + exponential(-x));
    return s * (1 + x * (1 - s));
  }
};

// x (1 + tanh u) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3): Hendrycks and Gimpel 2016.
// (1 + tanh u) / 2 is 1 / (1 + exp(-2u)).
struct GeluTanh {
  static constexpr double kTwice = 0x1.9884533d43651p+0;  // 2 sqrt(2 / pi)
  static constexpr double kCube = 0.044715;
  static double value(double x) { return x / (1 + exponential(-kTwice * (x + kCube * x * x * x))); }
  static double slope(double all) {
    const double x = all < -40 ? -40 : (all > 40 ? 40 : all);  // beyond, only squares overflow
    const double s = 1 / (1 + exponential(-kTwice * (x + kCube * x * x * x)));
    return s + x * s * (1 - s) * kTwice * (1 + 3 * kCube * x * x);
  }
};

// x Phi(x), with Phi(x) = (1 + erf(x / sqrt 2)) / 2: Hendrycks and Gimpel 2016.
//
// Phi(-a) = exp(-a^2 / 2) g / (2 (1 + sqrt(2) a)) for a >= 0. The smooth factor g is
// (1 + 2z) exp(z^2) erfc(z) with z = a / sqrt 2. It is a polynomial in (a - 5.25) / (a + 5.25): the
// Chebyshev interpolation of degree 26, made with 60 digits. Its next coefficient is below 2^-62.
struct Gelu {
  static constexpr double kMost = 37.5;  // Phi(-a) is below 2^-1018 beyond, and counts as 0
  static constexpr double kCentre = 5.25;
  static constexpr double kFactors[] = {
      0x1.3cfc0d6efcf31p+0,  -0x1.1f443e9c43b40p-3, 0x1.a6f40eaaaabd0p-10,  0x1.5a2936ce0fd92p-4,
      -0x1.c2029dbdff8d8p-4, 0x1.783b9a1a57694p-4,  -0x1.d5c7c96ba444ap-5,  0x1.ba077a95ae819p-6,
      -0x1.21a3674febc37p-7, 0x1.6557a037a75cap-10, 0x1.8eafe3bcbfcd5p-12,  -0x1.210c92e7cbda4p-12,
      0x1.1fe6df28c8b7ap-15, 0x1.afcc66703c913p-16, -0x1.472daac382c00p-17, -0x1.f3b3fd44d2fa1p-20,
      0x1.b91ce562154bdp-20, 0x1.ba90a614c10d5p-24, -0x1.17586b86989b4p-22, -0x1.cdfb6c2776e58p-29,
      0x1.6a70cc94db827p-25, 0x1.02e680e6ac77bp-32, -0x1.d2a13a1659577p-28, -0x1.f54f2487561ebp-34,
      0x1.fe37ad96027b7p-31, 0x1.3bd489ebf9429p-36, -0x1.47d6bae0c01dfp-34};

  // exp(-a^2 / 2). The square is exact in the upper bits of a; the series adds the rest.
  static double bell(double a) {
    const auto upper = static_cast<double>(static_cast<float>(a));
    const double r = (a - upper) * (a + upper);
    return exponential(-0.5 * upper * upper) * (1 - r * (0.5 - r * (0.125 - r / 48)));
  }
  static double phi(double a, double bell_of_a) {
    const double t = (a - kCentre) / (a + kCentre);
    double sum = 0;
    for (std::size_t i = std::size(kFactors); i-- > 0;) sum = sum * t + kFactors[i];
    return 0.5 * bell_of_a * sum / (1 + 0x1.6a09e667f3bcdp+0 * a);
  }
  static double value(double x) {
    const double a = x < 0 ? -x : x;
    const double bounded = a > kMost ? kMost : a;
    const double tail = a > kMost ? 0 : phi(bounded, bell(bounded));
    return x < -kMost ? 0 : x * (x < 0 ? tail : 1 - tail);
  }
  static double slope(double x) {
    const double a = x < 0 ? -x : x;
    const double bounded = a > kMost ? kMost : a;
    const double height = a > kMost ? 0 : bell(bounded);
    const double tail = phi(bounded, height);
    constexpr double kPeak = 0x1.9884533d43651p-2;  // 1 / sqrt(2 pi)
    const double signed_a = x < 0 ? -bounded : bounded;
    return (x < 0 ? tail : 1 - tail) + signed_a * kPeak * height;
  }
};

// Elements as f64, a few at a time.
void load_elements(trireme_dtype dtype, const void* from, std::uint64_t first, std::uint64_t count,
                   double* to) {
  const auto* const at = static_cast<const std::byte*>(from) + first * dtype_size(dtype);
  if (dtype == TRIREME_DTYPE_F64) {
    std::copy_n(reinterpret_cast<const double*>(at), count, to);
    return;
  }
  float widened[kElementsAtOnce];
  const auto* source = reinterpret_cast<const float*>(at);
  if (dtype != TRIREME_DTYPE_F32) {
    kernels::widen(dtype, widened, at, count);
    source = widened;
  }
  for (std::uint64_t i = 0; i < count; ++i) to[i] = static_cast<double>(source[i]);
}

void store_elements(trireme_dtype dtype, const double* from, std::uint64_t first,
                    std::uint64_t count, void* to) {
  auto* const at = static_cast<std::byte*>(to) + first * dtype_size(dtype);
  if (dtype == TRIREME_DTYPE_F64) {
    std::copy_n(from, count, reinterpret_cast<double*>(at));
    return;
  }
  float rounded[kElementsAtOnce];
  auto* const target = dtype == TRIREME_DTYPE_F32 ? reinterpret_cast<float*>(at) : rounded;
  for (std::uint64_t i = 0; i < count; ++i) target[i] = static_cast<float>(from[i]);
  if (dtype != TRIREME_DTYPE_F32) kernels::narrow(dtype, at, rounded, count);
}

// Rows of a matrix with one input for each output, or with two.
struct ActivationRows {
  trireme_dtype dtype;
  std::uint64_t rows, columns;
  bool gated;
};

// Calls work(first input, first output, count) for pieces of rows.
template <class Work>
void for_pieces(const ActivationRows& all, Work&& work) {
  for (std::uint64_t row = 0; row < all.rows; ++row) {
    for (std::uint64_t column = 0; column < all.columns; column += kElementsAtOnce) {
      work(row * all.columns * (all.gated ? 2 : 1) + column, row * all.columns + column,
           std::min(kElementsAtOnce, all.columns - column));
    }
  }
}

template <class Formula>
void activate(const ActivationRows& all, const void* input, void* output) {
  for_pieces(all, [&](std::uint64_t in, std::uint64_t out, std::uint64_t count) {
    double x[kElementsAtOnce], value[kElementsAtOnce];
    load_elements(all.dtype, input, in, count, x);
    if (all.gated) load_elements(all.dtype, input, in + all.columns, count, value);
    for (std::uint64_t i = 0; i < count; ++i) {
      x[i] = Formula::value(x[i]) * (all.gated ? value[i] : 1);
    }
    store_elements(all.dtype, x, out, count, output);
  });
}

template <class Formula>
void activate_back(const ActivationRows& all, const void* input, const void* output_gradient,
                   void* input_gradient) {
  for_pieces(all, [&](std::uint64_t in, std::uint64_t out, std::uint64_t count) {
    double x[kElementsAtOnce], value[kElementsAtOnce], gradient[kElementsAtOnce];
    double to_value[kElementsAtOnce];
    load_elements(all.dtype, input, in, count, x);
    load_elements(all.dtype, output_gradient, out, count, gradient);
    if (all.gated) {
      load_elements(all.dtype, input, in + all.columns, count, value);
      for (std::uint64_t i = 0; i < count; ++i) {
        to_value[i] = gradient[i] * Formula::value(x[i]);
        gradient[i] *= value[i];
      }
      store_elements(all.dtype, to_value, in + all.columns, count, input_gradient);
    }
    for (std::uint64_t i = 0; i < count; ++i) x[i] = gradient[i] * Formula::slope(x[i]);
    store_elements(all.dtype, x, in, count, input_gradient);
  });
}

}  // namespace

Status Activation::check(const ActivationOptions& options) {
  if (options.kind < TRIREME_ACTIVATION_KIND_CALLER ||
      options.kind > TRIREME_ACTIVATION_KIND_GELU) {
    return invalid_argument("options.activation is " + std::to_string(options.kind) +
                            ", not one of TRIREME_ACTIVATION_KIND_*");
  }
  const bool caller = options.kind == TRIREME_ACTIVATION_KIND_CALLER;
  if (caller && (options.forward == nullptr || options.backward == nullptr)) {
    return invalid_argument("the activation CALLER needs forward and backward");
  }
  if (!caller && (options.forward != nullptr || options.backward != nullptr)) {
    return invalid_argument("forward and backward are for the activation CALLER alone");
  }
  if (!caller && options.gated) {
    return invalid_argument("GATED is for the activation CALLER alone");
  }
  return Status::success();
}

bool Activation::is_gated(const ActivationOptions& options) {
  return options.gated || options.kind == TRIREME_ACTIVATION_KIND_SWIGLU;
}

Status Activation::forward(const void* input, void* output) const {
  const ActivationRows all = {dtype_, rows_, columns_, is_gated(options_)};
  switch (options_.kind) {
    case TRIREME_ACTIVATION_KIND_RELU: activate<Relu>(all, input, output); break;
    case TRIREME_ACTIVATION_KIND_GELU_TANH: activate<GeluTanh>(all, input, output); break;
    case TRIREME_ACTIVATION_KIND_GELU: activate<Gelu>(all, input, output); break;
    case TRIREME_ACTIVATION_KIND_SILU:
    case TRIREME_ACTIVATION_KIND_SWIGLU: activate<Silu>(all, input, output); break;
    default: return call_back("forward", options_.forward, input, nullptr, output);
  }
  return Status::success();
}

Status Activation::backward(const void* input, const void* output_gradient,
                            void* input_gradient) const {
  const ActivationRows all = {dtype_, rows_, columns_, is_gated(options_)};
  switch (options_.kind) {
    case TRIREME_ACTIVATION_KIND_RELU:
      activate_back<Relu>(all, input, output_gradient, input_gradient);
      break;
    case TRIREME_ACTIVATION_KIND_GELU_TANH:
      activate_back<GeluTanh>(all, input, output_gradient, input_gradient);
      break;
    case TRIREME_ACTIVATION_KIND_GELU:
      activate_back<Gelu>(all, input, output_gradient, input_gradient);
      break;
    case TRIREME_ACTIVATION_KIND_SILU:
    case TRIREME_ACTIVATION_KIND_SWIGLU:
      activate_back<Silu>(all, input, output_gradient, input_gradient);
      break;
    default:
      return call_back("backward", options_.backward, input, output_gradient, input_gradient);
  }
  return Status::success();
}

Status Activation::call_back(const char* what, trireme_activation_callback callback,
                             const void* input, const void* output_gradient, void* result) const {
  trireme_activation_call call = {};
  call.struct_size = sizeof call;
  call.dtype = dtype_;
  call.rows = rows_;
  call.columns = columns_;
  call.input_columns = columns_ * (is_gated(options_) ? 2 : 1);
  call.first_column = first_;
  call.input = input;
  call.output_gradient = output_gradient;
  call.result = result;
  std::int32_t answer = 0;
  try {
    answer = callback(&call, options_.user_data);
  } catch (...) {  // of a caller in C++
    return Status::failure(TRIREME_ERROR_CALLBACK,
                           std::string("the activation's ") + what + " threw an exception");
  }
  if (answer == 0) return Status::success();
  return Status::failure(TRIREME_ERROR_CALLBACK, std::string("the activation's ") + what +
                                                     " answered " + std::to_string(answer));
}

}  // namespace trireme::parallel
