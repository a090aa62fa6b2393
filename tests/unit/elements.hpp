// Elements of any dtype as numbers, by the definitions of the formats and not by the library's
// code.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "platform/names.hpp"

namespace {

using namespace trireme;

// The value of a small float's code, from the definition of the formats.
double decode_small(std::uint32_t code, int exponent_bits, int mantissa_bits, bool infinities) {
  const std::uint32_t sign = code >> (exponent_bits + mantissa_bits) & 1;
  const std::uint32_t exponent = code >> mantissa_bits & ((1u << exponent_bits) - 1);
  const std::uint32_t mantissa = code & ((1u << mantissa_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const bool top = exponent == (1u << exponent_bits) - 1;
  double value = 0;
  if (top && infinities) {
    value = mantissa == 0 ? INFINITY : NAN;
  } else if (top && mantissa == (1u << mantissa_bits) - 1) {
    value = NAN;
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, 1 - bias - mantissa_bits);
  } else {
    value = std::ldexp(mantissa + (1u << mantissa_bits),
                       static_cast<int>(exponent) - bias - mantissa_bits);
  }
  return sign != 0 ? -value : value;
}

double decode(trireme_dtype dtype, const void* at) {
  const auto as = [&]<class T>(T value) {
    std::memcpy(&value, at, sizeof value);
    return value;
  };
  switch (dtype) {
    case TRIREME_DTYPE_I8: return as(std::int8_t{});
    case TRIREME_DTYPE_U8:
    case TRIREME_DTYPE_BOOL:
    case TRIREME_DTYPE_BYTES: return as(std::uint8_t{});
    case TRIREME_DTYPE_I16: return as(std::int16_t{});
    case TRIREME_DTYPE_U16: return as(std::uint16_t{});
    case TRIREME_DTYPE_I32: return as(std::int32_t{});
    case TRIREME_DTYPE_U32: return as(std::uint32_t{});
    case TRIREME_DTYPE_I64: return static_cast<double>(as(std::int64_t{}));
    case TRIREME_DTYPE_U64: return static_cast<double>(as(std::uint64_t{}));
    case TRIREME_DTYPE_F32: return as(float{});
    case TRIREME_DTYPE_F64: return as(double{});
    case TRIREME_DTYPE_F16: return decode_small(as(std::uint16_t{}), 5, 10, true);
    case TRIREME_DTYPE_BF16: return decode_small(as(std::uint16_t{}), 8, 7, true);
    case TRIREME_DTYPE_F8E4M3: return decode_small(as(std::uint8_t{}), 4, 3, false);
    default: return decode_small(as(std::uint8_t{}), 5, 2, true);
  }
}

// A number that the dtype has exactly.
void encode(trireme_dtype dtype, double number, void* at) {
  const auto put = [&](auto value) { std::memcpy(at, &value, sizeof value); };
  switch (dtype) {
    case TRIREME_DTYPE_F32: return put(static_cast<float>(number));
    case TRIREME_DTYPE_F64: return put(number);
    case TRIREME_DTYPE_I64: return put(static_cast<std::int64_t>(number));
    case TRIREME_DTYPE_U64: return put(static_cast<std::uint64_t>(number));
    case TRIREME_DTYPE_I32: return put(static_cast<std::int32_t>(number));
    case TRIREME_DTYPE_U32: return put(static_cast<std::uint32_t>(number));
    case TRIREME_DTYPE_I16: return put(static_cast<std::int16_t>(number));
    case TRIREME_DTYPE_U16: return put(static_cast<std::uint16_t>(number));
    case TRIREME_DTYPE_I8: return put(static_cast<std::int8_t>(number));
    case TRIREME_DTYPE_F16:
    case TRIREME_DTYPE_BF16:
    case TRIREME_DTYPE_F8E4M3:
    case TRIREME_DTYPE_F8E5M2: {
      thread_local std::map<std::pair<trireme_dtype, double>, std::uint32_t> codes;
      const auto [found, fresh] = codes.try_emplace({dtype, number}, 0);
      if (fresh) {
        const std::uint32_t all = dtype_size(dtype) == 1 ? 1u << 8 : 1u << 16;
        for (std::uint32_t code = 0; code < all; ++code) {
          if (decode(dtype, &code) == number) {
            found->second = code;
            break;
          }
        }
      }
      if (dtype_size(dtype) == 1) return put(static_cast<std::uint8_t>(found->second));
      return put(static_cast<std::uint16_t>(found->second));
    }
    default: return put(static_cast<std::uint8_t>(number));
  }
}

class Elements {
 public:
  Elements(trireme_dtype dtype, std::uint64_t count)
      : dtype_(dtype),
        size_(dtype_size(dtype)),
        count_(count),
        bytes_((count + kGuard) * size_, std::byte{kUntouched}) {}

  void* data() { return bytes_.data(); }
  void* at(std::uint64_t i) { return bytes_.data() + i * size_; }
  double get(std::uint64_t i) { return decode(dtype_, at(i)); }
  void set(std::uint64_t i, double number) { encode(dtype_, number, at(i)); }
  bool guard_is_whole() const { return untouched(count_); }
  bool is_untouched() const { return untouched(0); }

 private:
  static constexpr std::uint64_t kGuard = 33;
  static constexpr unsigned char kUntouched = 0xa5;
  bool untouched(std::uint64_t from) const {
    for (std::uint64_t i = from * size_; i < bytes_.size(); ++i) {
      if (bytes_[i] != std::byte{kUntouched}) return false;
    }
    return true;
  }

  trireme_dtype dtype_;
  std::uint64_t size_;
  std::uint64_t count_;
  std::vector<std::byte> bytes_;
};

}  // namespace
