// StageMail: the messages between ranks that share memory. Each message of a pass has a cell in the
// memory of its sender. The cell tells where the data lie, and its receiver reads them there.
//
// The sender writes the data, then the cell, then the word `sent`. The receiver sees the word, then
// reads the cell and the data, and writes the word `taken` when it does not need them any more. A
// rank that has waited for a while says so in the word, and sleeps in a receive of 0 bytes. Whoever
// writes the word next wakes it by a message. So a group's deadlines and losses end the wait.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "exchange/storage.hpp"
#include "parallel/executor/lanes.hpp"
#include "parallel/executor/stage_message.hpp"
#include "platform/status.hpp"

namespace trireme::parallel {

class StageMail {
 public:
  struct Cell {
    // In pass p: 2 p + 1 once it has come; 2 p if the rank that waits for it sleeps; else the word
    // of an earlier pass.
    std::atomic<std::uint64_t> sent{0};
    std::atomic<std::uint64_t> taken{0};
    std::uint64_t place = 0;  // of the data, from the beginning of the memory
    StageHeader header;  // its shape lies in a line of its own, and is there with kShaped alone
  };
  static_assert(sizeof(Cell) == 128);

  // Of the messages that a rank sends.
  static std::uint64_t planned_bytes(const Lanes& lanes, std::uint32_t rank);

  // Both live as long as this.
  StageMail(strategies::Link& link, const Lanes& lanes);

  // `memory` has this rank's data, and its cells from `cells` on.
  Status use(std::shared_ptr<Memory> memory, std::uint64_t cells);
  // Collective, once all ranks have used theirs: each maps the memory of those who send to it. The
  // ranks agree on the outcome before one of them gives its memory up.
  Status meet();
  void begin_pass() { ++pass_; }

  Status send(const StageMessage& message, const StageHeader& header, const char* data);
  // Waits for it. *data is null if the header tells of more bytes than its sender has.
  Status receive(const StageMessage& message, StageHeader* header, const char** data);
  // This rank does not read the data any more.
  Status take(const StageMessage& message);
  // Waits until the receiver of a message does not read it any more.
  Status await_taken(const StageMessage& message);

 private:
  // The rank that a message of 0 bytes wakes, as its tag. A rank sleeps for one word at a time.
  enum class Wake : std::uint64_t { receiver, sender };

  // A rank's memory, as it tells the others.
  struct Told {
    std::uint64_t key = 0, bytes = 0, cells = 0;
  };

  bool receives_from(std::uint32_t rank) const;
  std::uint32_t sender_of(const StageMessage& message) const { return lanes_[message.lane].sender; }
  std::uint32_t receiver_of(const StageMessage& message) const {
    return lanes_[message.lane].receiver;
  }
  Cell& cell(const StageMessage& message) const;
  // Waits for the other rank's write to the word.
  Status await(std::atomic<std::uint64_t>& word, Wake wake, std::uint32_t from);
  Status sleep(Wake wake, std::uint32_t from);
  // Tells the other rank, and wakes it if it sleeps.
  Status write(std::atomic<std::uint64_t>& word, Wake wake, std::uint32_t to);

  strategies::Link& link_;
  const Lanes& lanes_;
  const int spins_;
  std::vector<std::uint64_t> cells_;  // by lane: the first of its cells
  std::shared_ptr<Memory> memory_;
  struct Peer {
    std::shared_ptr<Memory> memory;
    Cell* cells = nullptr;
  };
  std::vector<Peer> peers_;       // by rank; this one, too
  std::shared_ptr<Memory> told_;  // until the ranks have met
  std::uint64_t pass_ = 0;
};

}  // namespace trireme::parallel
