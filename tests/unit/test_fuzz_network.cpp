// Every reader of bytes that an unauthenticated peer, or a broken network, may have written,
// without a network: addresses, the handshake, frames with codes. Valid bytes are changed a
// thousand times, from a seed. Every accepted byte must come from the other end, or no byte is
// accepted.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <algorithm>
#include <string>
#include <vector>

#include "backends/tcp/address.hpp"
#include "fuzz.hpp"
#include "net/handshake.hpp"
#include "platform/utf8.hpp"

extern "C" {
#include <cmocka.h>
}

using namespace trireme;
using fuzz::Random;

namespace {

const Token kToken("the secret of whoever belongs here");

// ---- addresses ----

void a_place_is_what_was_written_or_an_error(void**) {
  const std::string good[] = {
      "10.0.0.2:29500",
      "[::1]:1/name",
      "node-7.cluster.local:65535/a/b?interface=eth0,eth1&silence_ms=1000",
      "127.0.0.1:29500?silence_ms=3600000",
      "[fe80::1%eth0]:29500/group?interface=[::1]",
      "h:2/" + std::string(tcp::kMaxPlaceName, 'n'),
  };
  const char* const words[] = {"?",
                               "&",
                               "/",
                               ":",
                               "[",
                               "]",
                               "=",
                               "%",
                               "silence_ms=",
                               "interface=",
                               "0",
                               "65536",
                               "18446744073709551616",
                               "-1",
                               "\xff",
                               "é"};
  Random random{fuzz::seed()};
  std::uint64_t taken = 0;
  for (std::uint64_t trial = 0; trial < fuzz::trials(100'000); ++trial) {
    std::string text = good[random.below(std::size(good))];
    if (trial >= std::size(good)) text = fuzz::changed(random, text);
    while (trial >= std::size(good) && random.one_in(2)) {
      text.insert(random.below(text.size() + 1), words[random.below(std::size(words))]);
    }
    tcp::Place place;
    const Status status = tcp::parse_place(text, &place);
    if (!status.ok()) {
      assert_int_equal(status.code(), TRIREME_ERROR_INVALID_ARGUMENT);
      continue;
    }
    ++taken;
    assert_true(place.port > 0 && !place.host.empty() && place.name.size() <= tcp::kMaxPlaceName);
    assert_in_range(place.silence_ns, 1'000'000'000u, 3'600'000'000'000u);
    // Written down again it is the same place.
    const bool colons = place.host.find(':') != std::string::npos;
    std::string again = (colons ? "[" + place.host + "]" : place.host) + ":" +
                        std::to_string(place.port) + "/" + place.name +
                        "?silence_ms=" + std::to_string(place.silence_ns / 1'000'000);
    for (std::size_t i = 0; i < place.interfaces.size(); ++i) {
      again += (i == 0 ? "&interface=" : ",") + place.interfaces[i];
    }
    tcp::Place other;
    assert_true(tcp::parse_place(again, &other).ok());
    assert_true(other.host == place.host && other.port == place.port && other.name == place.name &&
                other.interfaces == place.interfaces && other.silence_ns == place.silence_ns);
  }
  assert_true(taken > std::size(good));
}

void an_endpoint_is_numbers_or_an_error(void**) {
  Random random{fuzz::seed() + 1};
  for (std::uint64_t trial = 0; trial < fuzz::trials(20'000); ++trial) {
    std::string text = random.one_in(2) ? "10.11.12.13:29500" : "[2001:db8::7]:4711";
    if (trial > 4) text = fuzz::changed(random, text);
    tcp::Endpoint endpoint;
    const Status status = tcp::parse_endpoint(text, &endpoint);
    if (!status.ok()) {
      assert_int_equal(status.code(), TRIREME_ERROR_INVALID_ARGUMENT);
      continue;
    }
    // The result is numbers, and leads to the same place.
    tcp::Endpoint again;
    assert_true(tcp::parse_endpoint(endpoint.text(), &again).ok());
    assert_string_equal(again.text().c_str(), endpoint.text().c_str());
  }
}

// ---- the handshake ----

struct End {
  End(Handshake::Side side, const HandshakeTerms& terms, const Token& token)
      : handshake(token, side, terms, "the other end") {
    assert_true(handshake.start(&said).ok());
  }
  // Bytes after the handshake stay out of `heard`.
  void receive(std::string_view bytes) {
    if (!status.ok() || handshake.done()) return;
    std::size_t used = 0;
    status = handshake.take(bytes, &used, &said);
    assert_true(used <= bytes.size());
    heard.append(bytes.substr(0, used));
  }
  Handshake handshake;
  Status status = Status::success();
  std::string said;   // all of it
  std::string heard;  // all of it
  std::size_t sent = 0;
};

HandshakeTerms any_terms(Random& random) {
  HandshakeTerms terms;
  terms.purpose = static_cast<Purpose>(1 + random.below(3));
  terms.rank = static_cast<std::int32_t>(random.below(4)) - 1;
  terms.peer = random.one_in(2) ? -1 : static_cast<std::int32_t>(random.below(3));
  terms.job[random.below(32)] = static_cast<std::uint8_t>(random.below(2));
  return terms;
}

void check_end(const End& end, const End& other, std::size_t most) {
  assert_true(end.heard.size() <= most);
  if (!end.status.ok()) {
    assert_false(end.handshake.done());
    assert_true(end.status.code() == TRIREME_ERROR_AUTHENTICATION ||
                end.status.code() == TRIREME_ERROR_MISMATCH);
  }
  if (!end.handshake.done()) return;
  // Only an end with the token can have made the accepted bytes, for this connection alone.
  assert_int_equal(end.heard.size(), most);
  assert_true(other.said.substr(0, most) == end.heard);
}

// An attacker between the two ends changes, repeats, cuts and exchanges their messages, also with
// those of earlier connections.
void nobody_gets_between_two_ends(void**) {
  Random random{fuzz::seed() + 2};
  std::vector<std::string> before{"trireme\n"};
  std::uint64_t done = 0;
  for (std::uint64_t trial = 0; trial < fuzz::trials(20'000); ++trial) {
    const bool known = !random.one_in(8);
    const HandshakeTerms terms = any_terms(random);
    HandshakeTerms answered = random.one_in(2) ? any_terms(random) : terms;
    if (random.one_in(2)) answered.rank = std::max(terms.peer, 0), answered.peer = terms.rank;
    End caller(Handshake::Side::caller, terms, kToken);
    End called(Handshake::Side::called, answered, known ? kToken : Token("some other secret"));
    const bool honest = random.one_in(8);
    for (int turn = 0; turn < 6; ++turn) {
      End &from = turn % 2 == 0 ? caller : called, &to = turn % 2 == 0 ? called : caller;
      std::string words = from.said.substr(from.sent);
      from.sent = from.said.size();
      before[random.below(before.size())] = words;
      if (before.size() < 64) before.push_back(words);
      if (!honest && random.one_in(3)) {
        switch (random.below(4)) {
          case 0: words = before[random.below(before.size())]; break;
          case 1: words = to.said.substr(random.below(to.said.size() + 1)); break;  // a mirror
          default: words = fuzz::changed(random, words);
        }
      }
      while (!words.empty()) {
        const std::size_t part = std::min(words.size(), std::size_t{1} + random.below(150));
        to.receive(std::string_view(words).substr(0, part));
        words.erase(0, part);
      }
    }
    check_end(caller, called, 136 + 36);
    check_end(called, caller, 104 + 32);
    if (caller.handshake.done() && called.handshake.done()) {
      ++done;
      assert_true(known);
      assert_true(caller.handshake.keys().send == called.handshake.keys().receive);
      assert_true(caller.handshake.keys().receive == called.handshake.keys().send);
    }
  }
  assert_true(done > 0);
}

// HMAC over who says it and both greetings, made here once more.
std::string proof(const std::string& label, const std::string& caller, const std::string& called,
                  const std::string& more = "") {
  std::string text = label;
  text += '\0';
  const Digest digest = hmac_sha256(kToken.secret(), text + caller + called + more);
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

// A peer that knows the token may still send any greeting.
void who_knows_the_token_is_not_believed_either(void**) {
  Random random{fuzz::seed() + 3};
  std::uint64_t welcome = 0;
  for (std::uint64_t trial = 0; trial < fuzz::trials(20'000); ++trial) {
    End model(Handshake::Side::caller, any_terms(random), kToken);
    std::string hello = model.said;
    for (std::size_t i = random.below(4); i > 0; --i) {
      const std::size_t at = 8 + random.below(96);
      hello[at] = static_cast<char>(random.next());
    }
    const bool calls = random.one_in(2);
    End end(calls ? Handshake::Side::called : Handshake::Side::caller, any_terms(random), kToken);
    if (calls) {
      end.receive(hello);
      assert_int_equal(end.said.size(), 136);
      end.receive(proof("trireme caller", hello, end.said.substr(0, 104)));
    } else {
      const std::string own = end.said;
      end.receive(hello + proof("trireme called", own, hello));
      const std::string word = fuzz::changed(random, std::string("\1\0\0\0", 4));
      end.receive(word + proof("trireme word", own, hello, word));
    }
    if (end.handshake.done()) {
      ++welcome;
    } else if (!end.status.ok()) {
      // It knows the token, so it is told the fault; a caller is also told of words that are none.
      assert_true(end.status.code() == TRIREME_ERROR_MISMATCH ||
                  (!calls && end.status.code() == TRIREME_ERROR_AUTHENTICATION));
      assert_true(clean_text(end.status.message()) == end.status.message());
    }
  }
  assert_true(welcome > 0);
}

// ---- frames with codes ----

void frames_are_those_that_were_written_or_an_error(void**) {
  Random random{fuzz::seed() + 4};
  constexpr std::size_t kMost = 300;
  std::uint64_t whole = 0;
  for (std::uint64_t trial = 0; trial < fuzz::trials(20'000); ++trial) {
    Digest key;
    for (std::uint8_t& each : key) each = static_cast<std::uint8_t>(random.next());
    FrameWriter writer(key);
    std::vector<std::string> bodies(1 + random.below(4));
    std::vector<std::string> frames;
    for (std::string& body : bodies) {
      body = fuzz::noise(random, kMost + (random.one_in(16) ? 8 : 0));
      writer.write(body, &frames.emplace_back());
    }
    std::string all;
    for (const std::string& frame : frames) all += frame;
    const std::string honest = all;
    if (random.one_in(2)) {
      all = fuzz::changed(random, all);
    } else if (random.one_in(2)) {
      all.clear();  // in another order, or one of them twice
      for (std::size_t i = 0; i <= frames.size(); ++i) all += frames[random.below(frames.size())];
    }
    FrameReader reader(key, kMost);
    std::size_t bodies_read = 0;
    Status status = Status::success();
    for (std::size_t at = 0; at < all.size() && status.ok();) {
      const std::size_t part = std::min(all.size() - at, std::size_t{1} + random.below(400));
      std::size_t used = 0;
      status = reader.take(std::string_view(all).substr(at, part), &used);
      assert_true(used <= part);
      at += used;
      if (!status.ok()) {
        assert_int_equal(status.code(), TRIREME_ERROR_CORRUPT);
        break;
      }
      if (!reader.whole()) continue;
      assert_true(bodies_read < bodies.size() && bodies[bodies_read] == reader.body());
      assert_true(reader.body().size() <= kMost);
      ++bodies_read;
      ++whole;
    }
    const bool fits = std::all_of(bodies.begin(), bodies.end(),
                                  [](const std::string& each) { return each.size() <= kMost; });
    if (all == honest && fits) assert_int_equal(bodies_read, bodies.size());
  }
  assert_true(whole > 0);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(a_place_is_what_was_written_or_an_error),
      cmocka_unit_test(an_endpoint_is_numbers_or_an_error),
      cmocka_unit_test(nobody_gets_between_two_ends),
      cmocka_unit_test(who_knows_the_token_is_not_believed_either),
      cmocka_unit_test(frames_are_those_that_were_written_or_an_error),
  };
  return cmocka_run_group_tests_name("fuzz_network", tests, nullptr, nullptr);
}
