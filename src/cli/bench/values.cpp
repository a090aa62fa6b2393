#include "cli/bench/values.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace trireme::bench {

namespace {

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t hash = a * 0x9e3779b97f4a7c15u + b * 0xc2b2ae3d27d4eb4fu + 0x165667b19e3779f9u;
  hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9u;
  hash = (hash ^ hash >> 27) * 0x94d049bb133111ebu;
  return hash ^ hash >> 31;
}

struct Format {
  enum { integer, floating, boolean } kind;
  int exponent_bits;
  int fraction_bits;
  bool is_signed;
  int largest;  // all integers up to it are exact, and so are their halves in the floating ones
};

Format format_of(trireme_dtype dtype) {
  switch (dtype) {
    case TRIREME_DTYPE_I8: return {Format::integer, 0, 0, true, 127};
    case TRIREME_DTYPE_U8: return {Format::integer, 0, 0, false, 255};
    case TRIREME_DTYPE_I16:
    case TRIREME_DTYPE_I32:
    case TRIREME_DTYPE_I64: return {Format::integer, 0, 0, true, 1000};
    case TRIREME_DTYPE_U16:
    case TRIREME_DTYPE_U32:
    case TRIREME_DTYPE_U64: return {Format::integer, 0, 0, false, 1000};
    case TRIREME_DTYPE_F16: return {Format::floating, 5, 10, true, 1000};
    case TRIREME_DTYPE_BF16: return {Format::floating, 8, 7, true, 256};
    case TRIREME_DTYPE_F32: return {Format::floating, 8, 23, true, 1000};
    case TRIREME_DTYPE_F64: return {Format::floating, 11, 52, true, 1000};
    case TRIREME_DTYPE_F8E4M3: return {Format::floating, 4, 3, true, 16};
    case TRIREME_DTYPE_F8E5M2: return {Format::floating, 5, 2, true, 8};
    default: return {Format::boolean, 0, 0, false, 1};
  }
}

// The bits of a value that the format represents exactly.
std::uint64_t bits_of(const Format& format, double value) {
  if (format.kind != Format::floating) {
    return static_cast<std::uint64_t>(static_cast<std::int64_t>(value));
  }
  if (value == 0) return 0;
  int exponent = 0;
  const double fraction = std::frexp(std::fabs(value), &exponent);  // in [1/2, 1)
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const auto stored = static_cast<std::uint64_t>(exponent - 1 + bias);
  const auto rest = static_cast<std::uint64_t>(std::ldexp(2 * fraction - 1, format.fraction_bits));
  const std::uint64_t sign = value < 0 ? 1 : 0;
  return ((sign << format.exponent_bits | stored) << format.fraction_bits) | rest;
}

// Only so many ranks contribute to one element of a sum or product; which ones changes from element
// to element.
constexpr int kSummands = 8;
constexpr int kFactors = 6;

double contribution(const Format& format, trireme_reduction reduction, int ranks, int rank,
                    std::uint64_t element) {
  const std::uint64_t common = mix(element, 1u << 20);
  const std::uint64_t own = mix(element, static_cast<std::uint64_t>(rank));
  const auto n = static_cast<std::uint64_t>(ranks);
  const auto place = static_cast<int>((static_cast<std::uint64_t>(rank) + common % n) % n);
  const auto up_to = [&](int most) {  // in [-most, most], or [0, most] without a sign
    const auto span = static_cast<std::uint64_t>(format.is_signed ? 2 * most + 1 : most + 1);
    return static_cast<double>(own % span) - (format.is_signed ? most : 0);
  };
  switch (reduction) {
    case TRIREME_REDUCTION_SUM:
    case TRIREME_REDUCTION_SCALED_SUM:
      return place < kSummands ? up_to(std::min(100, format.largest / kSummands)) : 0;
    case TRIREME_REDUCTION_AVERAGE: {  // equal from all ranks, but for two that cancel out
      const double mean = format.is_signed && (common >> 32 & 1) != 0 ? -1 : 1;
      return mean + (ranks > 1 && place == 0 ? 1 : 0) - (ranks > 1 && place == 1 ? 1 : 0);
    }
    case TRIREME_REDUCTION_PRODUCT: {
      const double size = place < kFactors && (own & 1) != 0 ? 2 : 1;
      return format.is_signed && (own & 2) != 0 ? -size : size;
    }
    default: return up_to(std::min(100, format.largest));  // min, max
  }
}

double combine(trireme_reduction reduction, double a, double b) {
  switch (reduction) {
    case TRIREME_REDUCTION_PRODUCT: return a * b;
    case TRIREME_REDUCTION_MIN: return std::min(a, b);
    case TRIREME_REDUCTION_MAX: return std::max(a, b);
    default: return a + b;
  }
}

std::uint64_t combine_bits(trireme_reduction reduction, std::uint64_t a, std::uint64_t b) {
  return reduction == TRIREME_REDUCTION_BAND  ? a & b
         : reduction == TRIREME_REDUCTION_BOR ? a | b
                                              : a ^ b;
}

bool is_bitwise(trireme_reduction reduction) {
  return reduction == TRIREME_REDUCTION_BAND || reduction == TRIREME_REDUCTION_BOR ||
         reduction == TRIREME_REDUCTION_BXOR;
}

}  // namespace

Values::Values(trireme_dtype dtype, trireme_reduction reduction, int ranks)
    : size_(trireme_dtype_bytes(dtype)),
      given_(static_cast<std::size_t>(ranks), std::vector<std::byte>(kPeriod * size_)),
      reduced_(kPeriod * size_) {
  const Format format = format_of(dtype);
  const bool raw = reduction == 0 || is_bitwise(reduction);
  const bool one_bit = dtype == TRIREME_DTYPE_BOOL;
  const auto put = [&](std::vector<std::byte>& to, std::uint64_t i, std::uint64_t bits) {
    std::memcpy(to.data() + i * size_, &bits, size_);  // little-endian, as the library's hosts are
  };
  for (std::uint64_t i = 0; i < kPeriod; ++i) {
    std::uint64_t bits = 0;
    double value = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      std::uint64_t own_bits = mix(i, static_cast<std::uint64_t>(rank));
      double own = 0;
      if (one_bit) own_bits &= 1;
      if (!raw) {
        own = one_bit ? static_cast<double>(own_bits)
                      : contribution(format, reduction, ranks, rank, i);
        own_bits = bits_of(format, own);
      }
      put(given_[static_cast<std::size_t>(rank)], i, own_bits);
      bits = rank == 0 ? own_bits : combine_bits(reduction, bits, own_bits);
      value = rank == 0 ? own : combine(reduction, value, own);
    }
    if (reduction == TRIREME_REDUCTION_AVERAGE) value /= ranks;
    if (reduction == TRIREME_REDUCTION_SCALED_SUM) value *= 0.5;
    if (reduction != 0) put(reduced_, i, raw ? bits : bits_of(format, value));
  }
}

void Values::fill(void* memory, int source, std::uint64_t first, std::uint64_t count) const {
  auto* to = static_cast<std::byte*>(memory);
  for (std::uint64_t done = 0; done < count;) {
    const std::uint64_t from = (first + done) % kPeriod;
    const std::uint64_t here = std::min(count - done, kPeriod - from);
    std::memcpy(to + done * size_, table(source).data() + from * size_, here * size_);
    done += here;
  }
}

std::uint64_t Values::wrong(const void* memory, int source, std::uint64_t first,
                            std::uint64_t count) const {
  const auto* have = static_cast<const std::byte*>(memory);
  std::uint64_t wrong = 0;
  for (std::uint64_t done = 0; done < count;) {
    const std::uint64_t from = (first + done) % kPeriod;
    const std::uint64_t here = std::min(count - done, kPeriod - from);
    const std::byte* const want = table(source).data() + from * size_;
    if (std::memcmp(have + done * size_, want, here * size_) != 0) {
      for (std::uint64_t i = 0; i < here; ++i) {
        wrong += std::memcmp(have + (done + i) * size_, want + i * size_, size_) != 0;
      }
    }
    done += here;
  }
  return wrong;
}

}  // namespace trireme::bench
