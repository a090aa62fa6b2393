// Whether ranks on several hosts reach each other: they meet as the ranks of a job do, and rank 0
// talks to each of the others.
#include <trireme/trireme.h>

#include <cstdio>
#include <memory>
#include <vector>

#include "cli/doctor/doctor.hpp"
#include "platform/clock.hpp"

namespace trireme::doctor {
namespace {

constexpr std::uint64_t kTag = 1;
constexpr int kSmallRounds = 200;  // of 8 bytes, there and back
constexpr int kLargeRounds = 8;
constexpr std::uint64_t kLargeBytes = 4u << 20;

struct Group {
  trireme_communicator* communicator = nullptr;
  trireme_operation_options options = TRIREME_OPERATION_OPTIONS_INIT;
  std::vector<std::uint8_t> data = std::vector<std::uint8_t>(kLargeBytes);
  ~Group() { trireme_communicator_destroy(communicator); }

  bool send(std::uint64_t bytes, int to) {
    return trireme_send(communicator, data.data(), bytes, TRIREME_DTYPE_BYTES, to, kTag,
                        &options) == TRIREME_OK;
  }
  bool receive(std::uint64_t bytes, int from) {
    return trireme_receive(communicator, data.data(), bytes, TRIREME_DTYPE_BYTES, from, kTag,
                           &options) == TRIREME_OK;
  }
  // There and back; the rank that begins has time to compare the bytes.
  bool go_round(std::uint64_t bytes, int peer, bool begins) {
    return begins ? send(bytes, peer) && receive(bytes, peer)
                  : receive(bytes, peer) && send(bytes, peer);
  }
};

std::uint8_t pattern(std::uint64_t index) { return static_cast<std::uint8_t>(index * 131 >> 3); }

std::string error() { return trireme_last_error(); }

Fact talk(Group& group, int peer, bool begins) {
  Fact fact{"rank " + std::to_string(peer), "", ""};
  for (std::uint64_t i = 0; begins && i < kLargeBytes; ++i) group.data[i] = pattern(i);
  const auto took_ns = [&](int rounds, std::uint64_t bytes) -> std::uint64_t {
    const std::uint64_t begin = now_ns();
    for (int round = 0; round < rounds; ++round) {
      if (!group.go_round(bytes, peer, begins)) return 0;
    }
    return now_ns() - begin + 1;
  };
  const std::uint64_t small = took_ns(kSmallRounds, 8);
  const std::uint64_t large = small == 0 ? 0 : took_ns(kLargeRounds, kLargeBytes);
  if (large == 0) {
    fact.value = "the connection fails";
    fact.advice = error();
    return fact;
  }
  char text[96];
  std::snprintf(text, sizeof text, "%.0f us there and back, %.0f MB/s",
                static_cast<double>(small) / kSmallRounds / 1e3,
                2.0 * kLargeRounds * kLargeBytes * 1e3 / static_cast<double>(large));
  fact.value = text;
  for (std::uint64_t i = 0; i < kLargeBytes; ++i) {
    if (group.data[i] == pattern(i)) continue;
    fact.advice =
        "the bytes that come are not the bytes that were sent: the network or a memory is broken";
    break;
  }
  return fact;
}

}  // namespace

Section connection_facts(const Connection& connection) {
  Section section{"connection", {}};
  Group group;
  trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
  options.rendezvous = connection.rendezvous.c_str();
  options.rank = connection.rank;
  options.world_size = connection.world_size;
  if (!connection.backend.empty()) options.backend = connection.backend.c_str();
  const auto wait_ns = static_cast<std::uint64_t>(connection.wait_seconds * 1e9);
  options.timeout_ns = wait_ns;
  if (trireme_communicator_create(&options, &group.communicator) != TRIREME_OK ||
      trireme_communicator_wait_ready(group.communicator, wait_ns) != TRIREME_OK) {
    section.facts.push_back({"all ranks", "do not meet", error()});
    return section;
  }
  std::int32_t rank = 0;
  std::int32_t ranks = 0;
  char backend[128] = "";
  if (trireme_communicator_get_rank(group.communicator, &rank) != TRIREME_OK ||
      trireme_communicator_get_world_size(group.communicator, &ranks) != TRIREME_OK ||
      trireme_communicator_get_backend(group.communicator, backend, sizeof backend, nullptr) !=
          TRIREME_OK) {
    section.facts.push_back({"all ranks", "cannot be asked", error()});
    return section;
  }
  section.facts.push_back(
      {"all ranks", "meet: this is rank " + std::to_string(rank) + " of " + std::to_string(ranks),
       ""});
  section.facts.push_back({"backend", backend, ""});
  for (int peer = 1; peer < ranks; ++peer) {
    if (rank == 0 || rank == peer) {
      section.facts.push_back(talk(group, rank == 0 ? peer : 0, rank == 0));
      if (!section.facts.back().advice.empty()) return section;
    }
    if (trireme_barrier(group.communicator, &group.options) != TRIREME_OK) {
      section.facts.push_back(
          {"rank 0 and rank " + std::to_string(peer), "the connection fails", error()});
      return section;
    }
  }
  return section;
}

}  // namespace trireme::doctor
