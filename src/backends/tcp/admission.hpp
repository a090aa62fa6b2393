// Admission: an acceptor, and the callers that have not yet proved who they are. An unauthenticated
// peer costs some hundred bytes. One thread uses it, which polls.
#pragma once

#include <poll.h>

#include <functional>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "net/acceptor.hpp"
#include "net/handshake.hpp"
#include "net/tcp_call.hpp"

namespace trireme::tcp {

class Admission {
 public:
  // A caller must prove to know the token, and name this job and rank. `name` is for the log: "rank
  // 0 of "job"".
  Admission(Socket listener, const Token& token, const HandshakeTerms& own, std::string name)
      : acceptor_(std::move(listener), std::move(name)), token_(token), own_(own) {}

  // So many ranks may call at once, besides other callers. The room stays.
  void make_room_for(std::size_t ranks) { acceptor_.make_room_for(ranks); }
  // Adds the descriptors to poll; pass them to serve() after poll(); `first` is the place of the
  // first one.
  void add_to(std::vector<pollfd>* polled) const;
  // How many it adds.
  std::size_t polled_count() const { return 1 + unauthenticated_.size(); }
  // Passes on each caller that has proved itself, and has come for one of these purposes.
  using Enter =
      std::function<void(int rank, Purpose purpose, Socket socket, const SessionKeys& keys)>;
  void serve(const std::vector<pollfd>& polled, std::size_t first,
             const std::vector<Purpose>& purposes, const Enter& enter);
  // Lets no caller in any more.
  void close();

 private:
  struct Unauthenticated {
    Socket socket;
    std::uint64_t since_ns;
    std::string hello;                   // until it is whole
    std::optional<Handshake> handshake;  // from then on
    Purpose purpose{};
  };
  enum class Step { wait, drop, proved };

  bool is_open() const;
  void accept_callers();
  Step advance(Unauthenticated& newcomer, const std::vector<Purpose>& purposes);
  Step receive(Unauthenticated& newcomer, std::string_view bytes);

  Acceptor acceptor_;
  const Token& token_;
  const HandshakeTerms own_;
  std::list<Unauthenticated> unauthenticated_;
};

}  // namespace trireme::tcp
