// Features beside ranks along tensor, context or expert, and beside sequence parallelism. Each one
// trains the small transformer with the bits of one process, or is refused with the reason. With
// --table it prints each cell, from which matrix.py writes docs/features.md.
#include "axes_training.hpp"

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka.h needs the headers before it.
#include <cmocka.h>
}

namespace {

using wide::Axis;
using wide::Feature;
using wide::Outcome;
using wide::Setup;
using wide::TrainJob;

bool prints = false;
std::string directory;

std::vector<Feature> all_features() {
  std::vector<Feature> features;
  const auto add = [&](const char* name) -> Feature& {
    Feature& feature = features.emplace_back();
    feature.name = name;
    return feature;
  };
  const auto seen = [&](const char* name) -> Feature& {
    Feature& feature = add(name);
    feature.is_seen = true;
    return feature;
  };
  add("leaves, clipping by norms of groups, copies compared");
  seen("no clipping").clips = false;
  seen("clipping by value").max_value = 0.01;
  add("accumulation (NO_SYNC)").backward_flags = TRIREME_BACKWARD_FLAG_NO_SYNC;
  seen("missing gradients count as zero").unused = TRIREME_UNUSED_ZERO;
  seen("parameters without gradients are skipped").unused = TRIREME_UNUSED_SKIP;
  add("uneven inputs").model_flags = TRIREME_MODEL_FLAG_UNEVEN;
  seen("parameters of bf16").narrow = true;
  const std::pair<const char*, trireme_rule_kind> rules[] = {
      {"SGD", TRIREME_RULE_SGD},         {"Adam", TRIREME_RULE_ADAM},
      {"Adagrad", TRIREME_RULE_ADAGRAD}, {"RMSProp", TRIREME_RULE_RMSPROP},
      {"Lion", TRIREME_RULE_LION},       {"LAMB", TRIREME_RULE_LAMB},
      {"LARS", TRIREME_RULE_LARS},       {"Adafactor", TRIREME_RULE_ADAFACTOR},
      {"Muon", TRIREME_RULE_MUON}};
  for (const auto& [name, rule] : rules) seen(name).rule = rule;
  Feature& masters = seen("master weights of bf16");
  masters.narrow = true;
  masters.optimizer_flags = TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS;
  seen("gradients travel as bf16 (reduce_dtype)").reduced = TRIREME_DTYPE_BF16;
  seen("loss scale").loss_scale = 1024;
  add("saved and loaded in the middle").resumed = true;
  add("one copy of the parameters").share = TRIREME_SHARE_ALWAYS;
  add("persistent units").persistent_bytes = 60;
  add("units stay gathered (KEEP_GATHERED)").model_flags = TRIREME_MODEL_FLAG_KEEP_GATHERED;
  add("units gathered again by a few (units.reshard_ranks)").reshard_ranks = 1;
  add("shards of whole rows (WHOLE_ROWS)").model_flags = TRIREME_MODEL_FLAG_WHOLE_ROWS;
  add("state in a file (offload)").state_path = directory.c_str();
  add("parameters in a file (offload of the model)").parameter_path = directory.c_str();
  Feature& sweep = seen("one sweep");
  sweep.optimizer_flags = TRIREME_OPTIMIZER_FLAG_ONE_SWEEP;
  sweep.clips = false;
  Feature& backward = seen("update in backward (UPDATE_IN_BACKWARD)");
  backward.model_flags = TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD;
  backward.clips = false;
  return features;
}

struct Column {
  const char* name;
  Axis axis;
  bool sequence;
};
constexpr Column kColumns[] = {{"tensor", Axis::none, false},
                               {"sequence", Axis::none, true},
                               {"context", Axis::context, false},
                               {"experts", Axis::expert, false}};

// Strategies that a feature takes alone, in turn: one that spreads state or nothing, and one that
// spreads parameters.
std::vector<trireme_strategy> strategies_of(const Feature& feature, unsigned turn) {
  const bool gathers = feature.reshard_ranks > 0 || feature.parameter_path != nullptr ||
                       (feature.model_flags & TRIREME_MODEL_FLAG_KEEP_GATHERED) != 0;
  const bool sweeps = (feature.optimizer_flags & TRIREME_OPTIMIZER_FLAG_ONE_SWEEP) != 0;
  if (sweeps) return {TRIREME_STRATEGY_ZERO1};
  const trireme_strategy whole[] = {TRIREME_STRATEGY_DATA_PARALLEL, TRIREME_STRATEGY_ZERO1,
                                    TRIREME_STRATEGY_ZERO2};
  const trireme_strategy spread[] = {TRIREME_STRATEGY_ZERO3, TRIREME_STRATEGY_HYBRID_SHARD};
  if (gathers) return {spread[0], spread[1]};
  if (feature.share != 0) return {whole[1 + turn % 2], spread[turn % 2]};
  return {whole[turn % 3], spread[turn % 2]};
}

template <class T>
std::string result_of(const Column& column, const Feature& feature, unsigned turn) {
  static TrainJob job;
  Setup setup;
  setup.data = 2;
  setup.tensor = 2;
  setup.axis = column.axis;
  setup.sequence = column.sequence;
  setup.context = {wide::Way::pairs, TRIREME_CONTEXT_LAYOUT_ZIGZAG, TRIREME_CONTEXT_METHOD_RING};
  setup.feature = feature;
  static std::map<std::string, Outcome> plain;
  std::string reason;
  for (const trireme_strategy strategy : strategies_of(feature, turn)) {
    setup.strategy = strategy;
    job = TrainJob();
    job.setup = setup;
    run_ranks(setup.ranks(), wide::run_training<T>, &job);
    const std::string where = name_of(setup) + ", " + feature.name + ": ";
    for (int rank = 0; rank < setup.ranks(); ++rank)
      if (!job.problems[rank].empty()) fail_msg("%s%s", where.c_str(), job.problems[rank].c_str());
    if (!job.refusals[0].empty()) {
      for (int rank = 0; rank < setup.ranks(); ++rank)
        if (job.refusals[rank].empty()) fail_msg("%srank %d refuses nothing", where.c_str(), rank);
      const std::string& refusal = job.refusals[0];
      reason = refusal.substr(refusal.find(": ") + 2);  // behind the name of the call
      continue;
    }
    const std::string key =
        std::to_string(static_cast<int>(column.axis)) + (feature.is_seen ? feature.name : "");
    if (plain.count(key) == 0) {
      std::string problem;
      plain[key] = wide::train_plainly<T>(setup, &problem);
      if (!problem.empty()) fail_msg("%sone process: %s", where.c_str(), problem.c_str());
      // A scale of losses is a power of two, which changes no bit.
      const auto base = plain.find(std::to_string(static_cast<int>(column.axis)));
      if (feature.is_seen && feature.loss_scale == 0 && base != plain.end() &&
          base->second.values == plain[key].values)
        fail_msg("%sit changes nothing", where.c_str());
    }
    const std::string problem = wide::difference<T>(job, plain[key]);
    if (!problem.empty()) fail_msg("%s%s", where.c_str(), problem.c_str());
  }
  return reason.empty() ? "equal" : reason;
}

void features_train_along_axes_or_are_refused(void**) {
  unsigned turn = 0;
  for (const Feature& feature : all_features()) {
    for (const Column& column : kColumns) {
      const std::string result = feature.narrow ? result_of<wide::Bf16>(column, feature, turn++)
                                                : result_of<float>(column, feature, turn++);
      if (prints) std::printf("axis\t%s\t%s\t%s\n", feature.name, column.name, result.c_str());
    }
    ++turn;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const CMUnitTest tests[] = {cmocka_unit_test(features_train_along_axes_or_are_refused)};
  prints = argc > 1 && std::string(argv[1]) == "--table";
  const char* const folder = std::getenv("TMPDIR");
  directory = std::string(folder != nullptr ? folder : "/tmp") + "/test-axes-XXXXXX";
  if (mkdtemp(directory.data()) == nullptr) {
    std::perror(directory.c_str());
    return 1;
  }
  const int failures = cmocka_run_group_tests_name("axes", tests, nullptr, nullptr);
  if (rmdir(directory.c_str()) != 0) {  // as if anything is left in it
    std::perror(directory.c_str());
    return 1;
  }
  return failures;
}
