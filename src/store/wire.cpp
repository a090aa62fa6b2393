#include "store/wire.hpp"

#include <cstring>

#include "net/sha256.hpp"
#include "platform/utf8.hpp"

namespace trireme::cluster {
namespace {

constexpr std::size_t kMaxMessage = 2048;

class Writer {
 public:
  template <class Number>
  void number(Number value) {
    const auto bits = static_cast<std::uint64_t>(value);
    for (std::size_t i = 0; i < sizeof value; ++i) bytes_ += static_cast<char>(bits >> (8 * i));
  }
  void text(std::string_view value) {
    number(static_cast<std::uint32_t>(value.size()));
    bytes_ += value;
  }
  void optional(const std::optional<std::string>& value) {
    number(static_cast<std::uint8_t>(value.has_value()));
    text(value ? *value : std::string_view());
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  template <class Number>
  Number number() {
    const std::string_view bytes = take(sizeof(Number));
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      bits |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
    }
    return static_cast<Number>(bits);
  }
  std::string text(std::size_t most) {
    const auto size = number<std::uint32_t>();
    if (size > most) good_ = false;
    return std::string(take(size));
  }
  std::optional<std::string> optional(std::size_t most) {
    const auto there = number<std::uint8_t>();
    std::string value = text(most);
    if (there > 1 || (there == 0 && !value.empty())) good_ = false;
    if (there == 0) return std::nullopt;
    return value;
  }
  std::string_view take(std::size_t bytes) {
    if (!good_ || bytes > rest_.size()) {
      good_ = false;
      return {};
    }
    const std::string_view part = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return part;
  }
  bool good() const { return good_; }
  bool ended() const { return good_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool good_ = true;
};

}  // namespace

std::string encode(const StoreRequest& request, StoreInstance instance) {
  Writer out;
  out.number(static_cast<std::uint8_t>(request.operation));
  for (const std::uint8_t byte : request.lane) out.number(byte);
  out.number(request.number);
  out.number(instance);
  switch (request.operation) {
    case StoreOperation::wait:
      out.number(request.timeout_ns);
      out.number(static_cast<std::uint32_t>(request.keys.size()));
      for (const std::string& key : request.keys) out.text(key);
      return out.take();
    case StoreOperation::add:
      out.text(request.key);
      out.number(request.amount);
      return out.take();
    case StoreOperation::get:
    case StoreOperation::remove: out.text(request.key); return out.take();
    case StoreOperation::compare_exchange:
      out.text(request.key);
      out.optional(request.expected);
      out.text(request.value);
      return out.take();
    case StoreOperation::set:
      out.text(request.key);
      out.text(request.value);
      return out.take();
  }
  return {};
}

bool decode(std::string_view bytes, StoreRequest* request, StoreInstance* instance) {
  Reader in(bytes);
  request->operation = static_cast<StoreOperation>(in.number<std::uint8_t>());
  for (std::uint8_t& byte : request->lane) byte = in.number<std::uint8_t>();
  request->number = in.number<std::uint64_t>();
  *instance = in.number<StoreInstance>();
  switch (request->operation) {
    case StoreOperation::wait: {
      request->timeout_ns = in.number<std::uint64_t>();
      const auto count = in.number<std::uint32_t>();
      if (count > kMaxWaitKeys) return false;
      for (std::uint32_t i = 0; i < count && in.good(); ++i) {
        request->keys.push_back(in.text(kMaxStoreKey));
      }
      return in.ended();
    }
    case StoreOperation::add:
      request->key = in.text(kMaxStoreKey);
      request->amount = in.number<std::int64_t>();
      return in.ended();
    case StoreOperation::get:
    case StoreOperation::remove: request->key = in.text(kMaxStoreKey); return in.ended();
    case StoreOperation::compare_exchange:
      request->key = in.text(kMaxStoreKey);
      request->expected = in.optional(kMaxStoreValue);
      request->value = in.text(kMaxStoreValue);
      return in.ended();
    case StoreOperation::set:
      request->key = in.text(kMaxStoreKey);
      request->value = in.text(kMaxStoreValue);
      return in.ended();
  }
  return false;
}

std::string encode(const StoreReply& reply, StoreInstance instance) {
  Writer out;
  out.number(reply.code);
  out.number(instance);
  out.number(reply.number);
  out.text(std::string_view(reply.message).substr(0, whole_characters(reply.message, kMaxMessage)));
  out.optional(reply.value);
  return out.take();
}

bool decode(std::string_view bytes, StoreReply* reply, StoreInstance* instance) {
  Reader in(bytes);
  reply->code = in.number<trireme_status>();
  *instance = in.number<StoreInstance>();
  reply->number = in.number<std::int64_t>();
  reply->message = clean_text(in.text(kMaxMessage));
  reply->value = in.optional(kMaxStoreValue);
  return in.ended() && reply->code <= TRIREME_OK && reply->code >= kLowestStatus;
}

HandshakeTerms store_terms() {
  HandshakeTerms terms;
  terms.purpose = Purpose::store;
  terms.job = sha256("key-value store");
  return terms;
}

}  // namespace trireme::cluster
