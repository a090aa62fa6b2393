// Frames: what ranks of a transport say to each other. Nothing in one is believed unchecked.
#pragma once

#include <trireme/transport.h>

#include <cstdint>

#include "backends/fingerprint.hpp"

namespace trireme::host {

constexpr std::uint32_t kMagic = 0x6d726974;
// Raised whenever the meaning of a frame changes.
constexpr std::uint32_t kVersion = 4;

enum class FrameKind : std::uint32_t {
  hello = 1,  // a Hello: the first one between two ranks, in each direction
  data,       // bytes of a stream, the first of which is number `position`
  credit,     // the receiver of a stream has consumed its first `position` bytes
  failure,    // a FailureRecord: the group has failed
  leave,      // the last one: the rank has left. If an engine carries slots: how many, by channel
  slot,       // a Call: what the rank has published as number `position` of channel `set`
  decision,   // a ConsensusMessage
};

struct FrameHeader {
  std::uint32_t magic;
  FrameKind kind;
  std::uint32_t set;    // data and credit: which of the two streams of a pair; slot: the channel
  std::uint32_t bytes;  // what follows
  std::uint64_t position;
};
static_assert(sizeof(FrameHeader) == 24);

struct Hello {
  std::uint32_t version;
  std::int32_t world_size;
  std::int32_t rank;          // the sender's
  std::int32_t to;            // the receiver's
  std::uint64_t frame_bytes;  // longest that the sender takes
  std::uint8_t group[32];     // SHA-256 of the group's name
};
static_assert(sizeof(Hello) == 56);

// Most bytes that a rank contributes to a collective that goes with the slots. Part of the meaning of
// frames: ranks must not differ in it.
constexpr std::uint64_t kCarriedBytes = 512;

// What peers need of a local::Slot, followed by `carried` bytes of payload.
struct Call {
  std::uint64_t print_hash;
  std::uint32_t flags;
  std::uint32_t carried;
  Fingerprint fingerprint;
};
static_assert(sizeof(FrameHeader) + sizeof(Call) + kCarriedBytes <=
              TRIREME_TRANSPORT_FRAME_BYTES_MIN);

}  // namespace trireme::host
