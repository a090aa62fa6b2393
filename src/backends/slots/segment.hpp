// The control segment: the memory that the ranks of one host share. One per group; a memfd that
// every process maps, or plain memory between threads. It is zero at the start, and zero is a valid
// state of every field.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "backends/backend.hpp"
#include "backends/fingerprint.hpp"

namespace trireme::local {

// Raised whenever the layout or the meaning of a field changes; processes compare it when they
// meet.
constexpr std::uint32_t kLayoutVersion = 16;

constexpr std::uint64_t kInlineBytes = 4096;  // payload that fits into a slot
constexpr std::uint64_t kTinyBytes = 40;      // payload that fits into its first cache line
constexpr std::uint64_t kLine = 128;          // cache lines come in pairs

// Chunks in which a rank stages pieces, in turn. At least 3 (staged_move.hpp); together larger than
// a second-level cache, so that a chunk has left a peer's cache when it is filled again.
constexpr std::uint64_t kStages = 8;
constexpr std::uint64_t kUrgentStages = 4;

// A word to sleep on. A thread that changed the state rings. A thread that waits reads `events`,
// looks at the state, and sleeps while `events` stays the same.
struct alignas(kLine) Bell {
  std::atomic<std::uint32_t> events;
  std::atomic<std::uint32_t> sleepers;  // too high after a sleeper was killed: costs a system call
};

// The place of memory that peers read.
enum class Place : std::uint32_t { none = 0, staged, shared, address, process };
struct Location {
  Place place;
  std::uint32_t reserved;
  std::uint64_t id;      // shared: number of the buffer at its owner
  std::uint64_t offset;  // shared: from the buffer's begin; address, process: the address
};

// Bits of Slot::flags.
constexpr std::uint32_t kContributes = 1;  // this rank gives elements
constexpr std::uint32_t kStaged = 2;       // this rank's memory must be staged
constexpr std::uint32_t kTiny = 4;         // the payload lies in the first cache line
constexpr std::uint32_t kLends = 8;        // this rank's memory has a twin: see Engine::can_lend()

// One collective of one rank. Peers that agree read only its first cache line if the payload is
// tiny: one transfer from core to core. The rest is written before the stamp.
struct alignas(kLine) Slot {
  std::atomic<std::uint64_t>
      stamp;                 // the owner's position when it published this operation; written last
  std::uint64_t print_hash;  // of the fingerprint
  std::uint32_t flags;
  std::uint32_t carried;  // bytes of payload, where a frame link carries the slot to peers
  alignas(8) std::byte tiny[kTinyBytes];
  Location send;  // if peers need it: not for a payload in the slot
  Location receive;
  Fingerprint fingerprint;
  alignas(kLine) std::byte payload[kInlineBytes];
};
static_assert(offsetof(Slot, send) == 64);

// Cells of a rank in a channel, used in turn by position; and the channels that have them: those of
// the caller's operations.
constexpr std::uint64_t kCells = 64;
constexpr std::uint32_t kCellChannels = kModelChannel;
constexpr std::uint64_t kCellBytes = 176;  // payload that fits into a cell
// The same where a link carries cells: then a longer payload lies behind the cell.
constexpr std::uint64_t kLinkedCellBytes = kInlineBytes;
// A link carries cells among so many ranks at most.
constexpr int kMostLinkedRanks = 16;

// One small collective with a root, as one rank called it: see rooted.hpp. Peers read the stamp,
// the hash and the payload. They read the fingerprint only if they disagree.
struct alignas(kLine) Cell {
  std::atomic<std::uint64_t> stamp;  // as Slot::stamp
  std::uint64_t print_hash;
  std::byte payload[kCellBytes];
  std::uint64_t print[kComparedWords];  // the compared words of the fingerprint
};
static_assert(sizeof(Cell) == 256);

// One rank in one channel. Two slots, used in turn: a rank fills the slot of operation s + 2 only
// after operation s + 1. By then every peer has published s + 1, and so reads no more of s.
struct alignas(kLine) Lane {
  Bell bell;                            // rung by the owner after each step, and by a failure
  std::atomic<std::uint64_t> position;  // steps this rank has taken in this channel; only grows
  alignas(kLine) std::atomic<std::uint32_t> reading;  // 1 while the owner reads memory of peers
  // A former position. The owner writes it less often than the position, so that peers that look
  // for room take fewer cache lines from it.
  std::atomic<std::uint64_t> milestone;
  // Where a link carries cells: the position of the last call in a cell that the owner told to all
  // ranks, and in which it awaits all.
  std::atomic<std::uint64_t> awaits_all_at;
  Slot slots[2];

  // The slot of the call at that position, or null.
  const Slot* slot_at(std::uint64_t at) const {
    for (const Slot& slot : slots) {
      if (slot.stamp.load(std::memory_order_acquire) == at) return &slot;
    }
    return nullptr;
  }
};

// Frames of a rank come over several ways: a position from before counts no more.
inline void advance_to(std::atomic<std::uint64_t>& position, std::uint64_t to) {
  std::uint64_t before = position.load(std::memory_order_relaxed);
  while (before < to && !position.compare_exchange_weak(before, to, std::memory_order_release)) {
  }
}

// One rank.
struct alignas(kLine) Member {
  Bell message_bell;  // rung by peers that wrote into a ring of this rank, and by a failure
  std::atomic<std::uint32_t> joined;
  std::atomic<std::uint32_t> left;
  std::atomic<std::uint32_t> given_up;  // by a peer that saw its death or waited in vain
  std::atomic<std::uint32_t> life;      // processes: the DeathWord of its process mesh's thread
  // By these a peer finds out whether it can read the memory of this rank's process: at the address
  // `witness_at` of process `process` lies `witness`. The process is written last; 0: not yet.
  std::atomic<std::uint32_t> process;
  std::atomic<std::uint64_t> witness_at;
  std::atomic<std::uint64_t> witness;
  // Every call changes these, and peers look at those above with every message: so these have cache
  // lines of their own. For the peers' messages about this rank: pack_call() of the collective it
  // called last, and pack_message().
  alignas(kLine) std::atomic<std::uint64_t> last_call;
  std::atomic<std::uint64_t> last_message;
  std::atomic<std::uint32_t>
      channels;  // number of channels that it has used, from 0 on; the others are untouched
  // The ranks for which it waits in groups that were made from this one, and those for which it
  // waited in vain. Bit r: rank r.
  std::atomic<std::uint64_t> awaited[RankSet::kWords];
  std::atomic<std::uint64_t> in_vain[RankSet::kWords];
  std::atomic<std::uint64_t> in_vain_until_ns;  // how long that counts, by the reader's clock
};

// The failure as one rank saw it. Written once, whole, before Header::first_failure names it.
struct alignas(kLine) FailureRecord {
  std::int32_t code;
  std::int32_t system_error;
  std::uint64_t sequence;
  std::uint64_t blamed[kMaxRanks / 64];  // bit r: rank r
  char operation[32];
  char text[512];
};

// One rank's vote in the decision `number`, which is written last.
struct alignas(kLine) Ballot {
  std::atomic<std::uint64_t> number;
  std::atomic<std::uint64_t> vote;
  std::atomic<std::uint32_t> kind;
};

// The outcome of a decision's votes, as one rank found it. It is the decision if Header::decision
// names it. A rank has two, used in turn: decision n + 2 is made only after every rank that counts
// has read n.
struct alignas(kLine) Proposal {
  std::atomic<std::uint64_t> ranks[kMaxRanks / 64];  // bit r: rank r's vote counts
  std::atomic<std::uint64_t> value;
  std::atomic<std::uint32_t> outcome;
};

struct alignas(kLine) Header {
  std::atomic<std::uint32_t> first_failure;  // 1 + the rank whose record counts; 0: no failure
  std::atomic<std::uint32_t> use;            // see LocalBackend::settle(); 0: open
  Bell join_bell;                            // threads: rung by each one that joins or leaves
  alignas(kLine) std::atomic<std::uint64_t> decision;  // pack_decision() of the last one
  Bell decision_bell;                                  // rung by votes and decisions, and by losses
};

// The places of all parts; a pure function of the world size, so it needs no data from the segment.
struct Layout {
  // `rings_of`: the rank whose rings alone are there, as where a link carries them; -1: all are.
  // `linked_cells`: that link carries cells, too.
  Layout(int world_size_in, bool staging, int rings_of_in = -1, bool linked_cells = false)
      : world_size(world_size_in), rings_of(rings_of_in) {
    const auto n = static_cast<std::uint64_t>(world_size);
    ring_bytes = clamp((16u << 20) / (n * n), 4u << 10, 64u << 10);
    stage_bytes = staging ? clamp((64u << 20) / (8 * n), 32u << 10, 256u << 10) : 0;
    std::uint64_t end = round_up(sizeof(Header));
    const auto take = [&end](std::uint64_t bytes) {
      const std::uint64_t begin = end;
      end += round_up(bytes);
      return begin;
    };
    members = take(n * sizeof(Member));
    records = take(n * sizeof(FailureRecord));
    ballots = take(n * sizeof(Ballot));
    proposals = take(n * 2 * sizeof(Proposal));
    lanes = take(n * kChannels * sizeof(Lane));
    rings = take(2 * (rings_of < 0 ? n : 2) * n * ring_bytes);
    stages = take(n * (kStages + kUrgentStages) * stage_bytes);
    // Last: so no stage lies on a further huge page because of them.
    has_cells = (rings_of < 0 || linked_cells) && n > 1;
    cell_bytes = linked_cells ? kLinkedCellBytes : kCellBytes;
    cell_payload = linked_cells ? sizeof(Cell) : offsetof(Cell, payload);
    cell_stride = linked_cells ? sizeof(Cell) + kLinkedCellBytes : sizeof(Cell);
    cells = take(has_cells ? n * kCellChannels * kCells * cell_stride : 0);
    total_bytes = end;
  }

  int world_size;
  int rings_of;
  std::uint64_t ring_bytes;    // one message ring: a multiple of 4096
  std::uint64_t stage_bytes;   // one staging chunk: a multiple of 4096
  bool has_cells;              // not where a link carries slots alone
  std::uint64_t cell_bytes;    // most payload of a cell
  std::uint64_t cell_payload;  // from the begin of a cell
  std::uint64_t cell_stride;
  std::uint64_t members, records, ballots, proposals, lanes, cells, rings, stages;  // offsets
  std::uint64_t total_bytes;

 private:
  static constexpr std::uint64_t kPage = 4096;
  static std::uint64_t round_up(std::uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }
  static std::uint64_t clamp(std::uint64_t bytes, std::uint64_t low, std::uint64_t high) {
    const std::uint64_t pages = bytes / kPage * kPage;
    return pages < low ? low : pages > high ? high : pages;
  }
};

// A mapped segment, by address.
class Segment {
 public:
  Segment(void* base, const Layout& layout)
      : base_(static_cast<std::byte*>(base)), layout_(layout) {}

  const Layout& layout() const { return layout_; }
  void* base() const { return base_; }
  Header& header() const { return *reinterpret_cast<Header*>(base_); }
  Member& member(int rank) const {
    return reinterpret_cast<Member*>(base_ + layout_.members)[rank];
  }
  FailureRecord& record(int rank) const {
    return reinterpret_cast<FailureRecord*>(base_ + layout_.records)[rank];
  }
  Ballot& ballot(int rank) const {
    return reinterpret_cast<Ballot*>(base_ + layout_.ballots)[rank];
  }
  Proposal& proposal(int rank, std::uint64_t number) const {
    return reinterpret_cast<Proposal*>(
        base_ + layout_.proposals)[static_cast<std::uint64_t>(rank) * 2 + (number & 1)];
  }
  Lane& lane(std::uint32_t channel, int rank) const {
    return reinterpret_cast<Lane*>(
        base_ + layout_.lanes)[channel * static_cast<unsigned>(layout_.world_size) +
                               static_cast<unsigned>(rank)];
  }
  // The cell of a rank's collective at that position, if Layout::has_cells.
  Cell& cell(std::uint32_t channel, int rank, std::uint64_t position) const {
    const std::uint64_t row = std::uint64_t{channel} * static_cast<unsigned>(layout_.world_size) +
                              static_cast<unsigned>(rank);
    return *reinterpret_cast<Cell*>(base_ + layout_.cells +
                                    (row * kCells + position % kCells) * layout_.cell_stride);
  }
  std::byte* payload_of(Cell& cell) const {
    return reinterpret_cast<std::byte*>(&cell) + layout_.cell_payload;
  }
  // The message ring that `from` fills and `to` empties: one in each of two sets.
  std::byte* ring(int set, int from, int to) const {
    const auto n = static_cast<std::uint64_t>(layout_.world_size);
    const bool all = layout_.rings_of < 0;
    const bool goes = from == layout_.rings_of;
    const auto row = static_cast<std::uint64_t>(all ? from : goes ? 0 : 1);
    const auto place = static_cast<std::uint64_t>(all || goes ? to : from);
    const auto index = (static_cast<std::uint64_t>(set) * (all ? n : 2) + row) * n + place;
    return base_ + layout_.rings + index * layout_.ring_bytes;
  }
  // The chunk for a piece: a rank has several in turn for the caller's operations, and others for
  // urgent ones.
  std::byte* stage(bool urgent, int rank, std::uint64_t piece) const {
    const std::uint64_t chunk = urgent ? kStages + piece % kUrgentStages : piece % kStages;
    const auto index = static_cast<std::uint64_t>(rank) * (kStages + kUrgentStages) + chunk;
    return base_ + layout_.stages + index * layout_.stage_bytes;
  }

 private:
  std::byte* base_;
  Layout layout_;
};

// Kind, channel and sequence in 8, 8 and 48 bits; in a model's channel the upper 16 of the 48 hold
// the model's number, or 0 for a larger one. Never 0.
inline std::uint64_t pack_call(OperationKind kind, std::uint32_t channel, std::uint32_t model,
                               std::uint64_t sequence) {
  const std::uint64_t where =
      static_cast<std::uint64_t>(kind) << 56 | static_cast<std::uint64_t>(channel) << 48;
  if (channel < kModelChannel) return where | (sequence & ((1ull << 48) - 1));
  const std::uint64_t whose = model <= 0xffff ? model : 0;
  return where | whose << 32 | (sequence & 0xffffffff);
}
static_assert(kChannels <= 256);

// Kind, 1 + peer and sequence in 8, 16 and 40 bits; never 0.
inline std::uint64_t pack_message(OperationKind kind, std::int32_t peer, std::uint64_t sequence) {
  return static_cast<std::uint64_t>(kind) << 56 | static_cast<std::uint64_t>(peer + 1) << 40 |
         (sequence & ((1ull << 40) - 1));
}

// A decision by its number and the rank whose proposal it is.
inline std::uint64_t pack_decision(std::uint64_t number, int rank) {
  return number << 16 | static_cast<std::uint64_t>(rank);
}
inline std::uint64_t decision_number(std::uint64_t word) { return word >> 16; }
inline int decision_rank(std::uint64_t word) { return static_cast<int>(word & 0xffff); }

}  // namespace trireme::local
