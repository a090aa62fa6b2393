// ItemFile: activations on their way to a file and back, item by item. The owner of their memory
// says when an item goes, when it comes, and where it lies.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "offload/file.hpp"

namespace trireme::strategies {

class ItemFile {
 public:
  // Why this rank cannot go on. The rest of the model is intact.
  struct Trouble {
    int error_number = 0;
    bool corrupt = false;
    bool writing = false;    // else reading
    std::uint64_t item = 0;  // whose transfer it was
    bool any() const { return error_number != 0 || corrupt; }
  };
  struct Place {
    std::uint64_t bytes = 0;   // whole pages
    std::uint64_t offset = 0;  // in the file
  };

  ItemFile(const Link& link, const std::string& directory);
  // `memory` keeps the memory of all transfers alive.
  Status open(const std::vector<Place>& items, std::uint64_t bytes,
              std::shared_ptr<const void> memory);

  // A failure of these calls means a lost rank, or a silent disk; a refusal of the disk is Trouble.
  // Waits for all transfers. Their data are of no more use.
  Status begin();
  // The item is whole, and is not used before fetch().
  void store(std::uint64_t item, char* data);
  // Call it before other data come to the place from which the item was stored.
  Status settle(std::uint64_t item, Trouble* trouble);
  void fetch(std::uint64_t item, char* data);
  // Call it before a fetched item is used.
  Status need(std::uint64_t item, Trouble* trouble);

  // Bytes of items that could not be written, and stay in memory.
  std::uint64_t kept_bytes() const { return kept_bytes_; }
  // Fills what the file knows.
  void info(trireme_offload_info* out) const { file_.info(out); }

 private:
  struct Free {
    void operator()(void* memory) const;
  };
  struct Item {
    enum class Use { idle, writing, reading };
    Place place;
    Use use = Use::idle;
    char* data = nullptr;
    std::uint64_t hash = 0;
    std::unique_ptr<char, Free> kept;  // in place of the file
    Transfer transfer;
  };
  // Memory of transfers that the disk may never answer.
  struct Shared {
    std::shared_ptr<const void> memory;
    std::vector<Item> items;
  };

  Item& at(std::uint64_t item) { return shared_->items[item]; }
  void start(Item* item, bool write);
  bool keep(Item* item);

  std::uint64_t kept_bytes_ = 0;
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  OffloadFile file_;
};

}  // namespace trireme::strategies
