#include "launch/coordinator.hpp"

#include <algorithm>
#include <utility>

#include "net/acceptor.hpp"
#include "net/sha256.hpp"

namespace trireme::cluster {

Coordinator::Coordinator(uv_loop_t* loop, const Token& token, CoordinatorOptions options,
                         JobEvents events)
    : loop_(loop),
      token_(token),
      options_(std::move(options)),
      events_(std::move(events)),
      listener_(new uv_tcp_t),
      timer_(new uv_timer_t),
      room_timer_(new uv_timer_t) {
  uv_tcp_init(loop, listener_);
  uv_timer_init(loop, timer_);
  uv_timer_init(loop, room_timer_);
  listener_->data = timer_->data = room_timer_->data = this;
}

Coordinator::~Coordinator() {
  uv_close(reinterpret_cast<uv_handle_t*>(listener_),
           [](uv_handle_t* handle) { delete reinterpret_cast<uv_tcp_t*>(handle); });
  for (uv_timer_t* const timer : {timer_, room_timer_}) {
    uv_close(reinterpret_cast<uv_handle_t*>(timer),
             [](uv_handle_t* handle) { delete reinterpret_cast<uv_timer_t*>(handle); });
  }
}

int Coordinator::listen(const sockaddr* address) {
  if (const int refusal = uv_tcp_bind(listener_, address, 0)) return refusal;
  return uv_listen(reinterpret_cast<uv_stream_t*>(listener_), 1024,
                   [](uv_stream_t* listener, int status) {
                     if (status == 0) static_cast<Coordinator*>(listener->data)->called();
                   });
}

void Coordinator::begin(const AgentHello& own) {
  std::uint8_t drawn[8] = {};
  uv_random(nullptr, nullptr, drawn, sizeof drawn, 0, nullptr);
  meeting_name_ = hexadecimal(drawn);
  if (options_.silence_ms != 5000) {
    meeting_name_ += "?silence_ms=" + std::to_string(options_.silence_ms);
  }
  state_ = std::make_unique<JobState>(own, options_.limits, uv_hrtime());
  uv_timer_start(
      timer_, [](uv_timer_t* timer) { static_cast<Coordinator*>(timer->data)->tick(); }, kBeatMs,
      kBeatMs);
  act();
}

// libuv announces no other caller until this one is accepted: later callers wait in the system's
// queue while earlier ones speak.
void Coordinator::called() {
  if (make_room()) return accept();
  uv_timer_start(
      room_timer_,
      [](uv_timer_t* timer) {
        auto& self = *static_cast<Coordinator*>(timer->data);
        if (!self.make_room()) return;
        uv_timer_stop(timer);
        self.accept();
      },
      kRoomMs, kRoomMs);
}

// Whether one more unauthenticated peer may come in.
bool Coordinator::make_room() {
  std::size_t newcomers = 0;
  Guest* oldest = nullptr;
  for (auto& [number, guest] : guests_) {
    if (guest.connection->is_proved() || !guest.connection->is_open()) continue;
    if (newcomers++ == 0) oldest = &guest;
  }
  if (uv_hrtime() < tcp::room_ns(newcomers, newcomers == 0 ? 0 : oldest->since_ns)) return false;
  if (newcomers >= tcp::kMostUnauthenticated) oldest->connection->close();
  return true;
}

void Coordinator::accept() {
  const int number = next_number_++;
  AgentConnection::Events events;
  events.proved = [] {};
  events.message = [this, number](const AgentMessage& message) { guest_said(number, message); };
  events.ended = [this, number](const Status& status) { guest_ended(number, status); };
  auto connection = std::make_unique<AgentConnection>(loop_, token_, Handshake::Side::called,
                                                      options_.job, "a caller", std::move(events));
  if (uv_accept(reinterpret_cast<uv_stream_t*>(listener_),
                reinterpret_cast<uv_stream_t*>(connection->socket())) != 0) {
    return;
  }
  Guest& guest = guests_[number];
  guest.connection = std::move(connection);
  guest.since_ns = uv_hrtime();
  guest.address = guest.connection->other_address();
  guest.connection->begin();
}

void Coordinator::guest_said(int number, const AgentMessage& message) {
  Guest& guest = guests_.at(number);
  if (const auto* const hello = std::get_if<AgentHello>(&message)) {
    if (guest.joined || guest.refused) return guest.connection->close();
    // The caller tries again until the coordinator of the next start listens. A refusal would be
    // final.
    if (state_->is_ending()) return guest.connection->close();
    const std::string reason = state_->join(number, *hello, uv_hrtime());
    if (reason.empty()) {
      guest.joined = true;
    } else {
      guest.refused = true;
      // It goes by itself once it has read the refusal, or after its time as an unauthenticated
      // peer.
      guest.connection->send(AgentRefusal{reason});
      events_.say("the agent on " + hello->host + " (" + guest.address + ") is refused: " + reason);
    }
  } else if (!guest.joined) {
    return guest.connection->close();
  } else if (const auto* const stop = std::get_if<AgentStop>(&message)) {
    guest.stopped = true;  // it knows
    wish(number, *stop);
  } else if (const auto* const end = std::get_if<AgentEnd>(&message)) {
    state_->ended(number, *end, uv_hrtime());
  }
  act();
}

void Coordinator::guest_ended(int number, const Status& status) {
  Guest& guest = guests_.at(number);
  if (guest.joined && !std::exchange(guest.over, true)) {
    const std::string loss =
        state_->lost(number, status.message(), guest.connection->last_received_ns());
    if (!loss.empty()) events_.say(loss);
    act();
  } else if (status.code() == TRIREME_ERROR_AUTHENTICATION ||
             status.code() == TRIREME_ERROR_MISMATCH) {
    // Callers from outside must not fill the output.
    if (warnings_ >= tcp::kMostWarnings) return;
    ++warnings_;
    std::string text = status.message();
    if (text.rfind("a caller", 0) == 0) text.insert(8, " from " + guest.address);
    events_.say(text + (warnings_ < tcp::kMostWarnings ? "" : " (others like it are not told)"));
  }
  if (over_) events_.idle();
}

void Coordinator::tick() {
  for (auto each = guests_.begin(); each != guests_.end();) {
    Guest& guest = each->second;
    if (!guest.connection->is_open()) {
      each = guests_.erase(each);
      continue;
    }
    guest.connection->tick(options_.silence_ms);
    if (!guest.joined && guest.connection->age_ms() >= tcp::kUnauthenticatedNs / 1'000'000)
      guest.connection->close();
    ++each;
  }
  state_->time_passed(uv_hrtime());
  act();
}

void Coordinator::stop(const AgentStop& stop) {
  stopped_ = true;
  wish(JobState::kOwnAgent, stop);
  act();
}

// The first wish decides how the job ends, and act() passes it on. An impatient user sends another
// signal, which is passed on at once. Each signal is passed on once: a signal sent to all agents
// arrives from all.
void Coordinator::wish(int from, const AgentStop& stop) {
  const bool first = !state_->stop();
  state_->stop_wanted(from, stop);
  if (!stop.by_user || !state_->begun() || over_) return;
  const std::uint64_t bit = std::uint64_t{1} << stop.signal;
  const bool known = (signals_ & bit) != 0;
  signals_ |= bit;
  if (first || known) return;
  for (auto& [number, guest] : guests_) {
    if (guest.joined && !guest.over && number != from) guest.connection->send(stop);
  }
  if (from != JobState::kOwnAgent) events_.stop(stop);
}

void Coordinator::end(const AgentEnd& end) {
  state_->ended(JobState::kOwnAgent, end, uv_hrtime());
  act();
}

// Tells all agents the decisions that they do not know yet. An agent may answer with another event
// at once, so act() notes each message before it sends it.
void Coordinator::act() {
  if (state_->begun() && !started_) {
    started_ = true;
    for (auto& [number, guest] : guests_) {
      if (!guest.joined || guest.over) continue;
      guest.connection->send(state_->start_of(number, meeting_name_));
    }
    events_.start(state_->start_of(JobState::kOwnAgent, meeting_name_));
  }
  if (state_->stop()) {
    const AgentStop stop = *state_->stop();
    for (auto& [number, guest] : guests_) {
      if (!guest.joined || guest.over || std::exchange(guest.stopped, true)) continue;
      guest.connection->send(stop);
    }
    if (!std::exchange(stopped_, true)) events_.stop(stop);
  }
  if (state_->verdict() && !over_) {
    over_ = true;
    for (auto& [number, guest] : guests_) {
      if (!guest.joined || std::exchange(guest.over, true)) continue;
      guest.connection->send(*state_->verdict());
    }
    events_.verdict(*state_->verdict());
  }
}

bool Coordinator::idle() const {
  return over_ && std::none_of(guests_.begin(), guests_.end(), [](const auto& each) {
           return each.second.joined && each.second.connection->is_open();
         });
}

}  // namespace trireme::cluster
