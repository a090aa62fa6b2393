// Gate: an entrance and those who have called there but not yet proved who they are. A stranger
// costs some hundred bytes. Used by one thread, which polls.
#pragma once

#include <poll.h>

#include <functional>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "net/entrance.hpp"
#include "net/handshake.hpp"
#include "net/tcp_call.hpp"

namespace trireme::tcp {

class Gate {
 public:
  // Who proves to know the token, and means this job and rank. `name` is for the log: "rank 0 of
  // "job"".
  Gate(Socket listener, const Token& token, const HandshakeTerms& own, std::string name)
      : entrance_(std::move(listener), std::move(name)), token_(token), own_(own) {}

  // What to poll for; the entries go to serve() as they are after poll(), first of which is `first`.
  void add_to(std::vector<pollfd>* polled) const;
  // Hands over those who have proved themselves, and for which of these purposes they came.
  using Enter =
      std::function<void(int rank, Purpose purpose, Socket socket, const SessionKeys& keys)>;
  void serve(const std::vector<pollfd>& polled, std::size_t first,
             const std::vector<Purpose>& purposes, const Enter& enter);
  // Nobody is let in any more.
  void close();

 private:
  struct Stranger {
    Socket socket;
    std::uint64_t since_ns;
    std::string hello;                   // until it is whole
    std::optional<Handshake> handshake;  // from then on
    Purpose purpose{};
  };
  enum class Step { wait, drop, proved };

  bool is_open() const;
  void accept_callers();
  Step advance(Stranger& stranger, const std::vector<Purpose>& purposes);
  Step hear(Stranger& stranger, std::string_view bytes);

  Entrance entrance_;
  const Token& token_;
  const HandshakeTerms own_;
  std::list<Stranger> strangers_;
};

}  // namespace trireme::tcp
