// The items that a trainer keeps between forward and backward, on their way to a file and back:
// forward stores item after item, backward takes them in reverse order. See WindowPlan.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "offload/item_file.hpp"
#include "sharding/activation_plan.hpp"

namespace trireme::strategies {

class ActivationWindow {
 public:
  using Trouble = ItemFile::Trouble;

  ActivationWindow(const Link& link, const WindowPlan& plan, const std::string& directory);
  // `memory` holds all slots; `owner` keeps it alive.
  Status open(char* memory, const std::shared_ptr<const void>& owner);

  // These calls fail as those of ItemFile do. Call begin() before the first item of a micro-batch.
  Status begin();
  // Call it before `item` is made.
  Status make_room(std::uint64_t item, Trouble* trouble);
  // Call it when `item` is made, and is not used before backward.
  void store(std::uint64_t item);
  // Call it before `item` is used.
  Status need(std::uint64_t item, Trouble* trouble) { return file_.need(item, trouble); }
  // Call it when `item` is of no more use.
  void drop(std::uint64_t item);

  // Bytes in memory: the slots, and the items that could not be written.
  std::uint64_t allocated_bytes() const { return plan_.bytes + file_.kept_bytes(); }
  void info(trireme_offload_info* out) const;

 private:
  char* data_of(std::uint64_t item) const { return memory_ + plan_.items[item].place; }

  const WindowPlan& plan_;
  char* memory_ = nullptr;
  std::vector<std::uint64_t> holds_;  // by slot: the item there, or no item's number
  ItemFile file_;
};

}  // namespace trireme::strategies
