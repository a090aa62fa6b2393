#include "backends/local/greetings.hpp"

#include <unistd.h>

#include <cstdio>
#include <utility>

namespace trireme::local {
namespace {

// Of a group in an address as it is; longer ones are hashed.
constexpr std::size_t kLongestName = 64;

std::uint64_t hash_text(const std::string& text, std::uint64_t hash) {
  for (const char character : text) {
    hash = (hash ^ static_cast<unsigned char>(character)) * 0x100000001b3u;
  }
  return hash;
}

}  // namespace

std::string Greetings::address(int rank) const {
  std::string name = group_name_;
  if (name.size() > kLongestName) {
    char text[40];
    std::snprintf(text, sizeof text, "%016llx%016llx",
                  static_cast<unsigned long long>(hash_text(name, 0xcbf29ce484222325u)),
                  static_cast<unsigned long long>(hash_text(name, 0x9e3779b97f4a7c15u)));
    name = text;
  }
  return "trireme/" + std::to_string(geteuid()) + "/" + name + "/" + std::to_string(rank);
}

Packet Greetings::packet(Packet::Type type) const {
  Packet made;
  made.type = type;
  made.world_size = world_size_;
  made.rank = rank_;
  return made;
}

Packet Greetings::hello(std::uint64_t nonce) const {
  Packet made = packet(Packet::hello);
  made.nonce = nonce;
  made.proof = proof(made, false);
  return made;
}

Packet Greetings::answer(std::uint64_t nonce) const {
  Packet made = packet(Packet::hello);
  made.nonce = nonce;
  made.proof = proof(made, true);
  return made;
}

// Both sides know the name, the ranks and the number that one side has just drawn.
Digest Greetings::proof(const Packet& hello, bool answers) const {
  if (token_ == nullptr || token_->empty()) return {};
  std::string text = answers ? "trireme host answer" : "trireme host hello";
  for (const std::string& part :
       {group_name_, std::to_string(hello.rank), std::to_string(hello.nonce)}) {
    text.append("\n").append(part);
  }
  return hmac_sha256(token_->secret(), text);
}

bool Greetings::same_token(const Packet& theirs, bool answers) const {
  return same_digest(theirs.proof, proof(theirs, answers));
}

Status Greetings::check_same(const Packet& theirs) const {
  const auto both = [&](const char* what, std::int64_t other, std::int64_t own) {
    const std::string text = "rank " + std::to_string(theirs.rank) + " has " + what + " " +
                             std::to_string(other) + ", rank " + std::to_string(rank_) + " has " +
                             std::to_string(own);
    FailureDetails details;
    if (theirs.rank >= 0 && theirs.rank < world_size_) details.blamed = {theirs.rank};
    return Status::failure(TRIREME_ERROR_MISMATCH, text).with_details(std::move(details));
  };
  if (theirs.version != kLayoutVersion) {
    return both("version", theirs.version, kLayoutVersion);
  }
  if (theirs.world_size != world_size_) {
    return both("world size", theirs.world_size, world_size_);
  }
  return Status::success();
}

}  // namespace trireme::local
