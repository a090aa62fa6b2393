// Schedules as text and CSV: what is written reads back, what is broken is refused with its place,
// and no bytes do harm. Drawings by hand.
#include <cstdint>
#include <string>
#include <vector>

#include "fuzz.hpp"
#include "parallel/pipeline/draw.hpp"
#include "pipeline.hpp"

// cmocka's names are macros that the standard library must not see.
extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
// cmocka.h comes after those it needs.
#include <cmocka.h>
}

namespace {

using namespace pipeline_test;

void assert_same(const Schedule& a, const Schedule& b) {
  assert_int_equal(a.ranks, b.ranks);
  assert_int_equal(a.micro_batches, b.micro_batches);
  assert_true(a.rank_of == b.rank_of && a.first == b.first);
  for (std::size_t i = 0; i < a.actions.size(); ++i) {
    assert_int_equal(a.actions[i].kind, b.actions[i].kind);
    assert_int_equal(a.actions[i].stage, b.actions[i].stage);
    assert_int_equal(a.actions[i].micro_batch, b.actions[i].micro_batch);
    assert_int_equal(a.actions[i].pair != 0, b.actions[i].pair != 0);
  }
}

void both_forms_read_back(void**) {
  for (std::int32_t n = 1; n < kNames; ++n) {
    const auto name = static_cast<Name>(n);
    for (std::uint32_t p = 1; p <= 5; ++p) {
      for (std::uint32_t v = 1; v <= 3; ++v) {
        if (!is_defined(name, p, v, 2 * p)) continue;
        for (const bool named : {false, true}) {
          Schedule schedule = generate(name, {p, v, 2 * p});
          if (named) schedule = with_messages(schedule);
          for (const std::string& text : {write_text(schedule), write_csv(schedule)}) {
            Schedule read;
            assert_true(parse_schedule(text, &read).ok());
            assert_same(schedule, read);
            assert_true(check(read, {}, nullptr).holds());
          }
        }
      }
    }
  }
}

void texts_look_as_documented(void**) {
  const Schedule schedule = generate(Name::k1F1B, {2, 1, 2});
  assert_string_equal(write_text(schedule).c_str(),
                      "pipeline ranks=2 stages=2 micro_batches=2 placement=0,1\n"
                      "0F0 0F1 0B0 0B1\n"
                      "1F0 1B0 1F1 1B1\n");
  assert_string_equal(write_csv(schedule).c_str(), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  const Schedule units = schedule_of("0UNSHARD,0F0,(0F1;0B0),0B1,0REDUCE_GRAD,0RESHARD");
  assert_string_equal(write_csv(units).c_str(),
                      "0UNSHARD,0F0,(0F1;0B0)OVERLAP_F_B,0B1,0REDUCE_GRAD,0RESHARD\n");
  assert_string_equal(write_text(units).c_str(),
                      "pipeline ranks=1 stages=1 micro_batches=2 placement=0\n"
                      "0GATHER 0F0 (0F1;0B0) 0B1 0REDUCE 0RELEASE\n");
}

// Files as PyTorch writes them: empty slots, carriage returns, quotes, old words.
void synonyms_and_slots_are_read(void**) {
  const Schedule plain = schedule_of("0F0,0I0,0W0\n1F0,1B0\n");
  assert_same(plain, schedule_of("0F0,,,0I0,0W0\r\n,1F0,1B0,\r\n\r\n"));
  assert_same(plain, schedule_of("\"0F0\", 0BACKWARD_INPUT0,0BACKWARD_WEIGHT0\n1FORWARD0,1BW0"));
  assert_same(plain, schedule_of("0F0,0B0,0W0\n1F0,1FULL_BACKWARD0"));
  assert_same(schedule_of("0UNSHARD,0F0,0R0,0B0,0REDUCE_GRAD,0RESHARD"),
              schedule_of("0GATHER,0F0,0RECOMPUTE0,0B0,0REDUCE,0RELEASE"));
}

void broken_texts_are_refused_with_their_place(void**) {
  const struct {
    const char* text;
    const char* words;
  } rows[] = {
      {"", "no action"},
      {"\n\n,,\n", "no action"},
      {"0F0\n1X0", "line 2: \"1X0\" is no action"},
      {"0F", "is no action"},
      {"F0", "is no action"},
      {"-1F0", "is no action"},
      {"0F0x", "is no action"},
      {"0F99999999999", "is no action"},
      {"4294967296F0", "is no action"},
      {"0UNSHARD3", "is no action"},
      {"0F16777216", "micro-batches"},
      {"262144F0", "stages"},
      {"2F0,0F0", "stage 1 has no action"},
      {"0F0\n0B0", "no stage is placed on rank 1"},
      {"(0F0;0B0", "is no pair"},
      {"(0F0)", "is no pair"},
      {"(0F0;0B0;0F1)", "is no pair"},
      {"(0F0;0B0)OVERLAP", "is no pair"},
      {"\xff\x01", "\"??\" is no action"},
      {"pipeline ranks=1", "stages"},
      {"pipeline ranks=2 stages=2 micro_batches=1 placement=0\n0F0\n1F0", "placement has 1"},
      {"pipeline ranks=2 stages=2 micro_batches=1 placement=0,2\n0F0\n1F0", "rank 2"},
      {"pipeline ranks=2 stages=2 micro_batches=1 placement=0,1\n0F0", "1 lines of actions"},
      {"pipeline ranks=x", "is no key"},
      {"pipeline colour=1", "\"colour\" is no key"},
  };
  for (const auto& row : rows) {
    Schedule out;
    const trireme::Status status = parse_schedule(row.text, &out);
    if (status.ok() || status.message().find(row.words) == std::string::npos) {
      fail_msg("%s: %s", row.text, status.ok() ? "taken" : status.message().c_str());
    }
  }
}

// Few bytes that name large numbers must not make large tables.
void a_short_text_makes_no_large_table(void**) {
  std::string text;
  for (int stage = 0; stage < 8192; ++stage) text += std::to_string(stage) + "F16000,";
  Schedule out;
  assert_true(parse_schedule(text, &out).ok());
  const Verdict verdict = check(out, {}, nullptr);
  assert_true(verdict.rule == Rule::kComplete);
  assert_true(verdict.message.find("8192 actions") != std::string::npos);
}

void a_text_that_is_too_long_is_refused(void**) {
  const std::string text(kMostText + 1, ' ');
  Schedule out;
  assert_false(parse_schedule(text, &out).ok());
}

void any_bytes_are_read_or_refused(void**) {
  fuzz::Random random{fuzz::seed()};
  const std::string pieces[] = {"F",
                                "B",
                                "I",
                                "W",
                                ",",
                                ";",
                                "(",
                                ")",
                                "\n",
                                "SEND_F",
                                "UNSHARD",
                                "pipeline",
                                "ranks=",
                                "placement=",
                                " ",
                                "0",
                                "1",
                                "99999",
                                "=",
                                "OVERLAP_F_B",
                                "\"",
                                "\r",
                                std::string(1, '\0')};
  std::uint64_t taken = 0;
  for (std::uint64_t trial = 0; trial < fuzz::trials(20'000); ++trial) {
    const auto p = static_cast<std::uint32_t>(1 + random.below(3));
    Schedule schedule = generate(Name::kDualPipeV, {p, 2, 1 + p});
    if (random.one_in(2)) schedule = with_messages(schedule);
    std::string text = random.one_in(2) ? write_text(schedule) : write_csv(schedule);
    for (std::size_t k = random.below(5); k > 0; --k) {
      const std::size_t at = random.below(text.size() + 1);
      switch (random.below(4)) {
        case 0: text.insert(at, pieces[random.below(std::size(pieces))]); break;
        case 1: text.erase(at, random.below(6)); break;
        case 2: text.insert(at, fuzz::noise(random, 4)); break;
        default: text.resize(at);
      }
    }
    Schedule out;
    const trireme::Status status = parse_schedule(text, &out);
    if (!status.ok()) {
      for (const char each : status.message()) assert_true(each >= ' ' && each <= '~');
      continue;
    }
    ++taken;
    (void)check(out, {.buffers = 2}, nullptr);
    Schedule again;
    assert_true(parse_schedule(write_text(out), &again).ok());
    assert_same(out, again);
  }
  assert_true(taken > 100);
}

void drawings_show_each_action(void**) {
  const Schedule schedule = generate(Name::k1F1B, {2, 1, 2});
  Times times;
  assert_true(simulate(schedule, equal_costs(2, 1, 0), {.record = true}, &times));
  assert_string_equal(draw_text(schedule, times, 200).c_str(),
                      "rank 0 0F0 0F1 ........0B0     ....0B1\n"
                      "rank 1 ....1F0 1B0     1F1 1B1     ........\n");
  const std::string narrow = draw_text(schedule, times, 20);
  assert_true(narrow.find('\n') <= 20);
  const std::string svg = draw_svg(schedule, times);
  const std::string trace = draw_trace(schedule, times);
  for (const Action& action : schedule.actions) {
    assert_true(svg.find("<title>" + action_text(action) + "</title>") != std::string::npos);
    assert_true(trace.find("\"name\":\"" + action_text(action) + "\"") != std::string::npos);
  }
  assert_true(trace.find("\"ts\":1e+06,\"dur\":2e+06") != std::string::npos ||
              trace.find("\"ts\":2000000,\"dur\":2000000") != std::string::npos ||
              trace.find("\"ts\":2e+06,\"dur\":2e+06") != std::string::npos);
}

void numbers_do_not_depend_on_the_locale(void**) {
  assert_string_equal(number_text(0.5).c_str(), "0.5");
  assert_string_equal(number_text(12).c_str(), "12");
}

}  // namespace

int main(void) {
  const CMUnitTest tests[] = {
      cmocka_unit_test(both_forms_read_back),
      cmocka_unit_test(texts_look_as_documented),
      cmocka_unit_test(synonyms_and_slots_are_read),
      cmocka_unit_test(broken_texts_are_refused_with_their_place),
      cmocka_unit_test(a_short_text_makes_no_large_table),
      cmocka_unit_test(a_text_that_is_too_long_is_refused),
      cmocka_unit_test(any_bytes_are_read_or_refused),
      cmocka_unit_test(drawings_show_each_action),
      cmocka_unit_test(numbers_do_not_depend_on_the_locale),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
