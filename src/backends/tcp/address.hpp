// Addresses: the meeting place of a job's ranks, and the address at which each rank is reached.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "net/endpoint.hpp"
#include "platform/status.hpp"

namespace trireme::tcp {

// ADDRESS:PORT[/NAME][?interface=NAME_OR_ADDRESS[,...]][&host=LABEL][&silence_ms=N][&connections=few]
struct Place {
  std::string host;
  std::uint16_t port = 0;
  std::string name;                     // of the group; "" is one, too
  std::vector<std::string> interfaces;  // none: the address on the route to the host
  std::string label;                    // the part of its host to which the rank belongs
  std::uint64_t silence_ns = 5'000'000'000;
  bool few_connections = false;  // as large groups have: see schedules/overlay.hpp
};
constexpr std::size_t kMaxPlaceName = 63;

Status parse_place(std::string_view text, Place* out);
// Asks the system's resolver for a host that is not written in numbers.
Status resolve(const Place& place, Endpoint* out);
// "10.0.0.2:29500", in numbers.
Status parse_endpoint(const std::string& text, Endpoint* out);
// The addresses at which peers reach this rank, with port 0: one, or one for each interface.
// `meeting` is where the ranks meet.
Status own_addresses(const Place& place, const Endpoint& meeting, std::vector<Endpoint>* out);

}  // namespace trireme::tcp
