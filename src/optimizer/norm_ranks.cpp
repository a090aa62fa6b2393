#include "optimizer/norm_ranks.hpp"

#include <algorithm>
#include <set>
#include <string>

#include "exchange/agreement.hpp"
#include "kernels/hash.hpp"
#include "optimizer/rules/clipping.hpp"
#include "platform/clock.hpp"

namespace trireme::strategies {

using kernels::ExactSum;
using optimizers::GradientNorm;

namespace {

constexpr std::size_t kMostFactors = 8;
constexpr char kNormCall[] = "create of an optimizer";
// A rank's words about itself: a name for its group, the number of its factors, and the factors.
constexpr std::size_t kSaid = 2 + kMostFactors;

}  // namespace

Status NormRanks::open(Communicator& ranks, const ChildOptions& child,
                       const sharding::Registry& registry, const std::vector<sharding::Fact>& facts,
                       std::size_t norms, const Status& local,
                       const std::shared_ptr<AllocatedBytes>& counter) {
  link_.timeout_ns = child.timeout_ns;
  norms_ = norms;
  TRIREME_RETURN_IF_ERROR(duplicate(ranks, child, &link_.communicator));
  TRIREME_RETURN_IF_ERROR(agree(link_, kNormCall, facts, Status::success()));
  TRIREME_RETURN_IF_ERROR(gather_factors(registry, local));
  sums_.resize(factors_.size() * norms_);
  const std::uint64_t bytes = (sums_.size() * GradientNorm::kWords + 1) * sizeof(std::int64_t);
  return agree(link_, kNormCall, {},
               words_.allocate(*link_.communicator, counter, MemoryKind::working, bytes));
}

Status NormRanks::gather_factors(const sharding::Registry& registry, const Status& local) {
  const std::uint32_t ranks = link_.world_size();
  std::set<std::uint64_t> own;
  Status status = local;
  for (const sharding::Parameter& parameter : registry.parameters()) {
    own.insert(parameter.replicas);
    if (parameter.replicas <= ranks || !status.ok()) continue;
    status = invalid_argument("replicas " + std::to_string(parameter.replicas) + " of parameter " +
                              sharding::quoted(parameter.name) + ", but options.norm_ranks has " +
                              std::to_string(ranks) + " ranks");
  }
  if (status.ok() && own.size() > kMostFactors) {
    status = unsupported("parameters of more than 8 different counts of replicas");
  }
  std::shared_ptr<Memory> memory;
  Status allocated = link_.communicator->allocate(ranks * kSaid * sizeof(std::uint64_t), &memory);
  TRIREME_RETURN_IF_ERROR(agree(link_, kNormCall, {}, status.ok() ? allocated : status));
  auto* const all = static_cast<std::uint64_t*>(memory->data());
  std::uint64_t* const said = all + kSaid * link_.rank();
  const std::uint64_t unique[] = {now_ns(), reinterpret_cast<std::uintptr_t>(this)};
  said[0] = kernels::hash(unique, sizeof unique, 0);
  said[1] = own.size();
  std::fill_n(said + 2, kMostFactors, 0);
  std::copy(own.begin(), own.end(), said + 2);
  Operation operation =
      in_place(link_, 0, OperationKind::all_gather, TRIREME_DTYPE_U64, all, kSaid, memory);
  TRIREME_RETURN_IF_ERROR(link_.run(std::move(operation)));
  identity_ = all[0];
  std::set<std::uint64_t> factors;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const std::uint64_t* const other = all + kSaid * rank;
    factors.insert(other + 2, other + 2 + std::min<std::uint64_t>(other[1], kMostFactors));
  }
  factors.erase(0);  // 0 means no factor
  if (factors.size() > kMostFactors) {
    return unsupported("parameters of more than 8 different counts of replicas");
  }
  for (const std::uint64_t factor : factors) {
    factors_.push_back(static_cast<std::uint32_t>(factor));
  }
  return Status::success();
}

void NormRanks::add(std::size_t norm, std::uint32_t replicas, trireme_dtype dtype,
                    const void* gradients, std::uint64_t count) {
  const auto found = std::lower_bound(factors_.begin(), factors_.end(), replicas);
  const auto factor = static_cast<std::size_t>(found - factors_.begin());
  sums_[factor * norms_ + norm].add_squares(dtype, gradients, count);
}

Status NormRanks::finish(const Link& model, std::uint64_t agreement, const char* name,
                         ExactSum* out_squares, bool* overflowed) {
  auto* const words = reinterpret_cast<std::int64_t*>(words_.data());
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    GradientNorm::write(&sums_[i], words + i * GradientNorm::kWords);
    sums_[i] = ExactSum();
  }
  std::int64_t* const overflows = words + sums_.size() * GradientNorm::kWords;
  *overflows = *overflowed ? 1 : 0;
  Operation operation = in_place(link_, 0, OperationKind::all_reduce, TRIREME_DTYPE_I64, words,
                                 sums_.size() * GradientNorm::kWords + 1, words_.memory());
  operation.agreement = agreement;
  operation.agreement_name = name;
  TRIREME_RETURN_IF_ERROR(model.run(*link_.communicator, std::move(operation)));
  *overflowed = *overflows > 0;
  for (std::size_t norm = 0; norm < norms_; ++norm) {
    ExactSum total;
    for (std::size_t i = 0; i < factors_.size(); ++i) {
      ExactSum sum = GradientNorm::read(words + (i * norms_ + norm) * GradientNorm::kWords);
      sum.divide(factors_[i]);
      total.add(sum);
    }
    out_squares[norm] = total;
  }
  return Status::success();
}

}  // namespace trireme::strategies
