// The global norm over several models that step together, each with its own part of one large
// network: data x tensor x pipeline parallel training.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "collectives/subgroup.hpp"
#include "exchange/storage.hpp"
#include "kernels/exact_sum.hpp"
#include "platform/status.hpp"
#include "sharding/registry.hpp"

namespace trireme::strategies {

class NormRanks {
 public:
  // Collective over `ranks`, in a group of its own, which `child` describes. `facts` must be the
  // same on all of them, and tell the number of `norms`: one, one for each group of parameters, or
  // 0 where the ranks agree on overflows alone. If `local` is a failure, all of them are told and
  // none goes on. Whatever it answers, the ranks of the model must agree() on that, and on
  // identity().
  Status open(Communicator& ranks, const ChildOptions& child, const sharding::Registry& registry,
              const std::vector<sharding::Fact>& facts, std::size_t norms, const Status& local,
              const std::shared_ptr<AllocatedBytes>& counter);
  // Equal on all ranks of one group, and on no others.
  std::uint64_t identity() const { return identity_; }
  const std::shared_ptr<Communicator>& communicator() const { return link_.communicator; }
  // Bytes of this rank's working memory.
  std::uint64_t bytes() const { return words_.bytes(); }

  // Gradients that this rank owns, of a parameter that so many models hold, to the norm of that
  // number.
  void add(std::size_t norm, std::uint32_t replicas, trireme_dtype dtype, const void* gradients,
           std::uint64_t count);
  // Adds up what all ranks have added to each norm, each replicated parameter once, and begins
  // anew. `agreement` must be the same on all ranks. `overflowed`: whether any of them says so.
  // `out_squares`: the square of each norm.
  Status finish(const Link& model, std::uint64_t agreement, const char* name,
                kernels::ExactSum* out_squares, bool* overflowed);

 private:
  Status gather_factors(const sharding::Registry& registry, const Status& local);

  Link link_;
  std::size_t norms_ = 0;
  std::vector<std::uint32_t> factors_;   // counts of models that hold a parameter, ascending
  std::vector<kernels::ExactSum> sums_;  // by factor, then by norm
  std::uint64_t identity_ = 0;
  Arena words_;
};

}  // namespace trireme::strategies
