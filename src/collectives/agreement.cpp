#include "collectives/agreement.hpp"

#include <memory>

#include "backends/fingerprint.hpp"
#include "platform/failpoint.hpp"

namespace trireme {
namespace {

constexpr std::uint64_t kAgreementTag = 0;

// What every rank tells every other one, directly: who is missing is then known for certain.
struct Card {
  Fingerprint fingerprint;
  std::uint32_t gives;
  std::uint32_t reserved;
};

}  // namespace

Status reach_agreement(Backend& backend, MessageQueue& messages, const std::string& group,
                       const Operation& operation, std::uint64_t sequence, Deadline deadline,
                       std::vector<bool>* gives) {
  const auto n = static_cast<std::size_t>(backend.world_size());
  gives->assign(n, true);
  if (backend.has_collectives()) return backend.agree(operation, sequence, deadline);

  const OperationKind kind = operation.as_called().kind;
  const char* const name = operation_name(kind);
  TRIREME_RETURN_IF_ERROR(backend.wait_ready(deadline));
  TRIREME_RETURN_IF_ERROR(failpoint(name, "before_publish"));
  std::vector<Card> cards(n);
  Card& mine = cards[static_cast<std::size_t>(backend.rank())];
  mine.fingerprint = fingerprint_of(operation, sequence);
  mine.gives = operation.send != nullptr;
  const auto all = std::make_unique<Message[]>(2 * n);
  std::vector<Message*> batch;
  for (std::size_t i = 0; i < 2 * n; ++i) {
    const auto peer = static_cast<std::int32_t>(i % n);
    if (peer == backend.rank()) continue;
    Message& message = all[i];
    message.kind = i < n ? OperationKind::receive : OperationKind::send;
    message.data = i < n ? &cards[i] : &mine;
    message.count = sizeof(Card);
    message.peer = peer;
    message.tag = kAgreementTag;
    message.context = 1 + operation.channel;
    message.part_of = name;
    message.sequence = sequence;
    message.deadline = deadline;
    batch.push_back(&message);
  }
  TRIREME_RETURN_IF_ERROR(messages.exchange(backend, batch, kind, sequence, deadline));
  TRIREME_RETURN_IF_ERROR(failpoint(name, "after_publish"));
  std::vector<Fingerprint> prints;
  for (std::size_t rank = 0; rank < n; ++rank) {
    Fingerprint& print = prints.emplace_back(cards[rank].fingerprint);
    print.agreement_name[sizeof print.agreement_name - 1] = 0;
    (*gives)[rank] = cards[rank].gives != 0;
  }
  return compare_fingerprints(prints, name, sequence, group);
}

}  // namespace trireme
