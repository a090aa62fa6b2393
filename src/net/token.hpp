// Token: the secret of a job. A process that knows it is a rank of the job; no other gets in.
#pragma once

#include <string>
#include <string_view>

#include "platform/status.hpp"

namespace trireme {

class Token {
 public:
  Token() = default;
  explicit Token(std::string_view secret) : secret_(secret) {}
  ~Token() { wipe(); }
  Token(const Token& other) : secret_(other.secret_) {}
  Token& operator=(const Token&) = delete;

  std::string_view secret() const { return secret_; }
  bool empty() const { return secret_.empty(); }

  // Reads the file named by TRIREME_TOKEN_FILE, which only its owner may be able to read. Else it
  // reads the descriptor TRIREME_TOKEN_FD to its end, once, and closes it. Else it takes
  // TRIREME_TOKEN. AUTHENTICATION if none of them holds a valid token.
  static Status from_environment(Token* out);
  // The same for processes of one host, which belong to one user: a token of any length, or empty
  // if the environment names none.
  static Status from_environment_if_any(Token* out);

 private:
  // *where stays empty if the environment names none.
  static Status read(Token* out, std::string* where);
  void wipe() noexcept;
  std::string secret_;
};

// For messages about a missing token: the line that makes one.
std::string how_to_make_a_token();

// Shorter ones could be guessed.
constexpr std::size_t kMinTokenBytes = 16;
constexpr std::size_t kMaxTokenBytes = 1024;

}  // namespace trireme
