#include "net/sha256.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

namespace trireme {
namespace {

// Mixes blocks of 64 bytes into the state.
using MixBlocks = void (*)(std::uint32_t* state, const unsigned char* data, std::size_t blocks);

// First 32 bits of the fractional parts of the cube roots of the first 64 primes.
alignas(16) constexpr std::uint32_t kRounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

void mix_block(std::uint32_t* state, const unsigned char* block) {
  std::uint32_t w[64];
  for (int i = 0; i < 16; ++i) {
    w[i] = std::uint32_t{block[4 * i]} << 24 | std::uint32_t{block[4 * i + 1]} << 16 |
           std::uint32_t{block[4 * i + 2]} << 8 | std::uint32_t{block[4 * i + 3]};
  }
  for (int i = 16; i < 64; ++i) {
    const std::uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const std::uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  std::uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
  std::uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
  for (int i = 0; i < 64; ++i) {
    const std::uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const std::uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRounds[i] + w[i];
    const std::uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const std::uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const std::uint32_t sums[8] = {a, b, c, d, e, f, g, h};
  for (int i = 0; i < 8; ++i) state[i] += sums[i];
}

void mix_plainly(std::uint32_t* state, const unsigned char* data, std::size_t blocks) {
  for (; blocks > 0; --blocks, data += 64) mix_block(state, data);
}

#if defined(__x86_64__)

bool has_instructions() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kSse = bit_SSSE3 | bit_SSE4_1;
  constexpr unsigned kSha = 1u << 29;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kSse) != kSse) return false;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & kSha) != 0;
}

// Two rounds an instruction. They take half of the state each: a, b, e, f and c, d, g, h.
__attribute__((target("sha,sse4.1"))) void mix_by_instructions(std::uint32_t* state,
                                                               const unsigned char* data,
                                                               std::size_t blocks) {
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  auto* const halves = reinterpret_cast<__m128i*>(state);
  const __m128i cdab = _mm_shuffle_epi32(_mm_loadu_si128(halves), 0xb1);
  const __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128(halves + 1), 0x1b);
  __m128i abef = _mm_alignr_epi8(cdab, efgh, 8);
  __m128i cdgh = _mm_blend_epi16(efgh, cdab, 0xf0);
  for (; blocks > 0; --blocks, data += 64) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i w[4];  // the last 16 words
    for (int i = 0; i < 4; ++i) {
      w[i] =
          _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data) + i), big_endian);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      const __m128i rounds = _mm_load_si128(reinterpret_cast<const __m128i*>(kRounds) + i);
      const __m128i sum = _mm_add_epi32(w[i % 4], rounds);
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
      if (i >= 12) continue;
      const __m128i newest = w[(i + 3) % 4];
      const __m128i seven_ago = _mm_alignr_epi8(newest, w[(i + 2) % 4], 4);
      w[i % 4] = _mm_sha256msg2_epu32(
          _mm_add_epi32(_mm_sha256msg1_epu32(w[i % 4], w[(i + 1) % 4]), seven_ago), newest);
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1b);
  const __m128i dchg = _mm_shuffle_epi32(cdgh, 0xb1);
  _mm_storeu_si128(halves, _mm_blend_epi16(feba, dchg, 0xf0));
  _mm_storeu_si128(halves + 1, _mm_alignr_epi8(dchg, feba, 8));
}

#else
bool has_instructions() { return false; }
constexpr MixBlocks mix_by_instructions = nullptr;
#endif

std::atomic<MixBlocks>& mix_blocks() {
  static std::atomic<MixBlocks> chosen{has_instructions() ? mix_by_instructions : mix_plainly};
  return chosen;
}

}  // namespace

bool use_sha256_instructions(bool wanted) {
  const bool used = wanted && has_instructions();
  mix_blocks() = used ? mix_by_instructions : mix_plainly;
  return used;
}

void Sha256::add(std::string_view data) {
  if (data.empty()) return;
  const MixBlocks mix = mix_blocks().load(std::memory_order_relaxed);
  const auto* next = reinterpret_cast<const unsigned char*>(data.data());
  std::size_t rest = data.size();
  const std::size_t there = bytes_ % sizeof block_;
  bytes_ += rest;
  if (there > 0) {
    const std::size_t part = std::min(rest, sizeof block_ - there);
    std::memcpy(block_ + there, next, part);
    if (there + part < sizeof block_) return;
    mix(state_, block_, 1);
    next += part;
    rest -= part;
  }
  const std::size_t blocks = rest / sizeof block_;
  mix(state_, next, blocks);
  rest -= blocks * sizeof block_;
  if (rest > 0) std::memcpy(block_, next + blocks * sizeof block_, rest);
}

std::array<std::uint8_t, 32> Sha256::finish() {
  char end[72] = {'\x80'};
  const std::uint64_t bits = bytes_ * 8;
  const std::size_t zeros = (119 - bytes_ % 64) % 64;
  for (std::size_t i = 0; i < 8; ++i) end[1 + zeros + i] = static_cast<char>(bits >> (56 - 8 * i));
  add({end, 1 + zeros + 8});
  std::array<std::uint8_t, 32> digest;
  for (std::size_t i = 0; i < digest.size(); ++i) {
    digest[i] = static_cast<std::uint8_t>(state_[i / 4] >> (24 - i % 4 * 8));
  }
  return digest;
}

std::array<std::uint8_t, 32> sha256(std::string_view data) {
  Sha256 sum;
  sum.add(data);
  return sum.finish();
}

std::string hexadecimal(std::span<const std::uint8_t> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace trireme
