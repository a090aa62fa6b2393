// The tuning table: what it reads and refuses, which rule is for which call, which measurement is
// worth a rule, and that it reads what it writes. And messages name it where it is at fault.
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "backends/fingerprint.hpp"
#include "schedules/tuning.hpp"

extern "C" {
#include <cmocka.h>
}

namespace {

using namespace trireme;

constexpr char kHead[] = "trireme tuning 1\n";
constexpr char kGroup[] = "trireme tuning 1\ngroup 4 frames (tcp)\n";

TuningTable parsed(const std::string& text) {
  TuningTable table;
  const std::string fault = TuningTable::parse(text, &table);
  if (!fault.empty()) fail_msg("%s", fault.c_str());
  return table;
}

// ---- reading ----

void reads_rules(void** /*state*/) {
  const TuningTable table = parsed(
      "trireme tuning 1\r\n"
      "# by hand\n"
      "\n"
      "  group 4   hierarchical (2 hosts x 2)  # with blanks\n"
      "all_reduce 32768 native\r\n"
      "\tbroadcast\t0\tbinomial # why not\n"
      "all_reduce 1048576 automatic\n"
      "barrier 0 bruck\n"
      "group 1024 frames (tcp)\n"
      "all_to_all 18446744073709551615 pairwise");
  assert_int_equal(table.groups().size(), 2);
  const TunedGroup* const first = table.find(4, "hierarchical (2 hosts x 2)");
  assert_non_null(first);
  const std::vector<TuningRule> expected{{Pattern::all_reduce, 32768, Algorithm::native},
                                         {Pattern::broadcast, 0, Algorithm::binomial},
                                         {Pattern::all_reduce, 1048576, Algorithm::automatic},
                                         {Pattern::barrier, 0, Algorithm::bruck}};
  assert_true(first->rules == expected);
  const TunedGroup* const second = table.find(1024, "frames (tcp)");
  assert_non_null(second);
  assert_true(second->rules ==
              (std::vector<TuningRule>{{Pattern::all_to_all, UINT64_MAX, Algorithm::pairwise}}));
  // Another number of ranks, another backend, a part of its name.
  assert_null(table.find(3, "hierarchical (2 hosts x 2)"));
  assert_null(table.find(4, "frames (tcp)"));
  assert_null(table.find(4, "hierarchical"));
  assert_int_equal(parsed(kHead).groups().size(), 0);
  assert_int_equal(parsed("trireme tuning 1").groups().size(), 0);
  assert_int_equal(parsed(kGroup).groups().front().rules.size(), 0);
}

void every_operation_and_algorithm(void** /*state*/) {
  for (int number = 0; number < kPatterns; ++number) {
    const auto pattern = static_cast<Pattern>(number);
    for (std::int32_t other = 0; other < kAlgorithms; ++other) {
      const auto algorithm = static_cast<Algorithm>(other);
      const std::string text =
          std::string(kGroup) + pattern_name(pattern) + " 8 " + algorithm_name(algorithm) + "\n";
      const bool is_known = algorithm == Algorithm::automatic || algorithm == Algorithm::native ||
                            supports(algorithm, pattern);
      TuningTable table;
      const std::string fault = TuningTable::parse(text, &table);
      assert_int_equal(fault.empty(), is_known);
      if (is_known) {
        assert_int_equal(table.groups()[0].choose(pattern, 8), algorithm);
      } else {
        assert_non_null(std::strstr(fault.c_str(), algorithm_name(algorithm)));
        assert_non_null(std::strstr(fault.c_str(), supported_algorithms(pattern).c_str()));
      }
    }
  }
}

void refuses(void** /*state*/) {
  const struct {
    std::string text;
    const char* line;   // "": of the whole
    const char* words;  // of the message
  } cases[] = {
      {"", "", "empty"},
      {"\n", "line 1", "trireme tuning 1"},
      {"trireme tuning 2\n", "line 1", "trireme tuning 2"},
      {"trireme tuning\n", "line 1", "begins"},
      {"# a comment first\ntrireme tuning 1\n", "line 1", "# a comment first"},
      {"trireme tuning 1 1\n", "line 1", "begins"},
      {std::string(kHead) + "all_reduce 8 ring\n", "line 2", "before the first group"},
      {std::string(kHead) + "group\n", "line 2", "no number of ranks"},
      {std::string(kHead) + "group four frames (tcp)\n", "line 2", "\"four\""},
      {std::string(kHead) + "group 0 frames (tcp)\n", "line 2", "\"0\""},
      {std::string(kHead) + "group -4 frames (tcp)\n", "line 2", "\"-4\""},
      {std::string(kHead) + "group 1025 frames (tcp)\n", "line 2", "1024"},
      {std::string(kHead) + "group 99999999999 frames (tcp)\n", "line 2", "99999999999"},
      {std::string(kHead) + "group 4\n", "line 2", "stands a backend"},
      {std::string(kHead) + "group 4 # frames (tcp)\n", "line 2", "stands a backend"},
      {std::string(kHead) + "group 4 " + std::string(129, 'x') + "\n", "line 2", "a backend"},
      {std::string(kGroup) + "group 4 frames (tcp)\n", "line 3", "already"},
      {std::string(kGroup) + "groups 5 frames (tcp)\n", "line 3", "\"groups\" is no operation"},
      {std::string(kGroup) + "all_reduce_v 8 ring\n", "line 3", "reduce_scatter, all_gather"},
      {std::string(kGroup) + "send 8 direct\n", "line 3", "\"send\" is no operation"},
      {std::string(kGroup) + "all_reduce\n", "line 3", "\"\" is no number of bytes"},
      {std::string(kGroup) + "all_reduce 64K ring\n", "line 3", "\"64K\""},
      {std::string(kGroup) + "all_reduce -8 ring\n", "line 3", "\"-8\""},
      {std::string(kGroup) + "all_reduce +8 ring\n", "line 3", "\"+8\""},
      {std::string(kGroup) + "all_reduce 8.0 ring\n", "line 3", "\"8.0\""},
      {std::string(kGroup) + "all_reduce 18446744073709551616 ring\n", "line 3", "no number"},
      {std::string(kGroup) + "all_reduce 8\n", "line 3", "\"\" is no algorithm"},
      {std::string(kGroup) + "all_reduce 8 rings\n", "line 3", "\"rings\" is no algorithm"},
      {std::string(kGroup) + "all_reduce 8 bruck\n", "line 3", "\"bruck\" is no algorithm"},
      {std::string(kGroup) + "all_reduce 8 ring now\n", "line 3", "\"now\" stands behind"},
      {std::string(kGroup) + "reduce 8 direct\nreduce 8 binomial\n", "line 4", "go upwards"},
      {std::string(kGroup) + "reduce 9 direct\nscatter 1 direct\nreduce 8 binomial\n", "line 5",
       "reduce from 8 bytes stands behind that from 9"},
      {std::string(kGroup) + std::string("all_reduce 8 ring\0", 18), "line 3", "ring?"},
      {std::string(kGroup) + "\x01\xff\xfe 8 ring\n", "line 3", "\"???\""},
      {std::string(kGroup) + std::string(5000, 'y') + "\n", "line 3", "yyy...\""},
      {std::string(kGroup) + std::string(TuningTable::kMostBytes, '\n'), "", "longer than 65536"},
  };
  for (const auto& each : cases) {
    TuningTable table = parsed(std::string(kHead) + "group 7 gloo (tcp)\n");
    const std::string fault = TuningTable::parse(each.text, &table);
    const bool right = !fault.empty() && fault.find(each.line) == 0 &&
                       fault.find(each.words) != std::string::npos && fault.size() < 400;
    if (!right) fail_msg("\"%.60s\": %s", each.text.c_str(), fault.c_str());
    assert_non_null(table.find(7, "gloo (tcp)"));  // it is as it was
  }
  const std::string longest = std::string(kHead) + std::string(TuningTable::kMostBytes - 17, '\n');
  assert_int_equal(longest.size(), TuningTable::kMostBytes);
  assert_int_equal(parsed(longest).groups().size(), 0);
}

// Any bytes end in a table or in a message of printable text.
void survives_noise(void** /*state*/) {
  const std::string good = std::string(kGroup) + "all_reduce 8 ring  # note\nbarrier 0 bruck\n";
  std::mt19937 random(7);
  for (int trial = 0; trial < 20000; ++trial) {
    std::string text = good;
    const std::size_t changes = 1 + random() % 4;
    for (std::size_t i = 0; i < changes; ++i) {
      const std::size_t at = random() % text.size();
      switch (random() % 3) {
        case 0: text[at] = static_cast<char>(random() % 256); break;
        case 1: text.erase(at, random() % 8); break;
        default: text.insert(at, text.substr(random() % text.size(), random() % 20));
      }
      if (text.empty()) text.push_back('x');
    }
    TuningTable table;
    const std::string fault = TuningTable::parse(text, &table);
    for (const char c : fault) assert_true(c >= ' ' && c <= '~');
    assert_true(fault.empty() || table.groups().empty());
  }
}

// ---- choosing ----

void a_rule_goes_up_to_the_next(void** /*state*/) {
  const TuningTable table =
      parsed(std::string(kGroup) +
             "all_reduce 100 ring\nreduce 5 direct\nall_reduce 200 automatic\n"
             "all_reduce 300 native\n");
  const TunedGroup& group = table.groups()[0];
  const std::pair<std::uint64_t, Algorithm> expected[] = {
      {0, Algorithm::automatic}, {99, Algorithm::automatic},     {100, Algorithm::ring},
      {199, Algorithm::ring},    {200, Algorithm::automatic},    {299, Algorithm::automatic},
      {300, Algorithm::native},  {UINT64_MAX, Algorithm::native}};
  for (const auto& [bytes, algorithm] : expected) {
    assert_int_equal(group.choose(Pattern::all_reduce, bytes), algorithm);
    assert_int_equal(group.choose(Pattern::all_gather, bytes), Algorithm::automatic);
  }
  assert_int_equal(group.choose(Pattern::reduce, 4), Algorithm::automatic);
  assert_int_equal(group.choose(Pattern::reduce, 5), Algorithm::direct);
}

void tables_that_differ_have_other_digests(void** /*state*/) {
  const std::string texts[] = {
      kHead,
      kGroup,
      std::string(kHead) + "group 5 frames (tcp)\n",
      std::string(kHead) + "group 4 frames (tcq)\n",
      std::string(kGroup) + "all_reduce 8 ring\n",
      std::string(kGroup) + "all_reduce 9 ring\n",
      std::string(kGroup) + "all_reduce 8 direct\n",
      std::string(kGroup) + "all_gather 8 ring\n",
      std::string(kGroup) + "all_reduce 8 ring\nall_reduce 9 ring\n",
      std::string(kGroup) + "all_reduce 8 ring\ngroup 5 frames (tcp)\n",
      std::string(kGroup) + "group 5 frames (tcp)\nall_reduce 8 ring\n",
  };
  std::vector<std::uint64_t> digests;
  for (const std::string& text : texts) {
    const std::uint64_t digest = parsed(text).digest();
    assert_true(digest != 0);
    for (const std::uint64_t other : digests) assert_true(digest != other);
    digests.push_back(digest);
    // A comment, or a blank, is no difference.
    assert_true(parsed(text + "\n  # said by hand\n").digest() == digest);
  }
}

// ---- measuring ----

TunedChoice chosen(std::vector<TunedCandidate> candidates) { return choose_tuned(candidates); }

void what_is_worth_a_rule(void** /*state*/) {
  using enum Algorithm;
  // Twice as fast, and the fastest of two.
  TunedChoice choice = chosen({{automatic, {10, 10, 10}}, {ring, {7, 7, 7}}, {direct, {5, 5, 5}}});
  assert_int_equal(choice.algorithm, direct);
  assert_true(choice.factor > 1.99 && choice.factor < 2.01);
  choice = chosen({{direct, {5, 5, 5}}, {automatic, {10, 10, 10}}, {ring, {4, 4, 4}}});
  assert_int_equal(choice.algorithm, ring);
  // Within the noise, slower, the same.
  assert_int_equal(chosen({{automatic, {104, 104}}, {ring, {100, 100}}}).algorithm, automatic);
  assert_int_equal(chosen({{automatic, {106, 106}}, {ring, {100, 100}}}).algorithm, ring);
  assert_int_equal(chosen({{automatic, {10, 10}}, {ring, {20, 20}}}).algorithm, automatic);
  // One round that something else has slowed down.
  assert_int_equal(chosen({{automatic, {10, 10, 900}}, {ring, {10, 10, 10}}}).algorithm, automatic);
  assert_int_equal(
      chosen({{automatic, {20, 20, 20, 20, 20}}, {ring, {10, 90, 10, 10, 10}}}).algorithm, ring);
  // A median above the noise, but too many rounds against it.
  assert_int_equal(
      chosen({{automatic, {12, 12, 12, 8, 8}}, {ring, {10, 10, 10, 10, 10}}}).algorithm, automatic);
  // Rounds belong together: both were slow in the second one.
  assert_int_equal(chosen({{automatic, {10, 40, 10}}, {ring, {10, 40, 10}}}).algorithm, automatic);
  // Nothing to compare.
  assert_int_equal(chosen({}).algorithm, automatic);
  assert_int_equal(chosen({{automatic, {10}}}).algorithm, automatic);
  assert_int_equal(chosen({{ring, {10}}}).algorithm, automatic);
  assert_int_equal(chosen({{automatic, {10}}, {ring, {0}}}).algorithm, automatic);
  assert_int_equal(chosen({{automatic, {10}}, {ring, {}}}).algorithm, automatic);
}

void writes_what_it_reads(void** /*state*/) {
  using enum Algorithm;
  const std::vector<TunedSize> sizes{{Pattern::all_reduce, 8, {}},
                                     {Pattern::all_reduce, 32, {native, 1.5}},
                                     {Pattern::all_reduce, 128, {native, 3}},
                                     {Pattern::all_reduce, 512, {ring, 1.25}},
                                     {Pattern::all_reduce, 2048, {}},
                                     {Pattern::all_reduce, 8192, {}},
                                     {Pattern::broadcast, 8, {binomial, 1.1}},
                                     {Pattern::broadcast, 32, {binomial, 1.2}},
                                     {Pattern::barrier, 0, {bruck, 1.3}},
                                     {Pattern::scatter, 8, {}},
                                     {Pattern::scatter, 32, {direct, 2}}};
  const std::string text = tuning_text(6, "frames (tcp)", sizes, {"made by", "a test"});
  assert_string_equal(text.c_str(),
                      "trireme tuning 1\n"
                      "# made by\n"
                      "# a test\n"
                      "group 6 frames (tcp)\n"
                      "all_reduce 32 native  # 1.50 times as fast\n"
                      "all_reduce 512 ring  # 1.25 times as fast\n"
                      "all_reduce 2048 automatic\n"
                      "broadcast 8 binomial  # 1.10 times as fast\n"
                      "broadcast 64 automatic  # not measured\n"
                      "barrier 0 bruck  # 1.30 times as fast\n"
                      "scatter 32 direct  # 2.00 times as fast\n"
                      "scatter 64 automatic  # not measured\n");
  const TuningTable table = parsed(text);
  const TunedGroup* const group = table.find(6, "frames (tcp)");
  assert_non_null(group);
  for (const TunedSize& size : sizes) {
    assert_int_equal(group->choose(size.pattern, size.bytes), size.choice.algorithm);
  }
  assert_int_equal(group->choose(Pattern::scatter, 63), direct);
  assert_int_equal(group->choose(Pattern::scatter, UINT64_MAX), automatic);
  assert_int_equal(parsed(tuning_text(1, "local (threads)", {}, {})).groups()[0].rules.size(), 0);
}

// Whatever was measured, the text has it.
void writes_anything(void** /*state*/) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<TunedSize> sizes;
    for (int number = 0; number < kPatterns; ++number) {
      const auto pattern = static_cast<Pattern>(number);
      std::uint64_t bytes = 0;
      for (std::size_t i = random() % 9; i > 0; --i) {
        bytes += 1 + random() % 100;
        TunedChoice choice;
        const auto algorithm = static_cast<Algorithm>(random() % kAlgorithms);
        if (supports(algorithm, pattern) || algorithm == Algorithm::native) {
          choice = {algorithm, 1.5};
        }
        sizes.push_back({pattern, bytes, choice});
      }
    }
    const TuningTable table = parsed(tuning_text(3, "gloo (tcp)", sizes, {}));
    for (const TunedSize& size : sizes) {
      assert_int_equal(table.groups()[0].choose(size.pattern, size.bytes), size.choice.algorithm);
      assert_int_equal(table.groups()[0].choose(size.pattern, 2000), Algorithm::automatic);
    }
  }
}

// ---- messages ----

std::string told(const Operation& one, const Operation& other) {
  const Status status = compare_fingerprints(
      {{0, fingerprint_of(one, 7)}, {1, fingerprint_of(other, 7)}}, "all_reduce", 7, "group");
  return status.ok() ? "" : status.message();
}

void assert_tells(const Operation& one, const Operation& other, const char* words) {
  for (const std::string& text : {told(one, other), told(other, one)}) {
    const bool right =
        text.find(words) != std::string::npos &&
        (std::strstr(words, "tuning") != nullptr || text.find("tuning") == std::string::npos);
    if (!right) fail_msg("not \"%s\": \"%s\"", words, text.c_str());
  }
}

// A rank tells its table in a plain call. Its peer made another call, so the table is not at fault.
void the_other_call_is_named(void** /*state*/) {
  Operation plain;
  plain.kind = OperationKind::all_reduce;
  plain.dtype = TRIREME_DTYPE_F32;
  plain.reduction = TRIREME_REDUCTION_SUM;
  plain.count = 3;
  Operation tells = plain;
  tells.agreement = 77;
  tells.agreement_name = kTuningTables;
  Operation others = tells;
  others.agreement = 78;
  assert_string_equal(told(tells, tells).c_str(), "");
  assert_tells(tells, others, "with different tuning tables (TRIREME_TUNING)");
  assert_tells(tells, plain, "with different tuning tables (TRIREME_TUNING)");
  Operation narrow = plain;
  narrow.agreement = 5;
  narrow.agreement_name = "wire dtypes";
  assert_tells(tells, narrow, "with different wire dtypes");
  assert_tells(plain, narrow, "with different wire dtypes");
  Operation list = plain;
  list.agreement = 9;
  list.agreement_name = "lists of counts";
  assert_tells(tells, list, "with different lists of counts");
  assert_tells(narrow, list, "lists of counts");
  list.count = 4;  // then the descriptions say it
  assert_tells(tells, list, "count 4");
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(reads_rules),
      cmocka_unit_test(the_other_call_is_named),
      cmocka_unit_test(every_operation_and_algorithm),
      cmocka_unit_test(refuses),
      cmocka_unit_test(survives_noise),
      cmocka_unit_test(a_rule_goes_up_to_the_next),
      cmocka_unit_test(tables_that_differ_have_other_digests),
      cmocka_unit_test(what_is_worth_a_rule),
      cmocka_unit_test(writes_what_it_reads),
      cmocka_unit_test(writes_anything),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
