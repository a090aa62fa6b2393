// MpiWire: the wire between all ranks of a group, of messages of MPI. The thread that waits for a
// piece asks MPI for it again and again.
//
// MPI cannot take back a message: it may use the memory of one that this rank has given up, until
// the process ends. So a piece is copied to or from a stage, which is memory of the wire, unless
// it has a keeper or is lent.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "backends/backend.hpp"
#include "backends/mpi/plugin.hpp"
#include "backends/wire.hpp"

namespace trireme::mpi {

// Begins the message of a short piece. MPI may take such a message before its receiver asks for it.
// So it may have one of a call that failed. The plugin keeps the communicators of a group in which
// a message had no receiver: no later group has them. A long piece is not over before its receiver
// has asked for it.
struct PieceHead {
  std::uint64_t group;   // its number in the plugin
  std::uint64_t ticket;  // the operation's
};

constexpr std::uint64_t kMostOfShort = 4096;

// The tag of a piece on the communicator of its channel. Operations of different channels never
// have the same one, and neither have slots of an operation. Other operations may have the same.
std::int32_t tag_of(const PieceHead& head, std::uint32_t channel, std::uint64_t slot);

class MpiWire final : public Wire {
 public:
  // The peers of transfers are ranks of the group, which outlives the wire.
  MpiWire(const Plugin& plugin, Group& group)
      : plugin_(plugin), group_(group), number_(plugin.number(&group)) {}
  MpiWire(const MpiWire&) = delete;
  MpiWire& operator=(const MpiWire&) = delete;

  // Called now and then by a thread that waits in this channel. Set it before the first piece.
  void look_by(std::function<Status(std::uint32_t channel)> look) { look_ = std::move(look); }

  // A channel's functions are called by one thread at a time.
  bool copies() const override { return true; }
  Status send(Transfer& transfer) override;
  Status receive(Transfer& transfer) override;
  void go() noexcept override {}  // nothing waits for it
  Status wait(Transfer& transfer, Deadline deadline) override;
  void drop(Transfer& transfer) noexcept override;

  TrafficCounters traffic() const { return {sent_.load(), received_.load(), messages_.load()}; }
  // Ends the wire. Any thread, more than once.
  void abort() noexcept { aborted_.store(true); }

 private:
  // A message under way.
  struct Piece {
    Transfer* transfer = nullptr;
    PeerMessage message{};
    Request* request = nullptr;          // null: MPI does not have it
    std::unique_ptr<std::byte[]> stage;  // null: the memory is the keeper's, or lent
    std::size_t size_class = 0;          // of the stage
    std::shared_ptr<std::byte[]> kept;
    Piece* next = nullptr;  // of those that stay for good
  };
  // The stages of class i have room for 2^i bytes behind the head.
  static constexpr std::size_t kClasses = 31;
  static constexpr std::size_t kMostSpare = 64;  // of a class
  // One channel.
  struct Lane {
    // MPI takes no message before the channel's communicator is there; then in this order.
    std::deque<Piece*> waiting;
    std::array<std::vector<std::unique_ptr<Piece>>, kClasses> spare;
  };

  Status begin(Transfer& transfer, bool sends);
  Status post_waiting(Lane& lane);
  Status advance(Lane& lane, Piece& piece);
  Status end(Lane& lane, Piece& piece);
  static std::unique_ptr<Piece> take_piece(Lane& lane, std::uint64_t bytes);
  static void give_back(Lane& lane, Piece* piece) noexcept;
  static void keep_for_good(Piece* piece) noexcept;
  Status failed(const char* error);

  const Plugin& plugin_;
  Group& group_;
  const std::uint64_t number_;
  std::function<Status(std::uint32_t)> look_;
  std::array<Lane, kChannels> lanes_;
  std::atomic<bool> aborted_{false};
  std::atomic<std::uint64_t> sent_{0};  // bytes, as the next one
  std::atomic<std::uint64_t> received_{0};
  std::atomic<std::uint64_t> messages_{0};
};

}  // namespace trireme::mpi
