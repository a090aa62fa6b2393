// HMAC-SHA256 against the vectors of RFC 4231; the handshake and the frames after it, between two
// ends, and against unauthenticated peers that change, repeat, mirror, cut or invent messages.
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "net/handshake.hpp"

extern "C" {
#include <cmocka.h>
}

using namespace trireme;

namespace {

using Side = Handshake::Side;

const Token kToken("a secret of thirty-two bytes....");

void hmac_gives_the_published_digests(void**) {
  struct Vector {
    std::string key, data;
    const char* digest;
  };
  const Vector vectors[] = {
      {std::string(20, '\x0b'), "Hi There",
       "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
      {"Jefe", "what do ya want for nothing?",
       "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
      {std::string(20, '\xaa'), std::string(50, '\xdd'),
       "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
      {std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First",
       "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
  };
  for (const Vector& each : vectors) {
    assert_string_equal(hexadecimal(hmac_sha256(each.key, each.data)).c_str(), each.digest);
  }
  Digest a{}, b{};
  assert_true(same_digest(a, b));
  for (std::size_t i = 0; i < a.size(); ++i) {
    b[i] = 1;
    assert_false(same_digest(a, b));
    b[i] = 0;
  }
}

struct End {
  End(Side side, const HandshakeTerms& terms = {}, const Token& token = kToken)
      : handshake(token, side, terms, side == Side::caller ? "the server" : "the client") {
    assert_true(handshake.start(&out).ok());
  }
  // Takes bytes; its answer is in out.
  trireme_status receive(const std::string& bytes) {
    std::size_t used = 0;
    Status status = handshake.take(bytes, &used, &out);
    message = status.message();
    read += used;
    return status.code();
  }
  std::string say() {
    std::string said;
    said.swap(out);
    return said;
  }
  Handshake handshake;
  std::string out;
  std::string message;
  std::size_t read = 0;
};

struct Talk {
  trireme_status caller = TRIREME_OK;
  trireme_status called = TRIREME_OK;
};

// Runs until both ends are silent; an end that has failed receives no more.
Talk talk(End& caller, End& called) {
  Talk result;
  for (int turn = 0; turn < 8; ++turn) {
    const std::string a = caller.say();
    if (!a.empty() && result.called == TRIREME_OK) result.called = called.receive(a);
    const std::string b = called.say();
    if (!b.empty() && result.caller == TRIREME_OK) result.caller = caller.receive(b);
  }
  return result;
}

void two_ends_that_know_the_token_have_the_same_keys(void**) {
  HandshakeTerms here, there;
  here.rank = 3, here.peer = 1;
  there.rank = 1;
  here.purpose = there.purpose = Purpose::control;
  End caller(Side::caller, here), called(Side::called, there);
  const Talk result = talk(caller, called);
  assert_int_equal(result.caller, TRIREME_OK);
  assert_int_equal(result.called, TRIREME_OK);
  assert_true(caller.handshake.done() && called.handshake.done());
  assert_int_equal(called.handshake.other_rank(), 3);
  assert_int_equal(caller.handshake.other_rank(), 1);
  const SessionKeys &a = caller.handshake.keys(), &b = called.handshake.keys();
  assert_true(a.send == b.receive && a.receive == b.send);
  assert_false(a.send == a.receive);
  assert_int_equal(called.read, 136);

  End again(Side::caller, here), other(Side::called, there);
  talk(again, other);
  assert_true(again.handshake.done());
  assert_false(again.handshake.keys().send == a.send);
}

void another_token_is_named_at_both_ends(void**) {
  End caller(Side::caller), called(Side::called, {}, Token("another secret of the same bytes"));
  const Talk result = talk(caller, called);
  assert_int_equal(result.caller, TRIREME_ERROR_AUTHENTICATION);
  assert_int_equal(result.called, TRIREME_ERROR_AUTHENTICATION);
  assert_non_null(strstr(caller.message.c_str(), "the server does not know the token"));
  assert_non_null(strstr(called.message.c_str(), "the client does not know the token"));
}

void what_differs_is_a_mismatch_and_only_after_the_proof(void**) {
  for (int which = 0; which < 5; ++which) {
    for (const bool right_token : {true, false}) {
      HandshakeTerms here, there;
      here.rank = 2, there.rank = 1;
      const char* word = "";
      if (which == 0) there.protocol = 7, word = "speaks protocol";
      if (which == 1) there.job[31] = 1, word = "belongs to another job";
      if (which == 2) there.purpose = Purpose::data, word = "a connection of another kind";
      if (which == 3) here.peer = 5, word = "is rank 1, not 5";
      if (which == 4) there.peer = 5, word = "means rank 5, not 2";
      End caller(Side::caller, here),
          called(Side::called, there, right_token ? kToken : Token("another, not so secret"));
      const Talk result = talk(caller, called);
      const trireme_status expected =
          right_token ? TRIREME_ERROR_MISMATCH : TRIREME_ERROR_AUTHENTICATION;
      assert_int_equal(result.caller, expected);
      assert_int_equal(result.called, expected);
      assert_false(caller.handshake.done() || called.handshake.done());
      const bool named = strstr(caller.message.c_str(), word) != nullptr;
      assert_true(named == right_token);
      assert_true((caller.message.find("the library there is") != std::string::npos) ==
                  right_token);
    }
  }
}

// Every byte that goes over the wire, each of them changed on the way.
void a_changed_byte_is_refused(void**) {
  const std::size_t bytes[] = {104, 136, 32, 36};
  for (int message = 0; message < 4; ++message) {
    for (std::size_t at = 0; at < bytes[message]; ++at) {
      End caller(Side::caller), called(Side::called);
      Talk result;
      for (int turn = 0; turn < 4; ++turn) {
        End &from = turn % 2 == 0 ? caller : called, &to = turn % 2 == 0 ? called : caller;
        trireme_status& heard = turn % 2 == 0 ? result.called : result.caller;
        std::string said = from.say();
        if (turn == message) {
          assert_int_equal(said.size(), bytes[message]);
          said[at] = static_cast<char>(said[at] ^ (1 << at % 8));
        }
        if (heard == TRIREME_OK && !said.empty()) heard = to.receive(said);
      }
      const bool caught = result.caller == TRIREME_ERROR_AUTHENTICATION ||
                          result.called == TRIREME_ERROR_AUTHENTICATION;
      assert_true(caught);
      assert_false(caller.handshake.done() && called.handshake.done());
      // Nothing that was changed is believed, not even enough to be named.
      assert_true(result.caller != TRIREME_ERROR_MISMATCH);
      assert_true(result.called != TRIREME_ERROR_MISMATCH);
    }
  }
}

void a_mirror_proves_nothing(void**) {
  End caller(Side::caller);
  const std::string hello = caller.say();
  assert_int_equal(caller.receive(hello + std::string(32, 'x')), TRIREME_ERROR_AUTHENTICATION);
  // The called end gets its own proof back.
  End honest(Side::caller), called(Side::called);
  assert_int_equal(called.receive(honest.say()), TRIREME_OK);
  const std::string answer = called.say();
  assert_int_equal(called.receive(answer.substr(104)), TRIREME_ERROR_AUTHENTICATION);
  // A caller's hello gets an answer from another end of the same caller's: of its own hello.
  End first(Side::caller), second(Side::caller);
  assert_int_equal(first.receive(second.say() + std::string(32, '\0')),
                   TRIREME_ERROR_AUTHENTICATION);
}

void a_recording_proves_nothing(void**) {
  End caller(Side::caller), called(Side::called);
  const std::string hello = caller.say();
  assert_int_equal(called.receive(hello), TRIREME_OK);
  const std::string answer = called.say();
  assert_int_equal(caller.receive(answer), TRIREME_OK);
  const std::string proof = caller.say();
  assert_int_equal(called.receive(proof), TRIREME_OK);
  const std::string word = called.say();

  End later(Side::called);
  assert_int_equal(later.receive(hello), TRIREME_OK);
  assert_int_equal(later.receive(proof), TRIREME_ERROR_AUTHENTICATION);
  End another(Side::caller);
  assert_int_equal(another.receive(answer + word), TRIREME_ERROR_AUTHENTICATION);
}

void pieces_of_any_size_are_put_together(void**) {
  for (std::size_t piece = 1; piece <= 36; ++piece) {
    End caller(Side::caller), called(Side::called);
    for (int turn = 0; turn < 4; ++turn) {
      End &from = turn % 2 == 0 ? caller : called, &to = turn % 2 == 0 ? called : caller;
      const std::string said = from.say();
      for (std::size_t at = 0; at < said.size(); at += piece) {
        assert_false(to.handshake.done());
        assert_int_equal(to.receive(said.substr(at, piece)), TRIREME_OK);
      }
    }
    assert_true(caller.handshake.done() && called.handshake.done());
  }
}

void a_stranger_is_not_listened_to(void**) {
  for (const char* words :
       {"GET / HTTP/1.0\r\n\r\n", "\x16\x03\x01", "SSH-2.0-x\r\n", "trireme "}) {
    End called(Side::called);
    assert_int_equal(called.receive(words), TRIREME_ERROR_AUTHENTICATION);
    assert_true(called.out.empty());
  }
  End called(Side::called);
  assert_int_equal(called.receive("trireme\n" + std::string(249, 'x')),
                   TRIREME_ERROR_AUTHENTICATION);
  assert_int_equal(called.read, 136);
}

void frames_come_once_in_order_and_unchanged(void**) {
  Digest key{};
  key[5] = 9;
  FrameWriter writer(key);
  std::string first, second;
  writer.write("the first", &first);
  writer.write("", &second);
  const auto read = [&](FrameReader& reader, const std::string& bytes) {
    std::size_t used = 0;
    Status status = reader.take(bytes, &used);
    return status.code();
  };
  for (std::size_t piece = 1; piece < 40; ++piece) {
    FrameReader reader(key, 100);
    for (std::size_t at = 0; at < first.size(); at += piece) {
      assert_false(reader.whole());
      assert_int_equal(read(reader, first.substr(at, piece)), TRIREME_OK);
    }
    assert_true(reader.whole() && reader.body() == "the first");
    assert_int_equal(read(reader, second), TRIREME_OK);
    assert_true(reader.whole() && reader.body().empty());
    // The same once more.
    assert_int_equal(read(reader, second), TRIREME_ERROR_CORRUPT);
  }
  FrameReader swapped(key, 100);
  assert_int_equal(read(swapped, second), TRIREME_ERROR_CORRUPT);
  for (std::size_t at = 0; at < first.size(); ++at) {
    FrameReader reader(key, 100);
    std::string changed = first;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    const trireme_status status = read(reader, changed);
    assert_true(status == TRIREME_ERROR_CORRUPT || !reader.whole());
  }
  FrameReader other(Digest{}, 100);
  assert_int_equal(read(other, first), TRIREME_ERROR_CORRUPT);
  FrameReader small(key, 8);
  assert_int_equal(read(small, first.substr(0, 4)), TRIREME_ERROR_CORRUPT);
  FrameReader lie(key, 100);
  assert_int_equal(read(lie, "\xff\xff\xff\xff"), TRIREME_ERROR_CORRUPT);
}

void a_token_is_a_secret_or_no_token(void**) {
  char path[] = "/tmp/test-token-XXXXXX";
  const int descriptor = mkstemp(path);
  assert_true(descriptor >= 0);
  const std::string secret = "secret of the file, long enough";
  assert_int_equal(write(descriptor, (secret + "\n").data(), secret.size() + 1), secret.size() + 1);
  Token token;
  unsetenv("TRIREME_TOKEN_FILE");
  unsetenv("TRIREME_TOKEN");
  assert_int_equal(Token::from_environment(&token).code(), TRIREME_ERROR_AUTHENTICATION);
  setenv("TRIREME_TOKEN", "too short", 1);
  assert_int_equal(Token::from_environment(&token).code(), TRIREME_ERROR_AUTHENTICATION);
  setenv("TRIREME_TOKEN", "sixteen bytes ..", 1);
  assert_int_equal(Token::from_environment(&token).code(), TRIREME_OK);
  assert_true(token.secret() == "sixteen bytes ..");
  setenv("TRIREME_TOKEN_FILE", path, 1);
  assert_int_equal(Token::from_environment(&token).code(), TRIREME_OK);
  assert_true(token.secret() == secret);
  chmod(path, 0640);
  assert_int_equal(Token::from_environment(&token).code(), TRIREME_ERROR_AUTHENTICATION);
  assert_true(token.empty());
  chmod(path, 0600);
  const std::string link = std::string(path) + ".link";
  assert_int_equal(symlink(path, link.c_str()), 0);
  setenv("TRIREME_TOKEN_FILE", link.c_str(), 1);
  assert_int_equal(Token::from_environment(&token).code(), TRIREME_OK);
  assert_true(token.secret() == secret);
  unlink(link.c_str());
  assert_int_equal(Token::from_environment(&token).code(), TRIREME_ERROR_SYSTEM);
  unlink(path);
  close(descriptor);
}

void a_token_comes_once_from_a_descriptor(void**) {
  unsetenv("TRIREME_TOKEN_FILE");
  setenv("TRIREME_TOKEN", "not this one, as another is named", 1);
  const std::string secret = "secret of the pipe, long enough";
  Token token;
  int ends[2];
  assert_int_equal(pipe(ends), 0);
  setenv("TRIREME_TOKEN_FD", std::to_string(ends[0]).c_str(), 1);
  assert_int_equal(write(ends[1], secret.data(), secret.size()), secret.size());
  close(ends[1]);
  assert_int_equal(Token::from_environment(&token).code(), TRIREME_OK);
  assert_true(token.secret() == secret);
  assert_int_equal(fcntl(ends[0], F_GETFD), -1);  // closed
  Token again;
  assert_int_equal(Token::from_environment(&again).code(), TRIREME_OK);
  assert_true(again.secret() == secret);

  for (const char* const wrong : {"", "x", "-1", "7x", "99999999999", "1000000"}) {
    setenv("TRIREME_TOKEN_FD", wrong, 1);
    const trireme_status code = Token::from_environment(&token).code();
    assert_int_equal(code, *wrong == 0          ? TRIREME_OK
                           : strlen(wrong) == 7 ? TRIREME_ERROR_SYSTEM
                                                : TRIREME_ERROR_AUTHENTICATION);
  }
  // One that is too short or too long is no token.
  for (const std::size_t size : {kMinTokenBytes - 1, kMaxTokenBytes + 1}) {
    assert_int_equal(pipe(ends), 0);
    const int number = fcntl(ends[0], F_DUPFD, 100 + static_cast<int>(size % 64));
    close(ends[0]);
    setenv("TRIREME_TOKEN_FD", std::to_string(number).c_str(), 1);
    assert_int_equal(write(ends[1], std::string(size, 's').data(), size), size);
    close(ends[1]);
    assert_int_equal(Token::from_environment(&token).code(), TRIREME_ERROR_AUTHENTICATION);
    assert_true(token.empty());
  }
  unsetenv("TRIREME_TOKEN_FD");
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(hmac_gives_the_published_digests),
      cmocka_unit_test(two_ends_that_know_the_token_have_the_same_keys),
      cmocka_unit_test(another_token_is_named_at_both_ends),
      cmocka_unit_test(what_differs_is_a_mismatch_and_only_after_the_proof),
      cmocka_unit_test(a_changed_byte_is_refused),
      cmocka_unit_test(a_mirror_proves_nothing),
      cmocka_unit_test(a_recording_proves_nothing),
      cmocka_unit_test(pieces_of_any_size_are_put_together),
      cmocka_unit_test(a_stranger_is_not_listened_to),
      cmocka_unit_test(frames_come_once_in_order_and_unchanged),
      cmocka_unit_test(a_token_is_a_secret_or_no_token),
      cmocka_unit_test(a_token_comes_once_from_a_descriptor),
  };
  return cmocka_run_group_tests_name("handshake", tests, nullptr, nullptr);
}
