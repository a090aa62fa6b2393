#include "backends/tcp/entrances.hpp"

#include <cstring>
#include <utility>

#include "backends/tcp/address.hpp"
#include "platform/utf8.hpp"

namespace trireme::tcp {

Status FurtherAddresses::of_line(int line, Endpoint* out) const {
  const char(&field)[64] = endpoints[line - 1];
  const std::string text(field, strnlen(field, sizeof field));
  if (parse_endpoint(text, out).ok()) return Status::success();
  return Status::failure(TRIREME_ERROR_CORRUPT, "its address of line " + std::to_string(line) +
                                                    " is \"" + clean_text(text) + "\"");
}

Status Entrances::listen(std::vector<Endpoint>* addresses, std::vector<Socket>* out) {
  for (Endpoint& address : *addresses) {
    out->emplace_back();
    TRIREME_RETURN_IF_ERROR(listen_at(address, &out->back(), &address));
  }
  return Status::success();
}

Entrances::Entrances(std::vector<Endpoint> addresses, std::vector<Socket> listeners,
                     const Token& token, const HandshakeTerms& own, const std::string& name)
    : addresses_(std::move(addresses)) {
  for (Socket& listener : listeners) {
    admissions_.push_back(std::make_unique<Admission>(std::move(listener), token, own, name));
  }
}

void Entrances::make_room_for(std::size_t ranks) {
  for (const auto& each : admissions_) each->make_room_for(ranks);
}

void Entrances::add_to(std::vector<pollfd>* polled) const {
  for (const auto& each : admissions_) each->add_to(polled);
}

void Entrances::serve(const std::vector<pollfd>& polled, std::size_t first,
                      const std::vector<Purpose>& purposes, const Admission::Enter& enter) {
  std::size_t at = first;
  for (std::size_t i = 0; i < admissions_.size(); ++i) {
    const std::size_t next = at + admissions_[i]->polled_count();
    const bool is_first = i == 0;
    admissions_[i]->serve(
        polled, at,
        is_first ? purposes : std::vector<Purpose>{purpose_of_line(static_cast<int>(i))}, enter);
    at = next;
  }
}

void Entrances::close() {
  for (const auto& each : admissions_) each->close();
}

void Entrances::tell(const Socket& caller) const {
  FurtherAddresses all{};
  for (std::size_t i = 1; i < addresses_.size(); ++i) {
    addresses_[i].text().copy(all.endpoints[i - 1], sizeof all.endpoints[0] - 1);
  }
  std::size_t moved = 0;
  static_cast<void>(caller.send(&all, sizeof all, &moved));
}

Endpoint Entrances::source_of(int line) const {
  Endpoint out = addresses_[static_cast<std::size_t>(line)];
  out.set_port(0);
  return out;
}

}  // namespace trireme::tcp
