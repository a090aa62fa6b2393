// Fingerprint: what a rank wants to do, as its peers compare it before anything moves.
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
  std::int32_t algorithm;
  std::uint32_t reproducible;
  // Not compared.
  char agreement_name[48];
};

Fingerprint fingerprint_of(const Operation& operation, std::uint64_t sequence);

// The same of an operation that is no step of another and has no counts, no agreement and no
// algorithm. Behind the end of the empty name nothing is written.
inline void write_plain_fingerprint(const PlainOperation& operation, std::uint64_t sequence,
                                    Fingerprint* out) {
  Fingerprint& print = *out;
  print.sequence = sequence;
  print.count = operation.count;
  print.scale_bits =
      operation.reduction == TRIREME_SCALED_SUM ? std::bit_cast<std::uint64_t>(operation.scale) : 0;
  print.kind = static_cast<std::uint32_t>(operation.kind);
  print.dtype = operation.kind == OperationKind::barrier ? 0 : operation.dtype;
  print.reduction = reduces(operation.kind) ? operation.reduction : 0;
  print.root = has_root(operation.kind) ? operation.root : 0;
  print.algorithm = 0;
  print.reproducible = operation.reproducible ? 1 : 0;
  print.counts_hash = 0;
  print.agreement = 0;
  print.agreement_name[0] = 0;
}

// Of all that is compared: equal prints have equal hashes, and others have not. Every two words go
// into a product of their own, so that none waits for another.
inline std::uint64_t hash_of(const Fingerprint& print) {
  constexpr std::size_t kWords = offsetof(Fingerprint, agreement_name) / 8;
  static_assert(kWords == 8);
  std::uint64_t w[kWords];
  std::memcpy(w, &print, sizeof w);
  const auto fold_product = [](std::uint64_t a, std::uint64_t b) {
    const auto product = static_cast<unsigned __int128>(a) * b;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
  };
  return fold_product(w[0] ^ 0x9e3779b97f4a7c15u, w[1] ^ 0xc2b2ae3d27d4eb4fu) ^
         fold_product(w[2] ^ 0x165667b19e3779f9u, w[3] ^ 0xbf58476d1ce4e5b9u) ^
         fold_product(w[4] ^ 0x94d049bb133111ebu, w[5] ^ 0xd6e8feb86659fd93u) ^
         fold_product(w[6] ^ 0xa0761d6478bd642fu, w[7] ^ 0xe7037ed1a0b428dbu);
}

// MISMATCH, which names rank 0 and the first rank that wants something else than it, or success.
// What every rank finds by itself, given the same prints. `group` is for the details.
Status compare_fingerprints(const std::vector<Fingerprint>& prints, const char* operation,
                            std::uint64_t sequence, const std::string& group);

}  // namespace trireme
