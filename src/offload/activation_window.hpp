// The items that a trainer keeps between forward and backward, on their way to a file and back:
// forward stores item after item, backward takes them in reverse order. See WindowPlan.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "offload/file.hpp"
#include "sharding/activation_plan.hpp"

namespace trireme::strategies {

class ActivationWindow {
 public:
  // Why this rank cannot go on with its micro-batch. The rest of the model is intact.
  struct Trouble {
    int error_number = 0;
    bool corrupt = false;
    bool any() const { return error_number != 0 || corrupt; }
  };

  ActivationWindow(const Link& link, const WindowPlan& plan, const std::string& directory);
  // `memory` holds all slots; `owner` keeps it alive.
  Status open(char* memory, const std::shared_ptr<const void>& owner);

  // A failure of these calls means a lost rank, or a silent disk; a refusal of the disk is Trouble.
  // Call begin() before the first item of a micro-batch.
  Status begin();
  // Call it before `item` is made.
  Status make_room(std::uint64_t item, Trouble* trouble);
  // Call it when `item` is made, and is not used before backward.
  void store(std::uint64_t item);
  // Call it before `item` is used.
  Status need(std::uint64_t item, Trouble* trouble);
  // Call it when `item` is of no more use.
  void drop(std::uint64_t item);

  // Bytes in memory: the slots, and the items that could not be written.
  std::uint64_t allocated_bytes() const { return plan_.bytes + kept_bytes_; }
  void info(trireme_offload_info* out) const;

 private:
  struct Free {
    void operator()(void* memory) const;
  };
  struct Item {
    std::uint64_t hash = 0;
    std::unique_ptr<char, Free> kept;  // in place of the file
  };
  struct Slot {
    enum class Use { free, held, reading, writing };
    Use use = Use::free;
    std::uint64_t item = 0;
    Transfer transfer;
  };
  // Memory of transfers that the disk may never answer.
  struct Slots {
    std::shared_ptr<const void> memory;
    std::vector<Slot> all;
  };

  Slot& slot_of(std::uint64_t item) { return slots_->all[item % plan_.slots]; }
  char* data_of(std::uint64_t item) const { return memory_ + plan_.items[item].place; }
  std::uint64_t hash_of(std::uint64_t item) const;
  void start(Slot* slot, bool write);
  bool keep(std::uint64_t item, const Transfer& transfer);

  const WindowPlan& plan_;
  char* memory_ = nullptr;
  std::vector<Item> items_;
  std::uint64_t kept_bytes_ = 0;
  std::shared_ptr<Slots> slots_ = std::make_shared<Slots>();
  OffloadFile file_;
};

}  // namespace trireme::strategies
