// Routing: the decisions of a route pass: how many rows of each rank go to each expert, and where
// each slot of this rank's rows lies among those that travel. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "parallel/experts/expert_layout.hpp"
#include "parallel/experts/router.hpp"

namespace trireme::parallel {

class Routing {
 public:
  Routing(const ExpertLayout& layout, std::uint32_t rank, std::uint32_t top_k,
          std::uint64_t most_rows);

  // The same on all ranks, and another one for each route pass.
  std::uint64_t agreement() const { return agreement_; }
  std::uint64_t rows() const { return rows_; }
  std::uint64_t real_rows() const { return real_rows_; }  // of all ranks
  std::uint64_t slot_count() const { return rows_ * top_k_; }
  ExpertSlot* slots() { return slots_.data(); }
  const ExpertSlot* slots() const { return slots_.data(); }
  // Rows that a rank has for an expert.
  std::uint64_t count(std::uint64_t expert, std::uint32_t source) const {
    return counts_[expert * layout_.ranks() + source];
  }

  void begin(std::uint64_t rows) { rows_ = rows; }
  // `leaves` are the counts of all leaves, in order. Finds the places of this rank's slots.
  void finish(std::uint64_t agreement, const std::vector<LeafCounts>& leaves);

  std::uint64_t sent_rows() const;      // of this rank that are routed
  std::uint64_t received_rows() const;  // that come to this rank
  std::uint64_t rows_to_peers() const;  // of this rank that leave it
  std::uint64_t rows_from_peers() const;

  // Rows that ranks have for each other in a round, times `bytes`. Those from rank s to rank d
  // stand at s * ranks + d. Empty: none has any.
  std::vector<std::uint64_t> blocks_of_round(std::uint32_t round, bool back,
                                             std::uint64_t bytes) const;
  // Rows of this rank that go in a round, and that come.
  std::uint64_t sent_in_round(std::uint32_t round) const;
  std::uint64_t received_in_round(std::uint32_t round) const;

  // As bytes that the caller keeps, at any address.
  static std::uint64_t kept_bytes(const ExpertLayout& layout, std::uint32_t top_k,
                                  std::uint64_t most_rows);
  void save(std::uint64_t shape, void* kept) const;
  // False if save() has not written these bytes, with the same shape.
  bool load(std::uint64_t shape, const void* kept);

  std::uint64_t memory_bytes() const;

 private:
  struct Header {
    std::uint64_t hash = 0;  // of all that follows
    std::uint64_t agreement = 0;
    std::uint64_t rows = 0;
    std::uint64_t real_rows = 0;
  };
  void find_places();

  const ExpertLayout layout_;
  const std::uint32_t rank_;
  const std::uint32_t top_k_;
  const std::uint64_t most_rows_;
  std::uint64_t agreement_ = 0;
  std::uint64_t rows_ = 0;
  std::uint64_t real_rows_ = 0;
  std::vector<std::uint64_t> counts_;  // by expert and rank
  std::vector<std::uint64_t> next_;    // by expert: the place of the next row
  std::vector<ExpertSlot> slots_;
};

}  // namespace trireme::parallel
