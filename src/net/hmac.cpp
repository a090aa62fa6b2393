#include "net/hmac.hpp"

#include <string.h>

namespace trireme {

HmacKey::HmacKey(std::string_view key) {
  constexpr std::size_t kBlock = 64;
  char block[kBlock] = {};
  if (key.size() > kBlock) {
    const Digest digest = sha256(key);
    memcpy(block, digest.data(), digest.size());
  } else {
    memcpy(block, key.data(), key.size());
  }
  for (char& each : block) each ^= 0x36;
  inner_.add({block, kBlock});
  for (char& each : block) each ^= 0x36 ^ 0x5c;
  outer_.add({block, kBlock});
  explicit_bzero(block, sizeof block);
}

// Wipes the key from memory.
HmacKey::~HmacKey() {
  explicit_bzero(static_cast<void*>(&inner_), sizeof inner_);
  explicit_bzero(static_cast<void*>(&outer_), sizeof outer_);
}

Digest HmacKey::of(std::string_view data, std::string_view more) const {
  Sha256 inner = inner_;
  inner.add(data);
  inner.add(more);
  const Digest digest = inner.finish();
  Sha256 outer = outer_;
  outer.add({reinterpret_cast<const char*>(digest.data()), digest.size()});
  return outer.finish();
}

Digest hmac_sha256(std::string_view key, std::string_view data) { return HmacKey(key).of(data); }

bool same_digest(const Digest& a, const Digest& b) {
  volatile std::uint8_t differing = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    differing = static_cast<std::uint8_t>(differing | (a[i] ^ b[i]));
  }
  return differing == 0;
}

}  // namespace trireme
