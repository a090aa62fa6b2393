// Call: one collective as this rank called it, with the slots of all ranks for it. All parts of a
// run look at it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "backends/parts.hpp"
#include "backends/slots/group.hpp"
#include "platform/names.hpp"

namespace trireme::local {

// This rank's state of a channel between operations; the same on all ranks.
struct ChannelState {
  std::uint64_t position = 0;    // steps taken
  std::uint64_t operations = 0;  // begun
  std::uint64_t pieces = 0;      // staged pieces so far: picks the staging chunk
  double piece_ns[2] = {0, 0};   // of a piece, stored into the caches and past them; 0: unknown
  // Notes of an operation by rank, kept here so that an operation allocates no memory.
  std::vector<std::uint32_t> flags;
  std::vector<const std::byte*> sources;
  std::vector<std::byte*> results;
  std::vector<void*> targets;
  std::vector<const void*> cut;
  std::vector<std::shared_ptr<void>> keep;
  // Traffic of small collectives; only the running one adds to it.
  std::atomic<std::uint64_t> given{0};
  std::atomic<std::uint64_t> read{0};

  void count_traffic(std::uint64_t more_given, std::uint64_t more_read) noexcept {
    constexpr auto relaxed = std::memory_order_relaxed;
    given.store(given.load(relaxed) + more_given, relaxed);
    read.store(read.load(relaxed) + more_read, relaxed);
  }
};

struct Call {
  // Whether it begins here, or start_small() has published it already. in_cell: this rank publishes
  // it in a cell.
  enum class Begin { here, published, in_cell };

  Call(Group& group_in, ChannelState& channel_in, const Operation& operation,
       std::uint64_t sequence_in, Deadline deadline_in, Begin begin)
      : group(group_in),
        segment(*group_in.segment()),
        channel(channel_in),
        op(operation),
        sequence(sequence_in),
        turn(turn_of(channel_in, begin)),
        deadline(deadline_in),
        name(operation_name(operation.as_called().kind)),
        point(failpoint_name(operation.as_called().kind)),
        n(group_in.world_size()),
        me(group_in.rank()),
        size(dtype_size(operation.dtype)),
        lanes(&segment.lane(operation.channel, 0)),
        own(lanes[me]) {}
  ~Call() { channel.keep.clear(); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  Lane& lane(int rank) const { return lanes[rank]; }
  Slot& slot(int rank) const { return lane(rank).slots[turn]; }
  // An operation is published when its slot bears the position of its publication: a peer fills the
  // same slot again only after this rank has taken a further step. A peer that called another
  // operation may have published it in a cell.
  bool has_published(int rank) const { return in_slot(rank) || in_cell(rank); }
  bool in_slot(int rank) const {
    return slot(rank).stamp.load(std::memory_order_acquire) == channel.position;
  }
  bool in_cell(int rank) const {
    if (!segment.layout().has_cells || op.channel >= kCellChannels) return false;
    return cell(rank).stamp.load(std::memory_order_acquire) == channel.position;
  }
  Cell& cell(int rank) const { return segment.cell(op.channel, rank, channel.position); }
  // Whether a rank's call differs from this one's, and one of the two went only to some ranks, in a
  // cell that a link carries. Then others may never tell theirs.
  bool sees_another_call() const;
  // Whether a rank's slot differs from this one's.
  bool sees_another_slot() const;
  // The published fingerprint of a rank. Its name is fit for a message.
  Fingerprint print_of(int rank) const;
  // Whether this rank waits for that one to publish.
  bool awaits(int rank) const { return awaits_all || rank == awaited; }
  // Of a cell that is passed on: ranks on its way that have left without this call. Others that
  // have left have passed it on before.
  std::vector<std::int32_t> left_above() const;
  // In a tree, or of a cell that is passed on: the ranks to blame for a long wait. The one above
  // may itself wait for the next; each rank that waits for long tells that it has come.
  std::vector<std::int32_t> late_above() const;

  // Elements of the longest block, in the kinds that have blocks; else of the whole.
  std::uint64_t longest_block() const {
    return op.counts.empty() ? op.count : *std::max_element(op.counts.begin(), op.counts.end());
  }
  std::uint64_t contribution(int rank) const { return trireme::contribution(op, n, rank); }
  Part part(int source, int destination) const { return trireme::part(op, n, source, destination); }
  // Whether this rank reads the contribution of that rank.
  bool reads_from(int rank) const { return part(rank, me).count > 0; }
  const std::byte* contribution_data() const {
    return static_cast<const std::byte*>(op.kind == OperationKind::broadcast ? op.receive
                                                                             : op.send);
  }
  bool moves_data() const { return op.kind != OperationKind::barrier && longest_block() > 0; }
  // Whether that rank gives elements to the fold or collective: after the comparison.
  bool contributes(int rank) const {
    return (channel.flags[static_cast<std::size_t>(rank)] & kContributes) != 0;
  }
  void measure() {
    for (int rank = 0; rank < n; ++rank) largest = std::max(largest, contribution(rank) * size);
  }
  // Whether the root writes its share of a broadcast to the ranks whose memory it can write: the
  // same on all ranks.
  bool root_helps() const {
    return op.kind == OperationKind::broadcast && n > 1 && largest >= kSharedBroadcast;
  }
  Status failure() const { return group.failure().status(name, sequence); }  // of the group

  Group& group;
  const Segment& segment;
  ChannelState& channel;
  const Operation& op;
  const std::uint64_t sequence;
  const std::uint64_t turn;  // the slot; not by sequence, about which ranks may disagree
  const Deadline deadline;
  const char* const name;
  const char* const point;  // of failpoints
  const int n;
  const int me;
  const std::uint64_t size;   // of one element
  Lane* const lanes;          // of its channel, by rank
  Lane& own;                  // this rank's
  std::uint64_t largest = 0;  // bytes of the longest contribution, once it is measured
  bool awaits_all = true;
  int awaited = -1;        // unless it awaits all: the one rank, or none
  bool in_tree = false;    // that rank is the one above in a BroadcastTree
  bool is_passed = false;  // that rank's cell comes along a SpreadTree

 private:
  static std::uint64_t turn_of(ChannelState& channel, Begin begin) {
    switch (begin) {
      case Begin::here: return channel.operations++ & 1;
      case Begin::published: return (channel.operations - 1) & 1;
      default: return channel.operations & 1;  // where a peer would publish a slot
    }
  }

  // From this size on the root of a broadcast works as much as the others.
  static constexpr std::uint64_t kSharedBroadcast = 64u << 10;
};

}  // namespace trireme::local
