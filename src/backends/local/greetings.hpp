// Greetings: the first packets between processes of a group, which show whether they belong
// together: by version, world size, and a proof that both know the job's token. Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "backends/slots/segment.hpp"
#include "net/hmac.hpp"
#include "net/token.hpp"
#include "platform/status.hpp"

namespace trireme::local {

// The packets of the sockets, always whole and of one size. Processes of one host share byte order.
struct Packet {
  enum Type : std::uint32_t { hello = 1, buffer, drop, failure, leave, other_token };
  static constexpr std::uint64_t kMagic = 0x31656d6572697274;  // "trireme1"

  std::uint64_t magic = kMagic;
  std::uint32_t version = kLayoutVersion;
  std::uint32_t type = 0;
  std::int32_t world_size = 0;
  std::int32_t rank = 0;
  std::uint64_t nonce = 0;  // hello: drawn by the connecting side, repeated in the answer
  Digest proof{};           // hello: proves that the sender knows the token; zeros without one
  std::uint64_t id = 0;     // buffer, drop
  std::uint64_t bytes = 0;  // buffer
  FailureRecord record{};   // failure
};

class Greetings {
 public:
  // `token`: null for none.
  Greetings(std::string group_name, std::shared_ptr<const Token> token, int rank, int world_size)
      : group_name_(std::move(group_name)),
        token_(std::move(token)),
        rank_(rank),
        world_size_(world_size) {}

  const std::string& group_name() const { return group_name_; }
  // The name of the socket at which a rank is called.
  std::string address(int rank) const;

  // From this rank. `nonce`: a number that the caller has drawn, and that its answer repeats.
  Packet packet(Packet::Type type) const;
  Packet hello(std::uint64_t nonce) const;
  Packet answer(std::uint64_t nonce) const;

  // Whether the sender knows the same token, or has none where this rank has none. `answers`: the
  // packet is an answer, which needs another proof than a hello.
  bool same_token(const Packet& theirs, bool answers) const;
  // The same version and world size, or neither side may go on: MISMATCH, with both.
  Status check_same(const Packet& theirs) const;

 private:
  Digest proof(const Packet& hello, bool answers) const;

  const std::string group_name_;
  const std::shared_ptr<const Token> token_;
  const int rank_;
  const int world_size_;
};

}  // namespace trireme::local
