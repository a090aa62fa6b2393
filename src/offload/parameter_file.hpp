// The parameters of a rank that lie in a file: read block by block into a few parts of a buffer,
// updated there, and written back. See FilePlan.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "exchange/storage.hpp"
#include "offload/file.hpp"
#include "sharding/file_plan.hpp"

namespace trireme::strategies {

// One block at a time is open. Meanwhile the expected blocks are read, and the changed ones are
// written; a changed block keeps its slot until it is in the file. A block that cannot be written
// stays in memory from then on. All failures are of this rank alone: a caller whose peers wait for
// it must tell them.
class ParameterFile {
 public:
  // Whether the caller needs the values, and whether it may change them. `write` replaces all of
  // them.
  enum class Access { read, write, update };
  // Adjacent elements of a group, of those that this rank holds.
  struct Window {
    char* data = nullptr;
    sharding::Range range;
    std::shared_ptr<Memory> memory;  // for peers that read it
  };

  ParameterFile(const Link& link, const sharding::Layout& layout, const std::string& directory);
  ParameterFile(const ParameterFile&) = delete;
  ParameterFile& operator=(const ParameterFile&) = delete;
  // Allocates memory, and makes the file with room for all blocks. All values are 0.
  Status open(const std::shared_ptr<AllocatedBytes>& counter);

  // Announces the order in which the caller opens groups, or the parts of them that this rank
  // updates: begins to read the first ones. Replaces the last announcement.
  Status expect(const std::vector<std::uint64_t>& groups);
  Status expect_all();
  Status expect_updates();

  std::uint64_t blocks_of(std::uint64_t group) const {
    return plan_.first_block[group + 1] - plan_.first_block[group];
  }
  // The block of a group that has this element, good until the next call. A window that is opened
  // to be changed counts as changed.
  Status open_window(std::uint64_t group, std::uint64_t element, Access access, Window* out);
  // Block `index` of a group.
  Status open_block(std::uint64_t group, std::uint64_t index, Access access, Window* out);
  Status close_window();
  // Copy all elements of a group that the rank holds.
  Status read_part(std::uint64_t group, char* to);
  Status write_part(std::uint64_t group, const char* from);

  // Bytes of blocks that could not be written, and stay in memory.
  std::uint64_t kept_bytes() const { return kept_bytes_; }
  std::uint64_t slots() const { return plan_.slots; }
  void info(trireme_offload_info* out) const;

 private:
  struct Block {
    char* data = nullptr;  // set while it stays in memory
    std::uint64_t hash = 0;
    bool fresh = true;  // never written: all zero
    bool in_file = false;
    Arena own;  // of a block that could not be written
  };
  struct Slot {
    enum class Use { free, reading, loaded, writing };
    Use use = Use::free;
    bool noted = false;  // its write failed, which may be waited for again
    std::uint64_t block = 0;
    char* data = nullptr;
    Transfer transfer;
  };
  // Memory of transfers that the disk may never answer.
  struct Buffers {
    Arena arena;
    std::vector<Slot> slots;
  };

  Status expect_blocks();
  Slot* find(std::uint64_t block);
  std::uint64_t end_of_window() const;
  std::uint64_t place_of(std::uint64_t block) const;
  bool is_expected(std::uint64_t block) const;
  void pass(std::uint64_t block);
  void start(Slot* slot, bool write);
  bool holds_what_was_written(const Slot& slot) const;
  Status end_read(Slot* slot);
  Status end_write(Slot* slot);
  Status keep_in_memory(Slot* slot);
  Status look_for_slot(Slot** out);
  Status take_slot(Slot** out);
  Status read_ahead();
  Status acquire(std::uint64_t block, Access access);

  const Link& link_;
  const sharding::Layout& layout_;
  const sharding::FilePlan plan_;
  std::shared_ptr<AllocatedBytes> counter_;
  Arena resident_;
  std::vector<Block> blocks_;
  std::shared_ptr<Buffers> buffers_ = std::make_shared<Buffers>();
  std::vector<std::uint64_t> expected_;   // blocks in the file, in order
  std::uint64_t next_ = 0;                // the first of them that was not opened
  std::uint64_t open_ = sharding::kNone;  // the open block
  Slot* held_ = nullptr;                  // its slot, if it has one
  bool changed_ = false;                  // in the window
  std::uint64_t kept_bytes_ = 0;
  OffloadFile file_;  // its destructor waits before the other members' memory goes
};

}  // namespace trireme::strategies
