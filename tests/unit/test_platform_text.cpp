// SHA-256 against the vectors of FIPS 180-4, and UTF-8 against RFC 3629.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

extern "C" {
#include <cmocka.h>
}

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>

#include "net/sha256.hpp"
#include "platform/mix.hpp"
#include "platform/utf8.hpp"

namespace {

std::string digest_of(const std::string& text) {
  return trireme::hexadecimal(trireme::sha256(text));
}

// The processor's own instructions, if it has them, and plain C++.
template <class Check>
void for_both_ways(Check check) {
  if (trireme::use_sha256_instructions(true)) check();
  trireme::use_sha256_instructions(false);
  check();
  trireme::use_sha256_instructions(true);
}

void sha256_gives_the_published_digests(void**) {
  for_both_ways([] {
    assert_string_equal(digest_of("").c_str(),
                        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    assert_string_equal(digest_of("abc").c_str(),
                        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_string_equal(
        digest_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq").c_str(),
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    assert_string_equal(digest_of(std::string(1000000, 'a')).c_str(),
                        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  });
}

// Python: data = bytes(i * i // 7 % 251 for i in range(1000))
//         sha256(b"".join(sha256(data[:n]).digest() for n in range(1001))).hexdigest()
void sha256_of_every_length_is_that_of_another_library(void**) {
  std::string data(1000, '\0');
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * i / 7 % 251);
  for_both_ways([&data] {
    std::string digests;
    for (std::size_t length = 0; length <= data.size(); ++length) {
      const auto digest = trireme::sha256(std::string_view(data).substr(0, length));
      digests.append(digest.begin(), digest.end());
    }
    assert_string_equal(digest_of(digests).c_str(),
                        "e4d040aacba0dd27903726d54fcff8396bb941695995dad1d792d0bab6f5ca21");
  });
}

// However it comes in parts, and wherever it lies in memory.
void sha256_of_parts_is_that_of_the_whole(void**) {
  std::uint64_t number = 0;
  const auto random = [&number](std::size_t end) { return trireme::mix(3, number++) % end; };
  std::string memory(5000, '\0');
  for (char& each : memory) each = static_cast<char>(random(256));
  for (int trial = 0; trial < 2000; ++trial) {
    const std::size_t begin = random(64);
    const std::string_view data(memory.data() + begin, random(memory.size() - begin));
    trireme::use_sha256_instructions(false);
    const auto plain = trireme::sha256(data);
    for_both_ways([&] {
      trireme::Sha256 sum;
      for (std::string_view rest = data; !rest.empty();) {
        const std::size_t part = random(std::min<std::size_t>(rest.size(), 300) + 1);
        sum.add(rest.substr(0, part));
        rest.remove_prefix(part);
      }
      assert_true(sum.finish() == plain);
    });
  }
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

void text_of_others_loses_what_does_not_belong_into_a_message(void**) {
  const auto clean = [](std::string_view text) { return trireme::clean_text(text); };
  for (const char* good :
       {"", "plain text", "\xc3\xa9t\xc3\xa9", "\xf0\x9f\x9b\xb6 ~", "\xc2\xa0"}) {
    assert_string_equal(clean(good).c_str(), good);
  }
  assert_string_equal(clean("a\nb\r\tc").c_str(), "a?b??c");
  assert_string_equal(clean("\x1b[31mred\x7f").c_str(), "?[31mred?");
  assert_string_equal(clean("\xc2\x9b[31m\xc2\x80").c_str(), "?[31m?");  // one letter each
  assert_string_equal(clean({"a\0b", 3}).c_str(), "a?b");
  // Valid bytes beside invalid ones stay.
  assert_string_equal(clean("\xc3\xa9\xff\xc3\xa9").c_str(), "\xc3\xa9?\xc3\xa9");
  assert_string_equal(clean("\xe2\x82").c_str(), "??");
  assert_string_equal(clean("\xed\xa0\x80z").c_str(), "???z");
  for (int byte = 0; byte < 256; ++byte) {
    const std::string text = {'x', static_cast<char>(byte), 'y'};
    assert_true(trireme::is_utf8(clean(text)));
    assert_int_equal(clean(text).size(), 3);
  }
}

void cut_text_ends_with_a_whole_letter(void**) {
  using trireme::whole_characters;
  assert_int_equal(whole_characters("abc", 5), 3);
  assert_int_equal(whole_characters("abc", 3), 3);
  assert_int_equal(whole_characters("abc", 2), 2);
  assert_int_equal(whole_characters("abc", 0), 0);
  assert_int_equal(whole_characters("", 0), 0);
  const std::string text = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x9b\xb6z";
  const std::size_t kept[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11, 11};
  for (std::size_t most = 0; most < std::size(kept); ++most) {
    assert_int_equal(whole_characters(text, most), kept[most]);
    assert_true(trireme::is_utf8(std::string_view(text).substr(0, whole_characters(text, most))));
  }
  // Not UTF-8: as much as fits.
  assert_int_equal(whole_characters(std::string(20, '\x80'), 10), 10);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(sha256_gives_the_published_digests),
      cmocka_unit_test(sha256_of_every_length_is_that_of_another_library),
      cmocka_unit_test(sha256_of_parts_is_that_of_the_whole),
      cmocka_unit_test(utf8_is_told_from_what_only_looks_like_it),
      cmocka_unit_test(text_of_others_loses_what_does_not_belong_into_a_message),
      cmocka_unit_test(cut_text_ends_with_a_whole_letter),
  };
  return cmocka_run_group_tests_name("digests and text", tests, nullptr, nullptr);
}
