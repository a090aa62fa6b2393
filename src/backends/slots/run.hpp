// Run: one collective of one rank, from publishing to the last barrier. The protocol is in collective.cpp,
// the moving of data in moves.cpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backends/parts.hpp"
#include "backends/slots/collective.hpp"
#include "platform/names.hpp"

namespace trireme::local {

class Run {
 public:
  // Whether it begins here, or start_brief() has begun and published it.
  enum class Begin { here, published };

  Run(Collectives& all, const Operation& operation, std::uint64_t sequence, Deadline deadline,
      bool moves, Begin begin = Begin::here)
      : group_(all.group_),
        buffers_(all.buffers_),
        segment_(*all.group_.segment()),
        channel_(all.open(operation.channel)),
        op_(operation),
        sequence_(sequence),
        turn_((begin == Begin::here ? channel_.operations++ : channel_.operations - 1) & 1),
        deadline_(deadline),
        moves_(moves),
        name_(operation_name(operation.as_called().kind)),
        point_(failpoint_name(operation.as_called().kind)),
        n_(group_.world_size()),
        me_(group_.rank()),
        size_(dtype_size(operation.dtype)),
        lane_(segment_.lane(operation.channel, me_)),
        flags_(channel_.flags.data()),
        sources_(channel_.sources.data()),
        results_(channel_.results.data()) {}
  ~Run() { channel_.keep.clear(); }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  Status execute();
  // See Collectives.
  Status agree(std::vector<bool>* gives);
  Status execute_elsewhere(bool apart, const Elsewhere& move);
  // What comes after publish(), and after measure() where that was done for it.
  Status execute_published();
  void measure();  // largest_
  // After a failure: returns when no peer touches this rank's memory any more.
  void settle();

 private:
  enum class Way { inline_payload, direct, staged };

  Lane& lane(int rank) const { return segment_.lane(op_.channel, rank); }
  std::byte* stage(int rank, std::uint64_t piece) const {
    return segment_.stage(op_.channel == kUrgentChannel, rank, piece);
  }
  Slot& slot(int rank) const { return lane(rank).slots[turn_]; }

  // Elements of the longest block, in the kinds that have blocks; else of the whole.
  std::uint64_t longest_block() const {
    return op_.counts.empty() ? op_.count
                              : *std::max_element(op_.counts.begin(), op_.counts.end());
  }
  std::uint64_t contribution(int rank) const { return trireme::contribution(op_, n_, rank); }
  Part part(int source, int destination) const {
    return trireme::part(op_, n_, source, destination);
  }
  // Whether this rank reads what that rank contributes.
  bool reads_from(int rank) const { return part(rank, me_).count > 0; }
  const std::byte* contribution_data() const;
  bool moves_data() const { return op_.kind != OperationKind::barrier && longest_block() > 0; }

  void publish();
  void offer(Slot* slot);
  void take_step();
  // Waits until arrived(rank) holds for every rank; each rings its bell when it comes to hold.
  template <class Arrived>
  Status wait_until_all(Arrived arrived);
  // PEER_LOST if one of the ranks from `first` on has left without having arrived: it never will.
  template <class Arrived>
  Status look_for_gone(int first, Arrived arrived) const;
  // What may keep these ranks away, if their last calls tell it; "" or the rest of a message.
  std::string likely_cause(const std::vector<std::int32_t>& missing) const;
  std::string where_else(const std::vector<std::int32_t>& missing) const;
  bool has_published(int rank) const;
  Status look_for_gone() const;  // without having published
  Status wait_for_slots();
  Status wait_for_all();
  Status barrier() {
    take_step();
    return wait_for_all();
  }
  Status compare();
  std::uint64_t ticket() const;
  Status explain(const Status& moved);
  // Moves, while somebody else looks who is late: if apart, nobody has waited for the others.
  Status watch(bool apart, const Elsewhere& move);
  Status disagreement() const;
  // Whether the fold or collective has elements of that rank.
  bool contributes(int rank) const {
    return (flags_[static_cast<std::size_t>(rank)] & kContributes) != 0;
  }
  Way choose_way() const;
  Location locate(const void* data, std::uint64_t bytes);
  Status open_sources();
  Status check_source(int rank, bool needs_result) const;
  Status open(int rank, const Location& location, std::uint64_t bytes, std::byte** out);

  Status move_whole();   // every contribution can be read where it lies
  Status move_staged();  // through the staging chunks, piece by piece
  Status all_reduce_direct();
  // Whether the root writes its share of a broadcast to those who can be written to: the same on all ranks.
  bool root_helps() const;
  Status broadcast_direct();

  // Runs `body`, which touches memory of peers, unless the group has failed. See settle().
  template <class Body>
  Status read(Body&& body);
  // Calls body(first, count) for consecutive pieces of `count` elements, each within one read().
  template <class Body>
  Status in_pieces(std::uint64_t count, Body&& body, std::uint64_t bytes_of_a_piece = 0);
  Status visit_middle();
  Status group_failure() const { return group_.failure(name_, sequence_); }

  void cut_sources(std::uint64_t from);  // channel_.cut: the sources from that element on
  // destination = the reduction of `count` elements of all sources, each from element `from` on.
  void reduce_sources(void* destination, std::uint64_t from, std::uint64_t count);
  // The same for all that all_reduce gives: this rank's result and every peer's.
  void reduce_into_all(std::uint64_t from, std::uint64_t count, bool stream);
  // Elements [first, first + count) of this rank's block, which lie at element `from` of all sources:
  // reduced or folded.
  void combine(std::uint64_t from, std::uint64_t first, std::uint64_t count);
  void copy_from(int rank, std::uint64_t from, std::uint64_t to, std::uint64_t count,
                 bool streams = false);
  // A piece of all_reduce_staged(): which elements, and whose cut of them is where.
  struct Piece {
    std::uint64_t number;
    std::uint64_t first;
    std::uint64_t count;
    std::uint64_t cut;
    std::uint64_t begin(int rank) const {
      return std::min(count, cut * static_cast<std::uint64_t>(rank));
    }
  };
  Status all_reduce_staged();  // and reduce
  void stage_cuts(const Piece& piece);
  void reduce_cut(const Piece& piece);
  void fetch_cuts(const Piece& piece);
  bool past_caches(std::uint64_t piece) const;
  void note_time(std::uint64_t piece, std::uint64_t took_ns);
  Status parts_staged();
  void count_part_traffic();

  Group& group_;
  Buffers& buffers_;
  const Segment& segment_;
  Collectives::Channel& channel_;
  const Operation& op_;
  const std::uint64_t sequence_;
  const std::uint64_t turn_;  // which slot; not by sequence, on which ranks may disagree
  const Deadline deadline_;
  const bool moves_;
  const char* const name_;
  const char* const point_;  // of failpoints
  const int n_;
  const int me_;
  const std::uint64_t size_;  // of one element
  Lane& lane_;

  // By rank, in the channel's memory.
  std::uint32_t* const flags_;
  const std::byte** const sources_;  // what each rank contributes: first byte, or null
  std::byte** const results_;  // all_reduce, direct: what each rank receives into
  bool exposed_ = false;       // peers may write to what this rank receives into
  std::uint64_t largest_ = 0;  // bytes of the longest contribution
  bool times_pieces_ = false;
  bool reads_slots_ = false;  // which outlive any failure, so no mark is needed
  bool visited_middle_ = false;
  std::uint64_t given_ = 0;  // bytes of this rank that peers read
  std::uint64_t read_ = 0;   // bytes of peers that this rank read
};

}  // namespace trireme::local
