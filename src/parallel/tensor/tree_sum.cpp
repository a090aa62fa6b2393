#include "parallel/tensor/tree_sum.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/reduce.hpp"
#include "platform/names.hpp"

namespace trireme::parallel {
namespace {

// Elements of the rows that are added before they go to the pieces of the ranks.
constexpr std::uint64_t kRowsElements = 16'384;

std::uint64_t rows_at_once(const Array& whole) {
  const std::uint64_t columns = std::max<std::uint64_t>(whole.columns, 1);
  return std::clamp<std::uint64_t>(kRowsElements / columns, 1,
                                   std::max<std::uint64_t>(whole.rows, 1));
}

const std::byte* at(const void* memory, std::uint64_t offset) {
  return static_cast<const std::byte*>(memory) + offset;
}

}  // namespace

TreeSum::TreeSum(trireme_dtype dtype, std::uint32_t ranks, std::uint32_t leaves, std::uint32_t rank)
    : rank_(rank),
      own_(sharding::blocks_of_rank(leaves, ranks, rank)),
      plan_(sharding::plan_sum(leaves, ranks)),
      dtype_(dtype),
      wire_(plan_.only_leaves ? dtype : sum_dtype(dtype)) {
  const bool alone = plan_.nodes.size() == 1;
  Nodes own;
  for (std::uint64_t i = own_.first; i < own_.end(); ++i) {
    own.push_back({static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i + 1)});
  }
  for (const sharding::TreeNode& node : own_nodes()) {
    makers_.push_back(std::make_unique<TreeAdder>(sharding::plan_additions(node, own), dtype,
                                                  alone ? dtype : wire_));
  }
  const Nodes all = plan_.all();
  total_ = std::make_unique<TreeAdder>(sharding::plan_additions({0, leaves}, all), wire_, dtype);
  places_.resize(all.size());
  std::uint64_t number = 0;
  for (const Nodes& nodes : plan_.nodes) {
    first_node_.push_back(number);
    number += nodes.size();
  }
}

std::uint64_t TreeSum::given_bytes(const Split& pieces) const {
  const std::uint64_t to_others = pieces.whole().count() - pieces.count(rank_);
  return own_nodes().size() * to_others * dtype_size(wire_);
}

// A summand that peers read where the caller has it.
bool TreeSum::travels_as_given(const Split& pieces, const sharding::TreeNode& node) const {
  return node.is_leaf() && wire_ == dtype_ && pieces.in_order();
}

// The nodes that are made here, then the rows on their way to one, then the pieces of all nodes of
// earlier rounds.
std::uint64_t TreeSum::scratch_bytes(const Split& pieces) const {
  if (plan_.nodes.size() == 1) return 0;
  const std::uint64_t size = dtype_size(wire_);
  const auto made = static_cast<std::uint64_t>(
      std::count_if(own_nodes().begin(), own_nodes().end(),
                    [&](const auto& node) { return !travels_as_given(pieces, node); }));
  const std::uint64_t rows =
      pieces.in_order() ? 0 : rows_at_once(pieces.whole()) * pieces.whole().columns;
  const std::uint64_t kept = plan_.rounds > 1 ? places_.size() * pieces.count(rank_) : 0;
  return (made * pieces.whole().count() + rows + kept) * size;
}

Status TreeSum::run(Steps& steps, const Operation& step, const Split& pieces,
                    const void* const* parts, std::byte* scratch, void* out) {
  if (plan_.nodes.size() == 1) return add_alone(steps, step, pieces.whole().count(), parts, out);
  const std::uint64_t size = dtype_size(wire_);
  const std::uint64_t whole = pieces.whole().count() * size;
  const Nodes& nodes = own_nodes();
  std::vector<const void*> sends(nodes.size());
  std::byte* next = scratch;
  for (const auto& node : nodes) next += travels_as_given(pieces, node) ? 0 : whole;
  std::byte* const rows = next;
  std::byte* const kept =
      rows + (pieces.in_order() ? 0 : rows_at_once(pieces.whole()) * pieces.whole().columns * size);
  next = scratch;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (travels_as_given(pieces, nodes[i])) {
      sends[i] = parts[nodes[i].first - own_.first];
    } else {
      sends[i] = make_node(pieces, i, parts, next, rows);
      next += whole;
    }
  }
  for (std::uint32_t round = 0; round < plan_.rounds; ++round) {
    Operation exchange = step;
    exchange.kind = OperationKind::fold;
    exchange.dtype = wire_;
    exchange.count = pieces.whole().count();
    exchange.counts = pieces.counts();
    exchange.send = round < sends.size() ? sends[round] : nullptr;
    exchange.fold = fold(pieces, round, kept, out);
    TRIREME_RETURN_IF_ERROR(steps.run(exchange));
    if (silent_ >= 0) return refuse_silence();
  }
  return Status::success();
}

Status TreeSum::refuse_silence() {
  FailureDetails details;
  details.blamed = {std::exchange(silent_, -1)};
  return Status::failure(TRIREME_ERROR_CORRUPT,
                         "rank " + std::to_string(details.blamed[0]) + " gave no summand")
      .with_details(std::move(details));
}

// A rank alone has no peer to meet, but a failed group fails here, too.
Status TreeSum::add_alone(Steps& steps, const Operation& step, std::uint64_t count,
                          const void* const* parts, void* out) {
  Operation meeting = step;
  meeting.kind = OperationKind::barrier;
  meeting.count = 0;
  TRIREME_RETURN_IF_ERROR(steps.run(meeting));
  makers_[0]->add(parts, count, out);
  return Status::success();
}

const void* TreeSum::make_node(const Split& pieces, std::size_t number, const void* const* parts,
                               std::byte* memory, std::byte* rows) {
  const Array& whole = pieces.whole();
  const std::uint64_t at_once = rows_at_once(whole);
  TreeAdder& maker = *makers_[number];
  if (pieces.in_order()) {
    maker.add(parts, whole.count(), memory);
    return memory;
  }
  const std::uint64_t size = dtype_size(wire_);
  const Split wide({whole.rows, whole.columns, size}, false, pieces.ranges());
  std::vector<const void*> from(own_.count);
  for (std::uint64_t row = 0; row < whole.rows; row += at_once) {
    const sharding::Range here{row, std::min(at_once, whole.rows - row)};
    for (std::size_t i = 0; i < from.size(); ++i) {
      from[i] = at(parts[i], row * whole.columns * whole.size);
    }
    maker.add(from.data(), here.count * whole.columns, rows);
    for (std::size_t rank = 0; rank < wide.counts().size(); ++rank) {
      wide.take_columns(rank, rows, here, memory + wide.before(rank) * size);
    }
  }
  return memory;
}

// Keeps the pieces of a round, and adds up those of all rounds in the last one.
Fold TreeSum::fold(const Split& pieces, std::uint32_t round, std::byte* kept, void* out) {
  const std::uint64_t size = dtype_size(wire_);
  const std::uint64_t piece = pieces.count(rank_) * size;
  return [=, this](std::uint64_t first, std::uint64_t count, const void* const* sources,
                   std::uint32_t source_count) {
    for (std::uint32_t rank = 0; rank < source_count; ++rank) {
      const std::size_t nodes = plan_.nodes[rank].size();
      const std::size_t node = first_node_[rank];
      if (round < nodes && sources[rank] == nullptr) {
        silent_ = static_cast<std::int32_t>(rank);
        return;
      }
      if (round + 1 < plan_.rounds) {
        if (round < nodes) {
          kernels::copy(kept + (node + round) * piece + first * size, sources[rank], count * size);
        }
        continue;
      }
      for (std::size_t i = 0; i < nodes; ++i) {
        places_[node + i] = i == round ? sources[rank] : kept + (node + i) * piece + first * size;
      }
    }
    if (round + 1 == plan_.rounds) {
      total_->add(places_.data(), count, static_cast<std::byte*>(out) + first * dtype_size(dtype_));
    }
  };
}

}  // namespace trireme::parallel
