#include "backends/nccl/offer.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace trireme::nccl {
namespace {

// A peer may have written anything.
template <std::size_t kBytes>
std::string text_in(const char (&field)[kBytes]) {
  return std::string(field, strnlen(field, kBytes));
}

std::string version_text(std::int32_t version) {
  return std::to_string(version / 10000) + "." + std::to_string(version % 10000 / 100) + "." +
         std::to_string(version % 100);
}

std::string rank_text(std::size_t rank) { return "rank " + std::to_string(rank); }

}  // namespace

void write_reason(const std::string& text, Offer* out) {
  out->version = 0;
  std::snprintf(out->reason, sizeof out->reason, "%s", text.c_str());
}

std::string obstacle(const std::vector<Offer>& offers) {
  if (offers.size() > static_cast<std::size_t>(kMostWorld)) {
    return std::to_string(offers.size()) + " ranks are more than " + std::to_string(kMostWorld) +
           ", of which a kernel sums";
  }
  for (std::size_t rank = 0; rank < offers.size(); ++rank) {
    const Offer& offer = offers[rank];
    if (offer.version <= 0) return rank_text(rank) + ": " + text_in(offer.reason);
    if (offer.version != offers[0].version) {
      return "rank 0 has NCCL " + version_text(offers[0].version) + ", but " + rank_text(rank) +
             " has " + version_text(offer.version);
    }
    for (std::size_t other = 0; other < rank; ++other) {
      const bool one_device = text_in(offers[other].uuid) == text_in(offer.uuid);
      const bool one_gpu = text_in(offers[other].gpu) == text_in(offer.gpu);
      if (!one_device && !one_gpu) continue;
      return "ranks " + std::to_string(other) + " and " + std::to_string(rank) + " work on " +
             (one_device ? "one device, " : "parts of one GPU, which NCCL refuses: ") +
             text_in(offers[other].uuid) + (one_device ? "" : " and " + text_in(offer.uuid));
    }
  }
  return "";
}

int first_to_require(const std::vector<Offer>& offers) {
  const auto found = std::find_if(offers.begin(), offers.end(),
                                  [](const Offer& offer) { return offer.requires_nccl != 0; });
  return found == offers.end() ? -1 : static_cast<int>(found - offers.begin());
}

}  // namespace trireme::nccl
