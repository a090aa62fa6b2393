#include "net/endpoint.hpp"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>

#include <charconv>
#include <cstring>
#include <memory>

namespace trireme::tcp {
namespace {

// `flags` of getaddrinfo.
bool ask_system(const std::string& host, std::uint16_t port, int flags, Endpoint* out,
                std::string* why) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error != 0) {
    *why = gai_strerror(error);
    return false;
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    if (each->ai_family != AF_INET && each->ai_family != AF_INET6) continue;
    std::memcpy(&out->address, each->ai_addr, each->ai_addrlen);
    out->length = each->ai_addrlen;
    out->set_port(port);
    return true;
  }
  *why = "no address of IPv4 or IPv6";
  return false;
}

}  // namespace

void Endpoint::set_port(std::uint16_t port) {
  if (address.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(address).sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in&>(address).sin_port = htons(port);
  }
}

bool Endpoint::is_any() const {
  if (address.ss_family == AF_INET6) {
    const auto& in6 = reinterpret_cast<const sockaddr_in6&>(address);
    return IN6_IS_ADDR_UNSPECIFIED(&in6.sin6_addr);
  }
  const auto& in4 = reinterpret_cast<const sockaddr_in&>(address);
  return in4.sin_addr.s_addr == htonl(INADDR_ANY);
}

bool Endpoint::is_loopback() const {
  if (address.ss_family == AF_INET6) {
    const auto& in6 = reinterpret_cast<const sockaddr_in6&>(address);
    return IN6_IS_ADDR_LOOPBACK(&in6.sin6_addr);
  }
  const auto& in4 = reinterpret_cast<const sockaddr_in&>(address);
  return ntohl(in4.sin_addr.s_addr) >> 24 == 127;
}

std::string Endpoint::text() const {
  char host[INET6_ADDRSTRLEN] = "?";
  if (address.ss_family == AF_INET6) {
    const auto& in6 = reinterpret_cast<const sockaddr_in6&>(address);
    inet_ntop(AF_INET6, &in6.sin6_addr, host, sizeof host);
    return endpoint_text(host, std::to_string(ntohs(in6.sin6_port)));
  }
  const auto& in4 = reinterpret_cast<const sockaddr_in&>(address);
  inet_ntop(AF_INET, &in4.sin_addr, host, sizeof host);
  return endpoint_text(host, std::to_string(ntohs(in4.sin_port)));
}

std::string endpoint_text(const std::string& host, const std::string& port) {
  return host.find(':') == host.npos ? host + ":" + port : "[" + host + "]:" + port;
}

bool split_endpoint(std::string_view text, std::uint16_t lowest_port, std::string* host,
                    std::uint16_t* port, std::string* why) {
  const std::size_t colon = text.rfind(':');
  if (colon == text.npos || colon == 0) {
    *why = "it is not tcp://ADDRESS:PORT";
    return false;
  }
  std::string_view name = text.substr(0, colon);
  const bool brackets = name.front() == '[' && name.back() == ']';
  if (brackets) name = name.substr(1, name.size() - 2);
  if (name.empty() || (!brackets && name.find(':') != name.npos)) {
    *why = "an address of IPv6 stands in brackets: tcp://[ADDRESS]:PORT";
    return false;
  }
  const std::string_view digits = text.substr(colon + 1);
  const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), *port);
  if (error != std::errc() || stop != digits.data() + digits.size() || *port < lowest_port) {
    *why = "the port is not a number from " + std::to_string(lowest_port) + " to 65535";
    return false;
  }
  *host = name;
  return true;
}

bool look_up(const std::string& host, std::uint16_t port, Endpoint* out, std::string* why) {
  // The first call refuses addresses of a family in which this host has only the loopback's
  // address.
  return ask_system(host, port, AI_ADDRCONFIG, out, why) || look_up_number(host, port, out, why);
}

bool look_up_number(const std::string& host, std::uint16_t port, Endpoint* out, std::string* why) {
  return ask_system(host, port, AI_NUMERICHOST, out, why);
}

}  // namespace trireme::tcp
