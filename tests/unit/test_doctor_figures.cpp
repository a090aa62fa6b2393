// The doctor's pairs of ranks: all of a small world, a chain of a large one, and the slow ones.
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

extern "C" {
#include <cmocka.h>
}

#include "cli/doctor/figures.hpp"

namespace {

using trireme::doctor::Figures;
using trireme::doctor::Pair;
using trireme::doctor::pairs_of;
using trireme::doctor::slow_pairs;

std::set<std::pair<int, int>> set_of(const std::vector<Pair>& pairs) {
  std::set<std::pair<int, int>> all;
  for (const Pair& pair : pairs) {
    assert_true(pair.begins < pair.answers);
    all.insert({pair.begins, pair.answers});
  }
  assert_int_equal(all.size(), pairs.size());
  return all;
}

void each_pair_once(void** /*state*/) {
  for (int ranks = 1; ranks <= 16; ++ranks) {
    const auto all = set_of(pairs_of(ranks));
    assert_int_equal(all.size(), ranks * (ranks - 1) / 2);
  }
}

void a_chain_of_many(void** /*state*/) {
  for (const int ranks : {17, 64, 1000}) {
    std::set<std::pair<int, int>> expected;
    for (int rank = 1; rank < ranks; ++rank) {
      expected.insert({0, rank});
      expected.insert({rank - 1, rank});
    }
    assert_true(set_of(pairs_of(ranks)) == expected);
  }
}

void medians(void** /*state*/) {
  using trireme::doctor::median;
  assert_true(median({}) == 0);
  assert_true(median({3}) == 3);
  assert_true(median({9, 1, 5}) == 5);
  assert_true(median({8, 1, 2, 4}) == 3);
}

// How many remarks there are if one of three pairs is the odd one.
int slow(const Figures& odd, const Figures& usual) {
  const std::vector<std::string> remarks = slow_pairs(pairs_of(3), {usual, odd, usual});
  assert_int_equal(remarks.size(), 3);
  assert_string_equal(remarks[0].c_str(), "");
  assert_string_equal(remarks[2].c_str(), "");
  if (remarks[1].empty()) return 0;
  assert_true(remarks[1].find("rank 0 and rank 2") != std::string::npos);
  return 1;
}

void slow_ones_are_named(void** /*state*/) {
  const Figures usual{100, 1000};
  assert_int_equal(slow({100, 1000}, usual), 0);
  assert_int_equal(slow({1, 9000}, usual), 0);
  assert_int_equal(slow({400, 500}, usual), 0);  // the limits
  assert_int_equal(slow({401, 1000}, usual), 1);
  assert_int_equal(slow({100, 499}, usual), 1);
  // Of shared memory some microseconds are noise.
  assert_int_equal(slow({20, 1000}, {1, 1000}), 0);
  assert_int_equal(slow({22, 1000}, {1, 1000}), 1);
}

void two_pairs_have_no_odd_one(void** /*state*/) {
  for (const std::string& remark : slow_pairs(pairs_of(3), {{1, 1000}, {1e6, 1}})) {
    assert_string_equal(remark.c_str(), "");
  }
  assert_int_equal(slow_pairs({}, {}).size(), 0);
}

void texts(void** /*state*/) {
  using trireme::doctor::time_text;
  assert_string_equal(time_text(0.27).c_str(), "0.27 us");
  assert_string_equal(time_text(8.14).c_str(), "8.1 us");
  assert_string_equal(time_text(52.4).c_str(), "52 us");
  assert_string_equal(time_text(1640).c_str(), "1.6 ms");
  assert_string_equal(time_text(2.5e6).c_str(), "2.5 s");
  assert_string_equal(trireme::doctor::figures_text({60, 1200}).c_str(),
                      "60 us there and back, 1200 MB/s");
}

void lines_of_pairs(void** /*state*/) {
  using trireme::doctor::interfaces_of;
  using trireme::doctor::lines_text;
  using Names = std::vector<std::string>;
  assert_true(interfaces_of("tcp://10.0.0.2:29500").empty());
  assert_true(interfaces_of("tcp://10.0.0.2:29500/interface=eth9?host=a").empty());
  assert_true(interfaces_of("tcp://10.0.0.2:29500?interface=eth0") == Names{"eth0"});
  assert_true(interfaces_of("tcp://10.0.0.2:1/a?host=b&interface=eth0,10.0.1.2&silence_ms=2000") ==
              (Names{"eth0", "10.0.1.2"}));
  assert_string_equal(lines_text({}, {}).c_str(), "");
  assert_string_equal(lines_text({"eth0"}, {}).c_str(), "line 0 eth0 to its route");
  assert_string_equal(lines_text({"eth0", "eth1"}, {"ib0"}).c_str(), "line 0 eth0 to ib0");
  assert_string_equal(lines_text({"eth0", "eth1"}, {"ib0", "ib1", "ib2"}).c_str(),
                      "line 0 eth0 to ib0, line 1 eth1 to ib1");
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(each_pair_once),
      cmocka_unit_test(a_chain_of_many),
      cmocka_unit_test(medians),
      cmocka_unit_test(slow_ones_are_named),
      cmocka_unit_test(two_pairs_have_no_odd_one),
      cmocka_unit_test(texts),
      cmocka_unit_test(lines_of_pairs),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
