// Fingerprint: what a rank wants to do, as its peers compare it before anything moves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "backends/backend.hpp"

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

// Of all that is compared: equal prints have equal hashes, and others have not.
std::uint64_t hash_of(const Fingerprint& print);

// MISMATCH, which names rank 0 and the first rank that wants something else than it, or success.
// What every rank finds by itself, given the same prints. `group` is for the details.
Status compare_fingerprints(const std::vector<Fingerprint>& prints, const char* operation,
                            std::uint64_t sequence, const std::string& group);

}  // namespace trireme
