// Fingerprint: a rank's call, as its peers compare it before any byte moves.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "backends/parts.hpp"

namespace trireme {

// Written into memory and messages as it is.
struct Fingerprint {
  std::uint64_t sequence;
  std::uint64_t count;
  std::uint64_t counts_hash;
  std::uint64_t agreement;
  std::uint64_t scale_bits;
  std::uint32_t kind;
  std::int32_t dtype;
  std::int32_t reduction;
  std::int32_t root;
  std::int16_t algorithm;
  std::uint16_t reproducible;
  std::uint32_t model;
  // Not compared.
  char agreement_name[48];
};

// The agreement_name of an operation that tells which tuning table its rank has. Ranks with equal
// tables tell them by plain operations only, so a peer with another name has made another call.
constexpr char kTuningTables[] = "tuning tables (TRIREME_TUNING)";

Fingerprint fingerprint_of(const Operation& operation, std::uint64_t sequence);

constexpr std::size_t kComparedWords = offsetof(Fingerprint, agreement_name) / 8;
static_assert(kComparedWords == 8 && offsetof(Fingerprint, kind) == 40);
static_assert(offsetof(Fingerprint, model) == 60);

// The hash of all compared words: equal words have equal hashes, and different words have different
// ones. Each pair of words has its own product, so that no product waits for another.
inline std::uint64_t hash_of(const std::uint64_t (&w)[kComparedWords]) {
  const auto fold_product = [](std::uint64_t a, std::uint64_t b) {
    const auto product = static_cast<unsigned __int128>(a) * b;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
  };
  return fold_product(w[0] ^ 0x9e3779b97f4a7c15u, w[1] ^ 0xc2b2ae3d27d4eb4fu) ^
         fold_product(w[2] ^ 0x165667b19e3779f9u, w[3] ^ 0xbf58476d1ce4e5b9u) ^
         fold_product(w[4] ^ 0x94d049bb133111ebu, w[5] ^ 0xd6e8feb86659fd93u) ^
         fold_product(w[6] ^ 0xa0761d6478bd642fu, w[7] ^ 0xe7037ed1a0b428dbu);
}

inline std::uint64_t hash_of(const Fingerprint& print) {
  std::uint64_t words[kComparedWords];
  std::memcpy(words, &print, sizeof words);
  return hash_of(words);
}

struct ComparedWords {
  std::uint64_t words[kComparedWords];
};

// The compared words of an operation that is not a step of another one, and has no counts, no
// agreement and no algorithm. They are made in registers: a hash that reads freshly written fields
// one by one waits for the writes.
inline ComparedWords plain_words(const PlainOperation& operation, std::uint64_t sequence) {
  const auto pair = [](std::int32_t low, std::int32_t high) {
    return std::uint64_t{static_cast<std::uint32_t>(low)} |
           std::uint64_t{static_cast<std::uint32_t>(high)} << 32;
  };
  static_assert(std::endian::native == std::endian::little);
  const OperationKind kind = operation.kind;
  const bool scaled = operation.reduction == TRIREME_REDUCTION_SCALED_SUM;
  const std::uint64_t scale = scaled ? std::bit_cast<std::uint64_t>(operation.scale) : 0;
  const std::uint64_t what =
      pair(static_cast<std::int32_t>(kind), kind == OperationKind::barrier ? 0 : operation.dtype);
  const std::uint64_t how =
      pair(reduces(kind) ? operation.reduction : 0, has_root(kind) ? operation.root : 0);
  const std::uint64_t options =
      std::uint64_t{operation.reproducible ? 1u : 0u} << 16 | std::uint64_t{operation.model} << 32;
  return {{sequence, operation.count, 0, 0, scale, what, how, options}};
}

// The fingerprint of such an operation; returns its hash. Bytes behind the end of the empty name
// are not written.
inline std::uint64_t write_plain_fingerprint(const PlainOperation& operation,
                                             std::uint64_t sequence, Fingerprint* out) {
  const ComparedWords print = plain_words(operation, sequence);
  std::memcpy(static_cast<void*>(out), print.words, sizeof print.words);
  out->agreement_name[0] = 0;
  return hash_of(print.words);
}

struct CalledBy {
  std::int32_t rank;
  Fingerprint print;
};

// Returns success, or a MISMATCH that names the first rank and the first rank that differs from it.
// Every rank finds the same failure from the same prints. `group` is for the details.
Status compare_fingerprints(const std::vector<CalledBy>& prints, const char* operation,
                            std::uint64_t sequence, const std::string& group);

}  // namespace trireme
