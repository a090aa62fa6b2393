#include "backends/tcp/address.hpp"

#include <ifaddrs.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "net/handshake.hpp"
#include "net/tcp_socket.hpp"
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

bool split_interfaces(std::string_view list, std::vector<std::string>* out, std::string* why) {
  out->clear();
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    const std::string name(list.substr(begin, end - begin));
    begin = end + 1;
    if (name.empty()) return *why = "interface has a name of no letters in its list", false;
    if (std::find(out->begin(), out->end(), name) != out->end()) {
      return *why = "interface names \"" + name + "\" twice", false;
    }
    out->push_back(name);
  }
  if (out->size() <= static_cast<std::size_t>(kMostLines)) return true;
  *why = "interface names " + std::to_string(out->size()) + " interfaces, above the " +
         std::to_string(kMostLines) + " that a rank may have";
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
    out->set_port(0);
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
  std::string why;
  if (!split_endpoint(rest, 1, &out->host, &out->port, &why)) return wrong(text, why);
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
    std::uint64_t number = 0;
    if (key == "interface" && !value.empty()) {
      std::string reason;
      if (!split_interfaces(value, &out->interfaces, &reason)) return wrong(text, reason);
    } else if (key == "host") {
      out->label = value;
    } else if (key == "silence_ms") {
      if (!read_number(value, 1'000, 3'600'000, &number)) {
        return wrong(text, "silence_ms is not a number from 1000 to 3600000");
      }
      out->silence_ns = number * 1'000'000;
    } else if (item == "connections=few") {
      out->few_connections = true;
    } else {
      return wrong(text,
                   std::string("\"").append(item) +
                       "\" is none of interface=NAME[,NAME...], host=LABEL, silence_ms=NUMBER and "
                       "connections=few");
    }
  }
  return Status::success();
}

Status resolve(const Place& place, Endpoint* out) {
  std::string reason;
  if (!look_up(place.host, place.port, out, &reason)) {
    return invalid_argument("the host \"" + place.host + "\" is not known here: " + reason);
  }
  if (out->is_any()) {
    return invalid_argument("ranks cannot meet at " + out->text() +
                            ": it is every address of a host and leads to none");
  }
  return Status::success();
}

Status parse_endpoint(const std::string& text, Endpoint* out) {
  Place place;
  std::string reason;
  TRIREME_RETURN_IF_ERROR(parse_place(text, &place));
  if (!look_up_number(place.host, place.port, out, &reason)) {
    return invalid_argument("\"" + text + "\" is no address and port");
  }
  return Status::success();
}

namespace {

Status address_of(const std::string& interface, const Endpoint& meeting, Endpoint* out) {
  std::string reason;
  if (!look_up_number(interface, 0, out, &reason)) {
    return address_of_interface(interface, meeting.address.ss_family, out);
  }
  if (out->is_any()) {
    return invalid_argument("interface " + interface +
                            " is every address of a host; peers need one that leads here");
  }
  return Status::success();
}

// Asks the system for the local address of a route: a datagram socket sends nothing.
Status address_on_route(const Endpoint& meeting, Endpoint* out) {
  const Socket probe(
      system_table().socket(meeting.address.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!probe) return Status::system(errno, "a socket");
  if (system_table().connect(probe.get(), meeting.get(), meeting.length) != 0) {
    return Status::system(errno, "no way leads to " + meeting.text());
  }
  return probe.own_endpoint(out, 0);
}

}  // namespace

Status own_addresses(const Place& place, const Endpoint& meeting, std::vector<Endpoint>* out) {
  out->clear();
  if (place.interfaces.empty()) {
    out->emplace_back();
    return address_on_route(meeting, &out->back());
  }
  for (const std::string& interface : place.interfaces) {
    Endpoint own;
    TRIREME_RETURN_IF_ERROR(address_of(interface, meeting, &own));
    for (std::size_t i = 0; i < out->size(); ++i) {
      if ((*out)[i].text() != own.text()) continue;
      return invalid_argument("interfaces \"" + place.interfaces[i] + "\" and \"" + interface +
                              "\" have one address, and so are one way to this rank");
    }
    out->push_back(own);
  }
  return Status::success();
}

}  // namespace trireme::tcp
