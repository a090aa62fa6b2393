#include "backends/tcp/address.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "backends/tcp/socket.hpp"
#include "platform/system.hpp"

namespace trireme::tcp {
namespace {

Status wrong(std::string_view text, const std::string& what) {
  return invalid_argument("rendezvous \"tcp://" + std::string(text) + "\": " + what);
}

bool read_number(std::string_view text, std::uint64_t low, std::uint64_t high, std::uint64_t* out) {
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && stop == text.data() + text.size() && *out >= low && *out <= high;
}

std::uint16_t& port_of(Endpoint& endpoint) {
  if (endpoint.address.ss_family == AF_INET6) {
    return reinterpret_cast<sockaddr_in6&>(endpoint.address).sin6_port;
  }
  return reinterpret_cast<sockaddr_in&>(endpoint.address).sin_port;
}

bool is_any(const Endpoint& endpoint) {
  if (endpoint.address.ss_family == AF_INET6) {
    const auto& in6 = reinterpret_cast<const sockaddr_in6&>(endpoint.address);
    return IN6_IS_ADDR_UNSPECIFIED(&in6.sin6_addr);
  }
  const auto& in4 = reinterpret_cast<const sockaddr_in&>(endpoint.address);
  return in4.sin_addr.s_addr == htonl(INADDR_ANY);
}

// `flags` of getaddrinfo. Keeps what the system says in *reason.
bool look_up(const std::string& host, std::uint16_t port, int flags, Endpoint* out,
             std::string* reason) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error != 0) {
    *reason = gai_strerror(error);
    return false;
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    if (each->ai_family != AF_INET && each->ai_family != AF_INET6) continue;
    std::memcpy(&out->address, each->ai_addr, each->ai_addrlen);
    out->length = each->ai_addrlen;
    port_of(*out) = htons(port);
    return true;
  }
  *reason = "no address of IPv4 or IPv6";
  return false;
}

Status address_of_interface(const std::string& name, int family, Endpoint* out) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return Status::system(errno, "the list of network interfaces");
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(all, freeifaddrs);
  std::string known;
  bool seen = false;
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr) continue;
    const int its = each->ifa_addr->sa_family;
    if (its != AF_INET && its != AF_INET6) continue;
    const std::string word = std::string(" ").append(each->ifa_name);
    if (known.find(word) == std::string::npos) known += word;
    if (name != each->ifa_name) continue;
    seen = true;
    if (its != family) continue;
    out->length = its == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&out->address, each->ifa_addr, out->length);
    port_of(*out) = 0;
    return Status::success();
  }
  if (seen) {
    return invalid_argument("interface \"" + name + "\" has no address of IPv" +
                            (family == AF_INET ? "4" : "6") + ", as the one where the ranks meet");
  }
  return invalid_argument("there is no interface \"" + name + "\" with an address; there are" +
                          known);
}

}  // namespace

std::string Endpoint::text() const {
  char host[INET6_ADDRSTRLEN] = "?";
  if (address.ss_family == AF_INET6) {
    const auto& in6 = reinterpret_cast<const sockaddr_in6&>(address);
    inet_ntop(AF_INET6, &in6.sin6_addr, host, sizeof host);
    return std::string("[").append(host) + "]:" + std::to_string(ntohs(in6.sin6_port));
  }
  const auto& in4 = reinterpret_cast<const sockaddr_in&>(address);
  inet_ntop(AF_INET, &in4.sin_addr, host, sizeof host);
  return std::string(host) + ":" + std::to_string(ntohs(in4.sin_port));
}

Status parse_place(std::string_view text, Place* out) {
  std::string_view rest = text;
  std::string_view query;
  if (const std::size_t at = rest.find('?'); at != rest.npos) {
    query = rest.substr(at + 1);
    rest = rest.substr(0, at);
  }
  if (const std::size_t at = rest.find('/'); at != rest.npos) {
    out->name = rest.substr(at + 1);
    rest = rest.substr(0, at);
  }
  const std::size_t colon = rest.rfind(':');
  if (colon == rest.npos || colon == 0) return wrong(text, "it is not tcp://ADDRESS:PORT");
  std::string_view host = rest.substr(0, colon);
  const bool brackets = host.front() == '[' && host.back() == ']';
  if (brackets) host = host.substr(1, host.size() - 2);
  if (host.empty() || (!brackets && host.find(':') != host.npos)) {
    return wrong(text, "an address of IPv6 stands in brackets: tcp://[ADDRESS]:PORT");
  }
  std::uint64_t number = 0;
  if (!read_number(rest.substr(colon + 1), 1, 65'535, &number)) {
    return wrong(text, "the port is not a number from 1 to 65535");
  }
  out->host = host;
  out->port = static_cast<std::uint16_t>(number);
  if (out->name.size() > kMaxPlaceName) {
    return wrong(
        text, "the name after the port has more than " + std::to_string(kMaxPlaceName) + " bytes");
  }
  while (!query.empty()) {
    const std::size_t end = std::min(query.find('&'), query.size());
    const std::string_view item = query.substr(0, end);
    query = query.substr(std::min(end + 1, query.size()));
    const std::size_t equals = std::min(item.find('='), item.size());
    const std::string_view key = item.substr(0, equals);
    const std::string_view value = item.substr(std::min(equals + 1, item.size()));
    if (key == "interface" && !value.empty()) {
      out->interface = value;
    } else if (key == "silence_ms") {
      if (!read_number(value, 1'000, 3'600'000, &number)) {
        return wrong(text, "silence_ms is not a number from 1000 to 3600000");
      }
      out->silence_ns = number * 1'000'000;
    } else {
      return wrong(text, std::string("\"").append(item) +
                             "\" is neither interface=NAME nor silence_ms=NUMBER");
    }
  }
  return Status::success();
}

Status resolve(const Place& place, Endpoint* out) {
  std::string reason;
  if (!look_up(place.host, place.port, AI_ADDRCONFIG, out, &reason) &&
      !look_up(place.host, place.port, AI_NUMERICHOST, out, &reason)) {
    return invalid_argument("the host \"" + place.host + "\" is not known here: " + reason);
  }
  if (is_any(*out)) {
    return invalid_argument("ranks cannot meet at " + out->text() +
                            ": it is every address of a host and leads to none");
  }
  return Status::success();
}

Status parse_endpoint(const std::string& text, Endpoint* out) {
  Place place;
  std::string reason;
  TRIREME_RETURN_IF_ERROR(parse_place(text, &place));
  if (!look_up(place.host, place.port, AI_NUMERICHOST, out, &reason)) {
    return invalid_argument("\"" + text + "\" is no address and port");
  }
  return Status::success();
}

Status own_address(const Place& place, const Endpoint& meeting, Endpoint* out) {
  if (!place.interface.empty()) {
    std::string reason;
    if (!look_up(place.interface, 0, AI_NUMERICHOST, out, &reason)) {
      return address_of_interface(place.interface, meeting.address.ss_family, out);
    }
    if (is_any(*out)) {
      return invalid_argument("interface " + place.interface +
                              " is every address of a host; peers need one that leads here");
    }
    return Status::success();
  }
  // The system's own choice of an address to get there by; a datagram socket sends nothing.
  const Socket probe(
      system_table().socket(meeting.address.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!probe) return Status::system(errno, "a socket");
  if (system_table().connect(probe.get(), meeting.get(), meeting.length) != 0) {
    return Status::system(errno, "no way leads to " + meeting.text());
  }
  return probe.own_endpoint(out, 0);
}

}  // namespace trireme::tcp
