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

// Each end says this often that it lives. tick() is to be called as often.
constexpr std::uint64_t kBeatMs = 250;

class AgentConnection {
 public:
  struct Events {
    std::function<void()> proved;  // the other end knows the token, and is meant
    std::function<void(const AgentMessage&)> message;
    std::function<void(const Status&)> ended;  // once, and nothing after it
  };

  // `where` is for messages. Events come from the loop and from tick(); none may destroy the
  // connection.
  AgentConnection(uv_loop_t* loop, const Token& token, Handshake::Side side, const std::string& job,
                  std::string where, Events events);
  ~AgentConnection();
  AgentConnection(const AgentConnection&) = delete;
  AgentConnection& operator=(const AgentConnection&) = delete;

  // To accept or connect it with.
  uv_tcp_t* socket() { return &handle_->tcp; }
  // Once it is connected.
  void begin();
  void send(const AgentMessage& message);
  // A sign of life is due; `silence_ms` is how long the other end may have given none.
  void tick(std::uint64_t silence_ms);
  // Nothing is sent any more, and no event comes.
  void close();

  bool is_open() const { return !closed_; }
  bool is_proved() const { return writer_.has_value(); }
  std::uint64_t age_ms() const { return age_ms_; }
  // When bytes came last.
  std::uint64_t heard_ns() const { return heard_ns_; }
  // Numbers alone, no port; "" if the system does not say.
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
  std::uint64_t quiet_ms_ = 0;  // by ticks: a process that was stopped itself blames nobody for it
  std::uint64_t heard_ns_ = 0;
};

// "10.0.0.2", "::1".
std::string address_text(const sockaddr* address);

}  // namespace trireme::cluster
