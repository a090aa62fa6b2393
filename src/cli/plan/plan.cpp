#include "cli/plan/plan.hpp"

#include <trireme/pipeline.h>
#include <trireme/status.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <vector>

#include "cli/plan/costs_file.hpp"

namespace trireme::plan {
namespace {

struct Destroy {
  void operator()(trireme_pipeline_schedule* schedule) const {
    trireme_pipeline_schedule_destroy(schedule);
  }
};
using Handle = std::unique_ptr<trireme_pipeline_schedule, Destroy>;

void check(trireme_status status) {
  if (status != TRIREME_OK) throw std::runtime_error(trireme_last_error());
}

// The file's costs as the library takes them.
class Plan {
 public:
  explicit Plan(const CostsFile& file) : file_(file) {
    costs_.stages = file_.stages.data();
    costs_.stage_count = file_.stages.size();
    costs_.overhead = file_.overhead;
    costs_.latency = file_.latency;
    costs_.bytes_per_second = file_.bytes_per_second;
    times_.buffers = limits_.buffers = file_.buffers;
    if (!file_.limits.empty()) {
      limits_.bytes = file_.limits.data();
      limits_.rank_count = file_.limits.size();
    }
  }

  // Null if the order does not have so many stages a rank, or BEST finds nothing.
  Handle make(trireme_pipeline_order order) const {
    trireme_pipeline_schedule_options options = TRIREME_PIPELINE_SCHEDULE_OPTIONS_INIT;
    options.order = order;
    options.ranks = file_.ranks;
    options.stages_per_rank = file_.stages_per_rank;
    options.micro_batches = file_.micro_batches;
    if (order == TRIREME_PIPELINE_ORDER_BEST) {
      options.costs = &costs_;
      options.limits = &limits_;
    }
    trireme_pipeline_schedule* made = nullptr;
    return Handle(trireme_pipeline_schedule_create(&options, &made) == TRIREME_OK ? made : nullptr);
  }

  void compare() const {
    std::printf("%-12s %12s %12s %8s %14s  %s\n", "order", "makespan", "span", "bubble",
                "peak bytes", "within limits");
    double bound = 0;
    for (trireme_pipeline_order order = 1; order <= TRIREME_PIPELINE_ORDER_BEST; ++order) {
      const Handle schedule = make(order);
      if (schedule == nullptr) continue;
      const char* const name = trireme_pipeline_order_name(order);
      trireme_pipeline_step_report report = TRIREME_PIPELINE_STEP_REPORT_INIT;
      const trireme_status status =
          trireme_pipeline_schedule_simulate(schedule.get(), &costs_, &times_, &report, nullptr, 0);
      if (status == TRIREME_ERROR_INVALID_STATE) {
        std::printf("%-12s stands still with %u buffers\n", name, file_.buffers);
        continue;
      }
      check(status);
      const bool fits =
          trireme_pipeline_schedule_check(schedule.get(), &costs_, &limits_, nullptr) == TRIREME_OK;
      std::printf("%-12s %12.6g %12.6g %7.2f%% %14llu  %s\n", name, report.makespan, report.span,
                  100 * report.bubble, static_cast<unsigned long long>(report.peak_bytes),
                  fits ? "yes" : "no");
      bound = report.lower_bound;
    }
    std::printf("%-12s %12.6g  (of the last line's placement)\n", "lower bound", bound);
  }

  void draw(trireme_pipeline_order order, trireme_pipeline_format format) const {
    const Handle schedule = make(order);
    if (schedule == nullptr) throw std::runtime_error(trireme_last_error());
    const bool plain = format <= TRIREME_PIPELINE_FORMAT_CSV;
    std::uint64_t length = 0;
    check(trireme_pipeline_schedule_write(schedule.get(), format, plain ? nullptr : &costs_,
                                          nullptr, 0, &length));
    std::vector<char> text(length + 1);
    check(trireme_pipeline_schedule_write(schedule.get(), format, plain ? nullptr : &costs_,
                                          text.data(), text.size(), &length));
    std::fwrite(text.data(), 1, length, stdout);
  }

 private:
  const CostsFile& file_;
  trireme_pipeline_costs costs_ = TRIREME_PIPELINE_COSTS_INIT;
  trireme_pipeline_limits limits_ = TRIREME_PIPELINE_LIMITS_INIT;
  trireme_pipeline_limits times_ = TRIREME_PIPELINE_LIMITS_INIT;  // buffers alone
};

trireme_pipeline_format format_of(const std::string& name) {
  const char* const kNames[] = {"text", "csv", "drawing", "svg", "trace"};
  for (std::size_t i = 0; i < std::size(kNames); ++i) {
    if (name == kNames[i]) return static_cast<trireme_pipeline_format>(i + 1);
  }
  throw std::runtime_error("\"" + name +
                           "\" is no format; formats are text, csv, drawing, svg and trace");
}

}  // namespace

int run(const Settings& settings) {
  std::ifstream stream(settings.file, std::ios::binary);
  if (!stream) throw std::runtime_error("cannot open " + settings.file);
  const std::string text((std::istreambuf_iterator<char>(stream)),
                         std::istreambuf_iterator<char>());
  CostsFile file;
  try {
    file = read_costs(text);
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(settings.file + ": " + error.what());
  }
  trireme_pipeline_order order = 0;
  check(trireme_pipeline_order_parse(settings.order.c_str(), &order));
  const trireme_pipeline_format format = format_of(settings.format);
  const Plan plan(file);
  if (settings.all) {
    plan.compare();
    std::printf("\n%s:\n", trireme_pipeline_order_name(order));
  }
  plan.draw(order, format);
  return std::fflush(stdout) == 0 ? 0 : 1;
}

}  // namespace trireme::plan
