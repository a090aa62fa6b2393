#include "kernels/reduce.hpp"

#include <unistd.h>

#include <atomic>
#include <cstring>

#include "kernels/vector.hpp"

namespace trireme::kernels {

namespace {

constexpr std::uint64_t kStreamBlock = 16384;  // stays in the first cache
constexpr std::uint32_t kMostStreamedSources = 16;
constexpr std::uint64_t kShareBlock = 8192;  // so that two sources stay in the first cache
constexpr std::uint32_t kMostSources = 64;

std::uint64_t element_size(trireme_dtype dtype) {
  switch (dtype) {
    case TRIREME_DTYPE_I64:
    case TRIREME_DTYPE_U64:
    case TRIREME_DTYPE_F64: return 8;
    case TRIREME_DTYPE_I32:
    case TRIREME_DTYPE_U32:
    case TRIREME_DTYPE_F32: return 4;
    case TRIREME_DTYPE_I16:
    case TRIREME_DTYPE_U16:
    case TRIREME_DTYPE_F16:
    case TRIREME_DTYPE_BF16: return 2;
    default: return 1;
  }
}

constinit std::atomic<std::uint64_t> forced_streaming_bytes{0};

double factor_of(trireme_reduction reduction, std::uint32_t divisor, double scale) {
  return reduction == TRIREME_REDUCTION_AVERAGE      ? static_cast<double>(divisor)
         : reduction == TRIREME_REDUCTION_SCALED_SUM ? scale
                                                     : 1;
}

}  // namespace

std::uint64_t streaming_bytes() {
  static const std::uint64_t bytes = [] {
    constexpr std::uint64_t kUnknown = 32u << 20;
    long cache = 0;
#if defined(_SC_LEVEL3_CACHE_SIZE)
    cache = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
    return (cache > 0 ? static_cast<std::uint64_t>(cache) : kUnknown) / 2;
  }();
  const std::uint64_t forced = forced_streaming_bytes.load(std::memory_order_relaxed);
  return forced != 0 ? forced : bytes;
}

void force_streaming_bytes(std::uint64_t bytes) {
  forced_streaming_bytes.store(bytes, std::memory_order_relaxed);
}

bool reduction_supported(trireme_dtype dtype, trireme_reduction reduction) {
  return dtype >= TRIREME_DTYPE_I8 && dtype <= TRIREME_DTYPE_BYTES &&
         reduction >= TRIREME_REDUCTION_SUM && reduction <= TRIREME_REDUCTION_SCALED_SUM &&
         scalar::loops.reduce[dtype][reduction] != nullptr;
}

void reduce_few(trireme_dtype dtype, trireme_reduction reduction, void* destination,
                const void* const* sources, std::uint32_t source_count, std::uint64_t count,
                std::uint32_t divisor, double scale) {
  const double factor = factor_of(reduction, divisor, scale);
  loops().reduce[dtype][reduction](destination, sources, source_count, count, factor);
}

void reduce(trireme_dtype dtype, trireme_reduction reduction, void* destination,
            const void* const* sources, std::uint32_t source_count, std::uint64_t count,
            std::uint32_t divisor, double scale) {
  if (count == 0) return;
  const Loops& all = loops();
  const ReduceLoop loop = all.reduce[dtype][reduction];
  const double factor = factor_of(reduction, divisor, scale);
  const std::uint64_t size = element_size(dtype);
  // In place the old contents are read in any case.
  bool stream = count >= streaming_bytes() / size && source_count <= kMostStreamedSources;
  for (std::uint32_t k = 0; stream && k < source_count; ++k) stream = sources[k] != destination;
  if (!stream) return loop(destination, sources, source_count, count, factor);

  alignas(64) unsigned char block[kStreamBlock];
  const void* shifted[kMostStreamedSources];
  const std::uint64_t length = kStreamBlock / size;
  for (std::uint64_t first = 0; first < count; first += length) {
    const std::uint64_t here = count - first < length ? count - first : length;
    for (std::uint32_t k = 0; k < source_count; ++k) {
      shifted[k] = static_cast<const unsigned char*>(sources[k]) + first * size;
    }
    loop(block, shifted, source_count, here, factor);
    all.stream(static_cast<unsigned char*>(destination) + first * size, block, here * size);
  }
}

bool is_narrow(trireme_dtype dtype) {
  return dtype >= TRIREME_DTYPE_I8 && dtype <= TRIREME_DTYPE_BYTES &&
         scalar::loops.widen[dtype] != nullptr;
}

void widen(trireme_dtype dtype, float* destination, const void* source, std::uint64_t count) {
  loops().widen[dtype](destination, source, count);
}

void narrow(trireme_dtype dtype, void* destination, const float* source, std::uint64_t count) {
  loops().narrow[dtype](destination, source, count);
}

void adopt(trireme_dtype dtype, float* wide, const void* narrow, std::uint64_t count) {
  loops().adopt[dtype](wide, narrow, count);
}

void add_widened(trireme_dtype dtype, float* destination, const void* source, std::uint64_t count) {
  constexpr std::uint64_t kBlock = 1024;
  alignas(64) float block[kBlock];
  const std::uint64_t size = element_size(dtype);
  for (std::uint64_t first = 0; first < count; first += kBlock) {
    const std::uint64_t here = count - first < kBlock ? count - first : kBlock;
    widen(dtype, block, static_cast<const unsigned char*>(source) + first * size, here);
    add(TRIREME_DTYPE_F32, destination + first, block, here);
  }
}

void reduce_into(trireme_dtype dtype, trireme_reduction reduction, void* const* destinations,
                 std::uint32_t destination_count, const void* const* sources,
                 std::uint32_t source_count, std::uint64_t count, std::uint32_t divisor,
                 double scale, bool stream) {
  const Loops& all = loops();
  const ReduceLoop loop = all.reduce[dtype][reduction];
  const double factor = factor_of(reduction, divisor, scale);
  const std::uint64_t size = element_size(dtype);
  if (source_count > kMostSources) {
    loop(destinations[0], sources, source_count, count, factor);
    for (std::uint32_t k = 1; k < destination_count; ++k) {
      copy(destinations[k], destinations[0], count * size);
    }
    return;
  }
  for (std::uint32_t d = 0; stream && d < destination_count; ++d) {
    for (std::uint32_t k = 0; stream && k < source_count; ++k) {
      stream = sources[k] != destinations[d];
    }
  }
  alignas(64) unsigned char block[kShareBlock];
  const void* shifted[kMostSources];
  const std::uint64_t length = kShareBlock / size;
  for (std::uint64_t first = 0; first < count; first += length) {
    const std::uint64_t here = count - first < length ? count - first : length;
    for (std::uint32_t k = 0; k < source_count; ++k) {
      shifted[k] = static_cast<const unsigned char*>(sources[k]) + first * size;
    }
    void* const result =
        stream ? block : static_cast<unsigned char*>(destinations[0]) + first * size;
    loop(result, shifted, source_count, here, factor);
    for (std::uint32_t d = stream ? 0 : 1; d < destination_count; ++d) {
      void* const place = static_cast<unsigned char*>(destinations[d]) + first * size;
      if (stream)
        all.stream(place, result, here * size);
      else
        std::memcpy(place, result, here * size);
    }
  }
}

void add(trireme_dtype dtype, void* destination, const void* source, std::uint64_t count) {
  const void* sources[] = {destination, source};
  reduce(dtype, TRIREME_REDUCTION_SUM, destination, sources, 2, count, 1, 1);
}

void scale(trireme_dtype dtype, void* destination, double factor, std::uint64_t count) {
  const void* sources[] = {destination};
  reduce(dtype, TRIREME_REDUCTION_SCALED_SUM, destination, sources, 1, count, 1, factor);
}

namespace {

template <class T>
void clamp_to(T* values, T limit, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    const T value = values[i];
    values[i] = value > limit ? limit : value < -limit ? -limit : value;
  }
}

}  // namespace

void clamp(trireme_dtype dtype, void* destination, double limit, std::uint64_t count) {
  if (dtype == TRIREME_DTYPE_F32) {
    clamp_to(static_cast<float*>(destination), static_cast<float>(limit), count);
  } else {
    clamp_to(static_cast<double*>(destination), limit, count);
  }
}

void stream(void* destination, const void* source, std::uint64_t bytes) {
  loops().stream(destination, source, bytes);
}

void copy(void* destination, const void* source, std::uint64_t bytes) {
  if (bytes == 0 || destination == source) return;
  if (bytes < streaming_bytes()) {
    std::memcpy(destination, source, bytes);
  } else {
    loops().stream(destination, source, bytes);
  }
}

const char* vector_instructions() {
  switch (vector_level()) {
    case VectorLevel::avx512: return "avx512";
    case VectorLevel::avx2: return "avx2";
    case VectorLevel::scalar: break;
  }
  return "scalar";
}

}  // namespace trireme::kernels
