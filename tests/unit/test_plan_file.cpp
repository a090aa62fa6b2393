// Files of costs of a pipeline: good ones by hand, bad ones with the line and the reason.
#include <cstdint>
#include <stdexcept>
#include <string>

#include "cli/plan/costs_file.hpp"
#include "fuzz.hpp"

// cmocka's names are macros that the standard library must not see.
extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
// cmocka.h comes after those it needs.
#include <cmocka.h>
}

namespace {

using namespace trireme::plan;

void one_line_stands_for_all(void**) {
  const CostsFile file = read_costs(
      "# a remark\nranks 2 # two\n\nmicro_batches 8\nstages_per_rank 2\nstage 1 2.5 3 4 5 6\n"
      "limit 7e9\nbuffers 3\nlatency 0.5\noverhead 0.25\nbytes_per_second 1e9\n");
  assert_int_equal(file.ranks, 2);
  assert_int_equal(file.stages_per_rank, 2);
  assert_int_equal(file.micro_batches, 8);
  assert_int_equal(file.buffers, 3);
  assert_int_equal(file.stages.size(), 4);
  const trireme_pipeline_stage_costs& last = file.stages[3];
  assert_true(last.forward == 1 && last.input == 2.5 && last.weight == 3);
  assert_true(last.kept_bytes == 4 && last.held_bytes == 5 && last.message_bytes == 6);
  assert_true(file.limits.size() == 2 && file.limits[1] == 7'000'000'000);
  assert_true(file.latency == 0.5 && file.overhead == 0.25 && file.bytes_per_second == 1e9);
}

void each_stage_may_have_its_own(void**) {
  const CostsFile file = read_costs("ranks 2\nmicro_batches 1\nstage 1 1 1\nstage 2 2 2\n");
  assert_true(file.stages[1].forward == 2 && file.limits.empty());
}

void bad_files_are_refused(void**) {
  const struct {
    const char* text;
    const char* words;
  } rows[] = {
      {"", "ranks and micro_batches must be given"},
      {"ranks 2\nstage 1 1 1", "ranks and micro_batches must be given"},
      {"ranks 2\nmicro_batches 1\nstage 1 1 1\nstage 1 1 1\nstage 1 1 1", "3 lines of stage"},
      {"ranks 2\nmicro_batches 1", "0 lines of stage"},
      {"ranks two", "line 1: ranks has \"two\""},
      {"\nranks 2 3", "line 2: ranks takes 1 numbers"},
      {"ranks 1.5", "whole numbers"},
      {"ranks -1", "whole numbers"},
      {"ranks 1e30", "whole numbers"},
      {"stage 1 1", "takes 3 to 6 numbers"},
      {"stage 1 1 1 -4", "whole numbers"},
      {"stage 1 1 1 nan", "whole numbers"},
      {"color 1", "line 1: color is no word"},
      {"ranks 3\nmicro_batches 1\nstage 1 1 1\nlimit 1 2", "2 numbers for 3 ranks"},
      {"ranks 60000\nstages_per_rank 60000\nmicro_batches 1\nstage 1 1 1", "stages be 1 to"},
  };
  for (const auto& row : rows) {
    std::string reason = "taken";
    try {
      (void)read_costs(row.text);
    } catch (const std::runtime_error& error) {
      reason = error.what();
    }
    if (reason.find(row.words) == std::string::npos) fail_msg("%s: %s", row.text, reason.c_str());
  }
}

void any_bytes_are_read_or_refused(void**) {
  fuzz::Random random{fuzz::seed()};
  for (std::uint64_t trial = 0; trial < fuzz::trials(2000); ++trial) {
    std::string text = "ranks 2\nmicro_batches 3\nstage 1 1 1 5\nlimit 9 9\nlatency 1e-3\n";
    for (std::size_t k = 1 + random.below(4); k > 0; --k) {
      text.insert(random.below(text.size() + 1), fuzz::noise(random, 3));
    }
    try {
      (void)read_costs(text);
    } catch (const std::runtime_error&) {
    }
  }
}

}  // namespace

int main(void) {
  const CMUnitTest tests[] = {
      cmocka_unit_test(one_line_stands_for_all),
      cmocka_unit_test(each_stage_may_have_its_own),
      cmocka_unit_test(bad_files_are_refused),
      cmocka_unit_test(any_bytes_are_read_or_refused),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
