#include "backends/slots/collective.hpp"

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "platform/names.hpp"

namespace trireme::local {
namespace {

// Adds the failed operation to a failure, and this rank if the failure blames none.
Status completed(const Status& status, const char* name, std::uint64_t sequence, int rank) {
  FailureDetails details = status.details() == nullptr ? FailureDetails{} : *status.details();
  std::string text = status.message();
  if (details.blamed.empty()) {
    text = "rank " + std::to_string(rank) + ": " + text;
    details.blamed = {rank};
  }
  details.operation = name;
  details.sequence = sequence;
  return Status::failure(status.code(), std::move(text)).with_details(std::move(details));
}

// There may be none for the rank's name either.
Status no_memory_left(int rank) noexcept {
  try {
    return Status::failure(TRIREME_ERROR_OUT_OF_MEMORY,
                           "rank " + std::to_string(rank) + " has no memory left");
  } catch (...) {
    return Status::failure(TRIREME_ERROR_OUT_OF_MEMORY, "out of memory");
  }
}

}  // namespace

Collectives::Collectives(Group& group, Buffers& buffers)
    : group_(group), buffers_(buffers), rooted_(group) {
  for (std::uint32_t channel = 0; channel < kModelChannel; ++channel) open(channel);
}

ChannelState& Collectives::open(std::uint32_t number) {
  ChannelState& channel = channels_[number];
  const auto n = static_cast<std::size_t>(group_.world_size());
  if (channel.cut.size() == n) return channel;
  channel.flags.resize(n);
  channel.sources.resize(n);
  channel.results.resize(n);
  channel.targets.resize(n);
  channel.keep.reserve(2 * n + 2);
  channel.cut.resize(n);  // last: its size shows that all are allocated
  return channel;
}

template <class Settle, class Body>
Status Collectives::complete(Settle settle, const char* name, std::uint64_t sequence, Body body) {
  Status status = Status::success();
  try {
    status = body();
  } catch (...) {  // out of memory somewhere in the middle: the peers must learn of it
    group_.failure().tell(no_memory_left(group_.rank()));
    settle();
    throw;
  }
  if (status.ok()) return status;
  if (!group_.failure().happened())
    group_.failure().tell(completed(status, name, sequence, group_.rank()));
  settle();
  Status first = group_.failure().status(name, sequence);
  // A mismatch that this rank saw is true, whatever failed first.
  if (status.code() == TRIREME_ERROR_MISMATCH && first.code() != TRIREME_ERROR_MISMATCH)
    return status;
  return first;
}

// No peer touches this rank's memory: there is nothing to settle.
template <class Body>
Status Collectives::complete_rooted(const Operation& operation, std::uint64_t sequence, Body body) {
  return complete([] {}, operation_name(operation.kind), sequence, body);
}

Status Collectives::run(const Operation& operation, std::uint64_t sequence, Deadline deadline) {
  if (rooted_.takes(operation)) {
    return complete_rooted(operation, sequence, [&] {
      return rooted_.run(operation, sequence, deadline, channels_[operation.channel]);
    });
  }
  Run run(group_, buffers_, open(operation.channel), operation, sequence, deadline, true);
  return complete([&run] { run.settle(); }, operation_name(operation.as_called().kind), sequence,
                  [&] { return run.execute(); });
}

Status Collectives::agree(const Operation& operation, std::uint64_t sequence, Deadline deadline,
                          std::vector<bool>* gives) {
  Run run(group_, buffers_, open(operation.channel), operation, sequence, deadline, false);
  return complete([&run] { run.settle(); }, operation_name(operation.as_called().kind), sequence,
                  [&] { return run.agree(gives); });
}

Status Collectives::run_elsewhere(const Operation& operation, std::uint64_t sequence,
                                  Deadline deadline, bool apart, bool visits, const Elsewhere& move,
                                  std::vector<bool>* gives, bool lends) {
  Run run(group_, buffers_, open(operation.channel), operation, sequence, deadline, false);
  if (lends) run.lend();
  return complete([&run] { run.settle(); }, operation_name(operation.as_called().kind), sequence,
                  [&] { return run.execute_elsewhere(apart, visits, move, gives); });
}

Status Collectives::finish_small(const Operation& operation, std::uint64_t sequence,
                                 Deadline deadline) {
  if (rooted_.takes(operation)) {
    return complete_rooted(operation, sequence, [&] {
      return rooted_.finish_small(operation, sequence, deadline, channels_[operation.channel]);
    });
  }
  Run run(group_, buffers_, open(operation.channel), operation, sequence, deadline, true,
          Call::Begin::published);
  return complete([&run] { run.settle(); }, operation_name(operation.kind), sequence,
                  [&] { return run.finish(); });
}

}  // namespace trireme::local
