// Letters: carries answers by the messages of a backend: to each peer and from it one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "backends/backend.hpp"
#include "backends/join/answers.hpp"
#include "platform/status.hpp"

namespace trireme {

class Letters {
 public:
  // `context`: of messages that are letters alone. Call take_back() before the end, unless the
  // group has failed and progress() has ended all messages.
  Letters(Backend& backend, Answers& answers, std::uint32_t context);
  Letters(const Letters&) = delete;
  Letters& operator=(const Letters&) = delete;

  // Sends what is due, and takes what has come. *moved: some of it has arrived, or has gone.
  // `news`: as in Answers::owes(). A failure is the group's, and has ended all messages.
  Status turn(bool news, bool* moved);
  // Whether something is on its way to a peer that needs it, or has come here in part.
  bool are_under_way() const;
  // Returns false if some could not be taken back.
  bool take_back();

 private:
  struct Letter {
    Answers::Known sent;
    Answers::Known received;
    std::optional<Message> send;
    std::optional<Message> receive;
  };

  void post(std::optional<Message>& message, OperationKind kind, Answers::Known* data,
            std::size_t peer);
  bool take_back(std::optional<Message>& message);
  static Status end(std::optional<Message>& message, bool* ended);

  Backend& backend_;
  Answers& answers_;
  const std::uint32_t context_;
  std::deque<Letter> letters_;  // by peer; they do not move
};

}  // namespace trireme
