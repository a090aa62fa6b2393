// Offers: each rank tells whether it can use NCCL. From all of them follows whether the group does.
// Pure: every rank finds the same from the same offers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::nccl {

// A sum in rank order takes a source of each rank.
constexpr int kMostWorld = 256;

// Of one rank, in the bytes that it sends.
struct Offer {
  std::int32_t version = 0;  // of its NCCL, as NCCL counts; 0: it cannot use one
  std::uint32_t requires_nccl = 0;
  char uuid[48] = {};     // of its device
  char gpu[64] = {};      // its host and bus: of all parts of one GPU
  char reason[392] = {};  // why it cannot, or does not want to
};
static_assert(sizeof(Offer) == 512);

void write_reason(const std::string& text, Offer* out);

// Why no group of NCCL can be made: names ranks. "" if one can.
std::string obstacle(const std::vector<Offer>& offers);
// The first rank that requires NCCL; -1: none.
int first_to_require(const std::vector<Offer>& offers);

}  // namespace trireme::nccl
