#include "launch/agent_messages.hpp"

#include <algorithm>
#include <optional>
#include <type_traits>

#include "platform/utf8.hpp"

namespace trireme::cluster {
namespace {

constexpr std::size_t kLongestText = 1024;
constexpr int kMostRanks = kMostNodes * kMostWorkersOfNode;

// One description of each message's fields serves both directions: `Way` is a writer or a reader.
template <class Way>
void pass(Way& way, AgentHello& message) {
  way.text(message.host);
  way.number(message.workers, 1, kMostWorkersOfNode);
  way.number(message.node_rank, -1, kMostNodes - 1);
  way.number(message.least_nodes, 1, kMostNodes);
  way.number(message.most_nodes, 1, kMostNodes);
  way.number(message.restarts, 0, kMostRestarts);
  way.address(message.address);
  way.number(message.meeting_port, 1, 65535);
  way.number(message.master_port, 1, 65535);
}
template <class Way>
void pass(Way& way, AgentRefusal& message) {
  way.text(message.reason);
}
template <class Way>
void pass(Way& way, AgentStart& message) {
  way.number(message.nodes, 1, kMostNodes);
  way.number(message.node_rank, 0, message.nodes - 1);
  way.number(message.world_size, 1, kMostRanks);
  way.number(message.first_rank, 0, message.world_size - 1);
  way.address(message.master_address);
  way.number(message.master_port, 1, 65535);
  way.text(message.rendezvous);
}
template <class Way>
void pass(Way& way, AgentStop& message) {
  way.number(message.signal, 1, 63);
  way.flag(message.by_user);
  way.text(message.reason);
}
template <class Way>
void pass(Way& way, AgentEnd& message) {
  way.number(message.code, 0, 255);
  way.flag(message.by_signal);
  way.flag(message.lost_peer);
  way.wide(message.age_ns);
  way.text(message.failure);
  way.flag(message.not_started);
}
template <class Way>
void pass(Way& way, AgentVerdict& message) {
  way.number(message.code, 0, 255);
  way.text(message.text);
  way.flag(message.is_final);
}
template <class Way>
void pass(Way&, AgentBeat&) {}

class Writer {
 public:
  explicit Writer(std::string* out) : out_(*out) {}

  void wide(std::uint64_t value) {
    for (int shift = 0; shift < 64; shift += 8) out_ += static_cast<char>(value >> shift);
  }
  void number(int value, int, int) { wide(static_cast<std::uint64_t>(std::int64_t{value})); }
  void flag(bool value) { wide(value ? 1 : 0); }
  void text(const std::string& value) {
    const std::string_view kept =
        std::string_view(value).substr(0, whole_characters(value, kLongestText));
    wide(kept.size());
    out_ += kept;
  }
  void address(const std::string& value) { text(value); }

 private:
  std::string& out_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  // All fields were there and valid, and no byte is left.
  bool fine() const { return fine_ && rest_.empty(); }

  void wide(std::uint64_t& value) {
    value = 0;
    if (rest_.size() < 8) {
      fine_ = false;
      return;
    }
    for (std::size_t i = 0; i < 8; ++i) {
      value |= std::uint64_t{static_cast<unsigned char>(rest_[i])} << (8 * i);
    }
    rest_.remove_prefix(8);
  }
  void number(int& value, int low, int high) {
    std::uint64_t bits = 0;
    wide(bits);
    const auto wanted = static_cast<std::int64_t>(bits);
    value = wanted < low || wanted > high ? low : static_cast<int>(wanted);
    fine_ = fine_ && value == wanted;
  }
  void flag(bool& value) {
    int number_value = 0;
    number(number_value, 0, 1);
    value = number_value == 1;
  }
  void text(std::string& value) {
    std::uint64_t size = 0;
    wide(size);
    fine_ = fine_ && size <= kLongestText && size <= rest_.size();
    if (!fine_) return;
    value = clean_text(rest_.substr(0, size));
    rest_.remove_prefix(size);
  }
  // It becomes part of a rendezvous and of the environment, so it is in numbers.
  void address(std::string& value) {
    text(value);
    fine_ = fine_ && !value.empty() &&
            value.find_first_not_of("0123456789abcdefABCDEF.:") == std::string::npos;
  }

 private:
  std::string_view rest_;
  bool fine_ = true;
};

// The message of type number `kind`, if there is one.
template <std::size_t at = 0>
bool read_message(std::size_t kind, std::string_view bytes, AgentMessage* out) {
  if constexpr (at < std::variant_size_v<AgentMessage>) {
    if (kind != at) return read_message<at + 1>(kind, bytes, out);
    std::variant_alternative_t<at, AgentMessage> message;
    Reader reader(bytes);
    pass(reader, message);
    if (!reader.fine()) return false;
    *out = std::move(message);
    return true;
  } else {
    return false;
  }
}

}  // namespace

std::string seconds_text(std::uint64_t nanoseconds) {
  std::string text = std::to_string(static_cast<double>(nanoseconds) * 1e-9);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text + " s";
}

std::string encode(const AgentMessage& message) {
  std::string out(1, static_cast<char>(message.index()));
  Writer writer(&out);
  AgentMessage copy = message;
  std::visit([&](auto& fields) { pass(writer, fields); }, copy);
  return out;
}

bool decode(std::string_view bytes, AgentMessage* out) {
  if (bytes.empty()) return false;
  return read_message(static_cast<unsigned char>(bytes[0]), bytes.substr(1), out);
}

}  // namespace trireme::cluster
