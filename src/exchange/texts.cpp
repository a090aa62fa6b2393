#include "exchange/texts.hpp"

#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "exchange/agreement.hpp"

namespace trireme::strategies {
namespace {

// More than any model has in names; a sum over ranks stays far from overflow.
constexpr std::uint64_t kMostTextBytes = std::uint64_t{1} << 32;

// Peers may have read other lengths, and would wait for this rank, so the group fails.
Status refuse_length(const Link& link, std::uint32_t rank) {
  const std::string what = "rank " + std::to_string(rank) + " tells a text that no model has";
  link.communicator->fail(TRIREME_ERROR_CORRUPT, what);
  static_cast<void>(link.communicator->failure());  // the peers know it before the call returns
  return Status::failure(TRIREME_ERROR_CORRUPT, what);
}

}  // namespace

Status exchange_texts(const Link& link, const char* call, const std::string& own,
                      std::vector<std::string>* out) {
  const std::uint32_t ranks = link.world_size();
  std::shared_ptr<Memory> memory;
  TRIREME_RETURN_IF_ERROR(
      agree(link, call, {}, link.communicator->allocate(ranks * sizeof(std::uint64_t), &memory)));
  auto* const told = static_cast<std::uint64_t*>(memory->data());
  told[link.rank()] = own.size();
  TRIREME_RETURN_IF_ERROR(link.run(
      in_place(link, link.gathers, OperationKind::all_gather, TRIREME_DTYPE_U64, told, 1, memory)));
  // Copied once: peers can write to the memory that they came from.
  const std::vector<std::uint64_t> lengths(told, told + ranks);
  std::vector<std::uint64_t> first(ranks + 1, 0);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const bool sound =
        lengths[rank] <= kMostTextBytes && (rank != link.rank() || lengths[rank] == own.size());
    if (!sound) return refuse_length(link, rank);
    first[rank + 1] = first[rank] + lengths[rank];
  }
  out->assign(ranks, {});
  if (first[ranks] == 0) return Status::success();
  std::shared_ptr<Memory> texts;
  TRIREME_RETURN_IF_ERROR(agree(link, call, {}, link.communicator->allocate(first[ranks], &texts)));
  char* const all = static_cast<char*>(texts->data());
  std::memcpy(all + first[link.rank()], own.data(), own.size());
  Operation operation;
  operation.channel = link.gathers;
  operation.kind = OperationKind::all_gather_v;
  operation.dtype = TRIREME_DTYPE_BYTES;
  operation.send = all + first[link.rank()];
  operation.receive = all;
  operation.count = first[ranks];
  operation.counts = lengths;
  operation.owner = texts;
  TRIREME_RETURN_IF_ERROR(link.run(std::move(operation)));
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    (*out)[rank].assign(all + first[rank], lengths[rank]);
  }
  (*out)[link.rank()] = own;
  return Status::success();
}

}  // namespace trireme::strategies
