// The order of work in a pass, for whoever does it or plans it. In step s a rank has the keys and
// values of rank r - s, and computes the pairs of its queries with these. Results of pairs lie in
// slots until they are merged. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/context/chunks.hpp"
#include "parallel/context/tree_order.hpp"
#include "parallel/context/visibility.hpp"
#include "platform/status.hpp"

namespace trireme::parallel {

// Numbers of slots. A slot that was just given back is taken first, because caches hold it.
class SlotNumbers {
 public:
  std::uint32_t take();
  void give(std::uint32_t slot) { free_.push_back(slot); }
  std::uint32_t most() const { return most_; }  // at the same time, so far

 private:
  std::vector<std::uint32_t> free_;
  std::uint32_t most_ = 0;
};

// The chunks of keys that a chunk of queries sees, or the chunks of queries that see one of keys.
TreeOrder order_of_queries(const Chunks& chunks, const Visibility& visibility, std::uint32_t chunk);
TreeOrder order_of_keys(const Chunks& chunks, const Visibility& visibility, std::uint32_t chunk);

// The sums of gradients that rank `from` has for one of keys' chunks, once it has computed all its
// pairs with it.
std::vector<sharding::TreeNode> gradient_nodes(const Chunks& chunks, const Visibility& visibility,
                                               std::uint32_t from, std::uint32_t kv_chunk);

// Rows of all those sums from rank f for keys of rank t, at f * ranks + t.
std::vector<std::uint64_t> gradient_rows(const Chunks& chunks, const Visibility& visibility);

inline std::uint32_t source_in_step(const Chunks& chunks, std::uint32_t rank, std::uint32_t step) {
  return (rank + chunks.ranks() - step) % chunks.ranks();
}

// Makes a forward pass of a rank. The worker has these functions:
// - begin_step(step): The keys and values of the step are here. Those of the next one may travel.
// - pair(q, kv, slot): Computes a pair.
// - merge(q, left, right): Slot left gets the result of both.
// - end_step(step): Those of the next step have come.
// - agree(): All ranks have computed their pairs.
// - result(q, slot): The slot holds the whole result of a chunk of queries.
// *out_slots gets the most slots in use.
template <class Worker>
Status walk_forward(const Chunks& chunks, const Visibility& visibility, std::uint32_t rank,
                    Worker& worker, std::uint32_t* out_slots) {
  const std::vector<std::uint32_t>& own = chunks.of_rank(rank);
  SlotNumbers slots;
  std::vector<TreeOrder> orders;
  for (const std::uint32_t q : own) orders.push_back(order_of_queries(chunks, visibility, q));
  for (std::uint32_t step = 0; step < chunks.ranks(); ++step) {
    TRIREME_RETURN_IF_ERROR(worker.begin_step(step));
    for (std::size_t i = 0; i < own.size(); ++i) {
      const std::uint32_t q = own[i];
      for (const std::uint32_t kv : chunks.of_rank(source_in_step(chunks, rank, step))) {
        if (!visibility.any(chunks.range(q), chunks.range(kv))) continue;
        const std::uint32_t slot = slots.take();
        worker.pair(q, kv, slot);
        orders[i].arrive({kv, kv + 1}, slot, [&](std::uint32_t left, std::uint32_t right) {
          worker.merge(q, left, right);
          slots.give(right);
        });
      }
    }
    TRIREME_RETURN_IF_ERROR(worker.end_step(step));
  }
  TRIREME_RETURN_IF_ERROR(worker.agree());
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (chunks.range(own[i]).count > 0) {
      worker.result(own[i], orders[i].waiting().begin()->second.slot);
    }
  }
  *out_slots = slots.most();
  return Status::success();
}

// Makes a backward pass of a rank. Slots of queries hold gradients of queries, and slots of keys
// those of keys and values. The worker has these functions, beside those above:
// - begin_step(step): As above. Also, sums that were packed may travel.
// - pair(q, kv, q_slot, kv_slot): Computes a pair.
// - add_queries(q, left, right), add_keys(kv, left, right): Slot left gets the sum of both.
// - unpack(kv, slot): The slot gets the next sum that has come.
// - pack(kv, slot): The slot has the next sum that is to go.
// - queries(q, slot), keys(kv, slot): The slot holds the whole gradient of a chunk.
// With several ranks one more step comes after the last one, without pairs.
struct BackwardSlots {
  std::uint32_t queries = 0;
  std::uint32_t keys = 0;
};

template <class Worker>
class BackwardWalk {
 public:
  BackwardWalk(const Chunks& chunks, const Visibility& visibility, std::uint32_t rank,
               Worker& worker)
      : chunks_(chunks), visibility_(visibility), rank_(rank), worker_(worker) {
    for (const std::uint32_t chunk : own()) {
      q_orders_.push_back(order_of_queries(chunks, visibility, chunk));
      kv_orders_.push_back(order_of_keys(chunks, visibility, chunk));
    }
  }

  Status run(BackwardSlots* out_slots) {
    const std::uint32_t steps = chunks_.ranks() + (chunks_.ranks() > 1 ? 1 : 0);
    for (std::uint32_t step = 0; step < steps; ++step) {
      TRIREME_RETURN_IF_ERROR(worker_.begin_step(step));
      std::vector<TreeOrder> sums;
      if (step < chunks_.ranks()) sums = make_pairs(step);
      TRIREME_RETURN_IF_ERROR(worker_.end_step(step));
      if (step >= 2) take_sums((rank_ + step - 1) % chunks_.ranks());
      if (step < chunks_.ranks()) give_sums(step, sums);
    }
    TRIREME_RETURN_IF_ERROR(worker_.agree());
    finish();
    *out_slots = {q_slots_.most(), kv_slots_.most()};
    return Status::success();
  }

 private:
  const std::vector<std::uint32_t>& own() const { return chunks_.of_rank(rank_); }

  // The sums over this rank's queries, of each chunk of keys that it has in the step.
  std::vector<TreeOrder> make_pairs(std::uint32_t step) {
    const auto& sources = chunks_.of_rank(source_in_step(chunks_, rank_, step));
    std::vector<TreeOrder> sums;
    for (const std::uint32_t kv : sources) sums.push_back(order_of_keys(chunks_, visibility_, kv));
    for (std::size_t i = 0; i < own().size(); ++i) {
      for (std::size_t j = 0; j < sources.size(); ++j) make_pair(i, sources[j], &sums[j]);
    }
    return sums;
  }

  void make_pair(std::size_t i, std::uint32_t kv, TreeOrder* sums) {
    const std::uint32_t q = own()[i];
    if (!visibility_.any(chunks_.range(q), chunks_.range(kv))) return;
    const std::uint32_t q_slot = q_slots_.take();
    const std::uint32_t kv_slot = kv_slots_.take();
    worker_.pair(q, kv, q_slot, kv_slot);
    q_orders_[i].arrive({kv, kv + 1}, q_slot, [&](std::uint32_t left, std::uint32_t right) {
      worker_.add_queries(q, left, right);
      q_slots_.give(right);
    });
    arrive_keys(sums, kv, {q, q + 1}, kv_slot);
  }

  void arrive_keys(TreeOrder* order, std::uint32_t kv, const sharding::TreeNode& node,
                   std::uint32_t slot) {
    order->arrive(node, slot, [&](std::uint32_t left, std::uint32_t right) {
      worker_.add_keys(kv, left, right);
      kv_slots_.give(right);
    });
  }

  void take_sums(std::uint32_t from) {
    for (std::size_t i = 0; i < own().size(); ++i) {
      for (const auto& node : gradient_nodes(chunks_, visibility_, from, own()[i])) {
        const std::uint32_t slot = kv_slots_.take();
        worker_.unpack(own()[i], slot);
        arrive_keys(&kv_orders_[i], own()[i], node, slot);
      }
    }
  }

  // This rank keeps those for its own keys.
  void give_sums(std::uint32_t step, const std::vector<TreeOrder>& sums) {
    const auto& sources = chunks_.of_rank(source_in_step(chunks_, rank_, step));
    for (std::size_t j = 0; j < sources.size(); ++j) {
      for (const auto& [first, sum] : sums[j].waiting()) {
        if (step == 0) {
          arrive_keys(&kv_orders_[j], sources[j], sum.node, sum.slot);
        } else {
          worker_.pack(sources[j], sum.slot);
          kv_slots_.give(sum.slot);
        }
      }
    }
  }

  void finish() {
    for (std::size_t i = 0; i < own().size(); ++i) {
      if (chunks_.range(own()[i]).count == 0) continue;
      worker_.queries(own()[i], q_orders_[i].waiting().begin()->second.slot);
      worker_.keys(own()[i], kv_orders_[i].waiting().begin()->second.slot);
    }
  }

  const Chunks& chunks_;
  const Visibility& visibility_;
  const std::uint32_t rank_;
  Worker& worker_;
  SlotNumbers q_slots_;
  SlotNumbers kv_slots_;
  std::vector<TreeOrder> q_orders_;   // of this rank's queries
  std::vector<TreeOrder> kv_orders_;  // of this rank's keys
};

}  // namespace trireme::parallel
