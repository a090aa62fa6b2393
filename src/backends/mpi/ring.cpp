// MpiEngine's all-reduce: a ring of messages of MPI. Each block goes around twice: first each rank
// adds its own part, then the sum goes to all ranks. A call that is longer than a segment of each
// block is cut into pieces. Several pieces are under way at the same time, each in a lane of its
// own. Two ranks exchange short calls directly.
#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "backends/mpi/engine.hpp"
#include "kernels/reduce.hpp"
#include "platform/names.hpp"

namespace trireme::mpi {
namespace {

// The bytes of a block in one message: several of them fit into a core's cache.
constexpr std::uint64_t kSegmentBytes = 256u << 10;
// Two ranks exchange up to so many bytes directly: they add all of it twice, but wait for each
// other once.
constexpr std::uint64_t kDirectBytes = 512u << 10;
constexpr std::uint64_t kLanes = 4;
constexpr std::uint64_t kTickets = kTags / kLanes - 1;  // the last ticket would have kSlotTag

}  // namespace

// One piece at a time, step by step. In each step a message goes to the next rank and one comes
// from the rank before.
class MpiEngine::Lane {
 public:
  // `direct`: two ranks give each other the whole.
  Lane(MpiEngine& engine, const Operation& operation, bool direct, std::int32_t tag, std::byte* out,
       std::byte* in)
      : engine_(engine),
        operation_(operation),
        direct_(direct),
        steps_(direct ? 1 : 2 * (n() - 1)),
        tag_(tag),
        out_(out),
        in_(in) {}

  // Begins the piece of elements [first, first + count).
  void begin(std::uint64_t first, std::uint64_t count) {
    first_ = first;
    count_ = count;
    step_ = 0;
    busy_ = true;
    const Range own = block(rank());
    std::memcpy(out_, send_memory(own), own.count * size());
  }

  bool busy() const { return busy_; }

  // Goes as far as MPI has come. `moved`: a step ended, or began.
  Status advance(bool* moved) {
    char error[kErrorBytes] = "";
    State state = State::done;
    if (!receiving_posted_) {
      state = post(false, previous(), block(received()), in_, &receiving_, error);
      if (state == State::done) receiving_posted_ = *moved = true;
    }
    if (state == State::done && !sending_posted_) {
      state = post(true, next(), block(sent()), out_, &sending_, error);
      if (state == State::done) sending_posted_ = *moved = true;
    }
    if (state == State::done) state = test(&receiving_, error);
    if (state == State::done) state = test(&sending_, error);
    if (state == State::failed) {
      return Status::failure(TRIREME_ERROR_SYSTEM,
                             std::string(engine_.plugin_.name) + ": " + error);
    }
    if (state == State::pending) return Status::success();
    *moved = true;
    end_step();
    return Status::success();
  }

  // Whether MPI may still use the lane's memory.
  bool abandon() {
    bool any = false;
    for (Request* const request : {receiving_, sending_}) {
      if (request == nullptr) continue;
      engine_.plugin_.abandon(&engine_.group_, request);
      any = true;
    }
    return any;
  }

 private:
  struct Range {
    std::uint64_t first;
    std::uint64_t count;
  };

  int n() const { return engine_.world_size_; }
  int rank() const { return engine_.rank_; }
  int next() const { return (rank() + 1) % n(); }
  int previous() const { return (rank() + n() - 1) % n(); }
  std::uint64_t size() const { return dtype_size(operation_.dtype); }
  // One way around takes n - 1 steps; on the second way a rank sends the block that it received in
  // the step before.
  int sent() const { return (rank() - step_ + 2 * n()) % n(); }
  int received() const { return (rank() - step_ - 1 + 2 * n()) % n(); }

  Range block(int number) const {
    if (direct_) return {first_, count_};
    const auto ranks = static_cast<std::uint64_t>(n());
    const std::uint64_t each = (count_ + ranks - 1) / ranks;
    const std::uint64_t begin = std::min(count_, each * static_cast<std::uint64_t>(number));
    return {first_ + begin, std::min(each, count_ - begin)};
  }
  const std::byte* send_memory(const Range& range) const {
    return static_cast<const std::byte*>(operation_.send) + range.first * size();
  }
  std::byte* receive_memory(const Range& range) const {
    return static_cast<std::byte*>(operation_.receive) + range.first * size();
  }

  State post(bool sends, int peer, const Range& range, std::byte* memory, Request** request,
             char* error) {
    const PeerMessage message{operation_.channel,
                              peer,
                              tag_,
                              static_cast<std::int32_t>(range.count * size()),
                              memory,
                              sends};
    return engine_.plugin_.post(&engine_.group_, message, request, error);
  }

  State test(Request** request, char* error) {
    if (*request == nullptr) return State::done;
    const State state = engine_.plugin_.test(&engine_.group_, *request, error);
    if (state != State::pending) *request = nullptr;
    return state;
  }

  // Adds this rank's part to the received block, keeps it and passes it on.
  void end_step() {
    const Range range = block(received());
    if (step_ < n() - 1) {
      const bool last = step_ == n() - 2;
      const void* sources[] = {in_, send_memory(range)};
      if (direct_ && rank() == 0) std::swap(sources[0], sources[1]);  // the same bits on both
      // The last sum is both a result and the block to pass on.
      void* const both[] = {last ? receive_memory(range) : in_, in_};
      kernels::reduce_into(operation_.dtype,
                           last ? operation_.reduction : kernels::unfinished(operation_.reduction),
                           both, last && !direct_ ? 2 : 1, sources, 2, range.count,
                           static_cast<std::uint32_t>(n()), operation_.scale, false);
    } else {
      std::memcpy(receive_memory(range), in_, range.count * size());
    }
    std::swap(in_, out_);
    receiving_posted_ = sending_posted_ = false;
    busy_ = ++step_ < steps_;
  }

  MpiEngine& engine_;
  const Operation& operation_;
  const bool direct_;
  const int steps_;
  const std::int32_t tag_;
  std::byte* out_;
  std::byte* in_;
  std::uint64_t first_ = 0;
  std::uint64_t count_ = 0;
  int step_ = 0;
  bool busy_ = false;
  bool receiving_posted_ = false;
  bool sending_posted_ = false;
  Request* receiving_ = nullptr;
  Request* sending_ = nullptr;
};

Status MpiEngine::run_ring(const Operation& operation, std::uint64_t ticket, Deadline deadline) {
  if (world_size_ == 1) {
    kernels::reduce(operation.dtype, operation.reduction, operation.receive, &operation.send, 1,
                    operation.count, 1, operation.scale);
    return Status::success();
  }
  const std::uint64_t size = dtype_size(operation.dtype);
  const bool direct = world_size_ == 2 && operation.count <= kDirectBytes / size;
  const std::uint64_t blocks = direct ? 1 : static_cast<std::uint64_t>(world_size_);
  const std::uint64_t most = kSegmentBytes / size * blocks;
  const std::uint64_t longest = (std::min(most, operation.count) + blocks - 1) / blocks * size;
  const std::uint64_t pieces = (operation.count + most - 1) / most;
  const std::uint64_t used = std::min(kLanes, pieces);

  Stage& stage = stages_[operation.channel];
  if (stage.bytes < 2 * used * longest) {
    stage.bytes = 0;
    stage.memory.reset(new std::byte[2 * used * longest]);
    stage.bytes = 2 * used * longest;
  }
  const auto tag = static_cast<std::int32_t>(ticket % kTickets * kLanes);
  std::byte* memory = stage.memory.get();
  std::vector<Lane> lanes;
  lanes.reserve(used);
  for (std::uint64_t i = 0; i < used; ++i, memory += 2 * longest) {
    lanes.emplace_back(*this, operation, direct, tag + static_cast<std::int32_t>(i), memory,
                       memory + longest);
  }

  // Each piece's number determines its lane, so messages of one tag come in the same order on all
  // ranks.
  std::uint64_t begun = 0;
  Status status = Status::success();
  for (int looks = 0; status.ok();) {
    bool moved = false;
    bool busy = false;
    for (std::uint64_t i = 0; i < used && status.ok(); ++i) {
      Lane& lane = lanes[i];
      if (!lane.busy() && begun < pieces && begun % used == i) {
        lane.begin(begun * most, std::min(most, operation.count - begun * most));
        ++begun;
      }
      if (!lane.busy()) continue;
      status = lane.advance(&moved);
      busy = true;
    }
    if (!busy) return Status::success();
    looks = moved ? 0 : looks + 1;
    if (status.ok()) status = moved ? may_go_on(deadline) : pause(looks, deadline);
  }
  bool lent = false;
  for (Lane& lane : lanes) lent = lane.abandon() || lent;
  if (lent) {
    static_cast<void>(stage.memory.release());  // MPI may still use it, until the process ends
    stage.bytes = 0;
  }
  return status;
}

}  // namespace trireme::mpi
