#include "parallel/tensor/region.hpp"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "kernels/reduce.hpp"
#include "platform/names.hpp"
#include "platform/object_name.hpp"
#include "platform/utf8.hpp"

namespace trireme::parallel {
namespace {

using Move = Region::Move;
using sharding::Range;

struct Traits {
  const char* name;
  Move forward;
  Move backward;
  bool splits;  // one of its forms is split
};

// By number. EXCHANGE stands here as it is by rows.
constexpr Traits kTraits[] = {
    {"copy", Move::keep, Move::sum, false},
    {"reduce", Move::sum, Move::keep, false},
    {"gather", Move::gather, Move::take_part, true},
    {"gather_sum", Move::gather, Move::sum_to_part, true},
    {"scatter", Move::take_part, Move::gather, true},
    {"reduce_scatter", Move::sum_to_part, Move::gather, true},
    {"exchange", Move::to_columns, Move::to_rows, true},
};

const Traits& traits_of(trireme_region_kind kind) { return kTraits[kind - 1]; }

bool sums(Move move) { return move == Move::sum || move == Move::sum_to_part; }
bool sums(const Traits& traits) { return sums(traits.forward) || sums(traits.backward); }

std::string text_of(std::uint64_t number) { return std::to_string(number); }
const char* word(Direction direction) {
  return direction == Direction::forward ? "forward" : "backward";
}

Status check_kind(const RegionOptions& options) {
  if (options.kind < TRIREME_REGION_KIND_COPY || options.kind > TRIREME_REGION_KIND_EXCHANGE) {
    return invalid_argument("options.kind is " + std::to_string(options.kind) +
                            ", not one of TRIREME_REGION_KIND_*");
  }
  const Traits& traits = traits_of(options.kind);
  if (options.dimension < TRIREME_REGION_DIMENSION_NONE ||
      options.dimension > TRIREME_REGION_DIMENSION_COLUMNS) {
    return invalid_argument("options.dimension is " + std::to_string(options.dimension) +
                            ", not one of TRIREME_REGION_DIMENSION_*");
  }
  if ((options.dimension != TRIREME_REGION_DIMENSION_NONE) != traits.splits) {
    return invalid_argument("options.dimension is " + std::to_string(options.dimension) + ", but " +
                            traits.name +
                            (traits.splits ? " splits by rows or by columns" : " splits nothing"));
  }
  return Status::success();
}

Status check_sum(const RegionOptions& options, std::uint32_t world_size) {
  const Traits& traits = traits_of(options.kind);
  if (!sums(traits)) {
    if (options.parts == 0) return Status::success();
    return invalid_argument("options.parts is " + text_of(options.parts) + ", but " + traits.name +
                            " has no sum");
  }
  if (!kernels::reduction_supported(options.dtype, TRIREME_REDUCTION_SUM)) {
    return unsupported(std::string("a sum of ") + dtype_name(options.dtype) + " has no meaning");
  }
  if (options.parts != 0 && (options.parts < world_size || options.parts > sharding::kMostBlocks)) {
    return invalid_argument("options.parts is " + text_of(options.parts) + ", not in " +
                            text_of(world_size) + ", the world size, to " +
                            text_of(sharding::kMostBlocks));
  }
  return Status::success();
}

Status check_size(const RegionOptions& options) {
  constexpr std::uint64_t kMaxBytes = 1ull << 56;  // no processor of today can address more
  if (dtype_size(options.dtype) == 0) {
    return invalid_argument("options.dtype is " + std::to_string(options.dtype) +
                            ", not one of TRIREME_DTYPE_*");
  }
  std::uint64_t bytes = 0;
  if (!__builtin_mul_overflow(options.rows, options.columns, &bytes) &&
      !__builtin_mul_overflow(bytes, dtype_size(options.dtype), &bytes) && bytes <= kMaxBytes) {
    return Status::success();
  }
  return invalid_argument("options.rows is " + text_of(options.rows) + " and options.columns is " +
                          text_of(options.columns) + ": so many elements of " +
                          dtype_name(options.dtype) + " are more bytes than memory can hold");
}

Status check_unit(const RegionOptions& options, trireme_region_dimension dimension,
                  const char* field, std::uint64_t unit, const char* what, std::uint64_t extent) {
  if (unit <= 1) return Status::success();
  const bool cuts = options.kind == TRIREME_REGION_KIND_EXCHANGE || options.dimension == dimension;
  const std::string said = std::string("options.") + field + " is " + text_of(unit);
  if (!cuts) return invalid_argument(said + ", but the region does not cut " + what);
  if (extent % unit == 0) return Status::success();
  return invalid_argument(said + ", which does not divide the " + text_of(extent) + " " + what);
}

Status check_units(const RegionOptions& options) {
  TRIREME_RETURN_IF_ERROR(check_unit(options, TRIREME_REGION_DIMENSION_ROWS, "row_unit",
                                     options.row_unit, "rows", options.rows));
  return check_unit(options, TRIREME_REGION_DIMENSION_COLUMNS, "column_unit", options.column_unit,
                    "columns", options.columns);
}

std::vector<Range> ranges_of(const Tensor& tensor, std::uint64_t extent, std::uint64_t unit) {
  std::vector<Range> ranges;
  for (std::uint32_t rank = 0; rank < tensor.world_size(); ++rank) {
    ranges.push_back(tensor.range_in_units(extent, unit, rank));
  }
  return ranges;
}

// The ranges of ranks among these rows, counted from the first row of these.
std::vector<Range> ranges_within(const std::vector<Range>& ranges, const Range& rows) {
  std::vector<Range> within;
  std::uint64_t next = 0;
  for (const Range& range : ranges) {
    within.push_back({next, sharding::intersect(range, rows).count});
    next += within.back().count;
  }
  return within;
}

// Ranks add as many elements each.
std::vector<Range> even_ranges(const Tensor& tensor, std::uint64_t extent) {
  std::vector<Range> ranges;
  for (std::uint32_t rank = 0; rank < tensor.world_size(); ++rank) {
    ranges.push_back(sharding::shard_range(extent, tensor.world_size(), rank));
  }
  return ranges;
}

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 29;
}

// The elements that each rank has for each other one, in an exchange from rows to columns, or back.
std::vector<std::uint64_t> exchange_table(const Split& from, const Split& to) {
  const Split& rows = from.by_rows() ? from : to;
  const Split& columns = from.by_rows() ? to : from;
  std::vector<std::uint64_t> table;
  for (std::size_t source = 0; source < from.ranges().size(); ++source) {
    for (std::size_t target = 0; target < to.ranges().size(); ++target) {
      const bool by_rows = from.by_rows();
      table.push_back(rows.ranges()[by_rows ? source : target].count *
                      columns.ranges()[by_rows ? target : source].count);
    }
  }
  return table;
}

Status take_scratch(Steps& steps, std::uint64_t bytes, std::byte** out) {
  return bytes == 0 ? Status::success() : steps.scratch(bytes, out);
}

}  // namespace

Status Region::create(std::shared_ptr<Tensor> tensor, RegionOptions options,
                      std::shared_ptr<Region>* out) {
  TRIREME_RETURN_IF_ERROR(check_object_name(options.name));
  TRIREME_RETURN_IF_ERROR(check_kind(options));
  TRIREME_RETURN_IF_ERROR(check_size(options));
  TRIREME_RETURN_IF_ERROR(check_units(options));
  TRIREME_RETURN_IF_ERROR(check_sum(options, tensor->world_size()));
  options.row_unit = std::max<std::uint64_t>(options.row_unit, 1);
  options.column_unit = std::max<std::uint64_t>(options.column_unit, 1);
  if (options.parts == 0) options.parts = tensor->blocks();
  std::shared_ptr<Region> region(new Region(std::move(tensor), std::move(options)));
  TRIREME_RETURN_IF_ERROR(region->tensor_->take_name(region->options_.name));
  region->named_ = true;
  *out = std::move(region);
  return Status::success();
}

Region::Region(std::shared_ptr<Tensor> tensor, RegionOptions options)
    : tensor_(std::move(tensor)),
      options_(std::move(options)),
      rank_(tensor_->rank()),
      rows_(ranges_of(*tensor_, options_.rows, options_.row_unit)),
      columns_(ranges_of(*tensor_, options_.columns, options_.column_unit)),
      whole_(cut({0, options_.rows})) {
  if (!sums(traits_of(options_.kind))) return;
  sum_.emplace(options_.dtype, tensor_->world_size(), options_.parts, tensor_->rank());
}

Region::~Region() { drop_name(); }

void Region::drop_name() noexcept {
  if (std::exchange(named_, false)) tensor_->drop_name(options_.name);
}

Cut Region::cut(Range rows) const {
  const Array part{rows.count, options_.columns, dtype_size(options_.dtype)};
  return {rows.first,
          part,
          {part, true, ranges_within(rows_, rows)},
          {part, false, columns_},
          {{part.count(), 1, part.size}, true, even_ranges(*tensor_, part.count())}};
}

const Split& Region::split_of(const Cut& cut) const {
  return options_.dimension == TRIREME_REGION_DIMENSION_COLUMNS ? cut.columns : cut.rows;
}

Move Region::move_of(Direction direction) const {
  const Traits& traits = traits_of(options_.kind);
  const bool turns = options_.kind == TRIREME_REGION_KIND_EXCHANGE &&
                     options_.dimension == TRIREME_REGION_DIMENSION_COLUMNS;
  return (direction == Direction::forward) != turns ? traits.forward : traits.backward;
}

Region::PassPlan Region::plan(Direction direction) const { return plan_of(direction, whole_); }

std::uint64_t Region::tile_bytes(Range rows) const {
  return plan_of(Direction::forward, cut(rows)).bytes;
}

Region::PassPlan Region::plan_of(Direction direction, const Cut& cut) const {
  const std::uint64_t all = cut.whole.count(), size = cut.whole.size;
  const Split& split = split_of(cut);
  const std::uint64_t part = split.count(rank_);
  const std::uint64_t others = tensor_->world_size() - 1;
  switch (move_of(direction)) {
    case Move::keep: return {1, all, all, 0};
    case Move::sum:
      return {sum_->own_count(), all, all,
              sum_->given_bytes(cut.pieces) + cut.pieces.count(rank_) * others * size};
    case Move::sum_to_part: return {sum_->own_count(), all, part, sum_->given_bytes(split)};
    case Move::gather: return {1, part, all, part * others * size};
    case Move::take_part: return {1, all, part, 0};
    case Move::to_columns:
      return {1, cut.rows.count(rank_), cut.columns.count(rank_), exchange_bytes(cut, cut.rows)};
    case Move::to_rows:
      return {1, cut.columns.count(rank_), cut.rows.count(rank_), exchange_bytes(cut, cut.columns)};
  }
  return {};
}

// All of its part but its own share of the other form.
std::uint64_t Region::exchange_bytes(const Cut& cut, const Split& from) const {
  const std::uint64_t stays = cut.rows.ranges()[rank_].count * cut.columns.ranges()[rank_].count;
  return (from.count(rank_) - stays) * cut.whole.size;
}

// --- the arguments of a pass -------------------------------------------------------------------

Status Region::check_arguments(Direction direction, const PassPlan& plan, const void* const* parts,
                               std::uint32_t part_count, const void* out) const {
  const std::string name = "region \"" + options_.name + "\"";
  if (parts == nullptr) return invalid_argument("parts is NULL");
  if (part_count != plan.parts) {
    return invalid_argument("part_count is " + text_of(part_count) + ", but a " + word(direction) +
                            " pass of " + name + " takes " + text_of(plan.parts) + " on this rank");
  }
  if (out == nullptr && plan.to > 0) {
    return invalid_argument("output is NULL but holds " + text_of(plan.to) + " elements");
  }
  const Move move = move_of(direction);
  const bool in_place = move == Move::keep || move == Move::sum;
  const auto out_at = reinterpret_cast<std::uintptr_t>(out);
  for (std::uint32_t i = 0; i < part_count; ++i) {
    const std::string what = "parts[" + text_of(i) + "]";
    if (parts[i] == nullptr && plan.from > 0) {
      return invalid_argument(what + " is NULL but holds " + text_of(plan.from) + " elements");
    }
    const auto part_at = reinterpret_cast<std::uintptr_t>(parts[i]);
    const bool overlaps = plan.from > 0 && plan.to > 0 &&
                          part_at < out_at + plan.to * whole_.whole.size &&
                          out_at < part_at + plan.from * whole_.whole.size;
    if (overlaps && !(in_place && part_at == out_at)) {
      return invalid_argument(what + " and output overlap; a " + word(direction) + " pass of " +
                              name +
                              (in_place ? " works in place only where they are the same memory"
                                        : " does not work in place"));
    }
  }
  return Status::success();
}

// --- one pass ----------------------------------------------------------------------------------

std::string Region::describe(const Called& called) const {
  constexpr std::size_t kMost = 47;   // bytes of a fingerprint's name
  constexpr std::size_t kLeast = 12;  // of the region's name
  const char* const by = !traits_of(options_.kind).splits ? ""
                         : split_of(whole_).by_rows()     ? " by rows"
                                                          : " by columns";
  const std::string form = std::string("\", ") + traits_of(options_.kind).name + by + " " +
                           text_of(options_.rows) + "x" + text_of(options_.columns);
  const std::string begin = std::string(called.name) + " \"";
  const std::size_t rest = begin.size() + form.size();
  const std::size_t room = std::max(kLeast, kMost - std::min(kMost, rest));
  return begin + options_.name.substr(0, whole_characters(options_.name, room)) + form;
}

Operation Region::operation_of(const Work& work, const Called& called) const {
  Operation operation;
  operation.kind = work.move == Move::sum           ? OperationKind::all_reduce
                   : work.move == Move::sum_to_part ? OperationKind::reduce_scatter_v
                   : work.move == Move::gather      ? OperationKind::all_gather_v
                                                    : OperationKind::all_to_all_v;
  operation.dtype = options_.dtype;
  operation.count = work.cut.whole.count();
  if (sums(work.move)) operation.reduction = TRIREME_REDUCTION_SUM;
  std::uint64_t hash = 0x6a09e667f3bcc908u;
  for (const char letter : options_.name) hash = mix(hash, static_cast<unsigned char>(letter));
  for (const char* letter = called.name; *letter != 0; ++letter) {
    hash = mix(hash, static_cast<unsigned char>(*letter));
  }
  for (const std::uint64_t number :
       {std::uint64_t{options_.name.size()}, static_cast<std::uint64_t>(options_.kind),
        static_cast<std::uint64_t>(options_.dimension), options_.rows, options_.columns,
        static_cast<std::uint64_t>(options_.dtype), std::uint64_t{options_.parts},
        options_.row_unit, options_.column_unit, options_.also, std::uint64_t{tensor_->blocks()},
        std::uint64_t{index(called.direction)}, work.cut.first_row, work.cut.whole.rows}) {
    hash = mix(hash, number);
  }
  operation.agreement = hash | 1;  // never 0, which other calls have
  operation.agreement_name = work.what.c_str();
  return operation;
}

Status Region::pass(Direction direction, const void* const* parts, std::uint32_t part_count,
                    void* out, std::uint64_t timeout_ns) {
  const Called called = {direction, word(direction)};
  const PassPlan planned = plan(direction);
  const Move move = move_of(direction);
  if (move == Move::keep || move == Move::take_part) {
    return pass_checked(called, planned, parts, part_count, out, timeout_ns);
  }
  try {
    return pass_checked(called, planned, parts, part_count, out, timeout_ns);
  } catch (...) {  // peers may be in the pass already
    tensor_->communicator().fail(TRIREME_ERROR_OUT_OF_MEMORY, "no memory left for a pass");
    throw;
  }
}

Status Region::pass_checked(const Called& called, const PassPlan& planned, const void* const* parts,
                            std::uint32_t part_count, void* out, std::uint64_t timeout_ns) {
  const Direction direction = called.direction;
  TRIREME_RETURN_IF_ERROR(check_arguments(direction, planned, parts, part_count, out));
  if (direction == Direction::backward && passes_[1] >= passes_[0]) {
    return invalid_state("backward pass " + text_of(passes_[1] + 1) + " of region \"" +
                         options_.name + "\" needs as many forward passes, but there were " +
                         text_of(passes_[0]));
  }
  const Move move = move_of(direction);
  if (move == Move::take_part) {
    split_of(whole_).take(rank_, parts[0], out);
  } else if (move == Move::keep) {
    if (planned.to > 0 && out != parts[0]) {
      kernels::copy(out, parts[0], planned.to * whole_.whole.size);
    }
  } else {
    // In braces they would be two elements: any pointer is one to void.
    std::vector<const void*> all(parts, parts + part_count);
    const Status status = tensor_->communicator().run(
        operation(called, {0, options_.rows}, std::move(all), out), Deadline::after(timeout_ns));
    TRIREME_RETURN_IF_ERROR(named(called.name, status));
  }
  ++passes_[index(direction)];
  return Status::success();
}

Status Region::pass_tile(TilePass pass, Deadline deadline, std::shared_ptr<Request>* started) {
  Operation one =
      operation({Direction::forward, pass.name}, pass.rows, std::move(pass.parts), pass.out);
  Communicator& communicator = tensor_->communicator();
  return named(pass.name, started == nullptr
                              ? communicator.run(std::move(one), deadline)
                              : communicator.start(std::move(one), deadline, started));
}

Status Region::named(const char* pass_name, const Status& status) const {
  if (status.ok()) return status;
  Status told = Status::failure(status.code(), std::string(pass_name) + " pass of region \"" +
                                                   options_.name + "\": " + status.message());
  if (status.details() == nullptr) return told;
  return std::move(told).with_details(*status.details());
}

Operation Region::operation(const Called& called, Range rows, std::vector<const void*> parts,
                            void* out) {
  const auto work = std::make_shared<Work>(
      Work{move_of(called.direction), cut(rows), describe(called), {}, {}, std::move(parts), out});
  work->called = operation_of(*work, called);
  work->step = work->called;
  work->step.called = &work->called;
  Operation operation = work->called;
  // Buffers of the caller live until the pass is over.
  operation.send = work->parts[0];
  operation.receive = out;
  operation.also_uses = work->parts;
  operation.program = [this, work](Steps& steps) { return run(steps, *work); };
  return operation;
}

Status Region::run(Steps& steps, const Work& work) {
  switch (work.move) {
    case Move::sum: return sum(steps, work);
    case Move::sum_to_part: return sum_to_part(steps, work);
    case Move::gather: return gather(steps, work);
    case Move::to_columns: return to_columns(steps, work);
    default: return to_rows(steps, work);
  }
}

Status Region::sum(Steps& steps, const Work& work) {
  const Split& pieces = work.cut.pieces;
  std::byte* scratch = nullptr;
  TRIREME_RETURN_IF_ERROR(take_scratch(steps, sum_->scratch_bytes(pieces), &scratch));
  auto* const own = static_cast<std::byte*>(work.out) + pieces.before(rank_) * work.cut.whole.size;
  TRIREME_RETURN_IF_ERROR(sum_->run(steps, work.step, pieces, work.parts.data(), scratch, own));
  if (tensor_->world_size() == 1) return Status::success();
  Operation spread = work.step;
  spread.kind = OperationKind::all_gather_v;
  spread.reduction = 0;
  spread.counts = pieces.counts();
  spread.send = own;
  spread.receive = work.out;
  return steps.run(spread);
}

Status Region::sum_to_part(Steps& steps, const Work& work) {
  const Split& split = split_of(work.cut);
  std::byte* scratch = nullptr;
  TRIREME_RETURN_IF_ERROR(take_scratch(steps, sum_->scratch_bytes(split), &scratch));
  return sum_->run(steps, work.step, split, work.parts.data(), scratch, work.out);
}

Status Region::gather(Steps& steps, const Work& work) const {
  const Split& parts = split_of(work.cut);
  const Array& whole = work.cut.whole;
  std::byte* scratch = nullptr;
  const std::uint64_t bytes = parts.in_order() ? 0 : whole.count() * whole.size;
  TRIREME_RETURN_IF_ERROR(take_scratch(steps, bytes, &scratch));
  Operation collect = work.step;
  collect.counts = parts.counts();
  collect.send = work.parts[0];
  collect.receive = parts.in_order() ? work.out : scratch;
  TRIREME_RETURN_IF_ERROR(steps.run(collect));
  for (std::size_t rank = 0; rank < parts.ranges().size() && !parts.in_order(); ++rank) {
    parts.put_columns(rank, work.out, scratch + parts.before(rank) * whole.size);
  }
  return Status::success();
}

// This rank's rows are sent in columns of each rank. The rows of each rank arrive in order.
Status Region::to_columns(Steps& steps, const Work& work) const {
  const Cut& cut = work.cut;
  const Split own({cut.rows.ranges()[rank_].count, cut.whole.columns, cut.whole.size}, false,
                  columns_);
  std::byte* scratch = nullptr;
  const std::uint64_t bytes = own.in_order() ? 0 : cut.rows.count(rank_) * cut.whole.size;
  TRIREME_RETURN_IF_ERROR(take_scratch(steps, bytes, &scratch));
  for (std::size_t rank = 0; rank < own.ranges().size() && !own.in_order(); ++rank) {
    own.take(rank, work.parts[0], scratch + own.before(rank) * cut.whole.size);
  }
  Operation exchange = work.step;
  exchange.count = 0;
  exchange.counts = exchange_table(cut.rows, cut.columns);
  exchange.send = own.in_order() ? work.parts[0] : scratch;
  exchange.receive = work.out;
  return steps.run(exchange);
}

// The other way round.
Status Region::to_rows(Steps& steps, const Work& work) const {
  const Cut& cut = work.cut;
  const Split own({cut.rows.ranges()[rank_].count, cut.whole.columns, cut.whole.size}, false,
                  columns_);
  std::byte* scratch = nullptr;
  const std::uint64_t bytes = own.in_order() ? 0 : cut.rows.count(rank_) * cut.whole.size;
  TRIREME_RETURN_IF_ERROR(take_scratch(steps, bytes, &scratch));
  Operation exchange = work.step;
  exchange.count = 0;
  exchange.counts = exchange_table(cut.columns, cut.rows);
  exchange.send = work.parts[0];
  exchange.receive = own.in_order() ? work.out : scratch;
  TRIREME_RETURN_IF_ERROR(steps.run(exchange));
  for (std::size_t rank = 0; rank < own.ranges().size() && !own.in_order(); ++rank) {
    own.put_columns(rank, work.out, scratch + own.before(rank) * cut.whole.size);
  }
  return Status::success();
}

}  // namespace trireme::parallel
