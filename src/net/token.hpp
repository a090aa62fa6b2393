// Token: the secret of a job. Who knows it is a rank of the job, and nobody else gets in.
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

  // From the file named by TRIREME_TOKEN_FILE, which nobody but its owner may be able to read, or
  // else from the descriptor TRIREME_TOKEN_FD, which is read once to its end and closed, or else
  // from TRIREME_TOKEN. AUTHENTICATION if there is none that could be one.
  static Status from_environment(Token* out);
  // The same for processes of one host, who cannot be of another user: of any length, and empty if
  // the environment names none.
  static Status from_environment_if_any(Token* out);

 private:
  // *where stays empty if the environment names none.
  static Status read(Token* out, std::string* where);
  void wipe() noexcept;
  std::string secret_;
};

// For messages about one that is missing: the line that makes it.
std::string how_to_make_a_token();

// Shorter ones could be guessed.
constexpr std::size_t kMinTokenBytes = 16;
constexpr std::size_t kMaxTokenBytes = 1024;

}  // namespace trireme
