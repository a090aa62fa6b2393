#include "platform/hmac.hpp"

#include <string.h>

#include <string>

#include "platform/sha256.hpp"

namespace trireme {
namespace {

constexpr std::size_t kBlock = 64;

std::string_view view(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

// The text holds what is made of the key; nothing of it stays in memory.
Digest hash_and_wipe(std::string* text) {
  const Digest digest = sha256(*text);
  explicit_bzero(text->data(), text->size());
  return digest;
}

}  // namespace

Digest hmac_sha256(std::string_view key, std::string_view data) {
  char block[kBlock] = {};
  if (key.size() > kBlock) {
    const Digest digest = sha256(key);
    memcpy(block, digest.data(), digest.size());
  } else {
    memcpy(block, key.data(), key.size());
  }
  const auto padded = [&](char pad, std::string_view rest) {
    std::string text;
    text.reserve(kBlock + rest.size());
    for (const char each : block) text += static_cast<char>(each ^ pad);
    text += rest;
    return text;
  };
  std::string text = padded(0x36, data);
  const Digest inner = hash_and_wipe(&text);
  text = padded(0x5c, view(inner));
  explicit_bzero(block, sizeof block);
  return hash_and_wipe(&text);
}

bool same_digest(const Digest& a, const Digest& b) {
  volatile std::uint8_t differing = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    differing = static_cast<std::uint8_t>(differing | (a[i] ^ b[i]));
  }
  return differing == 0;
}

}  // namespace trireme
