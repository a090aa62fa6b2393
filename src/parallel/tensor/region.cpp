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
      whole_{options_.rows, options_.columns, dtype_size(options_.dtype)},
      rows_(whole_, true, ranges_of(*tensor_, whole_.rows, options_.row_unit)),
      columns_(whole_, false, ranges_of(*tensor_, whole_.columns, options_.column_unit)),
      pieces_({whole_.count(), 1, whole_.size}, true, even_ranges(*tensor_, whole_.count())) {
  const Traits& traits = traits_of(options_.kind);
  if (!sums(traits)) return;
  sum_.emplace(traits.splits ? split() : pieces_, options_.dtype, options_.parts, tensor_->rank());
}

Region::~Region() { drop_name(); }

void Region::drop_name() noexcept {
  if (std::exchange(named_, false)) tensor_->drop_name(options_.name);
}

const Split& Region::split() const {
  return options_.dimension == TRIREME_REGION_DIMENSION_COLUMNS ? columns_ : rows_;
}

Move Region::move_of(Direction direction) const {
  const Traits& traits = traits_of(options_.kind);
  const bool turns = options_.kind == TRIREME_REGION_KIND_EXCHANGE &&
                     options_.dimension == TRIREME_REGION_DIMENSION_COLUMNS;
  return (direction == Direction::forward) != turns ? traits.forward : traits.backward;
}

Region::PassPlan Region::plan(Direction direction) const {
  const std::uint64_t all = whole_.count();
  const std::uint64_t part = split().count(rank_);
  const std::uint64_t others = tensor_->world_size() - 1;
  switch (move_of(direction)) {
    case Move::keep: return {1, all, all, 0};
    case Move::sum:
      return {sum_->own_count(), all, all,
              sum_->given_bytes() + pieces_.count(rank_) * others * whole_.size};
    case Move::sum_to_part: return {sum_->own_count(), all, part, sum_->given_bytes()};
    case Move::gather: return {1, part, all, part * others * whole_.size};
    case Move::take_part: return {1, all, part, 0};
    case Move::to_columns:
      return {1, rows_.count(rank_), columns_.count(rank_), exchange_bytes(rows_)};
    case Move::to_rows:
      return {1, columns_.count(rank_), rows_.count(rank_), exchange_bytes(columns_)};
  }
  return {};
}

// All of its part but its own share of the other form.
std::uint64_t Region::exchange_bytes(const Split& from) const {
  const std::uint64_t stays = rows_.ranges()[rank_].count * columns_.ranges()[rank_].count;
  return (from.count(rank_) - stays) * whole_.size;
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
                          part_at < out_at + plan.to * whole_.size &&
                          out_at < part_at + plan.from * whole_.size;
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
                         : split().by_rows()              ? " by rows"
                                                          : " by columns";
  const std::string form = std::string("\", ") + traits_of(options_.kind).name + by + " " +
                           text_of(whole_.rows) + "x" + text_of(whole_.columns);
  const std::string begin = std::string(called.name) + " \"";
  const std::size_t rest = begin.size() + form.size();
  const std::size_t room = std::max(kLeast, kMost - std::min(kMost, rest));
  return begin + options_.name.substr(0, whole_characters(options_.name, room)) + form;
}

Operation Region::operation_of(Move move, const Called& called, const char* what) const {
  Operation operation;
  operation.kind = move == Move::sum           ? OperationKind::all_reduce
                   : move == Move::sum_to_part ? OperationKind::reduce_scatter_v
                   : move == Move::gather      ? OperationKind::all_gather_v
                                               : OperationKind::all_to_all_v;
  operation.dtype = options_.dtype;
  operation.count = whole_.count();
  if (sums(move)) operation.reduction = TRIREME_REDUCTION_SUM;
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
        std::uint64_t{index(called.direction)}}) {
    hash = mix(hash, number);
  }
  operation.agreement = hash | 1;  // never 0, which other calls have
  operation.agreement_name = what;
  return operation;
}

Status Region::pass(Direction direction, const void* const* parts, std::uint32_t part_count,
                    void* out, std::uint64_t timeout_ns, const char* pass_name) {
  const Called called = {direction, pass_name != nullptr ? pass_name : word(direction)};
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
  if (move == Move::keep || move == Move::take_part) {
    if (move == Move::take_part) {
      split().take(rank_, parts[0], out);
    } else if (planned.to > 0 && out != parts[0]) {
      kernels::copy(out, parts[0], planned.to * whole_.size);
    }
  } else {
    TRIREME_RETURN_IF_ERROR(communicate(move, called, parts, part_count, out, timeout_ns));
  }
  ++passes_[index(direction)];
  return Status::success();
}

Status Region::communicate(Move move, const Called& called, const void* const* parts,
                           std::uint32_t part_count, void* out, std::uint64_t timeout_ns) {
  const std::string what = describe(called);
  Operation operation = operation_of(move, called, what.c_str());
  const Operation whole = operation;
  Operation step = operation;
  step.called = &whole;
  // Buffers of the caller live until the pass is over.
  operation.send = parts[0];
  operation.receive = out;
  operation.also_uses.assign(parts, parts + part_count);
  operation.program = [&](Steps& steps) {
    switch (move) {
      case Move::sum: return sum(steps, step, parts, out);
      case Move::sum_to_part: return sum_to_part(steps, step, parts, out);
      case Move::gather: return gather(steps, step, parts[0], out);
      case Move::to_columns: return to_columns(steps, step, parts[0], out);
      default: return to_rows(steps, step, parts[0], out);
    }
  };
  const Status status =
      tensor_->communicator().run(std::move(operation), Deadline::after(timeout_ns));
  if (status.ok()) return Status::success();
  Status told = Status::failure(status.code(), std::string(called.name) + " pass of region \"" +
                                                   options_.name + "\": " + status.message());
  if (status.details() == nullptr) return told;
  return std::move(told).with_details(*status.details());
}

Status Region::sum(Steps& steps, const Operation& step, const void* const* parts, void* out) {
  std::byte* scratch = nullptr;
  TRIREME_RETURN_IF_ERROR(take_scratch(steps, sum_->scratch_bytes(), &scratch));
  auto* const own = static_cast<std::byte*>(out) + pieces_.before(rank_) * whole_.size;
  TRIREME_RETURN_IF_ERROR(sum_->run(steps, step, parts, scratch, own));
  if (tensor_->world_size() == 1) return Status::success();
  Operation spread = step;
  spread.kind = OperationKind::all_gather_v;
  spread.reduction = 0;
  spread.counts = pieces_.counts();
  spread.send = own;
  spread.receive = out;
  return steps.run(spread);
}

Status Region::sum_to_part(Steps& steps, const Operation& step, const void* const* parts,
                           void* out) {
  std::byte* scratch = nullptr;
  TRIREME_RETURN_IF_ERROR(take_scratch(steps, sum_->scratch_bytes(), &scratch));
  return sum_->run(steps, step, parts, scratch, out);
}

Status Region::gather(Steps& steps, const Operation& step, const void* part, void* out) const {
  const Split& parts = split();
  std::byte* scratch = nullptr;
  const std::uint64_t bytes = parts.in_order() ? 0 : whole_.count() * whole_.size;
  TRIREME_RETURN_IF_ERROR(take_scratch(steps, bytes, &scratch));
  Operation collect = step;
  collect.counts = parts.counts();
  collect.send = part;
  collect.receive = parts.in_order() ? out : scratch;
  TRIREME_RETURN_IF_ERROR(steps.run(collect));
  for (std::size_t rank = 0; rank < parts.ranges().size() && !parts.in_order(); ++rank) {
    parts.put_columns(rank, out, scratch + parts.before(rank) * whole_.size);
  }
  return Status::success();
}

// This rank's rows are sent in columns of each rank. The rows of each rank arrive in order.
Status Region::to_columns(Steps& steps, const Operation& step, const void* part, void* out) const {
  const Split own({rows_.ranges()[rank_].count, whole_.columns, whole_.size}, false,
                  columns_.ranges());
  std::byte* scratch = nullptr;
  const std::uint64_t bytes = own.in_order() ? 0 : rows_.count(rank_) * whole_.size;
  TRIREME_RETURN_IF_ERROR(take_scratch(steps, bytes, &scratch));
  for (std::size_t rank = 0; rank < own.ranges().size() && !own.in_order(); ++rank) {
    own.take(rank, part, scratch + own.before(rank) * whole_.size);
  }
  Operation exchange = step;
  exchange.count = 0;
  exchange.counts = exchange_table(rows_, columns_);
  exchange.send = own.in_order() ? part : scratch;
  exchange.receive = out;
  return steps.run(exchange);
}

// The other way round.
Status Region::to_rows(Steps& steps, const Operation& step, const void* part, void* out) const {
  const Split own({rows_.ranges()[rank_].count, whole_.columns, whole_.size}, false,
                  columns_.ranges());
  std::byte* scratch = nullptr;
  const std::uint64_t bytes = own.in_order() ? 0 : rows_.count(rank_) * whole_.size;
  TRIREME_RETURN_IF_ERROR(take_scratch(steps, bytes, &scratch));
  Operation exchange = step;
  exchange.count = 0;
  exchange.counts = exchange_table(columns_, rows_);
  exchange.send = part;
  exchange.receive = own.in_order() ? out : scratch;
  TRIREME_RETURN_IF_ERROR(steps.run(exchange));
  for (std::size_t rank = 0; rank < own.ranges().size() && !own.in_order(); ++rank) {
    own.put_columns(rank, out, scratch + own.before(rank) * whole_.size);
  }
  return Status::success();
}

}  // namespace trireme::parallel
