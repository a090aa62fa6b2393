/*
 * kill -9 of one rank at a random moment of a step with every call of regions and layers, along
 * both axes of a mesh: before a call, in a callback of it, or at a failpoint inside. Each survivor
 * gets PEER_LOST that names the victim, or a rank that left because of it. Ranks that make other
 * calls than the others all get MISMATCH. Over host://, or with TRIREME_TESTS_NETWORK over tcp://.
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

#include "layer_calls.h"
#include "processes.h"

enum { MOST_RANKS = 4, ROUNDS = 2, AXES = 2, MOST_POINTS = 1024 };
enum { MOST_CALLS = ROUNDS * AXES * LAYER_CALLS };

static const char *const axis_names[AXES] = {"tensor", "data"};

/* Of a healthy run, by rank. Processes write it, so it is memory of all. */
struct healthy {
    uint64_t events;
    uint64_t hits[MOST_POINTS];
    uint64_t hashes[MOST_CALLS];
};

struct trial {
    int32_t sizes[AXES]; /* of "tensor", "data" */
    int victim;          /* -1: none dies, and hits are counted */
    uint64_t event;      /* at which the victim dies; 0: at the failpoint */
    uint32_t point;      /* number of the failpoint */
    uint64_t hit;
    char rendezvous[64];
    struct healthy *healthy; /* one for each rank */
};

static int ranks_of(const struct trial *trial) {
    return trial->sizes[0] * trial->sizes[1];
}

/* --- one process ------------------------------------------------------------------------------ */

static uint64_t events; /* of this process */
static uint64_t last_event;

static int32_t count_event(void *user_data) {
    (void)user_data;
    if (++events == last_event) raise(SIGKILL);
    return 0;
}

static trireme_mesh *make_mesh(trireme_communicator *all, const struct trial *trial) {
    trireme_mesh_options options = TRIREME_MESH_OPTIONS_INIT;
    options.axis_count = AXES;
    options.axis_names = axis_names;
    options.axis_sizes = trial->sizes;
    trireme_mesh *mesh = NULL;
    if (trireme_mesh_create(all, &options, &mesh) != TRIREME_OK) _exit(92);
    return mesh;
}

static void set_failpoint(const char *format, uint32_t number, uint64_t hit) {
    char text[128];
    snprintf(text, sizeof text, format, trireme_failpoint_name(number), (unsigned long long)hit);
    if (trireme_failpoint_set(text) != TRIREME_OK) _exit(93);
}

static void count_all_points(void) {
    static char text[MOST_POINTS * 48];
    size_t length = 0;
    const uint32_t count = trireme_failpoint_count();
    if (count > MOST_POINTS) _exit(94);
    for (uint32_t i = 0; i < count; ++i) {
        length += (size_t)snprintf(text + length, sizeof text - length, "%s%s=off",
                                   i > 0 ? ";" : "", trireme_failpoint_name(i));
        if (length >= sizeof text) _exit(94);
    }
    if (trireme_failpoint_set(text) != TRIREME_OK) _exit(93);
}

static void step_until_it_fails(int rank, void *context, struct outcome *o) {
    const struct trial *const trial = context;
    struct healthy *const healthy = &trial->healthy[rank];
    trireme_communicator *const all =
        join_process(rank, ranks_of(trial), trial->rendezvous, PATIENT_NS);
    trireme_mesh *const mesh = make_mesh(all, trial);
    static struct layer_calls calls[AXES];
    for (int axis = 0; axis < AXES; ++axis) {
        trireme_communicator *along = NULL;
        if (trireme_mesh_get_axis_communicator(mesh, axis_names[axis], &along) != TRIREME_OK) {
            _exit(95);
        }
        calls[axis].event = count_event;
        const struct layer_variant none = {0};
        if (make_layer_calls(along, none, &calls[axis]) != TRIREME_OK) _exit(96);
    }
    if (trireme_barrier(all, NULL) != TRIREME_OK) _exit(97);
    if (trial->victim < 0) count_all_points();
    if (trial->victim == rank) {
        last_event = trial->event;
        if (trial->event == 0) set_failpoint("%s=kill@%llu", trial->point, trial->hit);
    }
    int number = 0;
    for (int round = 0; round < ROUNDS && o->status == TRIREME_OK; ++round) {
        for (int axis = 0; axis < AXES; ++axis) {
            for (int call = 0; call < LAYER_CALLS && o->status == TRIREME_OK; ++call, ++number) {
                o->entered_ns = monotonic_ns();
                const trireme_status status = make_layer_call(&calls[axis], (enum layer_call)call);
                o->returned_ns = monotonic_ns();
                if (status != TRIREME_OK) {
                    keep_error(o, status);
                    o->numbers[0] = axis;
                    o->numbers[1] = call;
                    continue;
                }
                ++o->rounds;
                const uint64_t hash = hash_of_outputs(&calls[axis]);
                if (trial->victim < 0) healthy->hashes[number] = hash;
                o->wrong |= healthy->hashes[number] != hash;
            }
        }
    }
    if (trial->victim < 0) {
        healthy->events = events;
        for (uint32_t i = 0; i < trireme_failpoint_count(); ++i) {
            if (trireme_failpoint_get_hits(trireme_failpoint_name(i), &healthy->hits[i]) !=
                TRIREME_OK) {
                _exit(98);
            }
        }
        if (trireme_failpoint_set(NULL) != TRIREME_OK) _exit(98);
    }
    /* Another call of the axis that has failed, and then one of all ranks. */
    if (o->status != TRIREME_OK) {
        o->later = make_layer_call(&calls[o->numbers[0]], REDUCE_FORWARD);
    }
    if (trial->victim == rank) raise(SIGKILL); /* the last moment of all */
    for (int axis = 0; axis < AXES; ++axis) free_layer_calls(&calls[axis]);
    trireme_mesh_destroy(mesh);
    o->again = trireme_barrier(all, NULL);
    trireme_error_info info = TRIREME_ERROR_INFO_INIT;
    if (trireme_last_error_info(&info) != TRIREME_OK) _exit(99);
    o->numbers[2] = o->again == TRIREME_OK ? -1 : info.blamed_count == 1 ? info.blamed[0] : -2;
    trireme_communicator_destroy(all);
}

/* --- what the parent makes of it -------------------------------------------------------------- */

static void print_outcomes(const struct trial *trial, const struct processes *processes) {
    print_error("%d x %d, victim %d, event %llu, point %u, hit %llu\n", trial->sizes[1],
                trial->sizes[0], trial->victim, (unsigned long long)trial->event, trial->point,
                (unsigned long long)trial->hit);
    for (int rank = 0; rank < ranks_of(trial); ++rank) {
        const struct outcome *const o = &processes->outcomes[rank];
        print_error(
            "  rank %d: exit %d, signal %d%s%s, %d calls; %s along %s: %s; later %s; all "
            "%s, %lld\n",
            rank, o->exit_code, o->signal, o->hung ? ", hung" : "", o->wrong ? ", wrong" : "",
            o->rounds,
            o->status != TRIREME_OK ? layer_call_name((enum layer_call)o->numbers[1]) : "",
            axis_names[o->numbers[0]], o->message, trireme_status_name(o->later),
            trireme_status_name(o->again), (long long)o->numbers[2]);
    }
}

#define CHECK(condition, what)                                   \
    do {                                                         \
        if (!(condition)) {                                      \
            print_outcomes(trial, processes);                    \
            fail_msg("rank %d: %s: %s", rank, what, #condition); \
        }                                                        \
    } while (0)

/* Whether the ranks along an axis are those that the victim is one of. */
static bool has_victim(const struct trial *trial, int rank, int axis) {
    const int tensor = trial->sizes[0];
    return axis == 0 ? rank / tensor == trial->victim / tensor
                     : rank % tensor == trial->victim % tensor;
}

static void check_survivors(const struct trial *trial, const struct processes *processes) {
    for (int rank = 0; rank < ranks_of(trial); ++rank) {
        const struct outcome *const o = &processes->outcomes[rank];
        CHECK(!o->hung, "hangs");
        if (rank == trial->victim) {
            CHECK(o->signal == SIGKILL, "was to die there");
            continue;
        }
        CHECK(o->exit_code == 0, "ended");
        CHECK(!o->wrong, "a wrong number was called right");
        CHECK(o->again == TRIREME_ERROR_PEER_LOST && o->numbers[2] == trial->victim,
              "all ranks were to hear who died");
        if (o->status == TRIREME_OK) continue; /* it had made all its calls */
        CHECK(o->status == TRIREME_ERROR_PEER_LOST, "was to hear of it");
        CHECK(o->later == TRIREME_ERROR_PEER_LOST, "goes on");
        CHECK(strstr(o->message, layer_call_object((enum layer_call)o->numbers[1])) != NULL,
              "names another object");
        const int axis = (int)o->numbers[0], tensor = trial->sizes[0];
        if (!has_victim(trial, rank, axis)) continue; /* a peer has left */
        const int number = axis == 0 ? trial->victim % tensor : trial->victim / tensor;
        CHECK(blames_only(&o->info, number), "blames another");
    }
}

static void run_trial(struct trial *trial, struct processes *processes) {
    unique_process_rendezvous(trial->rendezvous, sizeof trial->rendezvous);
    start_processes(processes, ranks_of(trial), step_until_it_fails, trial);
    wait_processes(processes);
}

static void *shared_memory(size_t bytes) {
    void *const memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    return memory;
}

static uint64_t draw(uint64_t below) {
    static uint64_t state = 20261127;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
}

static void be_healthy(struct trial *trial) {
    struct processes all, *const processes = &all;
    trial->victim = -1;
    run_trial(trial, processes);
    for (int rank = 0; rank < ranks_of(trial); ++rank) {
        const struct outcome *const o = &processes->outcomes[rank];
        CHECK(o->exit_code == 0 && !o->hung, "ended");
        CHECK(o->status == TRIREME_OK && o->rounds == MOST_CALLS, "was healthy");
        CHECK(o->again == TRIREME_OK, "all ranks were healthy");
        CHECK(memcmp(&trial->healthy[rank].hashes[MOST_CALLS / 2], trial->healthy[rank].hashes,
                     sizeof trial->healthy[rank].hashes / 2) == 0,
              "computes something else the second time");
    }
    free_processes(processes);
}

/* A failpoint and a visit of it, each visit as likely as another one. */
static void draw_point(struct trial *trial) {
    const struct healthy *const healthy = &trial->healthy[trial->victim];
    uint64_t all = 0;
    for (int i = 0; i < MOST_POINTS; ++i) all += healthy->hits[i];
    assert_true(all > 0);
    trial->hit = 1 + draw(all);
    for (trial->point = 0; trial->hit > healthy->hits[trial->point]; ++trial->point) {
        trial->hit -= healthy->hits[trial->point];
    }
}

static void survivors_of_a_death_in_any_layer_name_the_victim(void **state) {
    (void)state;
    static const int32_t sizes[][AXES] = {{2, 2}, {3, 1}};
    const int trials = getenv("TRIREME_TEST_LONG") != NULL ? 300 : is_quick() ? 12 : 40;
    int survivors = 0;
    struct trial trial = {.healthy = shared_memory(MOST_RANKS * sizeof(struct healthy))};
    for (size_t world = 0; world < sizeof sizes / sizeof sizes[0]; ++world) {
        memcpy(trial.sizes, sizes[world], sizeof trial.sizes);
        be_healthy(&trial);
        for (int number = 0; number < trials / 2; ++number) {
            struct processes processes;
            trial.victim = (int)draw((uint64_t)ranks_of(&trial));
            trial.event = number % 2 == 0 ? 1 + draw(trial.healthy[trial.victim].events) : 0;
            if (trial.event == 0) draw_point(&trial);
            run_trial(&trial, &processes);
            check_survivors(&trial, &processes);
            free_processes(&processes);
            survivors += ranks_of(&trial) - 1;
        }
    }
    munmap(trial.healthy, MOST_RANKS * sizeof(struct healthy));
    printf("kill: layers: %d trials, %d survivors, 0 hangs\n", trials / 2 * 2, survivors);
}

/* --- calls that do not match ------------------------------------------------------------------ */

/* All ranks but one make `call`; that one makes `other`, with objects that differ so. */
struct difference {
    enum layer_call call, other;
    struct layer_variant variant;
};

/* One of each rank at a time: MISMATCH of all, or the number of the first difference that was
 * something else. */
struct differences {
    int32_t sizes[AXES];
    int count;
    struct difference list[LAYER_CALLS * LAYER_CALLS + 3 * LAYER_CALLS];
    char rendezvous[64];
};

/* Every call may then be the next one. */
static void prepare(struct layer_calls *calls) {
    for (int time = 0; time < 2; ++time) {
        for (int i = 0; i < LAYER_CALLS; ++i) {
            const enum layer_call call = (enum layer_call)i;
            if (is_weight_call(call) || (time == 1 && !is_forward_call(call))) continue;
            if (make_layer_call(calls, call) != TRIREME_OK) _exit(97);
        }
    }
}

static void differ(int rank, void *context, struct outcome *o) {
    const struct differences *const all = context;
    const int world_size = all->sizes[0] * all->sizes[1];
    trireme_communicator *const group = join_process(rank, world_size, all->rendezvous, PATIENT_NS);
    trireme_mesh_options options = TRIREME_MESH_OPTIONS_INIT;
    options.axis_count = AXES;
    options.axis_names = axis_names;
    options.axis_sizes = all->sizes;
    for (int i = 0; i < all->count; ++i) {
        const struct difference *const d = &all->list[i];
        const bool is_other = rank == i % world_size;
        /* A mesh for each: a group that differs has failed. */
        trireme_mesh *mesh = NULL;
        trireme_communicator *along = NULL;
        const char *const axis = axis_names[all->sizes[1] > 1];
        if (trireme_mesh_create(group, &options, &mesh) != TRIREME_OK) _exit(92);
        if (trireme_mesh_get_axis_communicator(mesh, axis, &along) != TRIREME_OK) _exit(95);
        static const struct layer_variant none = {0};
        struct layer_calls calls = {0};
        const trireme_status made = make_layer_calls(along, is_other ? d->variant : none, &calls);
        if (made != TRIREME_OK) _exit(96);
        if (memcmp(&d->variant, &none, sizeof none) == 0) prepare(&calls);
        const trireme_status status = make_layer_call(&calls, is_other ? d->other : d->call);
        if (status != TRIREME_ERROR_MISMATCH && o->status == TRIREME_OK) {
            keep_error(o, status == TRIREME_OK ? TRIREME_ERROR_INTERNAL : status);
            o->numbers[0] = i;
        }
        o->rounds += status == TRIREME_ERROR_MISMATCH;
        free_layer_calls(&calls);
        trireme_mesh_destroy(mesh);
        if (trireme_barrier(group, NULL) != TRIREME_OK) _exit(98);
    }
    trireme_communicator_destroy(group);
}

static void add_difference(struct differences *all, enum layer_call call, enum layer_call other,
                           struct layer_variant variant) {
    all->list[all->count++] = (struct difference){call, other, variant};
}

static void ranks_that_make_other_calls_all_get_mismatch(void **state) {
    (void)state;
    static struct differences all;
    const unsigned step = getenv("TRIREME_TEST_LONG") != NULL ? 1 : is_quick() ? 23 : 7;
    int checked = 0;
    for (int axis = 0; axis < AXES; ++axis) {
        memset(&all, 0, sizeof all);
        all.sizes[axis] = 3;
        all.sizes[1 - axis] = 1;
        const struct layer_variant none = {0};
        unsigned turn = (unsigned)axis;
        for (int i = 0; i < LAYER_CALLS; ++i) {
            const enum layer_call call = (enum layer_call)i;
            if (is_local_call(call)) continue;
            for (int j = 0; j < LAYER_CALLS; ++j) {
                const enum layer_call other = (enum layer_call)j;
                const bool is_near = strcmp(layer_call_object(call), layer_call_object(other)) == 0;
                if (i == j || is_local_call(other) || (turn++ % step != 0 && !is_near)) continue;
                add_difference(&all, call, other, none);
            }
            if (!is_first_call(call)) continue;
            add_difference(&all, call, call, (struct layer_variant){.named = true});
            add_difference(&all, call, call, (struct layer_variant){.longer = true});
            if (call != EMBED && call != LOSS) continue;
            add_difference(&all, call, call, (struct layer_variant){.tokens = true});
        }
        struct processes processes;
        unique_process_rendezvous(all.rendezvous, sizeof all.rendezvous);
        start_processes(&processes, 3, differ, &all);
        wait_processes(&processes);
        for (int rank = 0; rank < 3; ++rank) {
            const struct outcome *const o = &processes.outcomes[rank];
            const struct difference *const d = &all.list[o->numbers[0]];
            if (o->exit_code == 0 && !o->hung && o->rounds == all.count) continue;
            fail_msg(
                "along %s, rank %d: exit code %d, signal %d%s, %d of %d; %s beside %s, %d%d%d: "
                "%s: %s",
                axis_names[axis], rank, o->exit_code, o->signal, o->hung ? ", hung" : "", o->rounds,
                all.count, layer_call_name(d->call), layer_call_name(d->other), d->variant.named,
                d->variant.longer, d->variant.tokens, trireme_status_name(o->status), o->message);
        }
        free_processes(&processes);
        checked += all.count;
    }
    printf("mismatch: layers: %d pairs of calls, 0 hangs\n", checked);
}

/* ---- nothing is left ---- */

static int remember_first_files(void **state) {
    (void)state;
    remember_files();
    return 0;
}

static void no_death_leaves_a_file(void **state) {
    (void)state;
    assert_true(no_file_is_left());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(survivors_of_a_death_in_any_layer_name_the_victim),
        cmocka_unit_test(ranks_that_make_other_calls_all_get_mismatch),
        cmocka_unit_test(no_death_leaves_a_file),
    };
    return cmocka_run_group_tests_name("kill_layers", tests, remember_first_files, NULL);
}
