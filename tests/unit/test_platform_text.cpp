// SHA-256 against the vectors of FIPS 180-4, and UTF-8 against RFC 3629.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

extern "C" {
#include <cmocka.h>
}

#include <string>

#include "platform/sha256.hpp"
#include "platform/utf8.hpp"

namespace {

std::string digest_of(const std::string& text) {
  std::string hex;
  for (const std::uint8_t byte : trireme::sha256(text)) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  return hex;
}

void sha256_gives_the_published_digests(void**) {
  assert_string_equal(digest_of("").c_str(),
                      "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  assert_string_equal(digest_of("abc").c_str(),
                      "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  assert_string_equal(
      digest_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq").c_str(),
      "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  assert_string_equal(digest_of(std::string(1000000, 'a')).c_str(),
                      "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

void utf8_is_told_from_what_only_looks_like_it(void**) {
  for (const char* good : {"", "plain", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x9b\xb6",
                           "\xed\x9f\xbf", "\xf4\x8f\xbf\xbf", "a\xc3\xa9z"}) {
    assert_true(trireme::is_utf8(good));
  }
  for (const char* bad :
       {"\xff", "\x80", "\xc3", "\xc3z", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xe2\x82",
        "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xf8\x88\x80\x80\x80", "a\xe2\x82z"}) {
    assert_false(trireme::is_utf8(bad));
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(sha256_gives_the_published_digests),
      cmocka_unit_test(utf8_is_told_from_what_only_looks_like_it),
  };
  return cmocka_run_group_tests_name("digests and text", tests, nullptr, nullptr);
}
