#include "parallel/tensor/cross_entropy.hpp"

#include <trireme/vocabulary.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/reduce.hpp"
#include "platform/names.hpp"

namespace trireme::parallel {
namespace {

constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();

std::vector<sharding::TreeNode> leaves_of(const sharding::Range& blocks) {
  std::vector<sharding::TreeNode> leaves;
  for (std::uint64_t i = blocks.first; i < blocks.end(); ++i) {
    leaves.push_back({static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i + 1)});
  }
  return leaves;
}

}  // namespace

CrossEntropy::CrossEntropy(const Tensor& tensor, const LossOptions& options,
                           std::uint64_t most_rows)
    : options_(options),
      rank_(tensor.rank()),
      blocks_(tensor.blocks()),
      own_blocks_(tensor.own_blocks()),
      own_(tensor.range(options.classes, tensor.rank())) {
  const sharding::SumPlan plan = sharding::plan_sum(blocks_, tensor.world_size());
  const auto leaves = leaves_of(own_blocks_);
  std::uint32_t temporaries = 0;
  for (const sharding::TreeNode& node : plan.nodes[rank_]) {
    makers_.push_back(sharding::plan_additions(node, leaves));
    temporaries = std::max(temporaries, makers_.back().temporaries);
  }
  total_ = sharding::plan_additions({0, blocks_}, plan.all());
  first_node_.push_back(0);
  for (const auto& nodes : plan.nodes) first_node_.push_back(first_node_.back() + nodes.size());
  parts_.resize(own_blocks_.count);
  row_nodes_.resize(first_node_.back());
  temporaries_.resize(std::max(temporaries, total_.temporaries));
  nodes_.resize(first_node_.back() * most_rows);
}

std::uint64_t CrossEntropy::node_bytes(const Tensor& tensor) {
  std::uint64_t nodes = 0;
  for (const auto& of_rank : sharding::plan_sum(tensor.blocks(), tensor.world_size()).nodes) {
    nodes += of_rank.size();
  }
  return nodes * sizeof(Part);
}

std::uint64_t CrossEntropy::given_bytes(std::uint64_t rows) const {
  return own_nodes() * rows * sizeof(Part) * (first_node_.size() - 2);
}

std::uint64_t CrossEntropy::memory_bytes() const {
  return (parts_.size() + row_nodes_.size() + temporaries_.size() + nodes_.size()) * sizeof(Part);
}

trireme_dtype CrossEntropy::loss_dtype() const {
  return options_.dtype == TRIREME_DTYPE_F64 ? TRIREME_DTYPE_F64 : TRIREME_DTYPE_F32;
}

std::vector<std::uint64_t> CrossEntropy::counts(std::uint64_t rows) const {
  static_assert(sizeof(Part) == 3 * sizeof(double));
  std::vector<std::uint64_t> counts;
  for (std::size_t rank = 0; rank + 1 < first_node_.size(); ++rank) {
    counts.push_back(3 * rows * (first_node_[rank + 1] - first_node_[rank]));
  }
  return counts;
}

// --- forward -----------------------------------------------------------------------------------

void CrossEntropy::make_nodes(const TokenList& targets, const void* logits) {
  const std::uint64_t rows = targets.count();
  const std::uint64_t row_bytes = own_.count * dtype_size(options_.dtype);
  Part* next = nodes_.data() + rows * first_node_[rank_];
  for (std::uint64_t row = 0; row < rows; ++row, next += own_nodes()) {
    if (targets.is_ignored(row)) {
      std::fill_n(next, own_nodes(), Part{});
      continue;
    }
    const auto* const here = static_cast<const std::byte*>(logits) + row * row_bytes;
    for (std::uint64_t i = 0; i < parts_.size(); ++i) parts_[i] = part_of(i, here, targets, row);
    for (std::size_t i = 0; i < makers_.size(); ++i) {
      next[i] = merge_along(makers_[i], parts_.data());
    }
  }
}

// `linear` becomes what the loss subtracts: the share of the block's classes, and of the target.
CrossEntropy::Part CrossEntropy::part_of(std::uint64_t block, const std::byte* row,
                                         const TokenList& targets, std::uint64_t number) const {
  const sharding::Range classes = sharding::block_range(
      options_.classes, blocks_, static_cast<std::uint32_t>(own_blocks_.first + block));
  const std::uint64_t first = classes.first - own_.first;
  const double smoothing = options_.label_smoothing;
  const std::byte* const logits =
      classes.count == 0 ? nullptr : row + first * dtype_size(options_.dtype);
  Part part = kernels::softmax_part(options_.dtype, logits, classes.count, smoothing > 0);
  if (smoothing > 0) part.linear *= smoothing / static_cast<double>(options_.classes);
  const std::uint64_t target = targets[number];
  const bool here = target >= classes.first && target < classes.end();
  if (here && smoothing < 1) part.linear += (1 - smoothing) * element(row, target - own_.first);
  return part;
}

CrossEntropy::Part CrossEntropy::merge_along(const sharding::TreeProgram& program,
                                             const Part* given) {
  const auto find = [&](const sharding::TreeProgram::Operand& operand) -> const Part& {
    return operand.given ? given[operand.index] : temporaries_[operand.index];
  };
  for (const auto& addition : program.additions) {
    temporaries_[addition.to] = kernels::merge(find(addition.left), find(addition.right));
  }
  return find(program.result);
}

CrossEntropy::Part CrossEntropy::row_of(std::uint64_t row, std::uint64_t rows) {
  for (std::size_t rank = 0; rank + 1 < first_node_.size(); ++rank) {
    const std::uint64_t first = first_node_[rank], count = first_node_[rank + 1] - first;
    std::copy_n(nodes_.data() + rows * first + row * count, count, row_nodes_.data() + first);
  }
  return merge_along(total_, row_nodes_.data());
}

double CrossEntropy::loss_of(const Part& row) const {
  if (!std::isfinite(row.largest)) return kNoNumber;
  const double logarithm = kernels::logarithm(row.sum);
  const double loss = (row.largest - row.linear) + logarithm;
  if (options_.z_loss == 0) return loss;
  const double all = row.largest + logarithm;
  return loss + options_.z_loss * (all * all);
}

void CrossEntropy::finish(const TokenList& targets, void* losses, void* kept) {
  for (std::uint64_t row = 0; row < targets.count(); ++row) {
    double loss = 0;
    Kept keep;
    if (!targets.is_ignored(row)) {
      const Part whole = row_of(row, targets.count());
      loss = loss_of(whole);
      keep = {std::isfinite(whole.largest) ? whole.largest : kNoNumber, whole.sum};
    }
    put(loss_dtype(), loss, losses, row);
    if (kept == nullptr) continue;
    std::memcpy(static_cast<std::byte*>(kept) + row * sizeof keep, &keep, sizeof keep);
  }
}

// --- backward ----------------------------------------------------------------------------------

void CrossEntropy::gradients(const TokenList& targets, const void* logits, const void* kept,
                             const void* loss_gradients, void* gradients) const {
  static_assert(sizeof(Kept) == TRIREME_VOCABULARY_KEPT_BYTES);
  const std::uint64_t row_bytes = own_.count * dtype_size(options_.dtype);
  for (std::uint64_t row = 0; row < targets.count() && row_bytes > 0; ++row) {
    const auto* const from = static_cast<const std::byte*>(logits) + row * row_bytes;
    auto* const to = static_cast<std::byte*>(gradients) + row * row_bytes;
    if (targets.is_ignored(row)) {
      std::memset(to, 0, row_bytes);
      continue;
    }
    Kept keep;
    std::memcpy(&keep, static_cast<const std::byte*>(kept) + row * sizeof keep, sizeof keep);
    double given = 1;
    if (loss_gradients != nullptr && loss_dtype() == TRIREME_DTYPE_F64) {
      std::memcpy(&given, static_cast<const double*>(loss_gradients) + row, sizeof given);
    } else if (loss_gradients != nullptr) {
      float narrow = 0;
      std::memcpy(&narrow, static_cast<const float*>(loss_gradients) + row, sizeof narrow);
      given = narrow;
    }
    row_gradients(keep, given, targets[row], from, to);
  }
}

void CrossEntropy::row_gradients(const Kept& kept, double loss_gradient, std::uint64_t target,
                                 const std::byte* logits, std::byte* gradients) const {
  if (kept.largest != kept.largest) {
    for (std::uint64_t i = 0; i < own_.count; ++i) put(options_.dtype, kNoNumber, gradients, i);
    return;
  }
  const double smoothing = options_.label_smoothing;
  double factor = loss_gradient / kept.sum;
  if (options_.z_loss != 0) {
    factor *= 1 + 2 * options_.z_loss * (kept.largest + kernels::logarithm(kept.sum));
  }
  const double shift = loss_gradient * (smoothing / static_cast<double>(options_.classes));
  const bool here = target >= own_.first && target < own_.end();
  double of_target = 0;
  if (here) {  // before its logit is overwritten
    const double power = kernels::exponential(element(logits, target - own_.first) - kept.largest);
    of_target = (factor * power - shift) - loss_gradient * (1 - smoothing);
  }
  kernels::softmax_gradients(options_.dtype, logits, gradients, own_.count, kept.largest, factor,
                             shift);
  if (here) put(options_.dtype, of_target, gradients, target - own_.first);
}

// --- elements ----------------------------------------------------------------------------------

double CrossEntropy::element(const void* row, std::uint64_t index) const {
  const auto* const at = static_cast<const std::byte*>(row) + index * dtype_size(options_.dtype);
  if (options_.dtype == TRIREME_DTYPE_F64) {
    double value = 0;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  float value = 0;
  if (kernels::is_narrow(options_.dtype)) {
    kernels::widen(options_.dtype, &value, at, 1);
  } else {
    std::memcpy(&value, at, sizeof value);
  }
  return value;
}

void CrossEntropy::put(trireme_dtype dtype, double value, void* memory, std::uint64_t index) const {
  auto* const at = static_cast<std::byte*>(memory) + index * dtype_size(dtype);
  // Every NaN that is stored is the same one.
  const double one = value != value ? kNoNumber : value;
  if (dtype == TRIREME_DTYPE_F64) {
    std::memcpy(at, &one, sizeof one);
    return;
  }
  const auto narrow = static_cast<float>(one);
  if (kernels::is_narrow(dtype)) {
    kernels::narrow(dtype, at, &narrow, 1);
  } else {
    std::memcpy(at, &narrow, sizeof narrow);
  }
}

}  // namespace trireme::parallel
