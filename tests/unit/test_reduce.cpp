// Reductions against plain arithmetic: integers in 128 bits, small floats by search among all
// codes.
#include <trireme/types.h>

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

extern "C" {
#include <setjmp.h>
#include <cmocka.h>
}

#include "kernels/reduce.hpp"
#include "kernels/vector.hpp"
#include "levels.hpp"
#include "platform/mix.hpp"

namespace {

using namespace trireme::kernels;
using Bytes = std::vector<unsigned char>;

constexpr trireme_reduction kReductions[] = {
    TRIREME_REDUCTION_SUM, TRIREME_REDUCTION_AVERAGE, TRIREME_REDUCTION_PRODUCT,
    TRIREME_REDUCTION_MIN, TRIREME_REDUCTION_MAX,     TRIREME_REDUCTION_BAND,
    TRIREME_REDUCTION_BOR, TRIREME_REDUCTION_BXOR,    TRIREME_REDUCTION_SCALED_SUM};
constexpr trireme_dtype kIntegers[] = {TRIREME_DTYPE_I8,  TRIREME_DTYPE_U8,  TRIREME_DTYPE_I16,
                                       TRIREME_DTYPE_U16, TRIREME_DTYPE_I32, TRIREME_DTYPE_U32,
                                       TRIREME_DTYPE_I64, TRIREME_DTYPE_U64};
constexpr trireme_dtype kFloats[] = {TRIREME_DTYPE_F16, TRIREME_DTYPE_BF16,   TRIREME_DTYPE_F32,
                                     TRIREME_DTYPE_F64, TRIREME_DTYPE_F8E4M3, TRIREME_DTYPE_F8E5M2};

bool is_float(trireme_dtype dtype) {
  for (const trireme_dtype other : kFloats) {
    if (other == dtype) return true;
  }
  return false;
}

std::size_t size_of(trireme_dtype dtype) {
  constexpr std::size_t kSizes[] = {0, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1, 1, 1, 1};
  return kSizes[dtype];
}

std::uint64_t random_bits() {
  static std::uint64_t number = 0;
  return trireme::mix(1, number++);
}

std::uint64_t get(trireme_dtype dtype, const unsigned char* data, std::uint64_t index) {
  std::uint64_t code = 0;
  std::memcpy(&code, data + index * size_of(dtype), size_of(dtype));  // little endian
  return code;
}

void put(trireme_dtype dtype, unsigned char* data, std::uint64_t index, std::uint64_t code) {
  std::memcpy(data + index * size_of(dtype), &code, size_of(dtype));
}

// ---- the oracle ----------------------------------------------------------------------------

struct Format {
  int exponent_bits, mantissa_bits;
  bool infinities;
};

Format format_of(trireme_dtype dtype) {
  switch (dtype) {
    case TRIREME_DTYPE_F16: return {5, 10, true};
    case TRIREME_DTYPE_BF16: return {8, 7, true};
    case TRIREME_DTYPE_F8E4M3: return {4, 3, false};
    default: return {5, 2, true};
  }
}

// The value of a code without its sign bit, as the format's definition says; the codes past the
// finite ones as if the format went on, which gives the limit of rounding.
double magnitude_of(const Format& f, std::uint32_t code) {
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(code >> f.mantissa_bits);
  const double fraction =
      std::ldexp(static_cast<double>(code & ((1u << f.mantissa_bits) - 1)), -f.mantissa_bits);
  return exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
}

std::uint32_t beyond_finite(const Format& f) {
  const std::uint32_t all = (1u << (f.exponent_bits + f.mantissa_bits)) - 1;
  return f.infinities ? all - ((1u << f.mantissa_bits) - 1) : all;
}

std::uint32_t nan_code(const Format& f) {
  const std::uint32_t beyond = beyond_finite(f);
  return f.infinities ? beyond | (1u << (f.mantissa_bits - 1)) : beyond;
}

float decode(trireme_dtype dtype, std::uint32_t code) {
  const Format f = format_of(dtype);
  const std::uint32_t sign_bit = 1u << (f.exponent_bits + f.mantissa_bits);
  const std::uint32_t magnitude = code & (sign_bit - 1);
  double value = magnitude_of(f, magnitude);
  if (magnitude == beyond_finite(f) && f.infinities) value = HUGE_VAL;
  if (magnitude > beyond_finite(f) || (magnitude == beyond_finite(f) && !f.infinities)) {
    value = std::nan("");
  }
  return static_cast<float>((code & sign_bit) != 0 ? -value : value);
}

// Nearest code, ties to the even one, found by bisection.
std::uint32_t encode(trireme_dtype dtype, float value) {
  const Format f = format_of(dtype);
  if (std::isnan(value)) return nan_code(f);
  const double magnitude = std::fabs(static_cast<double>(value));
  std::uint32_t low = 0;
  std::uint32_t high = beyond_finite(f);
  if (magnitude >= magnitude_of(f, high)) {
    low = high;
  } else {
    while (high - low > 1) {
      const std::uint32_t middle = (low + high) / 2;
      (magnitude_of(f, middle) <= magnitude ? low : high) = middle;
    }
    const double down = magnitude - magnitude_of(f, low);
    const double up = magnitude_of(f, high) - magnitude;
    if (up < down || (up == down && (high & 1) == 0)) low = high;
  }
  if (low == beyond_finite(f) && !f.infinities) return nan_code(f);
  return std::signbit(value) ? low | 1u << (f.exponent_bits + f.mantissa_bits) : low;
}

template <class T>
T combine_plain(trireme_reduction reduction, T a, T b) {
  switch (reduction) {
    case TRIREME_REDUCTION_PRODUCT: return a * b;
    case TRIREME_REDUCTION_MIN: return std::isnan(b) || b < a ? b : a;
    case TRIREME_REDUCTION_MAX: return std::isnan(b) || b > a ? b : a;
    default: return a + b;
  }
}

template <class T>
T reduce_plain(trireme_reduction reduction, const std::vector<T>& values, std::uint32_t divisor,
               double factor) {
  T result = values[0];
  for (std::size_t k = 1; k < values.size(); ++k) {
    result = std::isnan(result) ? result : combine_plain<T>(reduction, result, values[k]);
  }
  if (reduction == TRIREME_REDUCTION_AVERAGE) result = result / static_cast<T>(divisor);
  if (reduction == TRIREME_REDUCTION_SCALED_SUM) result = result * static_cast<T>(factor);
  return std::isnan(result) ? std::numeric_limits<T>::quiet_NaN() : result;
}

std::uint64_t reduce_float_codes(trireme_dtype dtype, trireme_reduction reduction,
                                 const std::vector<std::uint64_t>& codes, std::uint32_t divisor,
                                 double factor) {
  std::uint64_t out = 0;
  if (dtype == TRIREME_DTYPE_F64) {
    std::vector<double> values(codes.size());
    std::memcpy(values.data(), codes.data(), 8 * codes.size());
    const double result = reduce_plain(reduction, values, divisor, factor);
    std::memcpy(&out, &result, 8);
    return out;
  }
  std::vector<float> values;
  for (const std::uint64_t code : codes) {
    float value = 0;
    if (dtype == TRIREME_DTYPE_F32) {
      std::memcpy(&value, &code, 4);
    } else {
      value = decode(dtype, static_cast<std::uint32_t>(code));
    }
    values.push_back(value);
  }
  const float result = reduce_plain(reduction, values, divisor, factor);
  if (dtype != TRIREME_DTYPE_F32) return encode(dtype, result);
  std::memcpy(&out, &result, 4);
  return out;
}

std::uint64_t reduce_integer_codes(trireme_dtype dtype, trireme_reduction reduction,
                                   const std::vector<std::uint64_t>& codes, std::uint32_t divisor) {
  const int bits = 8 * static_cast<int>(size_of(dtype));
  const bool is_signed = dtype % 2 == 1;
  const auto wrap = [&](__int128 value) {
    const __int128 range = static_cast<__int128>(1) << bits;
    value %= range;
    if (value < 0) value += range;
    if (is_signed && value >= range / 2) value -= range;
    return value;
  };
  __int128 result = wrap(codes[0]);
  for (std::size_t k = 1; k < codes.size(); ++k) {
    const __int128 value = wrap(codes[k]);
    switch (reduction) {
      case TRIREME_REDUCTION_PRODUCT:  // the factors' low bits are enough, and their product fits
        result = static_cast<__int128>(static_cast<unsigned __int128>(result) *
                                       static_cast<unsigned __int128>(value));
        break;
      case TRIREME_REDUCTION_MIN: result = value < result ? value : result; break;
      case TRIREME_REDUCTION_MAX: result = value > result ? value : result; break;
      case TRIREME_REDUCTION_BAND: result = result & value; break;
      case TRIREME_REDUCTION_BOR: result = result | value; break;
      case TRIREME_REDUCTION_BXOR: result = result ^ value; break;
      default: result = result + value;
    }
    result = wrap(result);
  }
  if (reduction == TRIREME_REDUCTION_AVERAGE) result = result / static_cast<__int128>(divisor);
  const auto code = static_cast<std::uint64_t>(result);
  return bits == 64 ? code : code & ((1ull << bits) - 1);
}

std::uint64_t reduce_codes(trireme_dtype dtype, trireme_reduction reduction,
                           std::vector<std::uint64_t> codes, std::uint32_t divisor, double factor) {
  if (is_float(dtype)) return reduce_float_codes(dtype, reduction, codes, divisor, factor);
  if (dtype == TRIREME_DTYPE_BOOL) {
    for (std::uint64_t& code : codes) code = code != 0;
    return reduce_integer_codes(TRIREME_DTYPE_U8, reduction, codes, divisor);
  }
  return reduce_integer_codes(dtype, reduction, codes, divisor);
}

// ---- the frame -----------------------------------------------------------------------------

// An element: any bits, and often a special or moderate value.
std::uint64_t random_code(trireme_dtype dtype) {
  const std::uint64_t bits = random_bits();
  const std::uint64_t any = random_bits();
  if (dtype == TRIREME_DTYPE_F32 && bits % 4 != 0) {
    const float value = static_cast<float>(static_cast<std::int64_t>(any) * 0x1p-62);
    std::uint64_t code = 0;
    std::memcpy(&code, &value, 4);
    return code;
  }
  if (dtype == TRIREME_DTYPE_F64 && bits % 4 != 0) {
    const double value = static_cast<double>(static_cast<std::int64_t>(any)) * 0x1p-62;
    std::uint64_t code = 0;
    std::memcpy(&code, &value, 8);
    return code;
  }
  if (bits % 16 == 4) return 0;
  if (dtype == TRIREME_DTYPE_F32 && bits % 16 == 8) {
    constexpr std::uint64_t kSpecial[] = {0x7f800000, 0xff800000, 0x7fc12345, 0xff812345,
                                          0x80000000, 1,          0x807fffff, 0x7f7fffff};
    return kSpecial[any % 8];
  }
  if (dtype == TRIREME_DTYPE_F64 && bits % 16 == 8) {
    constexpr std::uint64_t kSpecial[] = {0x7ff0000000000000, 0xfff0000000000000,
                                          0x7ff8000012345678, 0xfff0000000000001,
                                          0x8000000000000000, 1,
                                          0x800fffffffffffff, 0x7fefffffffffffff};
    return kSpecial[any % 8];
  }
  return size_of(dtype) == 8 ? any : any & ((1ull << (8 * size_of(dtype))) - 1);
}

// Runs one reduction on sources at odd addresses and compares each element with the oracle.
void check(trireme_dtype dtype, trireme_reduction reduction, std::uint32_t source_count,
           std::uint64_t count, int in_place, std::size_t shift) {
  const std::size_t bytes = size_of(dtype) * count;
  std::vector<Bytes> memory(source_count + 1, Bytes(bytes + shift + 1, 0xa5));
  std::vector<const void*> sources;
  std::vector<std::vector<std::uint64_t>> codes(count);
  for (std::uint32_t k = 0; k < source_count; ++k) {
    unsigned char* data = memory[k].data() + shift;
    for (std::uint64_t i = 0; i < count; ++i) {
      codes[i].push_back(random_code(dtype));
      put(dtype, data, i, codes[i].back());
    }
    sources.push_back(data);
  }
  Bytes& out = memory[in_place >= 0 ? static_cast<std::size_t>(in_place) : source_count];
  const auto divisor = static_cast<std::uint32_t>(1 + random_bits() % 300);
  const double factor = static_cast<double>(random_bits() % 1000) / 7 - 60;
  reduce(dtype, reduction, out.data() + shift, sources.data(), source_count, count, divisor,
         factor);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t expected = reduce_codes(dtype, reduction, codes[i], divisor, factor);
    const std::uint64_t got = get(dtype, out.data() + shift, i);
    if (got != expected) {
      std::string inputs;
      for (const std::uint64_t code : codes[i]) inputs.append(" ").append(std::to_string(code));
      fail_msg(
          "dtype %d reduction %d sources %u element %llu of %llu, divisor %u factor %g: got "
          "%llx, not %llx, from%s",
          dtype, reduction, source_count, static_cast<unsigned long long>(i),
          static_cast<unsigned long long>(count), divisor, factor,
          static_cast<unsigned long long>(got), static_cast<unsigned long long>(expected),
          inputs.c_str());
    }
  }
  for (std::size_t i = 0; i < shift; ++i) assert_int_equal(out[i], 0xa5);
  assert_int_equal(out[shift + bytes], 0xa5);
}

template <class Body>
void for_each_pair(Body body) {
  for (trireme_dtype dtype = TRIREME_DTYPE_I8; dtype <= TRIREME_DTYPE_BYTES; ++dtype) {
    for (const trireme_reduction reduction : kReductions) {
      if (reduction_supported(dtype, reduction)) body(dtype, reduction);
    }
  }
}

// ---- the tests -----------------------------------------------------------------------------

void only_meaningful_pairs_are_supported(void**) {
  for (const trireme_dtype dtype : kIntegers) {
    for (const trireme_reduction reduction : kReductions) {
      assert_int_equal(reduction_supported(dtype, reduction),
                       reduction != TRIREME_REDUCTION_SCALED_SUM);
    }
  }
  for (const trireme_dtype dtype : kFloats) {
    for (const trireme_reduction reduction : kReductions) {
      const bool bits = reduction == TRIREME_REDUCTION_BAND || reduction == TRIREME_REDUCTION_BOR ||
                        reduction == TRIREME_REDUCTION_BXOR;
      assert_int_equal(reduction_supported(dtype, reduction), !bits);
    }
  }
  for (const trireme_reduction reduction : kReductions) {
    const bool logical = reduction >= TRIREME_REDUCTION_MIN && reduction <= TRIREME_REDUCTION_BXOR;
    assert_int_equal(reduction_supported(TRIREME_DTYPE_BOOL, reduction), logical);
    assert_false(reduction_supported(TRIREME_DTYPE_BYTES, reduction));
    assert_false(reduction_supported(0, reduction));
    assert_false(reduction_supported(-1, reduction));
    assert_false(reduction_supported(17, reduction));
  }
  assert_false(reduction_supported(TRIREME_DTYPE_F32, 0));
  assert_false(reduction_supported(TRIREME_DTYPE_F32, -1));
  assert_false(reduction_supported(TRIREME_DTYPE_F32, 10));
}

void every_pair_equals_plain_arithmetic_at_every_level(void**) {
  for (const VectorLevel level : levels()) {
    force_vector_level(level);
    for_each_pair([](trireme_dtype dtype, trireme_reduction reduction) {
      for (const std::uint32_t sources : {1, 2, 3, 4, 5, 8}) {
        for (const std::uint64_t count : {0, 1, 2, 7, 64, 65, 130}) {
          check(dtype, reduction, sources, count, -1, random_bits() % 64);
        }
      }
      // More than one block of 4096 bytes, for small floats in f32.
      const std::size_t work = is_float(dtype) && size_of(dtype) < 4 ? 4 : size_of(dtype);
      check(dtype, reduction, 6, 4096 / work + 9, -1, 1);
    });
  }
  force_vector_level(best_vector_level());
}

void every_count_works_at_every_alignment(void**) {
  for (const VectorLevel level : levels()) {
    force_vector_level(level);
    for (std::uint64_t count = 0; count <= 130; ++count) {
      check(TRIREME_DTYPE_F32, TRIREME_REDUCTION_SUM, 2, count, -1, count % 67);
      check(TRIREME_DTYPE_F64, TRIREME_REDUCTION_AVERAGE, 3, count, -1, count % 61);
      check(TRIREME_DTYPE_F16, TRIREME_REDUCTION_SCALED_SUM, 4, count, -1, count % 59);
      check(TRIREME_DTYPE_U8, TRIREME_REDUCTION_MAX, 5, count, -1, count % 53);
    }
  }
  force_vector_level(best_vector_level());
}

void the_destination_may_be_any_source(void**) {
  for (const VectorLevel level : levels()) {
    force_vector_level(level);
    for_each_pair([](trireme_dtype dtype, trireme_reduction reduction) {
      for (const std::uint32_t sources : {1, 2, 3, 4, 6}) {
        for (std::uint32_t k = 0; k < sources; ++k) {
          check(dtype, reduction, sources, 77, static_cast<int>(k), 3);
        }
      }
    });
    for (int k = 0; k < 7; ++k) check(TRIREME_DTYPE_F32, TRIREME_REDUCTION_SUM, 7, 3000, k, 4);
  }
  force_vector_level(best_vector_level());
}

void all_levels_give_the_same_bits(void**) {
  for_each_pair([](trireme_dtype dtype, trireme_reduction reduction) {
    for (const std::uint32_t count : {1, 2, 3, 4, 5, 8}) {
      constexpr std::uint64_t kElements = 1500;
      std::vector<Bytes> memory(count, Bytes(kElements * size_of(dtype)));
      std::vector<const void*> sources;
      for (Bytes& source : memory) {
        for (std::uint64_t i = 0; i < kElements; ++i) {
          put(dtype, source.data(), i, random_code(dtype));
        }
        sources.push_back(source.data());
      }
      Bytes first;
      for (const VectorLevel level : levels()) {
        force_vector_level(level);
        Bytes out(kElements * size_of(dtype));
        reduce(dtype, reduction, out.data(), sources.data(), count, kElements, count, 0.3);
        if (first.empty()) first = out;
        assert_memory_equal(out.data(), first.data(), out.size());
      }
    }
  });
  force_vector_level(best_vector_level());
}

// Sum and product of each code with all others, or with some picked at random.
void check_pairs(trireme_dtype dtype, std::uint32_t codes, std::uint32_t partners) {
  std::vector<std::uint16_t> wide_a, wide_b;
  for (std::uint32_t a = 0; a < codes; ++a) {
    for (std::uint32_t j = 0; j < partners; ++j) {
      wide_a.push_back(static_cast<std::uint16_t>(a));
      wide_b.push_back(static_cast<std::uint16_t>(partners == codes ? j : random_bits() % codes));
    }
  }
  const std::size_t count = wide_a.size();
  Bytes a(count * size_of(dtype)), b(a.size()), out(a.size());
  for (std::size_t i = 0; i < count; ++i) {
    put(dtype, a.data(), i, wide_a[i]);
    put(dtype, b.data(), i, wide_b[i]);
  }
  const void* sources[] = {a.data(), b.data()};
  for (const VectorLevel level : levels()) {
    force_vector_level(level);
    for (const trireme_reduction reduction : {TRIREME_REDUCTION_SUM, TRIREME_REDUCTION_PRODUCT}) {
      reduce(dtype, reduction, out.data(), sources, 2, count, 1, 1);
      for (std::size_t i = 0; i < count; ++i) {
        const std::uint64_t expected = reduce_codes(dtype, reduction, {wide_a[i], wide_b[i]}, 1, 1);
        if (get(dtype, out.data(), i) != expected) {
          fail_msg("dtype %d reduction %d of %x and %x: got %llx, not %llx", dtype, reduction,
                   wide_a[i], wide_b[i], static_cast<unsigned long long>(get(dtype, out.data(), i)),
                   static_cast<unsigned long long>(expected));
        }
      }
    }
  }
  force_vector_level(best_vector_level());
}

void all_pairs_of_8_bit_floats_are_rounded_right(void**) {
  check_pairs(TRIREME_DTYPE_F8E4M3, 256, 256);
  check_pairs(TRIREME_DTYPE_F8E5M2, 256, 256);
}

void every_16_bit_float_is_read_and_rounded_right(void**) {
  check_pairs(TRIREME_DTYPE_F16, 65536, 2);
  check_pairs(TRIREME_DTYPE_BF16, 65536, 2);
}

// One source, sum: each code is read and written back, NaN as the one NaN.
void every_small_code_survives_the_way_to_f32_and_back(void**) {
  for (const VectorLevel level : levels()) {
    force_vector_level(level);
    for (const trireme_dtype dtype :
         {TRIREME_DTYPE_F16, TRIREME_DTYPE_BF16, TRIREME_DTYPE_F8E4M3, TRIREME_DTYPE_F8E5M2}) {
      const std::uint32_t codes = 1u << (8 * size_of(dtype));
      Bytes in(codes * size_of(dtype)), out(in.size());
      for (std::uint32_t code = 0; code < codes; ++code) put(dtype, in.data(), code, code);
      const void* source = in.data();
      reduce(dtype, TRIREME_REDUCTION_SUM, out.data(), &source, 1, codes, 1, 1);
      for (std::uint32_t code = 0; code < codes; ++code) {
        const bool nan = std::isnan(decode(dtype, code));
        assert_int_equal(get(dtype, out.data(), code), nan ? nan_code(format_of(dtype)) : code);
      }
    }
  }
  force_vector_level(best_vector_level());
}

// A scale of 1 plus or minus a little moves results across the ties of rounding.
void small_floats_are_rounded_once_at_the_end(void**) {
  // 1 + 2^-11 + 2^-11: each sum in f16 alone would fall back to 1.
  const std::uint16_t one = 0x3c00, half_ulp = 0x1000;
  const void* sources[] = {&one, &half_ulp, &half_ulp};
  std::uint16_t out = 0;
  reduce(TRIREME_DTYPE_F16, TRIREME_REDUCTION_SUM, &out, sources, 3, 1, 1, 1);
  assert_int_equal(out, 0x3c01);
  for (const VectorLevel level : levels()) {
    force_vector_level(level);
    for (const trireme_dtype dtype :
         {TRIREME_DTYPE_F16, TRIREME_DTYPE_BF16, TRIREME_DTYPE_F8E4M3, TRIREME_DTYPE_F8E5M2}) {
      const std::uint32_t codes = 1u << (8 * size_of(dtype));
      Bytes in(codes * size_of(dtype)), result(in.size());
      for (std::uint32_t code = 0; code < codes; ++code) put(dtype, in.data(), code, code);
      const void* source = in.data();
      for (const double factor : {0.5, 0x1p-9, 0x1.008p+0, 0x1.1p+0, 0x1.0ffffep+0, 0x1.100002p+0,
                                  0x1.001p+0, -3.0, 0x1p-120, 0x1p+100}) {
        reduce(dtype, TRIREME_REDUCTION_SCALED_SUM, result.data(), &source, 1, codes, 1, factor);
        for (std::uint32_t code = 0; code < codes; ++code) {
          const float exact = decode(dtype, code) * static_cast<float>(factor);
          assert_int_equal(get(dtype, result.data(), code), encode(dtype, exact));
        }
      }
    }
  }
  force_vector_level(best_vector_level());
}

void beyond_the_largest_value_e4m3_is_nan_and_the_others_infinite(void**) {
  std::uint8_t e4m3[] = {0x7e, 0xfe};  // 448, -448
  const void* sources[] = {e4m3, e4m3};
  std::uint8_t out[2];
  reduce(TRIREME_DTYPE_F8E4M3, TRIREME_REDUCTION_SUM, out, sources, 2, 2, 1, 1);
  assert_int_equal(out[0], 0x7f);
  assert_int_equal(out[1], 0x7f);
  reduce(TRIREME_DTYPE_F8E4M3, TRIREME_REDUCTION_SCALED_SUM, out, sources, 1, 2, 1, 464.0 / 448.0);
  assert_int_equal(out[0], 0x7e);  // the tie goes to the even code
  std::uint8_t e5m2[] = {0x7b, 0xfb};
  const void* others[] = {e5m2, e5m2};
  reduce(TRIREME_DTYPE_F8E5M2, TRIREME_REDUCTION_SUM, out, others, 2, 2, 1, 1);
  assert_int_equal(out[0], 0x7c);
  assert_int_equal(out[1], 0xfc);
}

void a_nan_of_any_source_wins_min_and_max(void**) {
  for (const VectorLevel level : levels()) {
    force_vector_level(level);
    for (std::uint32_t sources = 1; sources <= 6; ++sources) {
      for (std::uint32_t bad = 0; bad < sources; ++bad) {
        for (const trireme_reduction reduction : {TRIREME_REDUCTION_MIN, TRIREME_REDUCTION_MAX}) {
          std::vector<std::vector<float>> values(sources, std::vector<float>(33));
          std::vector<const void*> pointers;
          for (std::uint32_t k = 0; k < sources; ++k) {
            for (int i = 0; i < 33; ++i) values[k][i] = static_cast<float>((i * 7 + k * 5) % 11);
            values[k][17] = k % 2 ? HUGE_VALF : -HUGE_VALF;
            pointers.push_back(values[k].data());
          }
          values[bad][17] = std::nanf("");
          values[bad][32] = std::nanf("");
          std::vector<float> out(33);
          reduce(TRIREME_DTYPE_F32, reduction, out.data(), pointers.data(), sources, 33, 1, 1);
          for (int i = 0; i < 33; ++i) assert_int_equal(std::isnan(out[i]), i == 17 || i == 32);
        }
      }
    }
  }
  force_vector_level(best_vector_level());
}

void any_byte_but_zero_is_true_and_results_are_zero_or_one(void**) {
  std::uint8_t a[] = {0, 0, 2, 3}, b[] = {0, 255, 0, 4}, out[4];
  const void* sources[] = {a, b};
  const auto expect = [&](trireme_reduction reduction, std::vector<std::uint8_t> expected) {
    reduce(TRIREME_DTYPE_BOOL, reduction, out, sources, 2, 4, 1, 1);
    assert_memory_equal(out, expected.data(), 4);
  };
  expect(TRIREME_REDUCTION_MIN, {0, 0, 0, 1});
  expect(TRIREME_REDUCTION_BAND, {0, 0, 0, 1});
  expect(TRIREME_REDUCTION_MAX, {0, 1, 1, 1});
  expect(TRIREME_REDUCTION_BOR, {0, 1, 1, 1});
  expect(TRIREME_REDUCTION_BXOR, {0, 1, 1, 0});
}

void integer_sums_wrap_and_averages_truncate_toward_zero(void**) {
  const std::int8_t a[] = {-7, 7, 100, -128}, b[] = {0, 0, 100, -128};
  std::int8_t out[4];
  const void* sources[] = {a, b};
  reduce(TRIREME_DTYPE_I8, TRIREME_REDUCTION_AVERAGE, out, sources, 2, 4, 2, 1);
  assert_int_equal(out[0], -3);
  assert_int_equal(out[1], 3);
  assert_int_equal(out[2], -28);  // 200 wraps to -56
  assert_int_equal(out[3], 0);
  const std::int64_t lowest = std::numeric_limits<std::int64_t>::min();
  const void* wide[] = {&lowest, &lowest};
  std::int64_t sum = 1;
  reduce(TRIREME_DTYPE_I64, TRIREME_REDUCTION_SUM, &sum, wide, 2, 1, 1, 1);
  assert_true(sum == 0);
  reduce(TRIREME_DTYPE_I64, TRIREME_REDUCTION_AVERAGE, &sum, wide, 1, 1, 4294967295u, 1);
  assert_true(sum == lowest / 4294967295ll);
}

void results_stored_past_the_caches_are_the_same(void**) {
  force_streaming_bytes(1000);
  for (const VectorLevel level : levels()) {
    force_vector_level(level);
    for (const std::size_t shift : {0, 1, 5, 63}) {
      for (const std::uint64_t count : {125, 500, 1001, 5000}) {
        check(TRIREME_DTYPE_F64, TRIREME_REDUCTION_SUM, 2, count, -1, shift);
        check(TRIREME_DTYPE_F32, TRIREME_REDUCTION_AVERAGE, 5, count, -1, shift);
        check(TRIREME_DTYPE_BF16, TRIREME_REDUCTION_SUM, 17, count / 2, -1, shift);
        check(TRIREME_DTYPE_I16, TRIREME_REDUCTION_PRODUCT, 16, count, 3, shift);
      }
      for (const std::uint64_t bytes : {0, 1, 63, 64, 999, 1000, 1001, 1063, 1064, 20000}) {
        Bytes from(bytes + 64), to(bytes + 130, 0xa5);
        for (auto& byte : from) byte = static_cast<unsigned char>(random_bits());
        copy(to.data() + shift, from.data() + 3, bytes);
        assert_memory_equal(to.data() + shift, from.data() + 3, bytes);
        std::fill_n(to.data() + shift, bytes, 0xa5);
        stream(to.data() + shift, from.data() + 3, bytes);
        assert_memory_equal(to.data() + shift, from.data() + 3, bytes);
        for (std::size_t i = 0; i < shift; ++i) assert_int_equal(to[i], 0xa5);
        for (std::size_t i = shift + bytes; i < to.size(); ++i) assert_int_equal(to[i], 0xa5);
      }
    }
  }
  force_streaming_bytes(0);
  force_vector_level(best_vector_level());
}

void all_destinations_get_what_one_gets(void**) {
  for (const trireme_dtype dtype : {TRIREME_DTYPE_F32, TRIREME_DTYPE_BF16, TRIREME_DTYPE_I8}) {
    for (const std::uint32_t sources : {1u, 2u, 5u, 65u}) {
      for (const std::uint64_t count : {0, 1, 1000, 20001}) {
        const std::size_t bytes = count * size_of(dtype);
        std::vector<Bytes> memory(sources, Bytes(bytes)), apart(3, Bytes(bytes + 1, 0xa5));
        std::vector<const void*> from;
        std::vector<void*> to, to_apart;
        for (Bytes& each : memory) {
          for (auto& byte : each) byte = static_cast<unsigned char>(random_bits());
          from.push_back(each.data());
          to.push_back(each.data());
        }
        for (Bytes& each : apart) to_apart.push_back(each.data());
        Bytes expected(bytes);
        reduce(dtype, TRIREME_REDUCTION_AVERAGE, expected.data(), from.data(), sources, count,
               sources, 1);
        for (const bool stream : {false, true}) {
          for (Bytes& each : apart) std::fill(each.begin(), each.end(), 0xa5);
          reduce_into(dtype, TRIREME_REDUCTION_AVERAGE, to_apart.data(), 3, from.data(), sources,
                      count, sources, 1, stream);
          for (const Bytes& each : apart) {
            assert_memory_equal(each.data(), expected.data(), bytes);
            assert_int_equal(each[bytes], 0xa5);
          }
        }
        // In place, where streaming must give way: all sources are destinations, too.
        std::reverse(to.begin(), to.end());
        reduce_into(dtype, TRIREME_REDUCTION_AVERAGE, to.data(), sources, from.data(), sources,
                    count, sources, 1, true);
        for (const Bytes& each : memory) assert_memory_equal(each.data(), expected.data(), bytes);
      }
    }
  }
}

void add_and_scale_work_in_place(void**) {
  std::vector<float> a(130), b(130);
  std::vector<double> c(130), d(130);
  for (int i = 0; i < 130; ++i) {
    a[i] = 0.1f * static_cast<float>(i);
    b[i] = 1.7f - a[i];
    c[i] = 0.1 * i;
    d[i] = 1.7 - c[i];
  }
  const std::vector<float> a0 = a;
  const std::vector<double> c0 = c;
  add(TRIREME_DTYPE_F32, a.data(), b.data(), 130);
  add(TRIREME_DTYPE_F64, c.data(), d.data(), 130);
  for (int i = 0; i < 130; ++i) {
    assert_true(a[i] == a0[i] + b[i]);
    assert_true(c[i] == c0[i] + d[i]);
  }
  a = a0;
  c = c0;
  scale(TRIREME_DTYPE_F32, a.data(), 0.1, 130);
  scale(TRIREME_DTYPE_F64, c.data(), 0.1, 130);
  for (int i = 0; i < 130; ++i) {
    assert_true(a[i] == a0[i] * 0.1f);
    assert_true(c[i] == c0[i] * 0.1);
  }
}

// Every narrow code beside each of some wide values: kept where it rounds to the code, else
// replaced.
void a_wide_value_gives_way_to_one_it_does_not_round_to(void**) {
  for (const trireme_dtype dtype : {TRIREME_DTYPE_F16, TRIREME_DTYPE_BF16}) {
    std::vector<std::uint16_t> codes(65536 * 4);
    std::vector<float> wide(codes.size()), kept(codes.size()), values(codes.size());
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint16_t>(i / 4);
    widen(dtype, values.data(), codes.data(), codes.size());
    for (std::size_t i = 0; i < codes.size(); ++i) {
      const float own = values[i], far = std::ldexp(1.0f, 17);
      // Its own, one near it, one far from most, and none at all.
      wide[i] = i % 4 == 0   ? own
                : i % 4 == 1 ? own * 1.0001f
                : i % 4 == 2 ? far
                             : std::numeric_limits<float>::quiet_NaN();
      kept[i] = wide[i];
    }
    std::vector<std::uint16_t> rounded(codes.size());
    narrow(dtype, rounded.data(), wide.data(), wide.size());
    for (const VectorLevel level : levels()) {
      force_vector_level(level);
      for (const std::size_t skip :
           {std::size_t{0}, std::size_t{3}}) {  // other alignments and tails
        std::vector<float> result = wide;
        adopt(dtype, result.data() + skip, codes.data() + skip, codes.size() - 2 * skip);
        int kept_count = 0, replaced = 0;
        for (std::size_t i = skip; i < codes.size() - skip; ++i) {
          const bool keeps = rounded[i] == codes[i];
          const float wanted = keeps ? kept[i] : values[i];
          assert_memory_equal(&result[i], &wanted, sizeof wanted);
          ++(keeps ? kept_count : replaced);
        }
        assert_true(kept_count > 65536 && replaced > 65536);
      }
    }
  }
  force_vector_level(best_vector_level());
}

void the_instructions_in_use_have_a_name(void**) {
  force_vector_level(VectorLevel::scalar);
  assert_string_equal(vector_instructions(), "scalar");
  force_vector_level(best_vector_level());
  const std::string name = vector_instructions();
  assert_true(name == "scalar" || name == "avx2" || name == "avx512");
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(only_meaningful_pairs_are_supported),
      cmocka_unit_test(every_pair_equals_plain_arithmetic_at_every_level),
      cmocka_unit_test(every_count_works_at_every_alignment),
      cmocka_unit_test(the_destination_may_be_any_source),
      cmocka_unit_test(all_levels_give_the_same_bits),
      cmocka_unit_test(all_pairs_of_8_bit_floats_are_rounded_right),
      cmocka_unit_test(every_16_bit_float_is_read_and_rounded_right),
      cmocka_unit_test(every_small_code_survives_the_way_to_f32_and_back),
      cmocka_unit_test(small_floats_are_rounded_once_at_the_end),
      cmocka_unit_test(beyond_the_largest_value_e4m3_is_nan_and_the_others_infinite),
      cmocka_unit_test(a_nan_of_any_source_wins_min_and_max),
      cmocka_unit_test(any_byte_but_zero_is_true_and_results_are_zero_or_one),
      cmocka_unit_test(integer_sums_wrap_and_averages_truncate_toward_zero),
      cmocka_unit_test(results_stored_past_the_caches_are_the_same),
      cmocka_unit_test(all_destinations_get_what_one_gets),
      cmocka_unit_test(add_and_scale_work_in_place),
      cmocka_unit_test(a_wide_value_gives_way_to_one_it_does_not_round_to),
      cmocka_unit_test(the_instructions_in_use_have_a_name),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
