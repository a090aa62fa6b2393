/*
 * Scripts of a driver that fails. Each row of a table lets a call of the driver fail, at rank 0, in
 * one operation of three ranks. The row tells the end: the answers of all ranks, the outputs, the
 * driver's objects that stay, and whether the group goes on. The process always does.
 */
#include <trireme/trireme.h>

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "device_ranks.h"
#include "processes.h"

enum { WORLD = 3, COUNT = 4, ALL = WORLD * COUNT };
static const float mark = -7;

/* ---- operations: rank r sends elements of r + 1, and receives where marks are ---- */

typedef trireme_status
call_function(const struct rank *rank, int root, const trireme_operation_options *options);

struct operation {
    const char *name;
    call_function *call;
    float (*wanted)(int rank, int root, int i); /* element i of what the rank receives */
};

#define F32 TRIREME_DTYPE_F32
#define SUM TRIREME_REDUCTION_SUM

static trireme_status
calls_all_reduce(const struct rank *rank, int root, const trireme_operation_options *options) {
    (void)root;
    return trireme_all_reduce(rank->communicator, rank->send, rank->receive, COUNT, F32, SUM,
                              options);
}

static trireme_status
calls_reduce_scatter(const struct rank *rank, int root, const trireme_operation_options *options) {
    (void)root;
    return trireme_reduce_scatter(rank->communicator, rank->send, rank->receive, COUNT, F32, SUM,
                                  options);
}

static trireme_status
calls_all_gather(const struct rank *rank, int root, const trireme_operation_options *options) {
    (void)root;
    return trireme_all_gather(rank->communicator, rank->send, rank->receive, COUNT, F32, options);
}

static trireme_status
calls_all_to_all(const struct rank *rank, int root, const trireme_operation_options *options) {
    (void)root;
    return trireme_all_to_all(rank->communicator, rank->send, rank->receive, COUNT, F32, options);
}

static trireme_status
calls_broadcast(const struct rank *rank, int root, const trireme_operation_options *options) {
    float *const data = rank->number == root ? rank->send : rank->receive;
    return trireme_broadcast(rank->communicator, data, COUNT, F32, root, options);
}

static trireme_status
calls_reduce(const struct rank *rank, int root, const trireme_operation_options *options) {
    return trireme_reduce(rank->communicator, rank->send, rank->receive, COUNT, F32, SUM, root,
                          options);
}

static trireme_status
calls_gather(const struct rank *rank, int root, const trireme_operation_options *options) {
    return trireme_gather(rank->communicator, rank->send, rank->receive, COUNT, F32, root, options);
}

static trireme_status
calls_scatter(const struct rank *rank, int root, const trireme_operation_options *options) {
    return trireme_scatter(rank->communicator, rank->send, rank->receive, COUNT, F32, root,
                           options);
}

/* From the root to the rank after it. */
static trireme_status
calls_message(const struct rank *rank, int root, const trireme_operation_options *options) {
    const int to = (root + 1) % WORLD;
    if (rank->number == root) {
        return trireme_send(rank->communicator, rank->send, COUNT, F32, to, 1, options);
    }
    if (rank->number != to) return TRIREME_OK;
    return trireme_receive(rank->communicator, rank->receive, COUNT, F32, root, 1, options);
}

static trireme_status
calls_barrier(const struct rank *rank, int root, const trireme_operation_options *options) {
    (void)root;
    return trireme_barrier(rank->communicator, options);
}

/* A call of rank 0 alone. */
static trireme_status
calls_buffer(const struct rank *rank, int root, const trireme_operation_options *options) {
    (void)root, (void)options;
    trireme_buffer *buffer = NULL;
    if (rank->number != 0) return TRIREME_OK;
    const trireme_status status = trireme_buffer_alloc(rank->communicator, 4096, &buffer);
    if (status == TRIREME_OK) trireme_buffer_destroy(buffer);
    CHECK(status == TRIREME_OK || buffer == NULL);
    return status;
}

static float wants_sum(int rank, int root, int i) {
    (void)rank, (void)root;
    return i < COUNT ? 6 : mark;
}

static float wants_blocks(int rank, int root, int i) {
    (void)rank, (void)root;
    return (float)(i / COUNT + 1);
}

static float wants_of_root(int rank, int root, int i) {
    return rank != root && i < COUNT ? (float)(root + 1) : mark;
}

static float wants_sum_at_root(int rank, int root, int i) {
    return rank == root && i < COUNT ? 6 : mark;
}

static float wants_blocks_at_root(int rank, int root, int i) {
    return rank == root ? (float)(i / COUNT + 1) : mark;
}

static float wants_of_root_everywhere(int rank, int root, int i) {
    (void)rank;
    return i < COUNT ? (float)(root + 1) : mark;
}

static float wants_message(int rank, int root, int i) {
    return rank == (root + 1) % WORLD && i < COUNT ? (float)(root + 1) : mark;
}

static float wants_marks(int rank, int root, int i) {
    (void)rank, (void)root, (void)i;
    return mark;
}

static const struct operation all_reduce = {"all_reduce", calls_all_reduce, wants_sum};
static const struct operation reduce_scatter = {"reduce_scatter", calls_reduce_scatter, wants_sum};
static const struct operation all_gather = {"all_gather", calls_all_gather, wants_blocks};
static const struct operation all_to_all = {"all_to_all", calls_all_to_all, wants_blocks};
static const struct operation broadcast = {"broadcast", calls_broadcast, wants_of_root};
static const struct operation reduce = {"reduce", calls_reduce, wants_sum_at_root};
static const struct operation gather = {"gather", calls_gather, wants_blocks_at_root};
static const struct operation scatter = {"scatter", calls_scatter, wants_of_root_everywhere};
static const struct operation message = {"", calls_message, wants_message};
static const struct operation barrier = {"barrier", calls_barrier, wants_marks};
static const struct operation buffer = {"", calls_buffer, wants_marks};

/* ---- the table ---- */

/* Whether the others have ended when rank 0 fails, and so hear of it in their next call. */
enum others { HEAR_IT, MAY_BE_DONE, ARE_DONE };
enum next { FAILS, GOES_ON };

struct row {
    const char *script;
    const struct operation *operation;
    int root;
    bool first; /* the first operation of the group, which makes what it needs */
    trireme_status status;
    const char *word; /* of rank 0's message */
    enum others others;
    enum next next;
    int left, contexts; /* behind rank 0 when all is destroyed */
};

#define DEVICE TRIREME_ERROR_DEVICE
#define MEMORY TRIREME_ERROR_OUT_OF_MEMORY
#define LATE TRIREME_ERROR_TIMEOUT
#define STATE TRIREME_ERROR_INVALID_STATE

/* clang-format off */
static const struct row rows[] = {
    /* looking at the operands and the stream: nothing is made, nothing is queued */
    {"mode=lazy fail=cuPointerGetAttributes:719@0", &all_reduce, 0, true, DEVICE, "cuPointerGetAttributes answers CUDA_ERROR_LAUNCH_FAILED (719)", HEAR_IT, FAILS, 0, 1},
    {"mode=eager fail=cuPointerGetAttributes:719@3", &all_reduce, 0, true, DEVICE, "cuPointerGetAttributes answers", HEAR_IT, FAILS, 0, 1},
    {"mode=lazy fail=cuPointerGetAttributes:1", &all_gather, 0, true, DEVICE, "cuPointerGetAttributes answers", HEAR_IT, FAILS, 0, 1},
    {"mode=lazy fail=cuCtxPushCurrent:719@0", &all_to_all, 0, true, DEVICE, "cuCtxPushCurrent answers", HEAR_IT, FAILS, 0, 1},
    {"mode=seeded:1 fail=cuCtxPopCurrent:719@0", &reduce_scatter, 0, true, DEVICE, "cuCtxPopCurrent answers", HEAR_IT, FAILS, 0, 1},
    {"mode=lazy fail=cuStreamIsCapturing:719", &all_reduce, 0, true, DEVICE, "cuStreamIsCapturing answers", HEAR_IT, FAILS, 0, 1},
    {"mode=lazy fail=cuStreamGetCtx:400", &all_reduce, 0, true, DEVICE, "cuStreamGetCtx answers an unknown error (400)", HEAR_IT, FAILS, 0, 1},
    {"mode=lazy fail=cuStreamIsCapturing:900@0!", &all_reduce, 0, false, STATE, "cuStreamIsCapturing answers CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED (900)", HEAR_IT, GOES_ON, 0, 0},
    {"mode=eager fail=cuStreamGetCtx:905@0!", &scatter, 0, true, STATE, "cuStreamGetCtx answers", HEAR_IT, GOES_ON, 0, 0},
    /* making a stream, events and pinned memory: what was made goes back */
    {"mode=lazy fail=cuStreamCreateWithPriority:719@0", &all_reduce, 0, true, DEVICE, "cuStreamCreateWithPriority answers", HEAR_IT, FAILS, 0, 1},
    {"mode=lazy fail=cuEventCreate:719@0", &all_gather, 0, true, DEVICE, "cuEventCreate answers", HEAR_IT, FAILS, 0, 1},
    {"mode=lazy fail=cuEventCreate:719@1", &broadcast, 0, true, DEVICE, "cuEventCreate answers", HEAR_IT, FAILS, 0, 1},
    {"mode=lazy fail=cuMemHostAlloc:719@0", &all_reduce, 0, true, DEVICE, "cuMemHostAlloc answers", HEAR_IT, FAILS, 0, 1},
    {"mode=lazy fail=cuStreamCreateWithPriority:2@0", &all_reduce, 0, true, MEMORY, "cuStreamCreateWithPriority answers CUDA_ERROR_OUT_OF_MEMORY (2)", HEAR_IT, FAILS, 0, 0},
    {"mode=eager fail=cuEventCreate:2@0", &all_to_all, 0, true, MEMORY, "cuEventCreate answers", HEAR_IT, FAILS, 0, 0},
    {"mode=eager fail=cuEventCreate:2@1", &reduce, 1, true, MEMORY, "cuEventCreate answers", HEAR_IT, FAILS, 0, 0},
    {"mode=seeded:2 fail=cuMemHostAlloc:2@0", &gather, 1, true, MEMORY, "cuMemHostAlloc answers", HEAR_IT, FAILS, 0, 0},
    {"mode=lazy oom=0", &message, 0, true, MEMORY, "cuMemHostAlloc answers", MAY_BE_DONE, FAILS, 0, 0},
    /* the mark behind the caller's work, and the wait for it: pinned memory stays, where it was made */
    {"mode=lazy fail=cuEventRecord:719@0", &all_reduce, 0, false, DEVICE, "cuEventRecord answers", HEAR_IT, FAILS, 1, 1},
    {"mode=lazy fail=cuEventRecord:900@0!", &all_reduce, 0, false, STATE, "cuEventRecord answers", HEAR_IT, GOES_ON, 0, 0},
    {"mode=eager fail=cuEventRecord:901@0!", &all_gather, 0, true, STATE, "cuEventRecord answers", HEAR_IT, GOES_ON, 0, 0},
    {"mode=eager fail=cuEventQuery:719@0", &all_reduce, 0, false, DEVICE, "cuEventQuery answers", HEAR_IT, FAILS, 1, 1},
    {"mode=lazy fail=cuEventQuery:719@1", &all_gather, 0, true, DEVICE, "cuEventQuery answers", HEAR_IT, FAILS, 0, 1},
    {"mode=seeded:3 fail=cuEventQuery:700@0", &reduce_scatter, 0, false, DEVICE, "cuEventQuery answers an unknown error (700)", HEAR_IT, FAILS, 1, 1},
    {"mode=lazy stall=1", &all_reduce, 0, false, LATE, "the device of this rank has not done its work by the deadline", HEAR_IT, FAILS, 1, 1},
    {"mode=lazy stall=1", &message, 0, false, LATE, "the device of this rank has not done its work by the deadline", MAY_BE_DONE, FAILS, 1, 1},
    {"mode=lazy stall=1", &broadcast, 1, false, LATE, "the device of this rank has not done its work by the deadline", MAY_BE_DONE, FAILS, 1, 1},
    /* the copy in */
    {"mode=eager fail=cuMemcpyAsync:719@0", &all_reduce, 0, false, DEVICE, "cuMemcpyAsync answers", HEAR_IT, FAILS, 1, 1},
    {"mode=lazy fail=cuMemcpyAsync:719@0", &reduce_scatter, 0, true, DEVICE, "cuMemcpyAsync answers", HEAR_IT, FAILS, 1, 1},
    {"mode=lazy fail=cuMemcpyAsync:719@0", &all_gather, 0, false, DEVICE, "cuMemcpyAsync answers", HEAR_IT, FAILS, 1, 1},
    {"mode=lazy fail=cuMemcpyAsync:719@0", &all_to_all, 0, false, DEVICE, "cuMemcpyAsync answers", HEAR_IT, FAILS, 1, 1},
    {"mode=lazy fail=cuMemcpyAsync:719@0", &broadcast, 0, false, DEVICE, "cuMemcpyAsync answers", HEAR_IT, FAILS, 1, 1},
    {"mode=seeded:4 fail=cuMemcpyAsync:719@0", &reduce, 1, false, DEVICE, "cuMemcpyAsync answers", MAY_BE_DONE, FAILS, 1, 1},
    {"mode=lazy fail=cuMemcpyAsync:719@0", &gather, 1, false, DEVICE, "cuMemcpyAsync answers", MAY_BE_DONE, FAILS, 1, 1},
    {"mode=lazy fail=cuMemcpyAsync:719@0", &scatter, 0, false, DEVICE, "cuMemcpyAsync answers", HEAR_IT, FAILS, 1, 1},
    {"mode=lazy fail=cuMemcpyAsync:719@0", &message, 0, false, DEVICE, "cuMemcpyAsync answers", MAY_BE_DONE, FAILS, 1, 1},
    {"mode=eager fail=cuMemcpyAsync:2@0", &all_reduce, 0, false, MEMORY, "cuMemcpyAsync answers CUDA_ERROR_OUT_OF_MEMORY (2)", HEAR_IT, FAILS, 1, 1},
    {"mode=eager fail=cuEventRecord:719@1", &all_reduce, 0, false, DEVICE, "the device may still copy", HEAR_IT, FAILS, 1, 1},
    {"mode=lazy fail=cuEventRecord:900@1", &all_gather, 0, false, STATE, "the device may still copy", HEAR_IT, FAILS, 1, 1},
    {"mode=eager fail=cuEventQuery:719@1", &all_to_all, 0, false, DEVICE, "the device may still copy", HEAR_IT, FAILS, 1, 1},
    {"mode=lazy fail=cuEventQuery:719@4", &all_reduce, 0, false, DEVICE, "the device may still copy", HEAR_IT, FAILS, 1, 1},
    {"mode=lazy stuck=1", &all_reduce, 0, false, LATE, "the device may still copy", HEAR_IT, FAILS, 1, 1},
    {"mode=lazy stuck=1", &scatter, 0, false, LATE, "the device may still copy", HEAR_IT, FAILS, 1, 1},
    /* the copy out: the others have their results */
    {"mode=eager fail=cuMemcpyAsync:719@1", &all_reduce, 0, false, DEVICE, "cuMemcpyAsync answers", MAY_BE_DONE, FAILS, 1, 1},
    {"mode=lazy fail=cuMemcpyAsync:719@1", &reduce_scatter, 0, false, DEVICE, "cuMemcpyAsync answers", MAY_BE_DONE, FAILS, 1, 1},
    {"mode=seeded:5 fail=cuMemcpyAsync:719@1", &all_gather, 0, true, DEVICE, "cuMemcpyAsync answers", MAY_BE_DONE, FAILS, 1, 1},
    {"mode=lazy fail=cuMemcpyAsync:719@1", &all_to_all, 0, false, DEVICE, "cuMemcpyAsync answers", MAY_BE_DONE, FAILS, 1, 1},
    {"mode=lazy fail=cuMemcpyAsync:719@0", &broadcast, 1, false, DEVICE, "cuMemcpyAsync answers", MAY_BE_DONE, FAILS, 1, 1},
    {"mode=lazy fail=cuMemcpyAsync:719@1", &reduce, 0, false, DEVICE, "cuMemcpyAsync answers", MAY_BE_DONE, FAILS, 1, 1},
    {"mode=lazy fail=cuMemcpyAsync:719@1", &gather, 0, false, DEVICE, "cuMemcpyAsync answers", MAY_BE_DONE, FAILS, 1, 1},
    {"mode=lazy fail=cuMemcpyAsync:719@0", &scatter, 1, false, DEVICE, "cuMemcpyAsync answers", MAY_BE_DONE, FAILS, 1, 1},
    {"mode=lazy fail=cuMemcpyAsync:719@0", &message, 2, false, DEVICE, "cuMemcpyAsync answers", MAY_BE_DONE, FAILS, 1, 1},
    {"mode=lazy fail=cuEventRecord:719@2", &all_reduce, 0, false, DEVICE, "the device may still copy", MAY_BE_DONE, FAILS, 1, 1},
    {"mode=eager fail=cuEventQuery:719@2", &all_gather, 0, false, DEVICE, "the device may still copy", MAY_BE_DONE, FAILS, 1, 1},
    {"mode=lazy stuck=1", &broadcast, 1, false, LATE, "the device may still copy", MAY_BE_DONE, FAILS, 1, 1},
    {"mode=lazy stuck=1", &message, 2, false, LATE, "the device may still copy", MAY_BE_DONE, FAILS, 1, 1},
    /* operations that do not wait for the device: pinned memory of earlier ones stays */
    {"mode=lazy fail=cuStreamIsCapturing:719", &barrier, 0, false, DEVICE, "cuStreamIsCapturing answers", HEAR_IT, FAILS, 1, 1},
    {"mode=lazy fail=cuEventQuery:719@0", &barrier, 0, false, TRIREME_OK, "", ARE_DONE, GOES_ON, 0, 0},
    {"mode=lazy stall=1", &barrier, 0, false, TRIREME_OK, "", ARE_DONE, GOES_ON, 0, 0},
    /* failures that do not matter to the call */
    {"mode=lazy fail=cuThreadExchangeStreamCaptureMode:1", &all_reduce, 0, true, TRIREME_OK, "", ARE_DONE, GOES_ON, 0, 0},
    {"mode=lazy fail=cuStreamDestroy:719", &all_reduce, 0, false, TRIREME_OK, "", ARE_DONE, GOES_ON, 1, 0},
    {"mode=lazy fail=cuEventDestroy:719", &all_reduce, 0, false, TRIREME_OK, "", ARE_DONE, GOES_ON, 2, 0},
    {"mode=eager fail=cuMemFreeHost:719", &all_gather, 0, true, TRIREME_OK, "", ARE_DONE, GOES_ON, 1, 0},
    {"mode=lazy fail=cuDevicePrimaryCtxRelease:719", &all_reduce, 0, false, TRIREME_OK, "", ARE_DONE, GOES_ON, 0, 1},
    /* buffers: the group goes on */
    {"mode=lazy fail=cuMemAddressReserve:2@0", &buffer, 0, true, MEMORY, "cuMemAddressReserve answers", ARE_DONE, GOES_ON, 0, 0},
    {"mode=lazy fail=cuMemAddressReserve:719@0", &buffer, 0, true, DEVICE, "cuMemAddressReserve answers", ARE_DONE, GOES_ON, 0, 0},
    {"mode=lazy fail=cuMemCreate:2@0", &buffer, 0, true, MEMORY, "cuMemCreate answers", ARE_DONE, GOES_ON, 0, 0},
    {"mode=eager fail=cuMemCreate:719@0", &buffer, 0, false, DEVICE, "cuMemCreate answers", ARE_DONE, GOES_ON, 0, 0},
    {"mode=lazy fail=cuMemMap:2@0", &buffer, 0, true, MEMORY, "cuMemMap answers", ARE_DONE, GOES_ON, 0, 0},
    {"mode=lazy fail=cuMemSetAccess:2@0", &buffer, 0, true, MEMORY, "cuMemSetAccess answers", ARE_DONE, GOES_ON, 0, 0},
    {"mode=lazy fail=cuMemSetAccess:719@0", &buffer, 0, false, DEVICE, "cuMemSetAccess answers", ARE_DONE, GOES_ON, 0, 0},
    {"mode=lazy fail=cuStreamCreateWithPriority:719@0", &buffer, 0, false, DEVICE, "cuStreamCreateWithPriority answers", ARE_DONE, GOES_ON, 0, 0},
    {"mode=lazy fail=cuEventCreate:2@0", &buffer, 0, false, MEMORY, "cuEventCreate answers", ARE_DONE, GOES_ON, 0, 0},
    {"mode=lazy fail=cuMemsetD8Async:719@0", &buffer, 0, false, DEVICE, "cuMemsetD8Async answers", ARE_DONE, GOES_ON, 0, 0},
};
/* clang-format on */

/* ---- one row ---- */

struct context {
    const struct row *row;
    char rendezvous[64];
};

/* An operation that goes well, before the script. */
static void go_well(const struct rank *rank) {
    const trireme_operation_options options = options_of(rank);
    CHECK(calls_all_reduce(rank, 0, &options) == TRIREME_OK);
}

static void put_numbers(const struct rank *rank) {
    float send[ALL], receive[ALL + 1];
    for (int i = 0; i < ALL; ++i) send[i] = (float)(rank->number + 1);
    for (int i = 0; i <= ALL; ++i) receive[i] = mark;
    put(rank, rank->send, send, ALL);
    put(rank, rank->receive, receive, ALL + 1);
}

/* The memory after the call. Nothing of the library is at work on it. */
static void check_memory(const struct rank *rank, const struct row *row, trireme_status status) {
    float send[ALL], receive[ALL + 1];
    get(rank, send, rank->send, ALL);
    get(rank, receive, rank->receive, ALL + 1);
    for (int i = 0; i < ALL; ++i) CHECK(send[i] == (float)(rank->number + 1));
    CHECK(receive[ALL] == mark);
    for (int i = 0; i < ALL; ++i) {
        const float wanted = row->operation->wanted(rank->number, row->root, i);
        CHECK(receive[i] == (status == TRIREME_OK ? wanted : mark));
    }
}

static void check_host_goes_on(void) {
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *const host = join(0, 1, rendezvous, -1);
    const float here[4] = {1, 2, 3, 4};
    float found[4] = {0};
    CHECK(reduce_one(host, here, found, NULL) == TRIREME_OK && found[3] == 4);
    trireme_communicator_destroy(host);
}

static void one_rank(int number, void *context, struct outcome *outcome) {
    const struct context *const given = context;
    const struct row *const row = given->row;
    char plain[32];
    snprintf(plain, sizeof plain, "%.*s", (int)strcspn(row->script, " "), row->script);
    use_fake(plain);
    const struct rank rank = make_rank(number, WORLD, given->rendezvous);
    const int before = FAKE(fake_lives, "fake_live_count")();
    CHECK(trireme_barrier(rank.communicator, NULL) == TRIREME_OK);
    put_numbers(&rank);
    if (!row->first) go_well(&rank);
    put_numbers(&rank);
    trireme_operation_options options = options_of(&rank);
    const bool is_late = number == 0 && row->status == LATE;
    options.timeout_ns = is_late ? 100 * 1000 * 1000 : PATIENT_NS;
    if (number == 0) use_fake(row->script);
    keep_error(outcome, row->operation->call(&rank, row->root, &options));
    const bool retries = number == 0 && row->next == GOES_ON && row->others == HEAR_IT;
    const bool ends = row->status == TRIREME_OK; /* its script is for the end of the group */
    if (!ends) use_fake(plain);
    const bool may_copy = strstr(outcome->message, "may still copy") != NULL;
    if (!may_copy && outcome->status != LATE) check_memory(&rank, row, outcome->status);
    if (retries) {
        CHECK(row->operation->call(&rank, row->root, &options) == TRIREME_OK);
        check_memory(&rank, row, TRIREME_OK);
    }
    outcome->later = trireme_barrier(rank.communicator, NULL);
    trireme_communicator_destroy(rank.communicator);
    outcome->numbers[0] = FAKE(fake_lives, "fake_live_count")() - before;
    outcome->numbers[1] = FAKE(fake_retained, "fake_retained_count")(rank.device);
    use_fake(plain);
    check_host_goes_on();
    no_complaint(); /* also when a device that stood still goes on */
}

static void check_rank_0(const struct outcome *outcome, const struct row *row) {
    assert_int_equal(outcome->status, row->status);
    if (row->status == TRIREME_OK) return;
    if (strstr(outcome->message, row->word) == NULL) {
        fail_msg("\"%s\" is not in: %s", row->word, outcome->message);
    }
    if (row->next == FAILS) {
        assert_non_null(strstr(outcome->message, "rank 0"));
        assert_true(blames_only(&outcome->info, 0));
        if (*row->operation->name != 0) {
            assert_string_equal(outcome->info.operation, row->operation->name);
        }
    }
}

static void check_other(const struct outcome *outcome, const struct row *row) {
    if (row->next == GOES_ON || row->others == ARE_DONE) {
        assert_int_equal(outcome->status, TRIREME_OK);
    } else if (row->others == HEAR_IT || outcome->status != TRIREME_OK) {
        assert_true(outcome->status < 0 && outcome->status != TRIREME_ERROR_MISMATCH);
        assert_true(blames_only(&outcome->info, 0));
        assert_non_null(strstr(outcome->message, "rank 0"));
    }
}

static void run_row(const struct row *row, int number) {
    struct processes processes;
    struct context context = {.row = row};
    snprintf(context.rendezvous, sizeof context.rendezvous, "host://script-%u-%d", own_number(),
             number);
    start_processes(&processes, WORLD, one_rank, &context);
    wait_processes(&processes);
    for (int i = 0; i < WORLD; ++i) {
        const struct outcome *const outcome = &processes.outcomes[i];
        if (outcome->exit_code != 0 || (outcome->later < 0) != (row->next == FAILS)) {
            fail_msg("row %d (%s, %s): rank %d ends with %d, its next call with %d: %s", number,
                     row->script, row->operation->name, i, outcome->exit_code, outcome->later,
                     outcome->message);
        }
        if (i == 0) check_rank_0(outcome, row);
        if (i != 0) check_other(outcome, row);
        const int left = i == 0 ? row->left : 0, contexts = i == 0 ? row->contexts : 0;
        if (outcome->numbers[0] != left || outcome->numbers[1] != contexts) {
            fail_msg("row %d (%s, %s): rank %d leaves %d and %d contexts", number, row->script,
                     row->operation->name, i, (int)outcome->numbers[0], (int)outcome->numbers[1]);
        }
    }
    free_processes(&processes);
}

static void every_script_ends_as_its_row_says(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) run_row(&rows[i], (int)i);
}

/* ---- a device that cannot be opened ---- */

static const struct {
    const char *script;
    trireme_status status;
    const char *word;
} openings[] = {
    {"fail=cuInit:719", TRIREME_ERROR_DEVICE, "cuInit answers"},
    {"fail=cuDeviceGetCount:719", TRIREME_ERROR_DEVICE, "cuDeviceGetCount answers"},
    {"fail=cuDeviceGet:101", TRIREME_ERROR_DEVICE, "cuDeviceGet answers"},
    {"fail=cuDevicePrimaryCtxRetain:2", TRIREME_ERROR_OUT_OF_MEMORY, "cuDevicePrimaryCtxRetain"},
    {"fail=cuDeviceGetAttribute:719", TRIREME_ERROR_DEVICE, "cuDeviceGetAttribute answers"},
    {"fail=cuMemGetAllocationGranularity:719", TRIREME_ERROR_DEVICE,
     "cuMemGetAllocationGranularity answers"},
    {"fail=cuCtxPushCurrent:719", TRIREME_ERROR_DEVICE, "cuCtxPushCurrent answers"},
    {"fail=cuLibraryLoadData:719", TRIREME_ERROR_DEVICE, "cuLibraryLoadData answers"},
    {"fail=cuLibraryGetKernel:500@5", TRIREME_ERROR_DEVICE, "cuLibraryGetKernel of"},
    {"devices=0", TRIREME_ERROR_INVALID_ARGUMENT, "sees 0 CUDA devices"},
    {"version=11080", TRIREME_ERROR_UNSUPPORTED, "it runs CUDA up to 11.8"},
    {"missing=cuMemMap", TRIREME_ERROR_UNSUPPORTED, "it has no cuMemMap"},
};

static void opens(int number, void *context, struct outcome *outcome) {
    (void)number;
    const int at = *(const int *)context;
    use_fake(openings[at].script);
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    options.rendezvous = rendezvous;
    options.world_size = 1;
    options.device = (trireme_device){TRIREME_DEVICE_CUDA, 0};
    trireme_communicator *communicator = NULL;
    keep_error(outcome, trireme_communicator_create(&options, &communicator));
    CHECK(communicator == NULL && FAKE(fake_lives, "fake_live_count")() == 0);
    CHECK(FAKE(fake_retained, "fake_retained_count")(0) == 0);
    check_host_goes_on();
}

static void a_device_that_does_not_open_is_told(void **state) {
    (void)state;
    for (int i = 0; i < (int)(sizeof openings / sizeof *openings); ++i) {
        struct processes processes;
        start_processes(&processes, 1, opens, &i);
        wait_processes(&processes);
        const struct outcome *const outcome = &processes.outcomes[0];
        if (outcome->exit_code != 0 || outcome->status != openings[i].status ||
            strstr(outcome->message, openings[i].word) == NULL) {
            fail_msg("%s: %d with %s", openings[i].script, outcome->status, outcome->message);
        }
        free_processes(&processes);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_script_ends_as_its_row_says),
        cmocka_unit_test(a_device_that_does_not_open_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
