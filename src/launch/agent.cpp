#include "launch/agent.hpp"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "launch/reserved_port.hpp"
#include "net/endpoint.hpp"

namespace trireme::cluster {
namespace {

// An attempt to reach the meeting point is given up after so long.
constexpr std::uint64_t kAttemptMs = 5000;

std::uint64_t nanoseconds(double seconds) { return static_cast<std::uint64_t>(seconds * 1e9); }

std::string host_name() {
  char name[UV_MAXHOSTNAMESIZE] = "";
  std::size_t size = sizeof name;
  return uv_os_gethostname(name, &size) == 0 ? name : "a host without a name";
}

std::string place_text(const NodeOptions& options) {
  return tcp::endpoint_text(options.host, std::to_string(options.port));
}

bool is_numeric(const std::string& host) {
  sockaddr_in in4;
  sockaddr_in6 in6;
  return uv_ip4_addr(host.c_str(), 0, &in4) == 0 || uv_ip6_addr(host.c_str(), 0, &in6) == 0;
}

bool is_loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET6) {
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
  }
  return ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 24 == 127;
}

bool is_any(const sockaddr* address) {
  if (address->sa_family == AF_INET6) {
    return IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
  }
  return reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr == INADDR_ANY;
}

}  // namespace

Agent::Agent(uv_loop_t* loop, const NodeOptions& options, int workers, JobEvents events)
    : loop_(loop),
      options_(options),
      workers_(workers),
      events_(std::move(events)),
      host_(host_name()),
      where_("the agent at " + place_text(options)),
      attempts_(nanoseconds(options.join_seconds)) {
  uv_timer_init(loop, &timer_);
  timer_.data = lookup_.data = connect_.data = this;
}

void Agent::release() {
  coordinator_.reset();
  connection_.reset();
  old_connection_.reset();
}

void Agent::begin() {
  const Status status = Token::from_environment(&token_);
  if (!status.ok()) return publish({1, status.message()});
  attempts_.begin(uv_hrtime());
  uv_timer_start(
      &timer_, [](uv_timer_t* timer) { static_cast<Agent*>(timer->data)->tick(); }, kBeatMs,
      kBeatMs);
  attempt();
}

void Agent::attempt() {
  attempts_.started();
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (is_numeric(options_.host) ? AI_NUMERICHOST : 0);
  looking_up_ = true;
  const int refusal = uv_getaddrinfo(
      loop_, &lookup_,
      [](uv_getaddrinfo_t* lookup, int status, addrinfo* list) {
        auto& self = *static_cast<Agent*>(lookup->data);
        self.looking_up_ = false;
        self.resolved(status, list);
        uv_freeaddrinfo(list);
      },
      options_.host.c_str(), std::to_string(options_.port).c_str(), &hints);
  if (refusal == 0) return;
  looking_up_ = false;
  again(uv_strerror(refusal));
}

// A host's name may appear later than the host, so an unknown name is looked up again.
void Agent::resolved(int status, const addrinfo* list) {
  if (over_) return;
  if (status != 0) return again(std::string("its name is not known here: ") + uv_strerror(status));
  const sockaddr* const address = list->ai_addr;
  if (is_any(address)) {
    return publish({1, "agents cannot meet at " + place_text(options_) +
                           ": it is every address of a host and leads to none"});
  }
  // A common fault of /etc/hosts: the name of a host leads the host to itself, and all others to
  // nowhere.
  if (is_loopback(address) && options_.most > 1 && !is_numeric(options_.host) &&
      options_.host != "localhost") {
    return publish(
        {1, "\"" + options_.host + "\" is " + address_text(address) +
                " here, which no other host can reach: give the address where the agents "
                "meet"});
  }
  meet(address);
}

void Agent::meet(const sockaddr* address) {
  CoordinatorOptions options;
  options.job = options_.job;
  options.silence_ms = static_cast<std::uint64_t>(options_.silence_seconds * 1e3);
  options.limits = {nanoseconds(options_.join_seconds), nanoseconds(options_.last_call_seconds),
                    options_.keep_survivors};
  JobEvents events = events_;
  events.start = [this](const AgentStart& start) {
    started_ = true;
    events_.start(start);
  };
  events.verdict = [this](const AgentVerdict& verdict) { publish(verdict); };
  auto coordinator = std::make_unique<Coordinator>(loop_, token_, options, std::move(events));
  const int refusal = coordinator->listen(address);
  if (refusal == UV_EADDRNOTAVAIL || refusal == UV_EADDRINUSE) return connect(address);
  if (refusal != 0) {
    return publish(
        {1, "agents cannot meet at " + place_text(options_) + ": " + uv_strerror(refusal)});
  }
  AgentHello own;
  if (!say_hello_from(address_text(address), &own)) return;
  joined_ = true;
  coordinator_ = std::move(coordinator);
  coordinator_->begin(own);
}

bool Agent::say_hello_from(const std::string& address, AgentHello* hello) {
  hello->host = host_;
  hello->workers = workers_;
  hello->node_rank = options_.node_rank;
  hello->least_nodes = options_.least;
  hello->most_nodes = options_.most;
  hello->restarts = options_.restarts;
  hello->address = address;
  for (ReservedPort* const port : {&meeting_port_, &master_port_}) {
    if (port->take(address)) continue;
    publish({1, "no port of " + address + " can be had for the ranks: " + std::strerror(errno)});
    return false;
  }
  hello->meeting_port = meeting_port_.number();
  hello->master_port = master_port_.number();
  return true;
}

void Agent::connect(const sockaddr* address) {
  AgentConnection::Events events;
  events.proved = [this] {
    AgentHello hello;
    if (say_hello_from(connection_->own_address(), &hello)) connection_->send(hello);
    joined_ = true;
  };
  events.message = [this](const AgentMessage& message) { said(message); };
  events.ended = [this](const Status& status) { connection_ended(status); };
  old_connection_.reset();
  connection_ = std::make_unique<AgentConnection>(loop_, token_, Handshake::Side::caller,
                                                  options_.job, where_, std::move(events));
  connecting_ = true;
  const int refusal = uv_tcp_connect(&connect_, connection_->socket(), address,
                                     [](uv_connect_t* request, int status) {
                                       static_cast<Agent*>(request->data)->connected(status);
                                     });
  if (refusal == 0) return;
  connecting_ = false;
  again(uv_strerror(refusal));
}

void Agent::connected(int status) {
  connecting_ = false;
  if (over_) return;
  if (status == UV_ECANCELED) return again("no answer");
  if (status != 0) return again(uv_strerror(status));
  connection_->begin();
}

void Agent::again(const std::string& why) {
  if (connection_ != nullptr) {
    connection_->close();
    old_connection_ = std::move(connection_);
  }
  joined_ = false;
  std::uint32_t drawn = 0;
  uv_random(nullptr, nullptr, &drawn, sizeof drawn, 0, nullptr);
  attempts_.failed(why, drawn, uv_hrtime());
}

void Agent::tick() {
  if (over_) return;
  const std::uint64_t now = uv_hrtime();
  if (connection_ != nullptr && !connecting_ && connection_->is_proved()) {
    connection_->tick(static_cast<std::uint64_t>(options_.silence_seconds * 1e3));
  } else if (connection_ != nullptr) {
    connection_->tick(kAttemptMs);
    // Closing a connection that is still being made calls connected().
  }
  if (over_ || joined_ || started_) return;
  if (attempts_.is_over(now)) return publish({1, attempts_.refusal(where_)});
  if (attempts_.is_due(now)) attempt();
}

void Agent::said(const AgentMessage& message) {
  if (const auto* const refusal = std::get_if<AgentRefusal>(&message)) {
    publish({1, where_ + ", which coordinates the job, refuses this one: " + refusal->reason});
  } else if (const auto* const start = std::get_if<AgentStart>(&message)) {
    if (std::exchange(started_, true)) return;
    events_.start(*start);
  } else if (const auto* const stop = std::get_if<AgentStop>(&message)) {
    if (started_) events_.stop(*stop);
  } else if (const auto* const verdict = std::get_if<AgentVerdict>(&message)) {
    publish(*verdict);
  }
}

void Agent::connection_ended(const Status& status) {
  if (over_) return;
  const bool final =
      status.code() == TRIREME_ERROR_AUTHENTICATION || status.code() == TRIREME_ERROR_MISMATCH;
  if (!started_) return final ? publish({1, status.message()}) : again(status.message());
  loss_ = AgentVerdict{1, where_ + ", which coordinates the job, is lost: " + status.message()};
  loss_ns_ = connection_->last_received_ns();
  if (ended_) return end(end_);
  events_.stop(AgentStop{SIGTERM, false, ""});
}

void Agent::stop(const AgentStop& stop) {
  if (over_) return;
  if (coordinator_ != nullptr) return coordinator_->stop(stop);
  if (!started_) return publish({128 + stop.signal, ""});
  if (connection_ != nullptr) connection_->send(stop);
}

// Without a coordinator each agent judges by its own knowledge.
void Agent::end(const AgentEnd& end) {
  if (over_) return;
  ended_ = true;
  end_ = end;
  if (coordinator_ != nullptr) return coordinator_->end(end);
  if (!loss_) return connection_->send(end);
  const Ending loss{true, SIGKILL, loss_ns_};
  const Ending own{end.by_signal, end.code, uv_hrtime() - std::min(uv_hrtime(), end.age_ns),
                   end.lost_peer ? Cause::peer : Cause::own};
  const bool own_is_cause = end.code != 0 && (end.failure.empty() || is_earlier(own, loss));
  AgentVerdict verdict = own_is_cause ? AgentVerdict{end.code, end.failure} : *loss_;
  verdict.is_final = end.not_started;
  publish(verdict);
}

void Agent::publish(const AgentVerdict& verdict) {
  if (std::exchange(over_, true)) return;
  uv_timer_stop(&timer_);
  if (connection_ != nullptr) connection_->close();
  events_.verdict(verdict);
}

}  // namespace trireme::cluster
