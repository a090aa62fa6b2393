// Optimizer state that lies in a file and streams through a few buffers in each step.
#pragma once

#include <trireme/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "exchange/storage.hpp"
#include "offload/file.hpp"
#include "optimizer/rules/settings.hpp"
#include "optimizer/rules/shard_update.hpp"
#include "sharding/layout.hpp"

namespace trireme::strategies {

// The places of the pieces' state in blocks. Pure arithmetic.
struct OffloadPlan {
  // The number of vectors in one element's state, and its size in each.
  struct Size {
    std::uint64_t count = 0, element = 0;
    bool apart = false;  // begins a block
  };
  // Elements of one piece. In a block they lie vector by vector.
  struct Stretch {
    std::uint64_t piece = 0, first = 0, count = 0;
    std::uint64_t offset = 0, stride = 0;  // in the block; from vector to vector
  };
  struct Block {
    std::uint64_t begin = 0, end = 0;  // stretches
    std::uint64_t bytes = 0;
    std::uint64_t offset = 0;  // in the file, or in memory for blocks that stay there
    bool in_file = false;
  };

  std::vector<Stretch> stretches;  // in the order of pieces
  std::vector<Block> blocks;
  std::uint64_t file_bytes = 0, resident_bytes = 0;
  std::uint64_t slots = 0, slot_bytes = 0;
  std::uint64_t buffer_bytes() const { return slots * slot_bytes; }

  OffloadPlan(const std::vector<Size>& pieces, const optimizers::Settings& settings);
};

// Sizes of the pieces that a rank updates, in their order. With update in backward no two buckets
// share a block, because each bucket's blocks are read and written by themselves.
std::vector<OffloadPlan::Size> piece_sizes(const sharding::Layout& layout, std::uint32_t rank);

class Offload {
 public:
  // The access to a block: whether the visit needs its state, and whether it may change it.
  enum class Access { read, write, update };
  // Elements of a stretch whose states are in memory: the whole stretch for a rule of the caller,
  // else few enough for the nearest cache. The visit tells whether it changed them; it returns
  // false to end the sweep.
  struct Visited {
    optimizers::Piece piece;
    std::uint64_t number = 0, skipped = 0;  // of the piece; its elements before these
    bool changed = false;
  };
  using Visit = std::function<bool(Visited* stretch)>;

  // Makes memory and file of this rank. `pieces` must outlive it; `sizes` are theirs.
  static Status open(const Link& link, const std::shared_ptr<AllocatedBytes>& counter,
                     const std::vector<optimizers::Piece>& pieces,
                     const std::vector<OffloadPlan::Size>& sizes,
                     const optimizers::Settings& settings, std::unique_ptr<Offload>* out);
  ~Offload();
  Offload(const Offload&) = delete;
  Offload& operator=(const Offload&) = delete;

  // Visits all elements in order. After a failure some states are old, some new.
  Status sweep(Access access, const Visit& visit);
  // Visits those of pieces [first, end).
  Status sweep_pieces(Access access, std::uint64_t first, std::uint64_t end, const Visit& visit);
  // Visits the blocks of one piece that have elements of `range`.
  Status sweep_piece(Access access, std::uint64_t piece, sharding::Range range, const Visit& visit);
  // Begins to read the first blocks of the next whole sweep.
  void read_ahead();

  std::uint64_t resident_bytes() const { return resident_bytes_; }
  std::uint64_t buffer_bytes() const { return buffers_bytes_; }
  void info(trireme_offload_info* out) const;

 private:
  struct Block {
    char* data = nullptr;               // set while it stays in memory
    std::vector<std::uint64_t> hashes;  // by tile
    bool fresh = true;                  // never written: all zero
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
  struct Buffers {
    Arena arena;
    std::vector<Slot> slots;
    // For a block that is read once more after a part of it was updated.
    Arena spare;
    Slot again;
  };
  // The unit of a checksum: the same lines of all vectors of a stretch.
  struct Tile {
    const OffloadPlan::Stretch* stretch = nullptr;
    std::uint64_t number = 0;          // in the block
    std::uint64_t begin = 0, end = 0;  // bytes of each vector
  };
  // The visited block.
  struct Visiting {
    std::uint64_t block = 0;
    char* data = nullptr;
    Slot* slot = nullptr;  // null if the block stays in memory
    bool checks = false, changed = false, read_again = false;
  };

  Offload(const Link& link, const std::vector<optimizers::Piece>& pieces,
          const std::vector<OffloadPlan::Size>& sizes, const optimizers::Settings& settings);

  std::uint64_t block_of(std::uint64_t stretch) const;
  Status sweep_blocks(Access access, std::uint64_t begin, std::uint64_t end, const Visit& visit);
  Status visit_in_slot(Access access, Visiting* at, const Visit& visit, bool* go_on);
  std::uint64_t tiles_of(const OffloadPlan::Stretch& stretch) const;
  std::uint64_t hash_of(const Tile& tile, std::uint64_t block, const char* data) const;
  Status visit_block(Visiting* at, const Visit& visit, bool* go_on);
  Status visit_elements(Visiting* at, const Tile& tile, const Visit& visit, bool* go_on);
  Status check(Visiting* at, const Tile& tile);
  Status read_again(Visiting* at, const Tile& from);
  void clear(Slot* slot, std::uint64_t block);
  void start(Slot* slot, bool write);
  Status wait(Slot* slot, bool loads_ahead);
  Status load_ahead(bool may_wait);
  void begin_load(Slot* slot, std::uint64_t block);
  Status end_load(Slot* slot);
  Status end_write(Slot* slot);
  Status keep_in_memory(std::uint64_t block, Slot* slot);
  Status settle();

  const Link& link_;
  const std::vector<optimizers::Piece>& pieces_;
  const std::uint32_t states_;
  const bool whole_stretches_;      // are visited at once
  const std::uint64_t tile_bytes_;  // of one vector
  const OffloadPlan plan_;
  std::shared_ptr<AllocatedBytes> counter_;
  Arena resident_;
  std::shared_ptr<Buffers> buffers_;
  std::vector<Block> blocks_;
  // Of the visited block.
  std::vector<std::uint64_t> hashes_before_;
  std::vector<std::uint64_t> files_;  // blocks of this sweep that are in the file, in order
  std::uint64_t ahead_ = 0;           // number of them that have begun to load
  std::uint64_t next_ = 0;            // the visited one, or the next
  // Whether a sweep ended before it was settled: files_, ahead_ and slots are then useless for the
  // next one, and transfers may be under way.
  bool torn_ = false;
  std::uint64_t file_bytes_ = 0, resident_bytes_ = 0, buffers_bytes_ = 0;
  OffloadFile file_;  // its destructor waits before the other members' memory goes
};

}  // namespace trireme::strategies
