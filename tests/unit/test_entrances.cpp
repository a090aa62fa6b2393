// A rank with several addresses: each address lets in callers for one line alone.
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backends/tcp/address.hpp"
#include "backends/tcp/entrances.hpp"
#include "net/tcp_call.hpp"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
extern "C" {
#include <cmocka.h>
}

namespace {

using namespace trireme;
using namespace trireme::tcp;

constexpr std::uint64_t kLong = 60'000'000'000;

// A rank that three addresses lead to, until it goes.
class Rank {
 public:
  Rank() {
    for (const char* const text : {"127.0.0.2", "127.0.0.3", "127.0.0.4"}) {
      addresses_.emplace_back();
      std::string why;
      assert_true(look_up_number(text, 0, &addresses_.back(), &why));
    }
    std::vector<Socket> listeners;
    assert_true(Entrances::listen(&addresses_, &listeners).ok());
    HandshakeTerms own;
    own.rank = 0;
    entrances_ =
        std::make_unique<Entrances>(addresses_, std::move(listeners), token_, own, "rank 0");
    thread_ = std::thread([this] {
      while (!stop_.load()) {
        std::vector<pollfd> polled;
        entrances_->add_to(&polled);
        ::poll(polled.data(), polled.size(), 2);
        entrances_->serve(polled, 0, {Purpose::data, Purpose::engine, Purpose::addresses},
                          [this](int, Purpose purpose, Socket caller, const SessionKeys&) {
                            if (purpose == Purpose::addresses) entrances_->tell(caller);
                            ++entered_;
                          });
      }
    });
  }
  ~Rank() {
    stop_.store(true);
    thread_.join();
  }

  Status call(int entrance, Purpose purpose, Socket* out, const char* token = kToken) const {
    HandshakeTerms terms;
    terms.purpose = purpose;
    terms.rank = 1;
    terms.peer = 0;
    SessionKeys keys;
    return tcp::call(addresses_[static_cast<std::size_t>(entrance)], "rank 0", Token(token), terms,
                     Deadline::after(kLong), go_on_, out, &keys);
  }
  const std::vector<Endpoint>& addresses() const { return addresses_; }
  const std::atomic<bool>& go_on() const { return go_on_; }
  int entered() const { return entered_.load(); }

 private:
  static constexpr char kToken[] = "a token for tests of 27 bytes";

  const Token token_{kToken};
  std::vector<Endpoint> addresses_;
  std::unique_ptr<Entrances> entrances_;
  std::atomic<bool> go_on_{false};
  std::atomic<bool> stop_{false};
  std::atomic<int> entered_{0};
  std::thread thread_;
};

void each_line_has_its_own_entrance(void**) {
  Rank rank;
  Socket made;
  assert_true(rank.call(0, Purpose::engine, &made).ok());
  assert_true(rank.call(1, purpose_of_line(1), &made).ok());
  assert_true(rank.call(2, purpose_of_line(2), &made).ok());
  const struct {
    int entrance;
    Purpose purpose;
  } mixed_up[] = {{0, purpose_of_line(1)}, {1, Purpose::engine},        {1, Purpose::data},
                  {1, purpose_of_line(2)}, {2, purpose_of_line(1)},     {2, Purpose::addresses},
                  {2, purpose_of_line(3)}, {1, static_cast<Purpose>(0)}};
  for (const auto& each : mixed_up) {
    assert_int_equal(rank.call(each.entrance, each.purpose, &made).code(), TRIREME_ERROR_MISMATCH);
  }
  assert_int_equal(rank.entered(), 3);
}

void a_stranger_does_not_get_in_at_any(void**) {
  Rank rank;
  Socket made;
  for (const int entrance : {0, 1, 2}) {
    const Purpose purpose = purpose_of_line(entrance);
    assert_int_equal(rank.call(entrance, purpose, &made, "a wrong token for the tests").code(),
                     TRIREME_ERROR_AUTHENTICATION);
    // A program that speaks something else sees the end, and no word before it.
    Socket other;
    const Endpoint& there = rank.addresses()[static_cast<std::size_t>(entrance)];
    assert_true(connect_to(there, Deadline::after(kLong), rank.go_on(), &other).ok());
    const std::string words(200, 'G');
    assert_true(
        other.send_all(words.data(), words.size(), Deadline::after(kLong), rank.go_on()).ok());
    char answer = 0;
    assert_int_equal(other.receive_all(&answer, 1, Deadline::after(kLong), rank.go_on()).code() ==
                         TRIREME_ERROR_TIMEOUT,
                     0);
    assert_int_equal(answer, 0);
  }
  assert_int_equal(rank.entered(), 0);
}

void a_caller_learns_the_further_addresses(void**) {
  Rank rank;
  Socket made;
  assert_true(rank.call(0, Purpose::addresses, &made).ok());
  FurtherAddresses all{};
  assert_true(made.receive_all(&all, sizeof all, Deadline::after(kLong), rank.go_on()).ok());
  for (const int line : {1, 2}) {
    Endpoint endpoint;
    assert_true(all.of_line(line, &endpoint).ok());
    assert_string_equal(endpoint.text().c_str(),
                        rank.addresses()[static_cast<std::size_t>(line)].text().c_str());
  }
  Endpoint none;
  assert_int_equal(all.of_line(3, &none).code(), TRIREME_ERROR_CORRUPT);
}

// They come from another process, and may be anything.
void addresses_are_numbers_or_an_error(void**) {
  for (const char* const text : {"", "127.0.0.1", "localhost:1", "127.0.0.1:0", "127.0.0.1:65536",
                                 "127.0.0.1:1x", "[::1:1", "\x01:1"}) {
    FurtherAddresses all{};
    std::strcpy(all.endpoints[1], text);
    Endpoint out;
    const Status status = all.of_line(2, &out);
    assert_int_equal(status.code(), TRIREME_ERROR_CORRUPT);
    assert_non_null(std::strstr(status.message().c_str(), "line 2"));
  }
  FurtherAddresses full{};
  std::memset(&full, '1', sizeof full);  // without an end
  Endpoint out;
  assert_int_equal(full.of_line(kMostLines - 1, &out).code(), TRIREME_ERROR_CORRUPT);
}

void purposes_of_lines_are_told_apart(void**) {
  for (int line = 0; line < kMostLines; ++line) {
    assert_int_equal(line_of(purpose_of_line(line)), line);
  }
  for (const Purpose purpose :
       {Purpose::store, Purpose::control, Purpose::data, Purpose::ask_data, Purpose::ask_engine,
        Purpose::addresses, purpose_of_line(kMostLines), static_cast<Purpose>(UINT32_MAX)}) {
    assert_int_equal(line_of(purpose), -1);
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(each_line_has_its_own_entrance),
      cmocka_unit_test(a_stranger_does_not_get_in_at_any),
      cmocka_unit_test(a_caller_learns_the_further_addresses),
      cmocka_unit_test(addresses_are_numbers_or_an_error),
      cmocka_unit_test(purposes_of_lines_are_told_apart),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
