// Endpoint: an address and port of TCP, read from text and written as text.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "platform/status.hpp"

namespace trireme::tcp {

struct Endpoint {
  sockaddr_storage address{};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
  void set_port(std::uint16_t port);
  bool is_any() const;       // every address of a host
  bool is_loopback() const;  // leads a host to itself
  std::string text() const;  // "10.0.0.2:29500", "[::1]:29500"
};

// "HOST:PORT", or "[ADDRESS]:PORT" for an address of IPv6.
std::string endpoint_text(const std::string& host, const std::string& port);
// Splits such a text; returns false with the reason in *why.
bool split_endpoint(std::string_view text, std::uint16_t lowest_port, std::string* host,
                    std::uint16_t* port, std::string* why);
// Asks the system's resolver for a host that is not written in numbers; returns false with the
// resolver's reason in *why.
bool look_up(const std::string& host, std::uint16_t port, Endpoint* out, std::string* why);
// The same for numbers alone, without the resolver.
bool look_up_number(const std::string& host, std::uint16_t port, Endpoint* out, std::string* why);

}  // namespace trireme::tcp
