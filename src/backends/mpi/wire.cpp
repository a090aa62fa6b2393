#include "backends/mpi/wire.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "backends/mpi/looks.hpp"
#include "platform/failpoint.hpp"

namespace trireme::mpi {
namespace {

// Channels that share a communicator, at most.
constexpr std::uint64_t kSharers = (kChannels + kOwnChannels - 1) / kOwnChannels;
constexpr std::uint64_t kOperations = kSlotTag / (kSharers * Wire::kSlots);
static_assert(kOperations > 0);
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 30;
// A thread that waits looks at other things after so many looks at its piece.
constexpr int kLooks = 16;
constexpr std::size_t kLeastClass = 8;

bool is_short(const Wire::Transfer& transfer) { return transfer.bytes <= kMostOfShort; }

Status ended() {
  return Status::failure(TRIREME_ERROR_ABORTED, "the group ended during a collective of MPI");
}

}  // namespace

std::int32_t tag_of(const PieceHead& head, std::uint32_t channel, std::uint64_t slot) {
  const std::uint64_t operation = (head.ticket ^ head.group * 0x9e3779b97f4a7c15u) % kOperations;
  const std::uint64_t sharer = channel / kOwnChannels;
  return static_cast<std::int32_t>((operation * kSharers + sharer) * Wire::kSlots + slot);
}

Status MpiWire::failed(const char* error) {
  aborted_.store(true);
  return Status::failure(TRIREME_ERROR_SYSTEM, std::string(plugin_.name) + ": " + error);
}

// --- stages ------------------------------------------------------------------------------------

std::unique_ptr<MpiWire::Piece> MpiWire::take_piece(Lane& lane, std::uint64_t bytes) {
  const std::size_t size_class =
      std::max<std::size_t>(kLeastClass, bytes < 2 ? 0 : std::bit_width(bytes - 1));
  std::vector<std::unique_ptr<Piece>>& spare = lane.spare[size_class];
  spare.reserve(kMostSpare);  // give_back() allocates nothing
  if (!spare.empty()) {
    std::unique_ptr<Piece> piece = std::move(spare.back());
    spare.pop_back();
    return piece;
  }
  auto piece = std::make_unique<Piece>();
  piece->stage = std::make_unique_for_overwrite<std::byte[]>(sizeof(PieceHead) +
                                                             (std::size_t{1} << size_class));
  piece->size_class = size_class;
  return piece;
}

// MPI does not use the piece's memory any more.
void MpiWire::give_back(Lane& lane, Piece* piece) noexcept {
  std::unique_ptr<Piece> mine(piece);
  std::vector<std::unique_ptr<Piece>>& spare = lane.spare[mine->size_class];
  if (mine->stage != nullptr && spare.size() < kMostSpare) spare.push_back(std::move(mine));
}

// MPI may use its memory until the process ends.
void MpiWire::keep_for_good(Piece* piece) noexcept {
  static std::atomic<Piece*> last{nullptr};
  piece->next = last.load();
  while (!last.compare_exchange_weak(piece->next, piece)) {
  }
}

// --- pieces ------------------------------------------------------------------------------------

Status MpiWire::send(Transfer& transfer) {
  TRIREME_RETURN_IF_ERROR(failpoint("mpi", "before_send"));
  return begin(transfer, true);
}

Status MpiWire::receive(Transfer& transfer) {
  TRIREME_RETURN_IF_ERROR(failpoint("mpi", "before_receive"));
  return begin(transfer, false);
}

Status MpiWire::begin(Transfer& transfer, bool sends) {
  if (aborted_.load()) return ended();
  if (transfer.bytes > kMostBytes || transfer.slot >= kSlots) {
    return Status::failure(TRIREME_ERROR_INTERNAL, "a piece that is none of MPI's wire");
  }
  Lane& lane = lanes_[transfer.channel];
  const PieceHead head{number_, transfer.ticket};
  const std::uint64_t head_bytes = is_short(transfer) ? sizeof head : 0;
  std::unique_ptr<Piece> piece;
  std::byte* data = transfer.data;
  if ((transfer.keeper != nullptr || transfer.lent) && !is_short(transfer)) {
    piece = std::make_unique<Piece>();
    if (transfer.keeper != nullptr) piece->kept = *transfer.keeper;
  } else {
    piece = take_piece(lane, transfer.bytes);
    data = piece->stage.get();
    if (sends && head_bytes > 0) std::memcpy(data, &head, head_bytes);
    if (sends && transfer.bytes > 0) std::memcpy(data + head_bytes, transfer.data, transfer.bytes);
  }
  piece->transfer = &transfer;
  piece->message = {transfer.channel % kOwnChannels,
                    transfer.peer,
                    tag_of(head, transfer.channel, transfer.slot),
                    static_cast<std::int32_t>(head_bytes + transfer.bytes),
                    data,
                    sends,
                    transfer.announced || !is_short(transfer)};
  lane.waiting.push_back(piece.get());
  transfer.record = piece.release();
  try {
    const Status posted = post_waiting(lane);
    if (!posted.ok()) drop(transfer);
    return posted;
  } catch (...) {
    drop(transfer);  // its maker does not know that it has begun
    throw;
  }
}

Status MpiWire::post_waiting(Lane& lane) {
  while (!lane.waiting.empty()) {
    Piece& piece = *lane.waiting.front();
    char error[kErrorBytes] = "";
    const State state = plugin_.post(&group_, piece.message, &piece.request, error);
    if (state == State::pending) break;
    if (state == State::failed) return failed(error);
    lane.waiting.pop_front();
  }
  return Status::success();
}

// Goes as far as MPI has come.
Status MpiWire::advance(Lane& lane, Piece& piece) {
  TRIREME_RETURN_IF_ERROR(post_waiting(lane));
  if (piece.request == nullptr) return Status::success();
  char error[kErrorBytes] = "";
  const State state = plugin_.test(&group_, piece.request, error);
  if (state == State::pending) return Status::success();
  piece.request = nullptr;
  if (state == State::done) return end(lane, piece);
  piece.transfer->record = nullptr;
  keep_for_good(&piece);
  return failed(error);
}

// MPI has moved the piece.
Status MpiWire::end(Lane& lane, Piece& piece) {
  Transfer& transfer = *piece.transfer;
  if (piece.message.sends) {
    sent_.fetch_add(transfer.bytes, std::memory_order_relaxed);
    messages_.fetch_add(1, std::memory_order_relaxed);
  } else {
    PieceHead head{number_, transfer.ticket};
    const std::byte* from = piece.stage.get();
    if (is_short(transfer)) {
      std::memcpy(&head, from, sizeof head);
      from += sizeof head;
    }
    if (head.group != number_ || head.ticket != transfer.ticket) {
      aborted_.store(true);
      FailureDetails details;
      details.blamed = {transfer.peer};
      // Another call of this group: the ranks disagree. Their calls tell how, if they come.
      const bool differs = head.group == number_;
      return Status::failure(differs ? TRIREME_ERROR_ABORTED : TRIREME_ERROR_CORRUPT,
                             "rank " + std::to_string(transfer.peer) +
                                 ": a message of MPI was a piece of another " +
                                 (differs ? "call" : "group"))
          .with_details(std::move(details));
    }
    const bool is_copied = piece.stage != nullptr && transfer.bytes > 0;
    if (is_copied) std::memcpy(transfer.data, from, transfer.bytes);
    received_.fetch_add(transfer.bytes, std::memory_order_relaxed);
  }
  transfer.record = nullptr;
  transfer.done.store(true, std::memory_order_release);
  give_back(lane, &piece);
  return Status::success();
}

Status MpiWire::wait(Transfer& transfer, Deadline deadline) {
  Lane& lane = lanes_[transfer.channel];
  for (int looks = 0; !transfer.done.load(std::memory_order_acquire); ++looks) {
    if (transfer.record == nullptr) return ended();  // MPI has failed
    TRIREME_RETURN_IF_ERROR(advance(lane, *static_cast<Piece*>(transfer.record)));
    if (transfer.done.load(std::memory_order_acquire)) break;
    if (aborted_.load()) return ended();
    if (deadline.passed()) {
      FailureDetails details;
      details.blamed = {transfer.peer};
      return Status::failure(TRIREME_ERROR_TIMEOUT, "a collective of MPI was late: it waited for " +
                                                        list_ranks(details.blamed))
          .with_details(std::move(details));
    }
    if (look_ != nullptr && looks % kLooks == kLooks - 1) {
      TRIREME_RETURN_IF_ERROR(look_(transfer.channel));
    }
    pause_after(looks);
  }
  return Status::success();
}

void MpiWire::drop(Transfer& transfer) noexcept {
  Piece* const piece = static_cast<Piece*>(std::exchange(transfer.record, nullptr));
  if (piece == nullptr) return;
  aborted_.store(true);
  Lane& lane = lanes_[transfer.channel];
  std::erase(lane.waiting, piece);
  if (piece->request == nullptr) return give_back(lane, piece);
  plugin_.abandon(&group_, piece->request);
  keep_for_good(piece);
}

}  // namespace trireme::mpi
