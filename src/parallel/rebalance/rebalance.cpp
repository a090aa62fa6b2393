#include "parallel/rebalance/rebalance.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "collectives/subgroup.hpp"
#include "exchange/agreement.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"

namespace trireme::parallel {

using strategies::Optimizer;
using strategies::ShardView;

namespace {

constexpr char kRebalanceCall[] = "trireme_parallel_rebalance";

ShardView& shard_of(const Optimizer& optimizer) { return optimizer.model()->shard(); }

std::uint64_t bytes_of_message(const std::vector<StateMove>& message) {
  std::uint64_t bytes = 0;
  for (const StateMove& move : message) bytes += move.bytes();
  return bytes;
}

std::uint64_t allocated_by(const Optimizer& optimizer) {
  std::uint64_t bytes = 0;
  for (const std::uint64_t each : shard_of(optimizer).storage()->allocated->by_kind) bytes += each;
  return bytes;
}

StateList list_of(Optimizer& optimizer, const std::vector<std::uint64_t>& parameter_steps) {
  StateList list;
  const auto& parameters = shard_of(optimizer).registry().parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const sharding::Parameter& each = parameters[i];
    const std::uint64_t steps = parameter_steps.empty() ? 0 : parameter_steps[i];
    // An alias is no parameter of its own: in another layout a copy may be in its place.
    const sharding::AxisPlacement* const tied = tied_placement(each);
    list.parameters.push_back({parameters[each.target].name,
                               dtype_name(each.dtype) +
                                   (" of shape " + sharding::shape_text(each.shape)) +
                                   " in group " + std::to_string(each.parameter_group),
                               steps, tied == nullptr ? 1 : tied->ranks});
  }
  for (std::uint64_t i = 0; i < optimizer.ranges().count(); ++i) {
    trireme_state_range range = TRIREME_STATE_RANGE_INIT;
    static_cast<void>(optimizer.ranges().describe(i, &range));  // there is one of this number
    list.rows.push_back({range.parameter, range.kind, range.vector, dtype_size(range.dtype),
                         range.first, range.count});
  }
  return list;
}

// The group of one call: its ranks have no other way to wait for each other.
class GroupOfCall {
 public:
  explicit GroupOfCall(std::shared_ptr<Communicator>& group) : group_(group) {}
  ~GroupOfCall() {
    if (group_ != nullptr) group_->leave();
  }
  GroupOfCall(const GroupOfCall&) = delete;
  GroupOfCall& operator=(const GroupOfCall&) = delete;

 private:
  std::shared_ptr<Communicator>& group_;
};

}  // namespace

Status Rebalance::run(const std::shared_ptr<Optimizer>& from, const std::shared_ptr<Optimizer>& to,
                      const RebalanceOptions& options, Status read, RebalanceReport* out) {
  Rebalance call(from, to, options);
  call.link_.timeout_ns =
      options.timeout_ns == 0 ? options.communicator->timeout_ns() : options.timeout_ns;
  ChildOptions child;
  child.timeout_ns = call.link_.timeout_ns;
  TRIREME_RETURN_IF_ERROR(duplicate(*options.communicator, child, &call.link_.communicator));
  const GroupOfCall group(call.link_.communicator);
  bool changes = false;
  Status status = Status::success();
  try {
    status = call.prepare(std::move(read));
    if (status.ok()) {
      changes = true;
      status = call.commit();
    }
  } catch (const std::bad_alloc&) {  // the others must not wait for this rank
    call.link_.communicator->fail(TRIREME_ERROR_OUT_OF_MEMORY, strategies::kNoMemory);
    if (changes) to->fail_groups(TRIREME_ERROR_OUT_OF_MEMORY, strategies::kNoMemory);
    status = Status::failure(TRIREME_ERROR_OUT_OF_MEMORY, "host memory has run out");
  }
  if (status.ok()) {
    *out = call.report_;
    return status;
  }
  if (changes && shard_of(*to).failure().ok()) call.give_up(status);
  return status;
}

// A new model may have parts of the training, and must not be used. A failure that was told as data
// leaves the caller's groups as they are, and with them the old models.
void Rebalance::give_up(const Status& status) const {
  ShardView& fresh = shard_of(*to_);
  if (link_.communicator->failure().ok()) return fresh.give_up_together(status);
  // Some ranks may have heard otherwise before one was lost.
  fresh.join(link_.communicator);
  fresh.give_up(status);
  fresh.leave(link_.communicator);
}

Status Rebalance::tell(Status status) const {
  if (status.ok() || !link_.communicator->failure().ok()) return status;
  link_.communicator->fail(status.code(), status.message());
  static_cast<void>(link_.communicator->failure());  // the peers know it before the call returns
  return status;
}

// ---- before anything changes ----

Status Rebalance::prepare(Status own) {
  if (own.ok()) own = check();
  if (own.ok()) own = read_counters(*from_, &counted_);
  TRIREME_RETURN_IF_ERROR(
      agree(link_, kRebalanceCall, own.ok() ? facts() : std::vector<sharding::Fact>(), own));
  std::vector<StateTable> tables;
  TRIREME_RETURN_IF_ERROR(exchange_tables(&tables));
  // The same outcome on all ranks, except for a table that a peer has spoiled.
  Status planned = plan_moves(tables, link_.rank(), &moves_);
  if (planned.ok()) parameters_ = moved_parameters(tables, link_.rank());
  if (planned.ok()) planned = allocate();
  return agree(link_, kRebalanceCall, {}, planned);
}

Status Rebalance::check() const {
  if (from_ == to_) return invalid_argument("from and to are the same optimizer");
  ShardView &old = shard_of(*from_), &fresh = shard_of(*to_);
  TRIREME_RETURN_IF_ERROR(old.check_sealed());
  TRIREME_RETURN_IF_ERROR(fresh.check_sealed());
  for (const ShardView* const each : {&old, &fresh}) {
    if (each->on_device() == nullptr) continue;
    return unsupported("a model on " + each->on_device()->text() +
                       " cannot move to other cuts yet: docs/gpus.md");
  }
  if (old.gradients().step_under_way()) return invalid_state("a step of from is under way");
  if (fresh.gradients().step_under_way()) return invalid_state("a step of to is under way");
  TRIREME_RETURN_IF_ERROR(fresh.check_released("a training is moved to it"));
  TRIREME_RETURN_IF_ERROR(to_->ranges().check_no_copies());
  const auto had = optimizers::describe_state(from_->settings());
  const auto has = optimizers::describe_state(to_->settings());
  for (std::size_t i = 0; i < std::min(had.size(), has.size()); ++i) {
    // The kind comes first, so the names before a difference are the same.
    if (had[i] == has[i]) continue;
    return invalid_argument("the state of to means something else: " + has[i].first + " is " +
                            has[i].second + " there, and " + had[i].second + " in from");
  }
  CountedState before, after;
  TRIREME_RETURN_IF_ERROR(read_counters(*from_, &before));
  TRIREME_RETURN_IF_ERROR(read_counters(*to_, &after));
  const auto both = [](const char* what, bool from, bool to) {
    if (from == to) return Status::success();
    return invalid_argument(std::string(from ? "from" : "to") + " has " + what + ", but " +
                            (from ? "to" : "from") + " has none");
  };
  TRIREME_RETURN_IF_ERROR(
      both("a loss_scale", before.counters.loss_scale != 0, after.counters.loss_scale != 0));
  TRIREME_RETURN_IF_ERROR(
      both("TRIREME_UNUSED_SKIP", !before.parameter_steps.empty(), !after.parameter_steps.empty()));
  if (before.group_rate_factors.size() == after.group_rate_factors.size()) return Status::success();
  return invalid_argument("from has " + std::to_string(before.group_rate_factors.size()) +
                          " groups of parameters, but to has " +
                          std::to_string(after.group_rate_factors.size()));
}

Status Rebalance::read_counters(const Optimizer& optimizer, CountedState* out) const {
  trireme_optimizer_counters& counters = out->counters;
  TRIREME_RETURN_IF_ERROR(optimizer.counters(&counters));
  out->parameter_steps.resize(counters.parameter_count);
  out->group_rate_factors.resize(counters.group_count);
  counters.parameter_steps = out->parameter_steps.data();
  counters.group_rate_factors = out->group_rate_factors.data();
  return optimizer.counters(&counters);
}

std::vector<sharding::Fact> Rebalance::facts() const {
  std::string cuts;
  for (const std::uint64_t cut : options_.cuts) cuts.append(std::to_string(cut)).append(" ");
  const trireme_optimizer_counters& counters = counted_.counters;
  std::vector<sharding::Fact> facts = {
      {"options.cuts", std::move(cuts)},
      {"options.buffer_bytes", std::to_string(options_.buffer_bytes)},
      {"the number of steps", std::to_string(counters.steps)},
      {"the learning rate", text_of(counters.learning_rate)},
      {"the loss scale", text_of(counters.loss_scale)},
      {"the number of steps since the scale changed", std::to_string(counters.clean_steps)},
      {"the number of overflows since the scale grew", std::to_string(counters.overflows)},
      {"the number of skipped steps", std::to_string(counters.skipped_steps)}};
  for (auto& [name, value] : optimizers::describe_state(from_->settings())) {
    facts.push_back({std::move(name), std::move(value)});
  }
  for (std::size_t i = 0; i < counted_.group_rate_factors.size(); ++i) {
    facts.push_back(
        {"the rate factor of group " + std::to_string(i), text_of(counted_.group_rate_factors[i])});
  }
  return facts;
}

StateTable Rebalance::own_table() const {
  StateTable table;
  table.part = options_.part;
  table.from = list_of(*from_, counted_.parameter_steps);
  table.to = list_of(*to_, {});
  return table;
}

Status Rebalance::exchange_tables(std::vector<StateTable>* out) {
  const std::string own = write_table(own_table());
  const std::uint32_t ranks = link_.world_size();
  std::shared_ptr<Memory> memory;
  TRIREME_RETURN_IF_ERROR(
      tell(link_.communicator->allocate(ranks * sizeof(std::uint64_t), &memory)));
  auto* const told = static_cast<std::uint64_t*>(memory->data());
  told[link_.rank()] = own.size();
  Operation sizes = strategies::in_place(link_, link_.gathers, OperationKind::all_gather,
                                         TRIREME_DTYPE_U64, told, 1, memory);
  TRIREME_RETURN_IF_ERROR(tell(failpoint("rebalance", "before_tables")));
  TRIREME_RETURN_IF_ERROR(link_.run(std::move(sizes)));
  // Copied once: peers can write to the memory that they came from.
  const std::vector<std::uint64_t> lengths(told, told + ranks);
  std::vector<std::uint64_t> first(ranks + 1, 0);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const bool other = rank != link_.rank() || lengths[rank] == own.size();
    if (!other || __builtin_add_overflow(first[rank], lengths[rank], &first[rank + 1])) {
      return tell(Status::failure(
          TRIREME_ERROR_CORRUPT,
          "rank " + std::to_string(rank) + " tells a table of state that no memory can hold"));
    }
  }
  TRIREME_RETURN_IF_ERROR(tell(link_.communicator->allocate(first[ranks], &memory)));
  char* const all = static_cast<char*>(memory->data());
  std::memcpy(all + first[link_.rank()], own.data(), own.size());
  Operation texts;
  texts.channel = link_.gathers;
  texts.kind = OperationKind::all_gather_v;
  texts.dtype = TRIREME_DTYPE_BYTES;
  texts.send = all + first[link_.rank()];
  texts.receive = all;
  texts.count = first[ranks];
  texts.owner = memory;
  texts.counts = lengths;
  TRIREME_RETURN_IF_ERROR(tell(failpoint("rebalance", "between_tables")));
  TRIREME_RETURN_IF_ERROR(link_.run(std::move(texts)));
  out->resize(ranks);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    // Peers can write to that memory: what this rank has comes from itself.
    const char* const table = rank == link_.rank() ? own.data() : all + first[rank];
    TRIREME_RETURN_IF_ERROR(tell(read_table(table, lengths[rank], &(*out)[rank])));
  }
  return Status::success();
}

// All that the call needs until its end.
Status Rebalance::allocate() {
  TRIREME_FAILPOINT("rebalance", "before_allocate");
  TRIREME_RETURN_IF_ERROR(link_.communicator->allocate(options_.buffer_bytes, &sent_));
  TRIREME_RETURN_IF_ERROR(link_.communicator->allocate(options_.buffer_bytes, &received_));
  report_.buffer_bytes = sent_->bytes() + received_->bytes();
  report_.peak_bytes = allocated_by(*from_) + allocated_by(*to_) + report_.buffer_bytes;
  return Status::success();
}

// ---- the move ----

Status Rebalance::commit() {
  Status moved = move_all();
  if (moved.ok()) moved = std::move(own_);
  // Each rank comes to the new model's own agreement, where ranks of one model wait for each other.
  Status ready = agree(link_, kRebalanceCall, {}, moved);
  const Status restored = restore(std::move(ready));
  TRIREME_RETURN_IF_ERROR(agree(link_, kRebalanceCall, {}, restored));
  static_cast<void>(failpoint("rebalance", "after_commit"));
  return Status::success();
}

// In round k each rank sends to the k-th one after it, and receives from the k-th one before it.
Status Rebalance::move_all() {
  const std::uint32_t ranks = link_.world_size(), own = link_.rank();
  std::vector<std::vector<StateMove>> to(ranks), from(ranks);
  for (const StateMove& move : moves_) {
    if (move.from == own) to[move.to].push_back(move);
    if (move.to == own && move.from != own) from[move.from].push_back(move);
  }
  for (const std::vector<StateMove>& message : cut_into_messages(to[own], options_.buffer_bytes)) {
    move_own(message);
  }
  for (std::uint32_t round = 1; round < ranks; ++round) {
    const std::uint32_t next = (own + round) % ranks, before = (own + ranks - round) % ranks;
    const auto out = cut_into_messages(to[next], options_.buffer_bytes);
    const auto in = cut_into_messages(from[before], options_.buffer_bytes);
    for (std::size_t i = 0; i < std::max(out.size(), in.size()); ++i) {
      TRIREME_RETURN_IF_ERROR(exchange(i < out.size() ? &out[i] : nullptr, next,
                                       i < in.size() ? &in[i] : nullptr, before));
    }
  }
  return Status::success();
}

void Rebalance::fill(const std::vector<StateMove>& message) {
  char* at = static_cast<char*>(sent_->data());
  for (const StateMove& move : message) {
    if (own_.ok()) {
      note(from_->ranges().read_part(move.from_range, {move.from_first, move.count}, at));
    }
    at += move.bytes();
  }
}

void Rebalance::take(const std::vector<StateMove>& message) {
  const char* at = static_cast<const char*>(received_->data());
  for (const StateMove& move : message) {
    if (own_.ok()) {
      note(to_->ranges().write_part(move.to_range, {move.to_first, move.count}, at));
    }
    at += move.bytes();
  }
}

void Rebalance::move_own(const std::vector<StateMove>& message) {
  fill(message);
  const std::uint64_t bytes = bytes_of_message(message);
  std::memcpy(received_->data(), sent_->data(), bytes);
  report_.kept_bytes += bytes;
  take(message);
}

Status Rebalance::exchange(const std::vector<StateMove>* out, std::uint32_t to,
                           const std::vector<StateMove>* in, std::uint32_t from) {
  MessageArguments sends, receives;
  sends.kind = OperationKind::send;
  receives.kind = OperationKind::receive;
  sends.dtype = receives.dtype = TRIREME_DTYPE_BYTES;
  sends.peer = static_cast<std::int32_t>(to);
  receives.peer = static_cast<std::int32_t>(from);
  sends.data = sent_->data();
  receives.data = received_->data();
  sends.owner = sent_;
  receives.owner = received_;
  if (out != nullptr) {
    note(failpoint("rebalance", "before_send"));
    fill(*out);
    sends.count = bytes_of_message(*out);
    report_.sent_bytes += sends.count;
  }
  if (in != nullptr) {
    note(failpoint("rebalance", "before_receive"));
    receives.count = bytes_of_message(*in);
    report_.received_bytes += receives.count;
  }
  // Both buffers are free again afterwards.
  if (out != nullptr && in != nullptr) {
    TRIREME_RETURN_IF_ERROR(
        tell(link_.communicator->run_messages(sends, receives, link_.timeout_ns)));
  } else {
    TRIREME_RETURN_IF_ERROR(tell(link_.communicator->run_message(out != nullptr ? sends : receives,
                                                                 link_.timeout_ns, nullptr)));
  }
  if (in != nullptr) take(*in);
  return Status::success();
}

// Within each new model: copies of all ranges, and the counters.
Status Rebalance::restore(Status ready) {
  std::vector<std::uint64_t> steps;
  for (const StateParameter& each : parameters_) steps.push_back(each.steps);
  trireme_optimizer_counters& counters = counted_.counters;
  if (!counted_.parameter_steps.empty()) {
    counters.parameter_steps = steps.data();
    counters.parameter_count = steps.size();
  }
  if (ready.ok()) ready = failpoint("rebalance", "before_restore");
  return to_->restore(&counters, std::move(ready));
}

}  // namespace trireme::parallel
