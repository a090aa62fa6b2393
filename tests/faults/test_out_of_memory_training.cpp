// Requests are refused to one rank of a training, one after the other, whatever its model and its
// optimizer have been asked for: see test_out_of_memory.cpp. A training that comes through has the
// right parameters.
#ifdef __SANITIZE_THREAD__

#include <cstdio>

int main() {
  std::puts(
      "skipped: faults_test_out_of_memory_training stands in for mmap and pthread_create, which "
      "ThreadSanitizer's runtime calls before it is ready");
  return 77;
}

#else

#include "out_of_memory.inc"

namespace {

constexpr trireme_dtype kType = TRIREME_DTYPE_F32;
constexpr std::uint64_t kElements[] = {100, 7, 226};  // of "a", "b" and "c"
constexpr std::uint64_t kAll = 333;

// A model of three units and its optimizer, with which the sum of gradients is taken off the
// parameters, step by step.
class Training {
 public:
  Training(Rank& rank, trireme_communicator* group, trireme_strategy strategy)
      : rank_(rank), group_(group) {
    options.strategy = strategy;
    options.gradients = TRIREME_GRADIENTS_SUM;
    units.minimum_bytes = 1;
    buckets.bytes = 1;
    buckets.first_bytes = 1;
    options.buckets = &buckets;
    options.units = &units;
    options.shards = &shards;
    rule.clipping = &clipping;
    rule.kind = TRIREME_RULE_SGD;
    rule.learning_rate = 1;
  }
  Training(Rank& rank, trireme_strategy strategy) : Training(rank, rank.group, strategy) {}
  ~Training() {
    trireme_optimizer_destroy(optimizer_);
    trireme_model_destroy(model_);
  }
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  // Options are set before this.
  bool describe() {
    static const char* const kNames[] = {"a", "b", "c"};
    if (!attempt(rank_, "model_create", [&] {
          return mesh != nullptr ? trireme_mesh_create_model(mesh, &options, &model_)
                                 : trireme_model_create(group_, &options, &model_);
        })) {
      return false;
    }
    for (int number = 0; number < 3; ++number) {
      trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
      parameter.name = kNames[number];
      parameter.dtype = kType;
      const std::uint64_t shape[] = {kElements[number], 1};
      parameter.dimensions = matrices ? 2 : 1;
      parameter.shape = shape;
      parameter.replicas = replicas;
      trireme_parameter_placement placement = TRIREME_PARAMETER_PLACEMENT_INIT;
      placement.kind = TRIREME_PLACEMENT_WHOLE;
      placement.axis = whole_on;
      parameter.placements = whole_on != nullptr ? &placement : nullptr;
      parameter.placement_count = whole_on != nullptr ? 1 : 0;
      if (!attempt(rank_, "add_parameter",
                   [&] { return trireme_model_add_parameter(model_, &parameter, nullptr); })) {
        return false;
      }
    }
    return true;
  }
  bool make_model() {
    return describe() && attempt(rank_, "seal", [&] { return trireme_model_seal(model_); });
  }
  bool make_optimizer() {
    trireme_status status = TRIREME_OK;
    if (rank_.victim()) goes_on = 0;
    return attempt(rank_, "optimizer_create", [&] {
      // A second call would tell the other models of a mesh, which have to know already.
      if (status != TRIREME_OK && mesh != nullptr && !calls_again()) return status;
      status = trireme_optimizer_create(model_, &rule, &optimizer_);
      return status;
    });
  }
  bool make() { return make_model() && make_optimizer(); }
  bool accumulate(float gradient, std::uint32_t flags = 0) {
    float gradients[kAll];
    for (float& each : gradients) each = gradient;
    return attempt(rank_, "accumulate", [&] {
      return trireme_model_accumulate_flat(model_, gradients, kAll, kType, flags);
    });
  }
  bool update() {
    return attempt(rank_, "step", [&] { return trireme_optimizer_step(optimizer_); });
  }
  bool step(float gradient) { return accumulate(gradient) && update(); }
  // Unit by unit, in the order of registration, in which buckets are not reduced at first.
  bool step_in_order(float gradient) {
    float gradients[kAll];
    for (float& each : gradients) each = gradient;
    if (!begin(0)) return false;
    for (std::uint64_t number = 0; number < 3; ++number) {
      if (!ready(number, gradients)) return false;
    }
    return end() && update();
  }
  bool begin(std::uint32_t flags) {
    return attempt(rank_, "begin_backward",
                   [&] { return trireme_model_begin_backward(model_, flags); });
  }
  bool ready(std::uint64_t number, const void* gradients) {
    return attempt(rank_, "gradient_ready", [&] {
      return trireme_model_gradient_ready(model_, number, gradients, kElements[number], kType);
    });
  }
  bool end() {
    return attempt(rank_, "end_backward", [&] { return trireme_model_end_backward(model_); });
  }
  bool touch(std::uint64_t unit) {
    return attempt(rank_, "gather_unit", [&] { return trireme_model_gather_unit(model_, unit); }) &&
           attempt(rank_, "release_unit", [&] { return trireme_model_release_unit(model_, unit); });
  }
  // Whether all parameters are this.
  bool holds(float value) {
    float values[kAll] = {};
    if (!attempt(rank_, "get_parameters",
                 [&] { return trireme_model_gather_parameters(model_, values, kAll, kType); })) {
      return false;
    }
    for (const float each : values) {
      if (each == value) continue;
      complain(rank_, "parameters", TRIREME_OK);
      return false;
    }
    return true;
  }
  void expect(bool condition, const char* what) {
    if (!condition) complain(rank_, what, TRIREME_OK);
  }
  trireme_model* model() const { return model_; }
  trireme_optimizer* optimizer() const { return optimizer_; }

  trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
  trireme_bucket_options buckets = TRIREME_BUCKET_OPTIONS_INIT;
  trireme_unit_options units = TRIREME_UNIT_OPTIONS_INIT;
  trireme_shard_options shards = TRIREME_SHARD_OPTIONS_INIT;
  trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
  trireme_clipping_options clipping = TRIREME_CLIPPING_OPTIONS_INIT;
  const trireme_mesh* mesh = nullptr;
  const char* whole_on = nullptr;  // an axis of it
  std::uint32_t replicas = 0;
  bool matrices = false;
  inline static std::atomic<int> goes_on{-1};  // 0: the victim does not know yet

 private:
  // The victim calls again if the ranks of its model are well, and the others with it.
  bool calls_again() const {
    if (rank_.victim()) {
      trireme_communicator* data = nullptr;
      goes_on = trireme_mesh_get_axis_communicator(mesh, "data", &data) == TRIREME_OK &&
                        trireme_communicator_wait_ready(data, 0) == TRIREME_OK
                    ? 1
                    : -1;
    }
    const std::uint64_t end = monotonic_ns() + PATIENT_NS;
    while (goes_on.load() == 0 && monotonic_ns() < end) sleep_ms(1);
    return goes_on.load() > 0;
  }

  Rank& rank_;
  trireme_communicator* group_;
  trireme_model* model_ = nullptr;
  trireme_optimizer* optimizer_ = nullptr;
};

// ---- how parameters are spread ----

void train_replicated(Rank& rank) {
  Training training(rank, TRIREME_STRATEGY_DATA_PARALLEL);
  if (training.make() && training.step(1)) training.holds(-2);
}

void train_sharded(Rank& rank) {
  Training training(rank, TRIREME_STRATEGY_ZERO3);
  training.shards.share = TRIREME_SHARE_NEVER;
  if (training.make() && training.touch(1) && training.step(1)) training.holds(-2);
}

void train_on_one_copy(Rank& rank, trireme_strategy strategy, std::int32_t share) {
  Training training(rank, strategy);
  training.shards.share = share;
  float values[kAll];
  for (float& each : values) each = 9;
  if (!training.make()) return;
  trireme_model_info info = TRIREME_MODEL_INFO_INIT;
  const bool set =
      attempt(rank, "get_info", [&] { return trireme_model_get_info(training.model(), &info); }) &&
      attempt(rank, "set_parameters", [&] {
        return trireme_model_broadcast_parameters(training.model(), values, kAll, kType, 1);
      });
  if (!set) return;
  training.expect(info.shared_bytes > 0, "one copy");
  if (training.step(1)) training.holds(7);
}

void train_sharing_all(Rank& rank) {
  train_on_one_copy(rank, TRIREME_STRATEGY_ZERO3, TRIREME_SHARE_AUTO);
}
void train_sharing_parameters(Rank& rank) {
  train_on_one_copy(rank, TRIREME_STRATEGY_ZERO1, TRIREME_SHARE_ALWAYS);
}

void train_hybrid(Rank& rank, std::int32_t share) {
  Training training(rank, TRIREME_STRATEGY_HYBRID_SHARD);
  training.shards.ranks = 2;
  training.shards.share = share;
  if (training.make() && training.step(1)) training.holds(-4);
}

void train_hybrid_sharing(Rank& rank) { train_hybrid(rank, TRIREME_SHARE_AUTO); }
void train_hybrid_apart(Rank& rank) { train_hybrid(rank, TRIREME_SHARE_NEVER); }

// ---- what becomes of gradients ----

// Doubles each rank's contribution, and adds 1 to the sum.
std::int32_t TRIREME_CALLCONV double_and_add(const trireme_bucket* bucket, void*) {
  auto* const data = static_cast<float*>(bucket->data);
  for (std::uint64_t i = 0; i < bucket->count; ++i) {
    data[i] = bucket->moment == TRIREME_HOOK_BEFORE ? 2 * data[i] : data[i] + 1;
  }
  return 0;
}

void train_with_hooks(Rank& rank, trireme_strategy strategy) {
  Training training(rank, strategy);
  training.buckets.hook = double_and_add;
  if (training.make() && training.step(3)) training.holds(-13);
}

void train_hooked_replicas(Rank& rank) { train_with_hooks(rank, TRIREME_STRATEGY_DATA_PARALLEL); }
void train_hooked_shards(Rank& rank) { train_with_hooks(rank, TRIREME_STRATEGY_ZERO2); }

void train_in_one_sweep(Rank& rank) {
  Training training(rank, TRIREME_STRATEGY_ZERO1);
  training.rule.flags = TRIREME_OPTIMIZER_FLAG_ONE_SWEEP;
  if (training.make() && training.step(1)) training.holds(-2);
}

// Two passes; the second one adds to what the first one wrote.
void train_with_views(Rank& rank) {
  Training training(rank, TRIREME_STRATEGY_DATA_PARALLEL);
  if (!training.make()) return;
  for (int pass = 0; pass < 2; ++pass) {
    if (!training.begin(pass == 0 ? TRIREME_BACKWARD_FLAG_NO_SYNC : 0)) return;
    for (std::uint64_t number = 3; number-- > 0;) {
      void* memory = nullptr;
      std::int32_t adds = -1;
      if (!attempt(rank, "gradient_data", [&] {
            return trireme_model_get_gradient_data(training.model(), number, &memory, nullptr,
                                                   nullptr, &adds);
          })) {
        return;
      }
      if (memory == nullptr || adds != pass) return complain(rank, "view", TRIREME_OK);
      auto* const view = static_cast<float*>(memory);
      for (std::uint64_t i = 0; i < kElements[number]; ++i) view[i] = pass == 0 ? 1 : view[i] + 2;
      if (!training.ready(number, view)) return;
    }
    if (!training.end()) return;
  }
  if (training.update()) training.holds(-6);
}

void train_in_another_order(Rank& rank, trireme_strategy strategy) {
  Training training(rank, strategy);
  if (!training.make() || !training.step_in_order(1) || !training.step_in_order(2)) return;
  trireme_model_statistics statistics = TRIREME_MODEL_STATISTICS_INIT;
  if (!attempt(rank, "statistics",
               [&] { return trireme_model_get_statistics(training.model(), &statistics); })) {
    return;
  }
  training.expect(statistics.moved_buckets > 0, "learnt order");
  training.holds(-6);
}

void train_replicas_in_order(Rank& rank) {
  train_in_another_order(rank, TRIREME_STRATEGY_DATA_PARALLEL);
}
void train_shards_in_order(Rank& rank) { train_in_another_order(rank, TRIREME_STRATEGY_ZERO2); }

// Rank 0 has data for one step, rank 1 for two.
void train_unevenly(Rank& rank) {
  Training training(rank, TRIREME_STRATEGY_ZERO3);
  training.options.flags = TRIREME_MODEL_FLAG_UNEVEN;
  training.shards.share = TRIREME_SHARE_NEVER;
  if (!training.make()) return;
  for (int step = 0; step <= rank.rank; ++step) {
    for (std::uint64_t unit = 0; unit < 3; ++unit) {
      if (!training.touch(unit)) return;
    }
    if (!training.step(1)) return;
  }
  std::uint64_t followed = 77;
  if (!attempt(rank, "join",
               [&] { return trireme_optimizer_join(training.optimizer(), &followed); })) {
    return;
  }
  training.expect(followed == (rank.rank == 0 ? 1u : 0u), "followed steps");
  training.holds(-3);
}

// ---- what else an optimizer does ----

void train_from_saved_state(Rank& rank) {
  Training training(rank, TRIREME_STRATEGY_ZERO1);
  trireme_sgd_options sgd = TRIREME_SGD_OPTIONS_INIT;
  sgd.momentum = 0.5;
  training.rule.rule = &sgd.base;
  static char saved[2][8192];
  std::uint64_t bytes = 0;
  if (!training.make() || !training.step(1)) return;
  if (!attempt(rank, "save",
               [&] {
                 return trireme_optimizer_save(training.optimizer(), saved[rank.rank],
                                               sizeof saved[0], &bytes);
               }) ||
      !training.step(4) ||
      !attempt(
          rank, "load",
          [&] { return trireme_optimizer_load(training.optimizer(), saved[rank.rank], bytes); }) ||
      !training.holds(-2)) {
    return;
  }
  if (training.step(1)) training.holds(-5);  // the former momentum is in there, too
}

// Means of squares that are all the same, and parameters of 0 that count as 2.
void train_with_rows_and_columns(Rank& rank) {
  Training training(rank, TRIREME_STRATEGY_ZERO2);
  trireme_adafactor_options adafactor = TRIREME_ADAFACTOR_OPTIONS_INIT;
  adafactor.min_parameter_rms = 2;
  training.rule.kind = TRIREME_RULE_ADAFACTOR;
  training.rule.rule = &adafactor.base;
  training.matrices = true;
  if (training.make() && training.step(1)) training.holds(-2);
}

void train_from_a_file(Rank& rank) {
  static char saved[2][8192];
  const char* const folder = std::getenv("TMPDIR");
  Training training(rank, TRIREME_STRATEGY_ZERO1);
  trireme_sgd_options sgd = TRIREME_SGD_OPTIONS_INIT;
  sgd.momentum = 0.5;
  training.rule.rule = &sgd.base;
  trireme_offload_options file = TRIREME_OFFLOAD_OPTIONS_INIT;
  file.path = folder != nullptr ? folder : "/tmp";
  training.rule.offload = &file;
  if (!training.make() || !training.step(1) || !attempt(rank, "save", [&] {
        return trireme_optimizer_save(training.optimizer(), saved[rank.rank], sizeof saved[0],
                                      nullptr);
      })) {
    return;
  }
  if (training.step(1)) training.holds(-5);
}

void train_on_parameters_in_a_file(Rank& rank) {
  static char saved[2][8192];
  const char* const folder = std::getenv("TMPDIR");
  Training training(rank, TRIREME_STRATEGY_ZERO3);
  trireme_offload_options file = TRIREME_OFFLOAD_OPTIONS_INIT;
  file.path = folder != nullptr ? folder : "/tmp";
  training.options.offload = &file;
  if (!training.make() || !training.step(1) || !training.holds(-2)) return;
  for (std::uint64_t unit = 0; unit < 2; ++unit) {
    if (!attempt(rank, "gather",
                 [&] { return trireme_model_gather_unit(training.model(), unit); }) ||
        !attempt(rank, "release",
                 [&] { return trireme_model_release_unit(training.model(), unit); })) {
      return;
    }
  }
  if (attempt(rank, "save", [&] {
        return trireme_optimizer_save(training.optimizer(), saved[rank.rank], sizeof saved[0],
                                      nullptr);
      })) {
    if (training.step(1)) training.holds(-4);
  }
}

// One model for each rank, and the norm of both: 3 * sqrt(333) on one and 4 * sqrt(333) on the
// other one. Before there is an optimizer the other rank knows nothing of this model, and is told
// nothing: that much is not refused.
void train_with_a_norm_of_all(Rank& rank) {
  const bool armed = is_victim;
  is_victim = false;
  trireme_communicator* own = nullptr;
  if (attempt(rank, "split", [&] {
        return trireme_communicator_split(rank.group, rank.rank, 0, nullptr, &own);
      })) {
    Training training(rank, own, TRIREME_STRATEGY_DATA_PARALLEL);
    training.clipping.max_norm = 1000;
    training.rule.norm_ranks = rank.group;
    training.replicas = 1;
    const float gradient = rank.rank == 0 ? 3 : 4;
    double norm = 0;
    bool well = training.make_model();
    is_victim = armed;
    well =
        well && training.make_optimizer() && training.step(gradient) && attempt(rank, "norm", [&] {
          return trireme_optimizer_get_gradient_norm(training.optimizer(), &norm);
        });
    if (well) {
      training.expect(norm * norm > 8324.999 && norm * norm < 8325.001, "norm");
      training.holds(-gradient);
    }
  }
  trireme_communicator_destroy(own);
}

// Two models on a mesh. Each rank has all parameters, whole along "tensor", and the norm counts
// them once. The mesh is made before anything is refused.
void train_on_a_mesh(Rank& rank) {
  const bool armed = is_victim;
  is_victim = false;
  const char* const names[] = {"data", "tensor"};
  const std::int32_t sizes[] = {1, 2};
  trireme_mesh_options options = TRIREME_MESH_OPTIONS_INIT;
  options.axis_names = names;
  options.axis_sizes = sizes;
  options.axis_count = 2;
  trireme_mesh* mesh = nullptr;
  if (attempt(rank, "mesh_create",
              [&] { return trireme_mesh_create(rank.group, &options, &mesh); })) {
    is_victim = armed;
    Training training(rank, TRIREME_STRATEGY_ZERO1);
    training.mesh = mesh;
    training.whole_on = "tensor";
    if (rank.victim()) Training::goes_on = -1;
    training.clipping.max_norm = 1000;
    double norm = 0;
    bool well = training.make_model() && attempt(rank, "check_replicas", [&] {
                  return trireme_model_check_replicas(training.model());
                });
    well = well && training.make_optimizer() && training.step(2) && attempt(rank, "norm", [&] {
             return trireme_optimizer_get_gradient_norm(training.optimizer(), &norm);
           });
    if (well) {
      training.expect(norm * norm > 1331.999 && norm * norm < 1332.001, "norm");
      training.holds(-2);
    }
  }
  trireme_mesh_destroy(mesh);
}

void train_and_compare(Rank& rank) {
  Training training(rank, TRIREME_STRATEGY_ZERO1);
  training.rule.check_every = 1;
  if (training.make() && training.step(1) && attempt(rank, "check_replicas", [&] {
        return trireme_model_check_replicas(training.model());
      })) {
    training.holds(-2);
  }
}

// All ranks refuse a training that does not fit, with the reason, and one that fits succeeds.
void train_within_a_limit(Rank& rank) {
  {
    Training training(rank, TRIREME_STRATEGY_ZERO1);
    training.options.memory_limit_bytes = 1000;
    if (!training.describe() || !attempt(rank, "seal above the limit", [&] {
          const trireme_status status = trireme_model_seal(training.model());
          if (status == TRIREME_OK) return trireme_status{TRIREME_ERROR_INTERNAL};
          const bool planned = std::strstr(trireme_last_error(), "memory_limit_bytes") != nullptr;
          // The reason itself may find no memory; then the code arrives alone.
          const bool wordless = rank.victim() && refusals.load() > 0 &&
                                status == TRIREME_ERROR_OUT_OF_MEMORY &&
                                std::strstr(trireme_last_error(), ": out of memory") != nullptr;
          return planned || wordless ? trireme_status{TRIREME_OK} : status;
        })) {
      return;
    }
  }
  Training training(rank, TRIREME_STRATEGY_ZERO1);
  training.options.memory_limit_bytes = 100'000;
  if (training.make() && training.step(1)) training.holds(-2);
}

// Layers without compute; every gradient is 1.
std::int32_t TRIREME_CALLCONV tell_loss(const trireme_layer_call* call, void*) {
  if (call->loss != nullptr) *call->loss = 1;
  return 0;
}

std::int32_t TRIREME_CALLCONV give_ones(const trireme_layer_call* call, void*) {
  auto* const gradient = static_cast<float*>(call->gradients[0]);
  for (std::uint64_t i = 0; i < call->parameter_counts[0]; ++i) gradient[i] = 1;
  return 0;
}

void train_by_layers(Rank& rank, const trireme_trainer_options& options) {
  Training training(rank, TRIREME_STRATEGY_ZERO3);
  if (!training.make()) return;
  trireme_layer layers[3];
  for (std::uint64_t number = 0; number < 3; ++number) {
    trireme_layer layer = TRIREME_LAYER_INIT;
    layer.name = "a layer of a name that is too long to be kept in place";
    layer.first_parameter = number;
    layer.parameter_count = 1;
    layer.forward = tell_loss;
    layer.backward = give_ones;
    layer.output_bytes = layer.saved_bytes = 100;
    layers[number] = layer;
  }
  trireme_trainer* trainer = nullptr;
  if (attempt(rank, "trainer_create",
              [&] {
                return trireme_trainer_create(training.optimizer(), layers, 3, &options, &trainer);
              }) &&
      attempt(rank, "trainer_step",
              [&] { return trireme_trainer_step(trainer, nullptr, nullptr); })) {
    training.holds(-2);
  }
  trireme_trainer_destroy(trainer);
}

void train_with_a_trainer(Rank& rank) {
  trireme_trainer_options options = TRIREME_TRAINER_OPTIONS_INIT;
  options.checkpoint_every = 1;
  train_by_layers(rank, options);
}

void train_with_activations_in_a_file(Rank& rank) {
  const char* const folder = std::getenv("TMPDIR");
  trireme_trainer_options options = TRIREME_TRAINER_OPTIONS_INIT;
  trireme_offload_options file = TRIREME_OFFLOAD_OPTIONS_INIT;
  file.path = folder != nullptr ? folder : "/tmp";
  file.buffer_bytes = 8192;  // of three layers' pages
  options.offload = &file;
  train_by_layers(rank, options);
}

constexpr Scenario training_of(const char* name, void (*body)(Rank&), int ranks = 2,
                               bool has_groups = false) {
  return {name, body, true, ranks, has_groups, false};
}

constexpr Scenario kScenarios[] = {
    training_of("training", train_replicated),
    training_of("sharded training", train_sharded),
    training_of("one copy of zero3", train_sharing_all),
    training_of("one copy of zero1", train_sharing_parameters),
    training_of("hybrid_shard", train_hybrid_sharing, 4, true),
    training_of("hybrid_shard apart", train_hybrid_apart, 4, true),
    training_of("hooks", train_hooked_replicas),
    training_of("hooks of shards", train_hooked_shards),
    training_of("one sweep", train_in_one_sweep),
    training_of("views", train_with_views),
    training_of("another order", train_replicas_in_order),
    training_of("another order of shards", train_shards_in_order),
    training_of("join", train_unevenly),
    training_of("saved state", train_from_saved_state),
    training_of("rows and columns", train_with_rows_and_columns),
    training_of("state in a file", train_from_a_file),
    training_of("parameters in a file", train_on_parameters_in_a_file),
    training_of("norm_ranks", train_with_a_norm_of_all, 2, true),
    training_of("mesh", train_on_a_mesh, 2, true),
    training_of("check_replicas", train_and_compare),
    training_of("memory limit", train_within_a_limit),
    training_of("trainer", train_with_a_trainer),
    training_of("activations in a file", train_with_activations_in_a_file),
};

const char* only = nullptr;  // the scenario that was asked for

void a_refused_request_fails_a_training_and_nothing_else(void**) {
  for (const Scenario& scenario : kScenarios) {
    if (only == nullptr || std::strcmp(only, scenario.name) == 0) sweep_both(scenario);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) only = argv[1];
  const CMUnitTest tests[] = {
      cmocka_unit_test(a_refused_request_fails_a_training_and_nothing_else),
  };
  return cmocka_run_group_tests_name("out of memory in training", tests, nullptr, nullptr);
}

#endif
