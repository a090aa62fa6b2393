// Frames: the messages between ranks of a transport. Every frame is checked before it is used.
#pragma once

#include <trireme/transport.h>

#include <cstdint>
#include <string>
#include <utility>

#include "backends/fingerprint.hpp"
#include "platform/clock.hpp"
#include "platform/status.hpp"

namespace trireme::host {

constexpr std::uint32_t kMagic = 0x6d726974;
// Raised whenever the meaning of a frame changes.
constexpr std::uint32_t kVersion = 13;

enum class FrameKind : std::uint32_t {
  hello = 1,  // a Hello: the first one between two ranks, in each direction
  data,       // bytes of a stream from number `position` on, those between messages included
  credit,     // the receiver of a stream has consumed its first `position` bytes
  failure,    // a FailureRecord: the group has failed
  leave,      // the last one: the rank has left. If an engine carries slots: a LastSlots
  slot,       // a Call: the rank's publication number `position` in channel `set`
  decision,   // a ConsensusMessage
  slots,      // the same of several ranks, passed on: see CallRounds
  waits,      // a local::WaitsBelow: the sender waits in groups that were made from this one
  came,       // who has come to call number `position` of a channel: see CallNews
  cell,    // a CellCall: the rank's call number `position` in channel `set`, to a rank that needs
           // it: see slots/rooted.hpp
  steps,   // the rank has taken so many steps in channel `set`
  passed,  // a CellCall of the root of a broadcast or scatter, passed on: see CellFrames
};

// A peer that leaves takes its ends of all connections with it; its last frames may still be on
// their way.
constexpr std::uint64_t kGraceNs = 300 * kMillisecond;

struct FrameHeader {
  std::uint32_t magic;
  FrameKind kind;
  std::uint32_t set;    // data and credit: the stream of a pair; slot: the channel
  std::uint32_t bytes;  // what follows
  std::uint64_t position;
};
static_assert(sizeof(FrameHeader) == 24);

struct Hello {
  std::uint32_t version;
  std::int32_t world_size;
  std::int32_t rank;          // the sender's
  std::int32_t to;            // the receiver's
  std::uint64_t frame_bytes;  // the longest frame that the sender takes
  std::uint8_t group[32];     // SHA-256 of the group's name
};
static_assert(sizeof(Hello) == 56);

// Most bytes that a rank contributes to a collective that travels with the slots. Part of the
// meaning of frames: ranks must not differ in it.
constexpr std::uint64_t kCarriedBytes = 512;

// The parts of a local::Slot that peers need, followed by `carried` bytes of payload.
struct Call {
  std::uint64_t print_hash;
  std::uint32_t flags;
  std::uint32_t carried;
  Fingerprint fingerprint;
};
static_assert(sizeof(FrameHeader) + sizeof(Call) + kCarriedBytes <=
              TRIREME_TRANSPORT_FRAME_BYTES_MIN);

// A small call with a root, followed by `bytes` bytes of its payload from `at` on.
struct CellCall {
  std::uint64_t print_hash;
  std::uint64_t print[kComparedWords];
  std::uint32_t at;
  std::uint16_t bytes;
  std::uint16_t to_all;  // 1: the rank tells this call to all ranks, and awaits all; else 0
};
static_assert(sizeof(CellCall) == 80);

// A handler of std::bad_alloc answers it: the text is short enough to need no memory.
inline Status without_memory() noexcept {
  return Status::failure(TRIREME_ERROR_OUT_OF_MEMORY, "out of memory");
}

// "rank 1 got WHAT from rank 0", which is to blame.
inline Status corrupt_frame(int rank, int from, const std::string& what) {
  FailureDetails details;
  details.blamed = {from};
  return Status::failure(TRIREME_ERROR_CORRUPT, "rank " + std::to_string(rank) + " got " + what +
                                                    " from rank " + std::to_string(from))
      .with_details(std::move(details));
}

}  // namespace trireme::host
