// Handshake: the first words of both ends of a new connection. Each proves that it knows the job's
// token by answering a number that the other end has just drawn; both then have two keys that no
// other process has. Pure: bytes go in, bytes come out, no socket, no clock. An end that was called
// reads 136 bytes of an unauthenticated peer at most, and keeps nothing else for it.
//
//   caller                                    called
//   hello (104 bytes)                  -->
//                                      <--    hello, proof over both (136 bytes)
//   proof over both (32 bytes)         -->
//                                      <--    word, proof over it (36 bytes)
//
// The proof covers the terms of the other end: protocol, job, purpose, ranks and version. They are
// neither compared nor named before it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "net/hmac.hpp"
#include "net/token.hpp"
#include "platform/status.hpp"

namespace trireme {

// Raised when the handshake, or the protocol after it, changes its meaning.
constexpr std::uint32_t kHandshakeProtocol = 3;

// The purpose of a connection. By `ask_data` and `ask_engine` a caller asks for another connection,
// for data or an engine, which the called rank makes. The asking one then ends. So does one for
// `addresses`: it brings the further addresses of the called rank. `further_line` is line 1 of an
// engine; the lines after it have the next numbers.
enum class Purpose : std::uint32_t {
  store = 1,
  control,
  data,
  engine,
  ask_data,
  ask_engine,
  addresses,
  further_line
};
// A pair of ranks has at most so many lines: connections for an engine, side by side.
constexpr int kMostLines = 8;
constexpr Purpose purpose_of_line(int line) {
  const auto further = static_cast<std::uint32_t>(Purpose::further_line);
  return line == 0 ? Purpose::engine
                   : static_cast<Purpose>(further + static_cast<std::uint32_t>(line) - 1);
}
// -1: it is no purpose of a line.
constexpr int line_of(Purpose purpose) {
  for (int line = 0; line < kMostLines; ++line) {
    if (purpose == purpose_of_line(line)) return line;
  }
  return -1;
}

struct HandshakeTerms {
  std::uint32_t protocol = kHandshakeProtocol;
  Purpose purpose = Purpose::store;
  std::int32_t rank = -1;  // the end that speaks; -1: no rank
  std::int32_t peer = -1;  // the end that is meant; -1: any
  Digest job{};            // a digest of its name
};

// Keys of one connection, one for each direction.
struct SessionKeys {
  Digest send{};
  Digest receive{};
};

class Handshake {
 public:
  enum class Side { caller, called };

  // `where` is for messages: "the store at 10.0.0.2:4711".
  Handshake(const Token& token, Side side, const HandshakeTerms& terms, std::string where)
      : token_(token), side_(side), own_(terms), where_(std::move(where)) {}

  // Call it first. A caller then has its hello in *out. SYSTEM: no random numbers.
  Status start(std::string* out);

  // Takes the bytes that belong to the handshake, and no more: *used. Appends to *out the bytes to
  // send. Send them even if this fails: they tell the other end why. AUTHENTICATION: the other end
  // does not know the token. MISMATCH: it does, but its terms differ. Do not call it again after
  // either.
  Status take(std::string_view bytes, std::size_t* used, std::string* out);

  bool done() const { return step_ == Step::done; }
  // Valid once it is done.
  const SessionKeys& keys() const { return keys_; }
  std::int32_t other_rank() const { return other_.rank; }

 private:
  enum class Step { hello, proof, word, done };

  std::size_t wanted() const;
  Status step(std::string* out);
  Status hear_hello(std::string* out);
  Status receive_answer(std::string* out);
  Status hear_proof(std::string* out);
  Status hear_word();
  Status compare();
  Digest made_of_both(std::string_view label, std::string_view more = {}) const;
  void derive_keys();
  Status unauthenticated() const;

  const Token token_;
  const Side side_;
  const HandshakeTerms own_;
  const std::string where_;
  Step step_ = Step::hello;
  std::string own_hello_;
  std::string other_hello_;
  HandshakeTerms other_;
  std::string other_version_;
  std::string got_;  // of the message that is coming in
  SessionKeys keys_;
};

// One direction of a connection after its handshake. Every frame carries a code that only the two
// ends can make, over its place in the sequence, its length and its bytes.
//
//   u32 bytes of the body · body · 16 bytes of code
constexpr std::size_t kFrameHead = 4;
constexpr std::size_t kFrameCode = 16;

inline HmacKey key_of(const Digest& digest) {
  return HmacKey({reinterpret_cast<const char*>(digest.data()), digest.size()});
}

class FrameWriter {
 public:
  // `sequence`: how many frames went before it.
  explicit FrameWriter(const Digest& key, std::uint64_t sequence = 0)
      : key_(key_of(key)), sequence_(sequence) {}
  // Appends a frame.
  void write(std::string_view body, std::string* out);

 private:
  HmacKey key_;
  std::uint64_t sequence_;
};

class FrameReader {
 public:
  FrameReader(const Digest& key, std::size_t most) : key_(key_of(key)), most_(most) {}
  // Takes bytes as they arrive. CORRUPT: the length is above the cap, which is seen before memory
  // is allocated, or the code is wrong. The connection has to end.
  Status take(std::string_view bytes, std::size_t* used);
  std::uint64_t sequence() const { return sequence_; }  // frames that were whole
  // Whether a body is whole. It stays until the next take().
  bool whole() const { return whole_; }
  std::string_view body() const { return std::string_view(got_).substr(kFrameHead, length_); }

 private:
  HmacKey key_;
  std::size_t most_;
  std::uint64_t sequence_ = 0;
  std::string got_;
  std::size_t length_ = 0;
  bool whole_ = false;
};

}  // namespace trireme
