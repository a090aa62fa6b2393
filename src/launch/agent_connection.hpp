// AgentConnection: one authenticated connection between two agents on an event loop: handshake,
// frames, signs of life.
#pragma once

#include <uv.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "launch/agent_messages.hpp"
#include "net/handshake.hpp"
#include "net/token.hpp"
#include "platform/status.hpp"

namespace trireme::cluster {

// Each end sends a beat this often. tick() is to be called as often.
constexpr std::uint64_t kBeatMs = 250;

class AgentConnection {
 public:
  struct Events {
    std::function<void()> proved;  // the other end knows the token, and its terms fit
    std::function<void(const AgentMessage&)> message;
    std::function<void(const Status&)> ended;  // once, and no event follows
  };

  // `where` is for messages. Events come from the loop and from tick(); none may destroy the
  // connection.
  AgentConnection(uv_loop_t* loop, const Token& token, Handshake::Side side, const std::string& job,
                  std::string where, Events events);
  ~AgentConnection();
  AgentConnection(const AgentConnection&) = delete;
  AgentConnection& operator=(const AgentConnection&) = delete;

  // The socket to accept or connect.
  uv_tcp_t* socket() { return &handle_->tcp; }
  // Call both only after it is connected.
  void begin();
  void send(const AgentMessage& message);
  // Sends a beat if one is due; ends the connection if the other end was silent for `silence_ms`.
  void tick(std::uint64_t silence_ms);
  // Sends no more, and raises no more events.
  void close();

  bool is_open() const { return !closed_; }
  bool is_proved() const { return writer_.has_value(); }
  std::uint64_t age_ms() const { return age_ms_; }
  // The moment of the last bytes that came.
  std::uint64_t last_received_ns() const { return last_received_ns_; }
  // In numbers, without the port; "" if the system does not tell.
  std::string own_address() const;
  std::string other_address() const;

 private:
  // Lives until the loop has closed it, which is after the connection.
  struct Handle {
    uv_tcp_t tcp{};
    AgentConnection* owner = nullptr;
    char buffer[4096];
  };

  void take(std::string_view bytes);
  Status take_frames(std::string_view bytes);
  void write(std::string bytes);
  void end(const Status& status);

  Handle* const handle_;
  const std::string where_;
  const Events events_;
  Handshake handshake_;
  std::optional<FrameWriter> writer_;
  std::optional<FrameReader> reader_;
  bool closed_ = false;
  std::uint64_t age_ms_ = 0;
  std::uint64_t quiet_ms_ = 0;  // by ticks: a process that was stopped must not blame others
  std::uint64_t last_received_ns_ = 0;
};

// "10.0.0.2", "::1".
std::string address_text(const sockaddr* address);

}  // namespace trireme::cluster
