#include "net/handshake.hpp"

#include <trireme/version.h>

#include <algorithm>
#include <cstring>

#include "platform/system.hpp"
#include "platform/utf8.hpp"

namespace trireme {
namespace {

// magic, protocol, purpose, rank, peer, job, nonce, version
constexpr std::string_view kMagic = "trireme\n";
constexpr std::size_t kVersion = 16;
constexpr std::size_t kDigest = sizeof(Digest);
constexpr std::size_t kHello = 8 + 4 * 4 + 2 * kDigest + kVersion;
static_assert(kHello == 104);
constexpr std::size_t kWord = 4;

// The verdict of the called end on its caller.
enum class Word : std::uint32_t { welcome = 1, unwelcome };

// The two ends prove different texts: no words of one end can pass as the words of the other.
constexpr std::string_view kFromCalled = "trireme called";
constexpr std::string_view kFromCaller = "trireme caller";
constexpr std::string_view kOfWord = "trireme word";
constexpr std::string_view kKeyOfCaller = "trireme key of caller";
constexpr std::string_view kKeyOfCalled = "trireme key of called";

std::string_view view(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

Digest digest_at(std::string_view bytes) {
  Digest out;
  std::memcpy(out.data(), bytes.data(), out.size());
  return out;
}

void put32(std::string* out, std::uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) *out += static_cast<char>(value >> shift);
}

void put64(std::string* out, std::uint64_t value) {
  for (int shift = 0; shift < 64; shift += 8) *out += static_cast<char>(value >> shift);
}

std::uint32_t get32(std::string_view bytes) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    value |= std::uint32_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  }
  return value;
}

std::string own_version() {
  return std::to_string(TRIREME_VERSION_MAJOR) + "." + std::to_string(TRIREME_VERSION_MINOR) + "." +
         std::to_string(TRIREME_VERSION_PATCH);
}

}  // namespace

Status Handshake::start(std::string* out) {
  Digest nonce;
  if (!system_table().random_bytes(nonce.data(), nonce.size())) {
    return Status::failure(TRIREME_ERROR_SYSTEM, "the system gives no random numbers");
  }
  own_hello_ = kMagic;
  put32(&own_hello_, own_.protocol);
  put32(&own_hello_, static_cast<std::uint32_t>(own_.purpose));
  put32(&own_hello_, static_cast<std::uint32_t>(own_.rank));
  put32(&own_hello_, static_cast<std::uint32_t>(own_.peer));
  own_hello_ += view(own_.job);
  own_hello_ += view(nonce);
  std::string version = own_version();
  version.resize(kVersion - 1);
  version += '\0';
  own_hello_ += version;
  if (side_ == Side::caller) *out += own_hello_;
  return Status::success();
}

std::size_t Handshake::wanted() const {
  switch (step_) {
    case Step::hello: return side_ == Side::caller ? kHello + kDigest : kHello;
    case Step::proof: return kDigest;
    case Step::word: return kWord + kDigest;
    case Step::done: break;
  }
  return 0;
}

Status Handshake::take(std::string_view bytes, std::size_t* used, std::string* out) {
  *used = 0;
  while (step_ != Step::done && *used < bytes.size()) {
    const std::size_t part = std::min(wanted() - got_.size(), bytes.size() - *used);
    got_.append(bytes.substr(*used, part));
    *used += part;
    // An end whose first bytes are not the library's is refused at once.
    const std::size_t seen = std::min(got_.size(), kMagic.size());
    if (step_ == Step::hello && std::string_view(got_).substr(0, seen) != kMagic.substr(0, seen)) {
      return Status::failure(TRIREME_ERROR_AUTHENTICATION,
                             unauthenticated().message() + ": it is another program");
    }
    if (got_.size() < wanted()) break;
    TRIREME_RETURN_IF_ERROR(step(out));
  }
  return Status::success();
}

Status Handshake::step(std::string* out) {
  Status status = Status::success();
  if (step_ == Step::hello) {
    status = side_ == Side::caller ? receive_answer(out) : hear_hello(out);
  } else {
    status = step_ == Step::proof ? hear_proof(out) : hear_word();
  }
  got_.clear();
  return status;
}

Status Handshake::hear_hello(std::string* out) {
  other_hello_ = got_;
  *out += own_hello_;
  *out += view(made_of_both(kFromCalled));
  step_ = Step::proof;
  return Status::success();
}

Status Handshake::receive_answer(std::string* out) {
  other_hello_ = got_.substr(0, kHello);
  if (!same_digest(digest_at(std::string_view(got_).substr(kHello)), made_of_both(kFromCalled))) {
    // The caller sends an empty proof, so that a called end with another token can say why no peer
    // came.
    out->append(kDigest, '\0');
    return unauthenticated();
  }
  *out += view(made_of_both(kFromCaller));
  step_ = Step::word;
  return compare();
}

Status Handshake::hear_proof(std::string* out) {
  if (!same_digest(digest_at(got_), made_of_both(kFromCaller))) return unauthenticated();
  const Status status = compare();
  std::string word;
  put32(&word, static_cast<std::uint32_t>(status.ok() ? Word::welcome : Word::unwelcome));
  *out += word;
  *out += view(made_of_both(kOfWord, word));
  if (status.ok()) derive_keys();
  return status;
}

Status Handshake::hear_word() {
  const std::string_view word = std::string_view(got_).substr(0, kWord);
  if (!same_digest(digest_at(std::string_view(got_).substr(kWord)), made_of_both(kOfWord, word))) {
    return unauthenticated();
  }
  if (get32(word) != static_cast<std::uint32_t>(Word::welcome)) {
    return Status::failure(TRIREME_ERROR_MISMATCH,
                           where_ + " does not want this connection; the library there is " +
                               other_version_ + ", this one is " + own_version());
  }
  derive_keys();
  return Status::success();
}

// Compares the terms whose proof has shown that both ends know the token.
Status Handshake::compare() {
  const std::string_view hello = other_hello_;
  HandshakeTerms& other = other_;
  other.protocol = get32(hello.substr(8));
  other.purpose = static_cast<Purpose>(get32(hello.substr(12)));
  other.rank = static_cast<std::int32_t>(get32(hello.substr(16)));
  other.peer = static_cast<std::int32_t>(get32(hello.substr(20)));
  other.job = digest_at(hello.substr(24));
  const std::string_view version = hello.substr(kHello - kVersion);
  other_version_ = clean_text(version.substr(0, version.find('\0')));

  const auto mismatch = [&](const std::string& what) {
    return Status::failure(TRIREME_ERROR_MISMATCH, where_ + " " + what + "; the library there is " +
                                                       other_version_ + ", this one is " +
                                                       own_version());
  };
  if (other.protocol != own_.protocol) {
    return mismatch("speaks protocol " + std::to_string(other.protocol) + ", not " +
                    std::to_string(own_.protocol));
  }
  if (!same_digest(other.job, own_.job)) return mismatch("belongs to another job");
  if (other.purpose != own_.purpose) return mismatch("means a connection of another kind");
  if (own_.peer >= 0 && other.rank != own_.peer) {
    return mismatch("is rank " + std::to_string(other.rank) + ", not " + std::to_string(own_.peer));
  }
  if (other.peer >= 0 && other.peer != own_.rank) {
    return mismatch("means rank " + std::to_string(other.peer) + ", not " +
                    std::to_string(own_.rank));
  }
  return Status::success();
}

Digest Handshake::made_of_both(std::string_view label, std::string_view more) const {
  const bool calls = side_ == Side::caller;
  std::string text(label);
  text += '\0';
  text += calls ? own_hello_ : other_hello_;
  text += calls ? other_hello_ : own_hello_;
  text += more;
  return hmac_sha256(token_.secret(), text);
}

void Handshake::derive_keys() {
  const bool calls = side_ == Side::caller;
  keys_.send = made_of_both(calls ? kKeyOfCaller : kKeyOfCalled);
  keys_.receive = made_of_both(calls ? kKeyOfCalled : kKeyOfCaller);
  step_ = Step::done;
}

Status Handshake::unauthenticated() const {
  return Status::failure(TRIREME_ERROR_AUTHENTICATION,
                         where_ + " does not know the token of this job");
}

namespace {

// Half of a digest is enough, because an attacker has one try before the connection ends.
Digest code_of(const HmacKey& key, std::uint64_t sequence, std::string_view head_and_body) {
  std::string place;
  put64(&place, sequence);
  return key.of(place, head_and_body);
}

}  // namespace

void FrameWriter::write(std::string_view body, std::string* out) {
  const std::size_t begin = out->size();
  out->reserve(begin + kFrameHead + body.size() + kFrameCode);
  put32(out, static_cast<std::uint32_t>(body.size()));
  *out += body;
  const Digest code = code_of(key_, sequence_++, std::string_view(*out).substr(begin));
  *out += view(code).substr(0, kFrameCode);
}

Status FrameReader::take(std::string_view bytes, std::size_t* used) {
  if (whole_) {
    got_.clear();
    if (got_.capacity() > 65'536) got_.shrink_to_fit();
    whole_ = false;
  }
  *used = 0;
  const auto want = [&](std::size_t total) {
    const std::size_t part = std::min(total - got_.size(), bytes.size() - *used);
    got_.append(bytes.substr(*used, part));
    *used += part;
    return got_.size() == total;
  };
  if (got_.size() < kFrameHead) {
    if (!want(kFrameHead)) return Status::success();
    length_ = get32(got_);
  }
  if (length_ > most_) {
    return Status::failure(TRIREME_ERROR_CORRUPT, "a frame of " + std::to_string(length_) +
                                                      " bytes, above the " + std::to_string(most_) +
                                                      " that are allowed");
  }
  if (!want(kFrameHead + length_ + kFrameCode)) return Status::success();
  const std::string_view all = got_;
  const std::size_t end = kFrameHead + length_;
  Digest code = code_of(key_, sequence_, all.substr(0, end));
  std::fill(code.begin() + kFrameCode, code.end(), std::uint8_t{0});
  Digest came{};
  std::memcpy(came.data(), all.data() + end, kFrameCode);
  if (!same_digest(code, came)) {
    return Status::failure(TRIREME_ERROR_CORRUPT, "a frame with a code that is not of its sender");
  }
  ++sequence_;
  whole_ = true;
  return Status::success();
}

}  // namespace trireme
