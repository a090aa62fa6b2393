/*
 * kill -9 of one rank at every failpoint of a training: while models are sealed and share their
 * parameters; while units are gathered ahead, gradients are reduced, parameters are updated and
 * given out; while ranks follow others, save, load and compare. A healthy run of each training
 * counts the visits first, so no point can be forgotten. Each survivor gets PEER_LOST that names
 * the victim, ends its model, shrinks and trains on; nothing is left.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
/* cmocka.h comes after those it needs. */
#include <cmocka.h>

#include "options.h"
#include "processes.h"

#define F32 TRIREME_DTYPE_F32
#define PROMPT_NS (250ull * 1000 * 1000)
enum { UNITS = 5, STEPS = 3, ELEMENTS = 7 + 40 + 3 + 25 + 11, MOST_TIMES = 8192 };
/* So many times larger, most buckets are reduced by an all-reduce. */
enum { LARGE = 700, MOST_ELEMENTS = LARGE * ELEMENTS };

static const uint64_t kSizes[UNITS] = {7, 40, 3, 25, 11};

/* Where training can be broken off, all in the library's own list; the gate of failpoints keeps
 * this one whole. Other points have tests of their own. */
static const char *const kPoints[] = {
    "agree.before_exchange",    "agree.after_exchange",    "agree.before_texts",
    "seal.between_groups",      "seal.before_reshard",     "seal.before_allocate",
    "share.before_key",         "share.after_key",         "share.after_map",
    "set.before_broadcast",     "set.after_broadcast",     "set.mid_write",
    "unit.before_gather",       "unit.after_gather",       "unit.before_prefetch",
    "unit.after_prefetch",      "unit.before_wait",        "uneven.after_enter",
    "uneven.before_look",       "bucket.before_launch",    "bucket.after_launch",
    "bucket.after_wait",        "bucket.before_sweep",     "bucket.before_ask",
    "bucket.before_update",     "step.before_reductions",  "step.after_reductions",
    "step.before_contributors", "step.before_answers",     "step.before_agree",
    "step.before_update",       "step.before_largest",     "step.before_squares",
    "step.before_norms",        "step.before_matrices",    "step.mid_update",
    "step.after_update",        "step.mid_give",           "step.after_give",
    "step.before_return",       "follow.before_step",      "follow.after_step",
    "replicas.before_exchange", "replicas.after_exchange", "save.before_copy",
    "save.after_copy",          "load.before_agree",       "load.before_copy",
    "load.after_copy",          "all_reduce.mid_write",    "fold.before_publish",
    "fold.after_publish",       "fold.before_move",        "fold.mid_move",
    "fold.after_move",          "fold.before_leave",       "buffer.before_allocate",
    "buffer.after_allocate",    "leave.before_mark",       "leave.after_mark",
};
enum { POINTS = sizeof kPoints / sizeof kPoints[0] };

/* One training, with all that it uses. */
struct scenario {
    const char *name;
    trireme_strategy strategy;
    int world_size;
    uint32_t shard_ranks;
    uint32_t reshard_ranks;
    uint32_t leaves;
    int32_t share;
    int32_t unused;
    bool uneven; /* the last rank runs out of data first, and follows */
    bool hook;
    bool own_rule;
    bool adafactor; /* of matrices */
    bool muon;      /* of matrices where that can be */
    bool one_sweep;
    bool in_backward;
    bool large;     /* LARGE times as many elements */
    bool disagrees; /* rank 0 wants other buckets, so no rank gets a model */
    double max_norm;
    uint64_t check_every;
};

static const struct scenario kScenarios[] = {
    {.name = "zero3, copied",
     .strategy = TRIREME_STRATEGY_ZERO3,
     .world_size = 3,
     .share = TRIREME_SHARE_NEVER,
     .max_norm = 1},
    {.name = "zero3, copied, gathered again by two",
     .strategy = TRIREME_STRATEGY_ZERO3,
     .world_size = 4,
     .reshard_ranks = 2,
     .share = TRIREME_SHARE_NEVER},
    {.name = "zero3, one copy",
     .strategy = TRIREME_STRATEGY_ZERO3,
     .world_size = 4,
     .check_every = 1},
    {.name = "hybrid_shard, copied",
     .strategy = TRIREME_STRATEGY_HYBRID_SHARD,
     .world_size = 4,
     .shard_ranks = 2,
     .share = TRIREME_SHARE_NEVER,
     .check_every = 2},
    {.name = "hybrid_shard, a copy for each group",
     .strategy = TRIREME_STRATEGY_HYBRID_SHARD,
     .world_size = 4,
     .shard_ranks = 2,
     .max_norm = 1},
    {.name = "zero3, uneven",
     .strategy = TRIREME_STRATEGY_ZERO3,
     .world_size = 3,
     .share = TRIREME_SHARE_NEVER,
     .uneven = true},
    {.name = "data_parallel, uneven with a hook",
     .strategy = TRIREME_STRATEGY_DATA_PARALLEL,
     .world_size = 3,
     .uneven = true,
     .hook = true,
     .check_every = 1},
    {.name = "zero2, leaves",
     .strategy = TRIREME_STRATEGY_ZERO2,
     .world_size = 3,
     .leaves = 5,
     .hook = true,
     .adafactor = true},
    {.name = "zero1, one sweep",
     .strategy = TRIREME_STRATEGY_ZERO1,
     .world_size = 2,
     .one_sweep = true},
    {.name = "zero1, one copy, parameters without gradients",
     .strategy = TRIREME_STRATEGY_ZERO1,
     .world_size = 3,
     .share = TRIREME_SHARE_ALWAYS,
     .unused = TRIREME_UNUSED_SKIP},
    {.name = "data_parallel, large buckets",
     .strategy = TRIREME_STRATEGY_DATA_PARALLEL,
     .world_size = 3,
     .large = true},
    {.name = "data_parallel, a rule of the caller",
     .strategy = TRIREME_STRATEGY_DATA_PARALLEL,
     .world_size = 2,
     .own_rule = true},
    {.name = "zero2, whole matrices",
     .strategy = TRIREME_STRATEGY_ZERO2,
     .world_size = 3,
     .muon = true},
    {.name = "data_parallel, whole matrices",
     .strategy = TRIREME_STRATEGY_DATA_PARALLEL,
     .world_size = 2,
     .muon = true},
    {.name = "zero3, one copy, updated in backward",
     .strategy = TRIREME_STRATEGY_ZERO3,
     .world_size = 3,
     .in_backward = true},
    {.name = "zero2, leaves, updated in backward",
     .strategy = TRIREME_STRATEGY_ZERO2,
     .world_size = 2,
     .leaves = 3,
     .hook = true,
     .own_rule = true,
     .in_backward = true},
    {.name = "ranks that disagree",
     .strategy = TRIREME_STRATEGY_ZERO3,
     .world_size = 3,
     .disagrees = true},
};
enum { SCENARIOS = sizeof kScenarios / sizeof kScenarios[0] };

struct trial {
    const struct scenario *scenario;
    int victim; /* -1: none dies, visits are counted */
    char failpoint[96];
    char rendezvous[64];
    uint64_t *hits; /* of each failpoint on each rank, shared with the parent */
    float *trained; /* the parameters of a healthy run, shared with the parent */
};

static uint64_t times[MOST_TIMES];
static int time_count;
static int trial_count;

static uint64_t size_of_unit(const struct scenario *s, int unit) {
    return kSizes[unit] * (s->large ? LARGE : 1);
}

static uint64_t elements_of(const struct scenario *s) {
    return s->large ? MOST_ELEMENTS : ELEMENTS;
}

/* ---- the work of a process ---- */

/* Every call that needs the others: notes the time and the outcome. */
#define CALL(o, call)                                                  \
    do {                                                               \
        if ((o)->status == TRIREME_OK) {                               \
            (o)->entered_ns = monotonic_ns();                          \
            const trireme_status status_ = (call);                     \
            (o)->returned_ns = monotonic_ns();                         \
            if (status_ != TRIREME_OK) {                               \
                keep_error((o), status_);                              \
                snprintf((o)->text, sizeof(o)->text, "%.200s", #call); \
            } else {                                                   \
                ++(o)->rounds;                                         \
            }                                                          \
        }                                                              \
    } while (0)

static int32_t TRIREME_CALLCONV halve(const trireme_bucket *bucket, void *user_data) {
    (void)user_data;
    float *const g = bucket->data;
    for (uint64_t i = 0; i < bucket->count; ++i) g[i] *= 0.5f;
    return 0;
}

static int32_t TRIREME_CALLCONV descend(const trireme_update *update, void *user_data) {
    (void)user_data;
    float *const p = update->parameters;
    const float *const g = update->gradients;
    for (uint64_t i = 0; i < update->count; ++i) p[i] -= 0.125f * g[i];
    return 0;
}

static void make_model(const struct scenario *s, trireme_communicator *group, int rank,
                       struct outcome *o, trireme_model **model, trireme_optimizer **optimizer) {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = s->strategy;
    units_of(&options)->minimum_bytes = 1;
    buckets_of(&options)->bytes = s->disagrees && rank == 0 ? 150 : 100;
    shards_of(&options)->ranks = s->shard_ranks;
    units_of(&options)->reshard_ranks = s->reshard_ranks;
    options.leaves = s->leaves;
    shards_of(&options)->share = s->share;
    options.unused = s->unused;
    options.flags = (s->uneven ? TRIREME_MODEL_FLAG_UNEVEN : 0) |
                    (s->in_backward ? TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD : 0);
    buckets_of(&options)->hook = s->hook ? halve : NULL;
    CALL(o, trireme_model_create(group, &options, model));
    static const char *const names[UNITS] = {"a", "b", "c", "d", "e"};
    for (int i = 0; i < UNITS; ++i) {
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = names[i];
        parameter.dtype = F32;
        const uint64_t size = size_of_unit(s, i), rows = s->muon ? 2 : size;
        const uint64_t shape[] = {rows, size / rows}, *const flat = &size;
        const bool matrix = s->adafactor || (s->muon && size % 2 == 0);
        parameter.dimensions = matrix ? 2 : 1;
        parameter.shape = matrix ? shape : flat;
        CALL(o, trireme_model_add_parameter(*model, &parameter, NULL));
    }
    CALL(o, trireme_model_seal(*model));
    static float start[MOST_ELEMENTS];
    for (uint64_t i = 0; i < elements_of(s); ++i) start[i] = (float)i / 8;
    int32_t n = 0;
    CALL(o, trireme_communicator_get_world_size(group, &n));
    CALL(o, trireme_model_broadcast_parameters(*model, start, elements_of(s), F32, n - 1));
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = s->own_rule ? TRIREME_RULE_USER : TRIREME_RULE_ADAMW;
    if (s->adafactor) rule.kind = TRIREME_RULE_ADAFACTOR;
    if (s->muon) rule.kind = TRIREME_RULE_MUON;
    if (s->own_rule) user_rule_of(&rule)->update = descend;
    rule.flags = s->one_sweep ? TRIREME_OPTIMIZER_FLAG_ONE_SWEEP : 0;
    clipping_of(&rule)->max_norm = s->max_norm;
    rule.check_every = s->check_every;
    CALL(o, trireme_optimizer_create(*model, &rule, optimizer));
}

static void visit_units(struct outcome *o, trireme_model *model, bool up) {
    for (int k = 0; k < UNITS; ++k) {
        const uint64_t unit = (uint64_t)(up ? k : UNITS - 1 - k);
        CALL(o, trireme_model_gather_unit(model, unit));
        CALL(o, trireme_model_release_unit(model, unit));
    }
}

static void make_step(const struct scenario *s, struct outcome *o, trireme_model *model,
                      trireme_optimizer *optimizer, int rank, int step) {
    trireme_model_info info = TRIREME_MODEL_INFO_INIT;
    CALL(o, trireme_model_get_info(model, &info));
    const uint32_t passes = s->leaves > 0 ? info.micro_batches : 1;
    for (uint32_t pass = 0; pass < passes && o->status == TRIREME_OK; ++pass) {
        uint32_t leaf = (uint32_t)rank;
        if (s->leaves > 0) CALL(o, trireme_model_get_leaf(model, pass, &leaf));
        visit_units(o, model, true);
        if (leaf == UINT32_MAX) {
            visit_units(o, model, false);
            continue;
        }
        CALL(o, trireme_model_begin_backward(model, 0));
        for (int unit = UNITS - 1; unit >= 0; --unit) {
            static float gradient[MOST_ELEMENTS];
            const uint64_t size = size_of_unit(s, unit);
            for (uint64_t i = 0; i < size; ++i) {
                gradient[i] = (float)((int)(i + leaf * 3) % 7 + step - 3);
            }
            CALL(o, trireme_model_gather_unit(model, (uint64_t)unit));
            if (s->unused != TRIREME_UNUSED_SKIP || unit != step) {
                CALL(o, trireme_model_gradient_ready(model, (uint64_t)unit, gradient, size, F32));
            }
            CALL(o, trireme_model_release_unit(model, (uint64_t)unit));
        }
        CALL(o, trireme_model_end_backward(model));
    }
    CALL(o, trireme_optimizer_step(optimizer));
}

static void save_and_load(struct outcome *o, trireme_optimizer *optimizer) {
    uint64_t bytes = 0;
    CALL(o, trireme_optimizer_get_saved_bytes(optimizer, &bytes));
    void *const state = malloc(bytes + 1);
    if (state == NULL) _exit(92);
    CALL(o, trireme_optimizer_save(optimizer, state, bytes, NULL));
    CALL(o, trireme_optimizer_load(optimizer, state, bytes));
    free(state);
}

/* A whole training; `values` are its parameters, if all went well. */
static void train(const struct scenario *s, trireme_communicator *group, int rank,
                  struct outcome *o, float *values) {
    trireme_model *model = NULL;
    trireme_optimizer *optimizer = NULL;
    int32_t n = 0;
    CALL(o, trireme_communicator_get_world_size(group, &n));
    make_model(s, group, rank, o, &model, &optimizer);
    const bool short_of_data = s->uneven && rank == n - 1;
    for (int step = 0; step < STEPS; ++step) {
        if (step == STEPS - 1 && short_of_data) break;
        make_step(s, o, model, optimizer, rank, step);
        if (step == 0) save_and_load(o, optimizer);
    }
    if (s->uneven) CALL(o, trireme_optimizer_join(optimizer, NULL));
    CALL(o, trireme_model_check_replicas(model));
    CALL(o, trireme_model_gather_parameters(model, values, elements_of(s), F32));
    CALL(o, trireme_barrier(group, NULL));
    /* Whatever comes later fails the same way, and nothing of it waits. */
    if (o->status != TRIREME_OK && model != NULL) {
        o->later = trireme_model_broadcast_parameters(model, values, elements_of(s), F32, 0);
    }
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

/* Those who are left train another model, whose numbers are easy to know: the rule takes 1/8 of the
 * average, which is that of 1 to n. */
static void train_on(trireme_communicator *group, struct outcome *o) {
    trireme_communicator *smaller = NULL;
    for (int tries = 0; tries < 8; ++tries) {
        o->again = trireme_communicator_shrink(group, NULL, &smaller);
        if (o->again != TRIREME_ERROR_PEER_LOST) break;
    }
    if (o->again != TRIREME_OK) return;
    int32_t n = 0, rank = 0;
    trireme_model *model = NULL;
    trireme_optimizer *optimizer = NULL;
    struct outcome second = {0};
    CALL(&second, trireme_communicator_get_world_size(smaller, &n));
    CALL(&second, trireme_communicator_get_rank(smaller, &rank));
    const struct scenario plain = {.strategy = TRIREME_STRATEGY_ZERO3, .own_rule = true};
    make_model(&plain, smaller, rank, &second, &model, &optimizer);
    float gradient[ELEMENTS], values[ELEMENTS];
    for (int i = 0; i < ELEMENTS; ++i) gradient[i] = (float)(rank + 1);
    CALL(&second, trireme_model_accumulate_flat(model, gradient, ELEMENTS, F32, 0));
    CALL(&second, trireme_optimizer_step(optimizer));
    CALL(&second, trireme_model_gather_parameters(model, values, ELEMENTS, F32));
    CALL(&second, trireme_barrier(smaller, NULL));
    for (int i = 0; i < ELEMENTS && second.status == TRIREME_OK; ++i) {
        o->wrong |= values[i] != (float)i / 8 - 0.125f * ((float)(n + 1) / 2);
    }
    o->numbers[0] = n;
    o->again = second.status;
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    trireme_communicator_destroy(smaller);
}

static void count_all_visits(void) {
    static char text[POINTS * 40];
    size_t length = 0;
    for (int i = 0; i < POINTS; ++i) {
        length += (size_t)snprintf(text + length, sizeof text - length, "%s%s=off",
                                   i > 0 ? ";" : "", kPoints[i]);
        if (length >= sizeof text) _exit(93);
    }
    if (trireme_failpoint_set(text) != TRIREME_OK) _exit(91);
}

static void train_until_it_fails(int rank, void *context, struct outcome *o) {
    const struct trial *const trial = context;
    const struct scenario *const s = trial->scenario;
    trireme_communicator *const group =
        join_process(rank, s->world_size, trial->rendezvous, PATIENT_NS);
    CALL(o, trireme_barrier(group, NULL));
    if (trial->victim < 0) count_all_visits();
    if (trial->victim == rank && trireme_failpoint_set(trial->failpoint) != TRIREME_OK) _exit(91);
    static float values[MOST_ELEMENTS];
    train(s, group, rank, o, values);
    CALL(o, trireme_barrier(group, NULL)); /* all ranks have left the model's groups */
    if (trial->victim < 0) {
        for (int i = 0; i < POINTS; ++i) {
            uint64_t *const hits = &trial->hits[rank * POINTS + i];
            if (trireme_failpoint_get_hits(kPoints[i], hits) != TRIREME_OK) _exit(94);
        }
        memcpy(trial->trained + rank * MOST_ELEMENTS, values, sizeof values);
    } else if (o->status == TRIREME_OK) {
        o->wrong |= memcmp(values, trial->trained, sizeof values) != 0;
    }
    if (o->status == TRIREME_ERROR_PEER_LOST) train_on(group, o);
    trireme_communicator_destroy(group);
}

/* ---- what the parent makes of it ---- */

static void print_outcomes(const struct trial *trial, const struct processes *processes) {
    print_error("%s, victim %d, %s\n", trial->scenario->name, trial->victim, trial->failpoint);
    for (int rank = 0; rank < trial->scenario->world_size; ++rank) {
        const struct outcome *const o = &processes->outcomes[rank];
        print_error(
            "  rank %d: exit %d, signal %d%s%s, %d calls; %s: %s; later %s, again %s, "
            "%lld ranks\n",
            rank, o->exit_code, o->signal, o->hung ? ", hung" : "", o->wrong ? ", wrong" : "",
            o->rounds, o->text, o->message, trireme_status_name(o->later),
            trireme_status_name(o->again), (long long)o->numbers[0]);
    }
}

#define CHECK(condition, what)                                   \
    do {                                                         \
        if (!(condition)) {                                      \
            print_outcomes(trial, processes);                    \
            fail_msg("rank %d: %s: %s", rank, what, #condition); \
        }                                                        \
    } while (0)

static void check_survivors(const struct trial *trial, const struct processes *processes) {
    const struct outcome *const victim = &processes->outcomes[trial->victim];
    for (int rank = 0; rank < trial->scenario->world_size; ++rank) {
        const struct outcome *const o = &processes->outcomes[rank];
        CHECK(!o->hung, "hangs");
        if (rank == trial->victim) {
            CHECK(o->signal == SIGKILL, "was to die there");
            continue;
        }
        CHECK(o->exit_code == 0, "ended");
        CHECK(!o->wrong, "a wrong number was called right");
        CHECK(o->status == TRIREME_ERROR_PEER_LOST, "was to hear of it");
        CHECK(blames_only(&o->info, trial->victim), "blames another");
        CHECK(o->later != TRIREME_OK || strstr(o->text, "barrier") != NULL, "goes on");
        CHECK(o->again == TRIREME_OK, "does not train again");
        CHECK(o->numbers[0] == trial->scenario->world_size - 1, "trains with others");
        /* From the victim's last sign of life, or from when this rank began to need it. */
        const uint64_t since =
            victim->entered_ns > o->entered_ns ? victim->entered_ns : o->entered_ns;
        if (time_count < MOST_TIMES) {
            times[time_count++] = o->returned_ns > since ? o->returned_ns - since : 0;
        }
    }
    ++trial_count;
}

static void run_trial(struct trial *trial, struct processes *processes) {
    unique_host_rendezvous(trial->rendezvous, sizeof trial->rendezvous);
    start_processes(processes, trial->scenario->world_size, train_until_it_fails, trial);
    wait_processes(processes);
}

static void *shared_memory(size_t bytes) {
    void *const memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    return memory;
}

static bool died_at[POINTS];

/* No rank dies: all train the same. Returns how often each rank was at each point. */
static void count_visits(struct trial *trial) {
    struct processes all, *const processes = &all;
    trial->victim = -1;
    run_trial(trial, processes);
    for (int rank = 0; rank < trial->scenario->world_size; ++rank) {
        const struct outcome *const o = &processes->outcomes[rank];
        CHECK(o->exit_code == 0 && !o->hung, "ended");
        CHECK(o->status == (trial->scenario->disagrees ? TRIREME_ERROR_MISMATCH : TRIREME_OK),
              "was healthy");
        CHECK(memcmp(trial->trained, trial->trained + rank * MOST_ELEMENTS,
                     MOST_ELEMENTS * sizeof(float)) == 0,
              "trained something else");
    }
    free_processes(processes);
}

static void kill_at(struct trial *trial, const char *name, uint64_t visit, int victim) {
    struct processes processes;
    trial->victim = victim;
    snprintf(trial->failpoint, sizeof trial->failpoint, "%s=kill@%llu", name,
             (unsigned long long)visit);
    run_trial(trial, &processes);
    check_survivors(trial, &processes);
    free_processes(&processes);
}

static void survivors_of_a_death_in_training_name_the_victim_and_train_on(void **state) {
    (void)state;
    const bool is_long = getenv("TRIREME_TEST_LONG") != NULL;
    unsigned turn = 0;
    for (int i = 0; i < SCENARIOS; ++i) {
        const struct scenario *const s = &kScenarios[i];
        struct trial trial = {.scenario = s};
        trial.hits = shared_memory(MOST_PROCESSES * POINTS * sizeof *trial.hits);
        trial.trained = shared_memory(MOST_PROCESSES * MOST_ELEMENTS * sizeof *trial.trained);
        count_visits(&trial);
        for (int point = 0; point < POINTS; ++point) {
            for (int k = 0; k < s->world_size; ++k) {
                const int victim = (k + (int)turn) % s->world_size;
                const uint64_t visits = trial.hits[victim * POINTS + point];
                if (visits == 0) continue;
                /* First, last and one between. The short run takes one of them at each point. Where
                 * all is slow, it takes only the points at which no rank has died. */
                const uint64_t chosen[] = {1, visits, (visits + 1) / 2};
                for (unsigned choice = 0; choice < 3; ++choice) {
                    if (!is_long && choice != turn % 3) continue;
                    if (is_quick() && died_at[point]) continue;
                    kill_at(&trial, kPoints[point], chosen[choice], victim);
                    died_at[point] = true;
                }
                if (!is_long) break;
            }
            ++turn;
        }
        munmap(trial.hits, MOST_PROCESSES * POINTS * sizeof *trial.hits);
        munmap(trial.trained, MOST_PROCESSES * MOST_ELEMENTS * sizeof *trial.trained);
    }
    for (int point = 0; point < POINTS; ++point) {
        if (!died_at[point]) fail_msg("no training passes %s", kPoints[point]);
    }
}

static void tell_how_soon(void **state) {
    (void)state;
    assert_true(time_count > 0);
    int prompt = 0;
    for (int i = 0; i < time_count; ++i) prompt += times[i] < PROMPT_NS;
    for (int i = 1; i < time_count; ++i) { /* insertion sort: a few thousand numbers */
        const uint64_t value = times[i];
        int at = i;
        for (; at > 0 && times[at - 1] > value; --at) times[at] = times[at - 1];
        times[at] = value;
    }
    printf(
        "kill: training: %d trials, %d survivors, 0 hangs; time to detection p50 %.2f ms, "
        "p99 %.2f ms, max %.2f ms; %d of %d within 250 ms\n",
        trial_count, time_count, (double)times[time_count / 2] / 1e6,
        (double)times[time_count * 99 / 100] / 1e6, (double)times[time_count - 1] / 1e6, prompt,
        time_count);
}

/* ---- nothing is left ---- */

static int remember_first_files(void **state) {
    (void)state;
    remember_files();
    return 0;
}

static void no_death_leaves_a_file(void **state) {
    (void)state;
    assert_true(trial_count > 0);
    assert_true(no_file_is_left());
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(survivors_of_a_death_in_training_name_the_victim_and_train_on),
        cmocka_unit_test(tell_how_soon),
        cmocka_unit_test(no_death_leaves_a_file),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("kill_training", tests, remember_first_files, NULL);
}
