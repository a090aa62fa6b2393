#include "backends/slots/long_broadcast.hpp"

#include <algorithm>
#include <string>

#include "backends/last_calls.hpp"
#include "backends/slots/rooted.hpp"
#include "platform/mix.hpp"

namespace trireme::local {

// Two calls that a rank has at once get different tickets: see Run::ticket().
LongBroadcast::LongBroadcast(Call& call, Arrivals& arrivals, SlotRelay& relay)
    : call_(call),
      arrivals_(arrivals),
      relay_(relay),
      wire_(*relay.wire()),
      tree_(call.op.root, call.n),
      ticket_(mix(call.cell(call.me).print_hash,
                  call.channel.position * kChannels + call.op.channel)) {}

// Whatever ends the call, none of its pieces is left on the wire, and the peers get its cells.
LongBroadcast::~LongBroadcast() {
  wire_.go();
  if (receives_) wire_.drop(from_above_);
  for (std::size_t i = 0; i < sends_; ++i) wire_.drop(to_below_[i]);
}

Wire::Transfer& LongBroadcast::prepare(Wire::Transfer& transfer, int peer) const {
  transfer.peer = peer;
  transfer.ticket = ticket_;
  transfer.channel = call_.op.channel;
  transfer.data = static_cast<std::byte*>(call_.op.receive);
  transfer.bytes = call_.op.count * call_.size;
  transfer.later = true;
  return transfer;
}

Status LongBroadcast::receive() {
  Wire::Transfer& transfer = prepare(from_above_, tree_.above(call_.me));
  const Status begun = wire_.receive(transfer);
  if (!begun.ok()) return reason(transfer, begun);
  receives_ = true;
  return wait(transfer);
}

Status LongBroadcast::send() {
  Status sent = Status::success();
  tree_.below(call_.me, [&](int rank) {
    if (!sent.ok()) return;
    Wire::Transfer& transfer = prepare(to_below_[sends_], rank);
    sent = wire_.send(transfer);
    if (sent.ok()) ++sends_;
    if (!sent.ok()) sent = reason(transfer, sent);
  });
  return sent;
}

Status LongBroadcast::finish() {
  for (std::size_t i = 0; i < sends_; ++i) TRIREME_RETURN_IF_ERROR(wait(to_below_[i]));
  return Status::success();
}

Status LongBroadcast::wait(Wire::Transfer& transfer) {
  Stall stall = call_.group.latecomers().stall();
  std::uint64_t tell_ns = long_wait_ns(call_.deadline);
  const auto is_done = [&] { return transfer.done.load(std::memory_order_acquire); };
  wire_.go();
  if (!is_done()) static_cast<void>(stall.due(now_ns()));
  while (!is_done()) {
    const Deadline next = Deadline::at(std::min(stall.before(call_.deadline).moment_ns(), tell_ns));
    const Status waited = wire_.wait(transfer, next);
    if (waited.ok()) break;
    if (waited.code() != TRIREME_ERROR_TIMEOUT || call_.deadline.passed()) {
      return reason(transfer, waited);
    }
    const std::uint64_t now = now_ns();
    if (now >= tell_ns) {
      relay_.tell(call_.op.channel, true);
      tell_ns = now + SlotRelay::kTellNs;
    }
    if (stall.due(now)) {
      call_.group.latecomers().warn(transfer.peer, "not done its part of ", call_.name,
                                    call_.sequence, stall);
    }
  }
  return Status::success();
}

// The ranks to blame for a long wait. A rank that sends its cell with the bytes has them, so it
// keeps them. If cells went to all before, a rank above may itself wait for them.
std::vector<std::int32_t> LongBroadcast::late(const Wire::Transfer& transfer) const {
  if (!is_from_above(transfer) || !call_.awaits_all) return {transfer.peer};
  std::vector<std::int32_t> ranks = tree_.way_up(transfer.peer);
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

// The wire has failed, or the deadline has passed.
Status LongBroadcast::reason(const Wire::Transfer& transfer, const Status& failed) {
  const int peer = transfer.peer;
  const auto look = [&]() -> Status {
    TRIREME_RETURN_IF_ERROR(Rooted::compare(call_));
    return arrivals_.look_for_gone(peer);
  };
  TRIREME_RETURN_IF_ERROR(look());
  if (failed.code() == TRIREME_ERROR_TIMEOUT) {
    const std::vector<std::int32_t> ranks = late(transfer);
    FailureDetails details{call_.name, "", call_.sequence, ranks, 0};
    return Status::failure(TRIREME_ERROR_TIMEOUT, is_from_above(transfer)
                                                      ? passed_nothing_on(ranks)
                                                      : "rank " + std::to_string(peer) +
                                                            " did not take the bytes of rank " +
                                                            std::to_string(call_.me) +
                                                            " before the deadline")
        .with_details(std::move(details));
  }
  if (failed.code() != TRIREME_ERROR_CORRUPT) TRIREME_RETURN_IF_ERROR(arrivals_.await_reason(look));
  return call_.group.failure().happened() ? call_.failure() : failed;
}

}  // namespace trireme::local
