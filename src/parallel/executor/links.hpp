// StageLinks: the messages between the stages of a pipeline. Each has a header that describes it.
// Both sides know what comes next; a header that does not fit is an error on both. Any message may
// say instead that its sender has failed.
//
// Ranks that share memory read messages where their sender has them, see mail.hpp. Between other
// ranks the header, of 128 bytes, lies in front of the data, and both are sent as one message.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "exchange/storage.hpp"
#include "parallel/executor/mail.hpp"
#include "parallel/executor/stage_message.hpp"
#include "platform/status.hpp"

namespace trireme::parallel {

class StageLinks {
 public:
  // `link`: the group of the pipeline, whose messages are these alone.
  explicit StageLinks(strategies::Link& link) : link_(link) {}

  // Headers and data lie in `owner`. `mail` is null where ranks share no memory, and else lives as
  // long as this.
  void use(std::shared_ptr<const void> owner, StageMail* mail) {
    owner_ = std::move(owner);
    mail_ = mail;
  }
  // Of the schedule; two ranks with different ones do not understand each other.
  void set_hash(std::uint64_t hash) { hash_ = hash; }
  void begin_pass();

  // Starts to send. `data`, and a header in front of it, stay as they are until claim().
  Status send(const StageMessage& message, const StageNews& news, char* data, std::uint32_t to);
  // Begins to receive, before receive() is called with the same arguments. Without shared memory
  // alone. Both places, of the header and of the data, are free.
  Status post(const StageMessage& message, char* data, std::uint32_t from);
  std::size_t posted() const { return posted_.size(); }
  // Into `data`; a header comes in front of it. A gradient has the extent of *news.
  Status receive(const StageMessage& message, char* data, std::uint32_t from, StageNews* news);
  // Where ranks share memory: *data points to the sender's until release(). It is null if that has
  // failed.
  Status receive_in_place(const StageMessage& message, std::uint32_t from, StageNews* news,
                          const char** data);
  Status release(const StageMessage& message) { return mail_->take(message); }
  // Whether no message is read from these bytes. It does not wait.
  bool is_free(const char* begin, std::uint64_t bytes) const;
  // Waits until no message is read from these bytes.
  Status claim(const char* begin, std::uint64_t bytes);
  // Waits for all messages.
  Status drain();
  // After a failure: what is under way ends by itself.
  void drop() {
    sending_.clear();
    empty_.clear();
    posted_.clear();
  }

 private:
  struct Sending {
    std::shared_ptr<Request> request;  // null: by mail
    const char* end = nullptr;
    StageMessage message;
    std::uint32_t to = 0;
  };

  Status start(const StageHeader& header, const StageMessage& message, char* begin,
               std::uint32_t to, std::shared_ptr<Request>* request);
  MessageArguments receive_arguments(const StageMessage& message, char* data,
                                     std::uint32_t from) const;
  // Waits for the message, whether it is posted or not.
  Status meet(const StageMessage& message, char* data, std::uint32_t from, MetMessage* met);
  Status find_blame(const StageMessage& message, char* data, std::uint32_t from, MetMessage* met);
  Status finish(const Sending& sending);
  // `instead`: what has come, if that is no header.
  Status compare(const StageHeader& header, const StageMessage& message, std::uint32_t from,
                 const char* instead, StageNews* news);
  // Fails the group: no rank may wait for this one.
  Status fail(trireme_status code, const std::string& text);
  // Names the message in a failure.
  Status explain(Status status, const StageMessage& message, const std::string& what);

  strategies::Link& link_;
  std::shared_ptr<const void> owner_;
  StageMail* mail_ = nullptr;
  std::uint64_t hash_ = 0;
  std::map<const char*, Sending> sending_;                  // by the first byte
  std::vector<Sending> empty_;                              // without data
  std::map<const char*, std::shared_ptr<Request>> posted_;  // by where the data come
};

}  // namespace trireme::parallel
