#include "launch/agent_connection.hpp"

#include <netinet/in.h>

#include <utility>

#include "net/sha256.hpp"

namespace trireme::cluster {
namespace {

HandshakeTerms terms_of(const std::string& job) {
  HandshakeTerms terms;
  terms.purpose = Purpose::control;
  terms.job = sha256("agents of a job\n" + job);
  return terms;
}

struct Write {
  uv_write_t request{};
  std::string bytes;
};

}  // namespace

std::string address_text(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET6) {
    uv_ip6_name(reinterpret_cast<const sockaddr_in6*>(address), text, sizeof text);
  } else if (address->sa_family == AF_INET) {
    uv_ip4_name(reinterpret_cast<const sockaddr_in*>(address), text, sizeof text);
  }
  return text;
}

AgentConnection::AgentConnection(uv_loop_t* loop, const Token& token, Handshake::Side side,
                                 const std::string& job, std::string where, Events events)
    : handle_(new Handle),
      where_(where),
      events_(std::move(events)),
      handshake_(token, side, terms_of(job), std::move(where)) {
  uv_tcp_init(loop, &handle_->tcp);
  handle_->tcp.data = handle_;
  handle_->owner = this;
}

AgentConnection::~AgentConnection() { close(); }

void AgentConnection::close() {
  if (closed_) return;
  closed_ = true;
  handle_->owner = nullptr;
  uv_close(reinterpret_cast<uv_handle_t*>(&handle_->tcp),
           [](uv_handle_t* handle) { delete static_cast<Handle*>(handle->data); });
}

void AgentConnection::end(const Status& status) {
  if (closed_) return;
  close();
  events_.ended(status);
}

void AgentConnection::begin() {
  last_received_ns_ = uv_hrtime();
  uv_tcp_nodelay(&handle_->tcp, 1);
  std::string hello;
  if (const Status status = handshake_.start(&hello); !status.ok()) return end(status);
  write(std::move(hello));
  const int refusal = uv_read_start(
      reinterpret_cast<uv_stream_t*>(&handle_->tcp),
      [](uv_handle_t* tcp, std::size_t, uv_buf_t* buffer) {
        auto& handle = *static_cast<Handle*>(tcp->data);
        *buffer = uv_buf_init(handle.buffer, sizeof handle.buffer);
      },
      [](uv_stream_t* tcp, ssize_t length, const uv_buf_t* buffer) {
        auto& handle = *static_cast<Handle*>(tcp->data);
        AgentConnection* const self = handle.owner;
        if (self == nullptr || length == 0) return;
        if (length > 0) return self->take({buffer->base, static_cast<std::size_t>(length)});
        self->last_received_ns_ = uv_hrtime();  // the end is news, too
        const std::string why =
            length == UV_EOF ? "" : std::string(": ") + uv_strerror(static_cast<int>(length));
        self->end(Status::failure(TRIREME_ERROR_PEER_LOST, "its connection has ended" + why));
      });
  if (refusal != 0) end(Status::failure(TRIREME_ERROR_SYSTEM, uv_strerror(refusal)));
}

void AgentConnection::take(std::string_view bytes) {
  last_received_ns_ = uv_hrtime();
  quiet_ms_ = 0;
  if (!writer_) {
    std::size_t used = 0;
    std::string answer;
    const Status status = handshake_.take(bytes, &used, &answer);
    bytes.remove_prefix(used);
    if (!answer.empty()) write(std::move(answer));
    if (!status.ok()) return end(status);
    if (!handshake_.done()) return;
    writer_.emplace(handshake_.keys().send);
    reader_.emplace(handshake_.keys().receive, kLongestAgentMessage);
    events_.proved();
  }
  if (const Status status = take_frames(bytes); !status.ok()) end(status);
}

Status AgentConnection::take_frames(std::string_view bytes) {
  while (!bytes.empty() && !closed_) {
    std::size_t used = 0;
    TRIREME_RETURN_IF_ERROR(reader_->take(bytes, &used));
    bytes.remove_prefix(used);
    if (!reader_->whole()) continue;
    AgentMessage message;
    if (!decode(reader_->body(), &message)) {
      return Status::failure(TRIREME_ERROR_CORRUPT,
                             where_ + " sends a message that no agent sends");
    }
    if (!std::holds_alternative<AgentBeat>(message)) events_.message(message);
  }
  return Status::success();
}

void AgentConnection::send(const AgentMessage& message) {
  if (closed_ || !writer_) return;
  std::string frame;
  writer_->write(encode(message), &frame);
  write(std::move(frame));
}

void AgentConnection::write(std::string bytes) {
  if (closed_ || bytes.empty()) return;
  auto* const own = new Write{{}, std::move(bytes)};
  own->request.data = own;
  const uv_buf_t buffer = uv_buf_init(own->bytes.data(), static_cast<unsigned>(own->bytes.size()));
  // A failure ends the connection, which the reading side reports.
  const int refusal =
      uv_write(&own->request, reinterpret_cast<uv_stream_t*>(&handle_->tcp), &buffer, 1,
               [](uv_write_t* request, int) { delete static_cast<Write*>(request->data); });
  if (refusal != 0) delete own;
}

void AgentConnection::tick(std::uint64_t silence_ms) {
  if (closed_) return;
  age_ms_ += kBeatMs;
  quiet_ms_ += kBeatMs;
  if (quiet_ms_ > silence_ms) {
    return end(Status::failure(TRIREME_ERROR_PEER_LOST, "it has given no sign of life for " +
                                                            seconds_text(silence_ms * 1'000'000)));
  }
  send(AgentBeat{});
}

std::string AgentConnection::own_address() const {
  sockaddr_storage address{};
  int length = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  return uv_tcp_getsockname(&handle_->tcp, generic, &length) == 0 ? address_text(generic) : "";
}

std::string AgentConnection::other_address() const {
  sockaddr_storage address{};
  int length = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  return uv_tcp_getpeername(&handle_->tcp, generic, &length) == 0 ? address_text(generic) : "";
}

}  // namespace trireme::cluster
