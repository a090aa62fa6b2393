// Entrances: the addresses at which a rank is reached, with an admission at each. The first one
// lets in callers for all but further lines; entrance i lets in callers for line i alone. The
// watching thread of a mesh uses it, once it is open.
#pragma once

#include <poll.h>

#include <memory>
#include <string>
#include <vector>

#include "backends/tcp/admission.hpp"
#include "net/endpoint.hpp"

namespace trireme::tcp {

// The further addresses of a rank, as the rank sends them to a caller that has asked. They are
// checked before they are used.
struct FurtherAddresses {
  static constexpr std::size_t kMost = kMostLines - 1;

  // The one of a further line. CORRUPT: it is no address.
  Status of_line(int line, Endpoint* out) const;

  char endpoints[kMost][64];  // "10.0.1.2:4712"; "" behind the last one
};
static_assert(sizeof(FurtherAddresses) == 448);

class Entrances {
 public:
  // Listens at the addresses, which become those with ports.
  static Status listen(std::vector<Endpoint>* addresses, std::vector<Socket>* out);
  Entrances(std::vector<Endpoint> addresses, std::vector<Socket> listeners, const Token& token,
            const HandshakeTerms& own, const std::string& name);

  // As the functions of Admission, for all of them.
  void make_room_for(std::size_t ranks);
  void add_to(std::vector<pollfd>* polled) const;
  void serve(const std::vector<pollfd>& polled, std::size_t first,
             const std::vector<Purpose>& purposes, const Admission::Enter& enter);
  void close();
  // Sends the further addresses to a caller, for which its new connection has room.
  void tell(const Socket& caller) const;

  // Any thread, as the next one.
  int count() const { return static_cast<int>(addresses_.size()); }
  // The address of an interface, from which this rank makes line i; the port is the system's.
  Endpoint source_of(int line) const;

 private:
  const std::vector<Endpoint> addresses_;
  std::vector<std::unique_ptr<Admission>> admissions_;
};

}  // namespace trireme::tcp
