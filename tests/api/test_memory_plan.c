/*
 * Memory as planned, seen from outside: ranks are processes, and their parent asks the kernel what
 * each holds (Pss: pages that several processes map count once) before there is a model, during
 * steps and after them. The model adds the memory that trireme_model_get_memory() planned, within 5
 * %.
 *
 * 8 M parameters; 200 M for zero3 with TRIREME_TEST_LONG. With an argument N: N million, and
 * every strategy: the table of docs/strategies.md.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
/* cmocka.h comes after those it needs. */
#include <cmocka.h>

#include "options.h"
#include "processes.h"

#define F32 TRIREME_DTYPE_F32
#define MIB (1024.0 * 1024.0)
/* A group's own memory, half of it a rank's: what peers cannot read in place goes through 8 pieces
 * of 256 KiB for each of two ranks. It is the group's, so no plan of a model has it. */
#define GROUP_BYTES (2 * MIB)
enum { RANKS = 4, UNITS = 16, STEPS = 3 };

/* The numbers of a rank's outcome. */
enum { PHASE, PLANNED, WORKING, STEP_US };
/* Where it is: it waits at READY and HELD until the parent has looked. */
enum { READY = 1, TRAINS, HELD, DONE };

struct kind {
    const char *name;
    trireme_strategy strategy;
    int32_t share;
    uint32_t shard_ranks;
    int bytes;  /* of parameters, gradients and AdamW's state of a rank for each parameter of the
                   model, times RANKS */
    int groups; /* that the model makes for itself */
};

/* From the table in model.h: 4 bytes each for parameters and gradients, 8 for the state. */
static const struct kind kKinds[] = {
    {"zero3, copied", TRIREME_STRATEGY_ZERO3, TRIREME_SHARE_NEVER, 0, 16, 0},
    {"zero3, one copy", TRIREME_STRATEGY_ZERO3, TRIREME_SHARE_AUTO, 0, 16, 0},
    {"hybrid_shard of 2, copied", TRIREME_STRATEGY_HYBRID_SHARD, TRIREME_SHARE_NEVER, 2, 20, 2},
    {"hybrid_shard of 2, one copy each", TRIREME_STRATEGY_HYBRID_SHARD, TRIREME_SHARE_AUTO, 2, 20,
     2},
    {"zero2", TRIREME_STRATEGY_ZERO2, TRIREME_SHARE_NEVER, 0, 28, 0},
    {"zero2, one copy", TRIREME_STRATEGY_ZERO2, TRIREME_SHARE_ALWAYS, 0, 16, 0},
    {"zero1", TRIREME_STRATEGY_ZERO1, TRIREME_SHARE_NEVER, 0, 40, 0},
    {"zero1, one copy", TRIREME_STRATEGY_ZERO1, TRIREME_SHARE_ALWAYS, 0, 28, 0},
    {"data_parallel", TRIREME_STRATEGY_DATA_PARALLEL, TRIREME_SHARE_NEVER, 0, 64, 0},
};
enum { KINDS = sizeof kKinds / sizeof kKinds[0], ZERO3_KINDS = 2 };

struct job {
    const struct kind *kind;
    uint64_t parameters;
    char rendezvous[64];
};

/* ---- the work of a process ---- */

#define MUST(call)                                                        \
    do {                                                                  \
        const trireme_status status_ = (call);                            \
        if (status_ != TRIREME_OK) {                                      \
            keep_error(o, status_);                                       \
            snprintf(o->text, sizeof o->text, "%.200s", #call);           \
            __atomic_store_n(&o->numbers[PHASE], DONE, __ATOMIC_RELEASE); \
            _exit(1);                                                     \
        }                                                                 \
    } while (0)

/* Stays in a phase until the parent sets the next one. */
static void wait_in(struct outcome *o, int64_t phase) {
    __atomic_store_n(&o->numbers[PHASE], phase, __ATOMIC_RELEASE);
    const uint64_t end = monotonic_ns() + PATIENT_NS;
    while (__atomic_load_n(&o->numbers[PHASE], __ATOMIC_ACQUIRE) == phase) {
        if (monotonic_ns() > end) _exit(2);
        sleep_ms(2);
    }
}

static void make_step(struct outcome *o, trireme_model *model, trireme_optimizer *optimizer,
                      const float *gradient, uint64_t size) {
    float sum = 0; /* reads every parameter, as a program's forward does */
    for (uint64_t unit = 0; unit < UNITS; ++unit) {
        void *data = NULL;
        MUST(trireme_model_gather_unit(model, unit));
        MUST(trireme_model_get_parameter_data(model, unit, &data, NULL));
        for (uint64_t i = 0; i < size; ++i) sum += ((const float *)data)[i];
        MUST(trireme_model_release_unit(model, unit));
    }
    if (sum != sum) _exit(3);
    MUST(trireme_model_begin_backward(model, 0));
    for (uint64_t unit = UNITS; unit-- > 0;) {
        MUST(trireme_model_gather_unit(model, unit));
        MUST(trireme_model_gradient_ready(model, unit, gradient, size, F32));
        MUST(trireme_model_release_unit(model, unit));
    }
    MUST(trireme_model_end_backward(model));
    MUST(trireme_optimizer_step(optimizer));
}

static void train(int rank, void *context, struct outcome *o) {
    const struct job *const job = context;
    const uint64_t size = job->parameters / UNITS;
    trireme_communicator *const group = join_process(rank, RANKS, job->rendezvous, PATIENT_NS);
    MUST(trireme_barrier(group, NULL));
    float *const gradient = malloc(size * sizeof *gradient);
    if (gradient == NULL) _exit(92);
    for (uint64_t i = 0; i < size; ++i) gradient[i] = (float)(i % 1000) * 1e-3f;
    wait_in(o, READY);

    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = job->kind->strategy;
    shards_of(&options)->share = job->kind->share;
    shards_of(&options)->ranks = job->kind->shard_ranks;
    buckets_of(&options)->bytes = size * sizeof(float);
    trireme_model *model = NULL;
    MUST(trireme_model_create(group, &options, &model));
    for (int unit = 0; unit < UNITS; ++unit) {
        char name[16];
        snprintf(name, sizeof name, "layer%d", unit);
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = name;
        parameter.dtype = F32;
        parameter.dimensions = 1;
        parameter.shape = &size;
        MUST(trireme_model_add_parameter(model, &parameter, NULL));
    }
    MUST(trireme_model_seal(model));
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_ADAMW;
    trireme_optimizer *optimizer = NULL;
    MUST(trireme_optimizer_create(model, &rule, &optimizer));
    uint64_t best = UINT64_MAX;
    for (int step = 0; step < STEPS; ++step) {
        const uint64_t begin = monotonic_ns();
        make_step(o, model, optimizer, gradient, size);
        const uint64_t took = monotonic_ns() - begin;
        if (took < best) best = took;
    }
    trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
    MUST(trireme_model_get_memory(model, &memory));
    o->numbers[PLANNED] = (int64_t)(memory.planned_parameters + memory.planned_gradients +
                                    memory.planned_optimizer_state + memory.planned_working);
    o->numbers[WORKING] = (int64_t)memory.planned_working;
    o->numbers[STEP_US] = (int64_t)(best / 1000);
    MUST(trireme_barrier(group, NULL));
    wait_in(o, HELD);
    free(gradient);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    trireme_communicator_destroy(group);
    __atomic_store_n(&o->numbers[PHASE], DONE, __ATOMIC_RELEASE);
}

/* ---- what the parent sees ---- */

/* A line "NAME: N kB" of a file in /proc, in bytes; 0 if the process has ended. */
static double read_kilobytes(pid_t process, const char *file, const char *name) {
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/%ld/%s", (long)process, file);
    FILE *const in = fopen(path, "r");
    if (in == NULL) return 0;
    double bytes = 0;
    const size_t length = strlen(name);
    while (fgets(line, sizeof line, in) != NULL) {
        if (strncmp(line, name, length) == 0 && line[length] == ':') {
            bytes = strtod(line + length + 1, NULL) * 1024;
        }
    }
    fclose(in);
    return bytes;
}

static double held_by(pid_t process) {
    return read_kilobytes(process, "smaps_rollup", "Pss");
}

/* Stops the ranks, reads what each holds, and lets them go on; answers the sum. Ranks that went on
 * between two readings would map pages of those read before, and a page would count twice. */
static double read_all(const struct processes *ranks, double held[RANKS]) {
    double sum = 0;
    siginfo_t info;
    for (int rank = 0; rank < RANKS; ++rank) kill(ranks->ids[rank], SIGSTOP);
    for (int rank = 0; rank < RANKS; ++rank) {
        waitid(P_PID, (id_t)ranks->ids[rank], &info, WSTOPPED | WEXITED | WNOWAIT);
    }
    for (int rank = 0; rank < RANKS; ++rank) sum += held[rank] = held_by(ranks->ids[rank]);
    for (int rank = 0; rank < RANKS; ++rank) kill(ranks->ids[rank], SIGCONT);
    return sum;
}

static bool all_at(const struct processes *ranks, int64_t phase) {
    for (int rank = 0; rank < RANKS; ++rank) {
        const int64_t at = __atomic_load_n(&ranks->outcomes[rank].numbers[PHASE], __ATOMIC_ACQUIRE);
        if (at != phase) return false;
    }
    return true;
}

static bool any_failed(const struct processes *ranks) {
    for (int rank = 0; rank < RANKS; ++rank) {
        if (__atomic_load_n(&ranks->outcomes[rank].numbers[PHASE], __ATOMIC_ACQUIRE) == DONE) {
            return true;
        }
    }
    return false;
}

static void let_go(const struct processes *ranks, int64_t phase) {
    for (int rank = 0; rank < RANKS; ++rank) {
        __atomic_store_n(&ranks->outcomes[rank].numbers[PHASE], phase, __ATOMIC_RELEASE);
    }
}

static void check_memory(const struct kind *kind, uint64_t parameters) {
    struct job job = {.kind = kind, .parameters = parameters / UNITS * UNITS};
    struct processes ranks;
    double before[RANKS] = {0}, held[RANKS] = {0}, began = 0, peak = 0;
    unique_host_rendezvous(job.rendezvous, sizeof job.rendezvous);
    start_processes(&ranks, RANKS, train, &job);
    uint64_t end = monotonic_ns() + HANG_NS;
    while (!all_at(&ranks, READY) && !any_failed(&ranks) && monotonic_ns() < end) sleep_ms(2);
    began = read_all(&ranks, before);
    let_go(&ranks, TRAINS);
    for (end = monotonic_ns() + HANG_NS; !any_failed(&ranks) && monotonic_ns() < end;) {
        const bool last = all_at(&ranks, HELD); /* nothing moves any more */
        /* Of the way there only the sum: who is the first to touch a page that others will share
         * has it alone for a while. */
        const double sum = read_all(&ranks, held);
        if (sum > peak) peak = sum;
        if (last) break;
        sleep_ms(20);
    }
    double resident = 0;
    for (int rank = 0; rank < RANKS; ++rank) {
        const double high = read_kilobytes(ranks.ids[rank], "status", "VmHWM");
        if (high > resident) resident = high;
    }
    let_go(&ranks, TRAINS);
    wait_processes(&ranks);

    double worst = 1, planned = 0;
    for (int rank = 0; rank < RANKS; ++rank) {
        const struct outcome *const o = &ranks.outcomes[rank];
        if (o->exit_code != 0 || o->hung) {
            fail_msg("%s, rank %d: exit code %d, signal %d%s: %s: %s", kind->name, rank,
                     o->exit_code, o->signal, o->hung ? ", hung" : "", o->text, o->message);
        }
        const double plan = (double)o->numbers[PLANNED] + kind->groups * GROUP_BYTES;
        planned += plan;
        const double ratio = (held[rank] - before[rank]) / plan;
        if (ratio > 1 ? ratio > worst : 1 / ratio > worst) worst = ratio > 1 ? ratio : 1 / ratio;
        /* The plan itself: the formula, and the bytes in flight. */
        const double formula = (double)job.parameters * kind->bytes / RANKS;
        const double without_working = (double)(o->numbers[PLANNED] - o->numbers[WORKING]);
        assert_true(without_working >= formula - 1024 && without_working <= formula + 1024);
    }
    const double ratio = (peak - began) / planned;
    printf("| %s | %.1f | %.1f | %.3f | %.3f | %.0f | %.1f |\n", kind->name, planned / RANKS / MIB,
           (peak - began) / RANKS / MIB, ratio, worst, resident / MIB,
           (double)ranks.outcomes[0].numbers[STEP_US] / 1e3);
    fflush(stdout);
    free_processes(&ranks);
    if (worst > 1.05) fail_msg("%s: one rank is %.3f away from the plan", kind->name, worst);
    if (ratio > 1.05 || ratio < 0.95) fail_msg("%s: %.3f of the plan", kind->name, ratio);
}

static void print_head(uint64_t parameters) {
    printf(
        "%llu parameters on %d processes, AdamW; MiB of a rank\n\n"
        "| strategy | planned | peak | of the plan | worst rank | VmHWM | step, ms |\n"
        "|---|---|---|---|---|---|---|\n",
        (unsigned long long)parameters, RANKS);
}

static uint64_t wanted; /* 0: none was asked for */

static void zero3_holds_what_it_planned(void **state) {
    (void)state;
    const uint64_t parameters = wanted > 0                    ? wanted
                                : getenv("TRIREME_TEST_LONG") ? 200u * 1000 * 1000
                                                              : 8u * 1000 * 1000;
    print_head(parameters);
    for (int i = 0; i < ZERO3_KINDS; ++i) check_memory(&kKinds[i], parameters);
}

static void every_strategy_holds_what_it_planned(void **state) {
    (void)state;
    const uint64_t parameters = wanted > 0 ? wanted : 8u * 1000 * 1000;
    print_head(parameters);
    for (int i = ZERO3_KINDS; i < KINDS; ++i) check_memory(&kKinds[i], parameters);
}

int main(int argc, char **argv) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    (void)argc;
    (void)argv;
    return 77; /* a sanitizer keeps memory of its own for each byte */
#else
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(zero3_holds_what_it_planned),
        cmocka_unit_test(every_strategy_holds_what_it_planned),
    };
    if (argc > 1) wanted = strtoull(argv[1], NULL, 10) * 1000 * 1000;
    if (argc > 2) cmocka_set_test_filter(argv[2]);
    return cmocka_run_group_tests_name("memory_plan", tests, NULL, NULL);
#endif
}
