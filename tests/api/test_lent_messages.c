/*
 * Messages whose bytes the receiver copies from where they lie: sizes round every threshold, both
 * kinds of memory, many at once, tags in any order; and every way to end early. Between processes,
 * and between threads.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "processes.h"

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))
#define GUARD 64
#define SHORT_NS (30ull * 1000 * 1000)
#define LARGE 3000001
#define ANY_TAG TRIREME_OPERATION_FLAG_ANY_TAG

/* Round a cell, a page, a quarter of a ring, a ring, what is lent, and a piece of what is lent. */
static const uint64_t sizes[] = {0,     1,     23,    24,      25,      63,      64,      65,
                                 4095,  4096,  4097,  8191,    8192,    8193,    16319,   16320,
                                 16321, 16383, 16384, 16385,   65279,   65280,   65281,   65536,
                                 65537, 99999, LARGE, 1048575, 1048576, 1048577, 2097153, 7};

static unsigned char pattern(uint64_t salt, uint64_t index) {
    return (unsigned char)(index * 31 + index / 251 + salt * 57 + 1);
}

static void fill(unsigned char *memory, uint64_t salt, uint64_t bytes) {
    for (uint64_t i = 0; i < bytes; ++i) memory[i] = pattern(salt, i);
}

static int has_pattern(const unsigned char *memory, uint64_t salt, uint64_t bytes) {
    for (uint64_t i = 0; i < bytes; ++i) {
        if (memory[i] != pattern(salt, i)) return 0;
    }
    return 1;
}

/* Memory of the library or of one's own. */
struct memory {
    unsigned char *data;
    trireme_buffer *buffer; /* NULL: one's own */
};

static unsigned char *data_of(const trireme_buffer *buffer) {
    void *data = NULL;
    if (trireme_buffer_get_data(buffer, &data) != TRIREME_OK) abort();
    return data;
}

static struct memory allocate(trireme_communicator *communicator, uint64_t bytes, bool shared) {
    struct memory memory = {0};
    if (shared) {
        if (trireme_buffer_alloc(communicator, bytes + GUARD, &memory.buffer) != TRIREME_OK)
            abort();
        memory.data = data_of(memory.buffer);
    } else {
        memory.data = malloc(bytes + GUARD);
    }
    if (memory.data == NULL) abort();
    memset(memory.data, 0xee, bytes + GUARD);
    return memory;
}

static void release(struct memory memory) {
    if (memory.buffer != NULL) {
        trireme_buffer_destroy(memory.buffer);
    } else {
        free(memory.data);
    }
}

static trireme_status finish(trireme_request *request) {
    const trireme_status status = trireme_request_wait(request, LONG_NS);
    trireme_request_destroy(request);
    return status;
}

/* Ranks find out at their first messages what they can read of each other: also if each message can
 * move at once, as its receiver finds it there. */
static void meet(trireme_communicator *communicator, int rank, struct verdict *verdict) {
    for (int round = 0; round < 4; ++round) {
        int32_t word = rank;
        if (rank == round % 2) {
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_send(communicator, &word, 1, TRIREME_DTYPE_I32, 1 - rank, 999,
                                       NULL));
        }
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
        if (rank != round % 2) {
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_receive(communicator, &word, 1, TRIREME_DTYPE_I32, 1 - rank, 999,
                                          NULL));
            EXPECT(verdict, word == 1 - rank);
        }
    }
}

/* --- the bodies: for a rank of either kind --- */

typedef void body_function(trireme_communicator *communicator, int rank, struct verdict *verdict);

static void
exchange_all_sizes(trireme_communicator *communicator, int rank, struct verdict *verdict) {
    const int peer = 1 - rank;
    for (int kind = 0; kind < 4; ++kind) {
        const bool shares_send = kind % 2 != 0, shares_receive = kind / 2 != 0;
        for (size_t i = 0; i < COUNT_OF(sizes); ++i) {
            const uint64_t bytes = sizes[i];
            const struct memory out = allocate(communicator, bytes, shares_send);
            const struct memory in = allocate(communicator, bytes, shares_receive);
            /* At odd addresses, and at even ones. */
            unsigned char *const from = out.data + i % 3, *const to = in.data + i % 2;
            fill(from, (uint64_t)rank + i, bytes);
            const trireme_status status =
                trireme_send_receive(communicator, bytes == 0 ? NULL : from, bytes, peer, i,
                                     bytes == 0 ? NULL : to, bytes, peer, i, TRIREME_DTYPE_BYTES,
                                     NULL);
            EXPECT_STATUS(verdict, TRIREME_OK, status);
            EXPECT(verdict, has_pattern(to, (uint64_t)peer + i, bytes));
            EXPECT(verdict, to[bytes] == 0xee && (i % 2 == 0 || in.data[0] == 0xee));
            EXPECT(verdict, has_pattern(from, (uint64_t)rank + i, bytes));
            release(out);
            release(in);
            if (status != TRIREME_OK) return;
        }
    }
}

/* All sends are under way at once, in both directions; each pair of receives comes in the other
 * order, so half of the messages are set aside. */
static void
send_many_at_once(trireme_communicator *communicator, int rank, struct verdict *verdict) {
    enum { MANY = 48 };
    const int peer = 1 - rank;
    struct memory out[MANY], in[MANY];
    trireme_request *sends[MANY], *receives[MANY];
    for (uint64_t i = 0; i < MANY; ++i) {
        const uint64_t bytes = sizes[i * 5 % COUNT_OF(sizes)];
        out[i] = allocate(communicator, bytes, i % 3 == 0);
        in[i] = allocate(communicator, bytes, i % 4 == 0);
        fill(out[i].data, i * 2 + (uint64_t)rank, bytes);
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_send_start(communicator, out[i].data, bytes, TRIREME_DTYPE_U8, peer,
                                         i, NULL, &sends[i]));
    }
    for (uint64_t next = 0; next < MANY; ++next) {
        const uint64_t i = next ^ 1;
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_receive_start(communicator, in[i].data,
                                            sizes[i * 5 % COUNT_OF(sizes)], TRIREME_DTYPE_U8, peer,
                                            i, NULL, &receives[i]));
    }
    for (uint64_t i = 0; i < MANY; ++i) {
        const uint64_t bytes = sizes[i * 5 % COUNT_OF(sizes)];
        EXPECT_STATUS(verdict, TRIREME_OK, finish(receives[i]));
        EXPECT_STATUS(verdict, TRIREME_OK, finish(sends[i]));
        EXPECT(verdict, has_pattern(in[i].data, i * 2 + (uint64_t)peer, bytes));
        EXPECT(verdict, in[i].data[bytes] == 0xee);
        release(out[i]);
        release(in[i]);
    }
}

/* Rank 0 takes whatever comes, from any rank, and into memory of the message's size. */
static void take_from_any(trireme_communicator *communicator, int rank, struct verdict *verdict) {
    enum { ROUNDS = 30 };
    trireme_operation_options any = TRIREME_OPERATION_OPTIONS_INIT;
    any.flags = ANY_TAG;
    uint64_t next[3] = {0};
    for (uint64_t round = 0; rank != 0 && round < ROUNDS; ++round) {
        const uint64_t bytes = sizes[(round * 7 + (uint64_t)rank) % COUNT_OF(sizes)];
        const struct memory out = allocate(communicator, bytes, round % 2 == 0);
        fill(out.data, round * 3 + (uint64_t)rank, bytes);
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_send(communicator, out.data, bytes, TRIREME_DTYPE_U8, 0, round,
                                   NULL));
        release(out);
    }
    for (int taken = 0; rank == 0 && taken < 2 * ROUNDS; ++taken) {
        trireme_message_info info = TRIREME_MESSAGE_INFO_INIT;
        if (taken % 3 == 0) {
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_probe(communicator, TRIREME_ANY_SOURCE, 0, &any, &info));
        }
        trireme_buffer *buffer = NULL;
        struct memory in = {0};
        if (taken % 2 == 0) {
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_receive_to_buffer(communicator, TRIREME_DTYPE_U8,
                                                    TRIREME_ANY_SOURCE, 0, &any, &info, &buffer));
        } else {
            in = allocate(communicator, LARGE, taken % 4 == 1);
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_receive_message(communicator, in.data, LARGE, TRIREME_DTYPE_U8,
                                                  TRIREME_ANY_SOURCE, 0, &any, &info));
        }
        if (!EXPECT(verdict, info.source == 1 || info.source == 2)) return;
        const uint64_t round = next[info.source]++;
        EXPECT(verdict, info.tag == round);
        EXPECT(verdict, info.count == sizes[(round * 7 + (uint64_t)info.source) % COUNT_OF(sizes)]);
        const unsigned char *const data = buffer != NULL ? data_of(buffer) : in.data;
        EXPECT(verdict, has_pattern(data, round * 3 + (uint64_t)info.source, info.count));
        if (buffer != NULL) {
            trireme_buffer_destroy(buffer);
        } else {
            release(in);
        }
    }
}

/* A send that no receive has met ends early, by a cancel or by its deadline: it harms nothing, and
 * the receiver never reads its bytes. */
static void withdraw_sends(trireme_communicator *communicator, int rank, struct verdict *verdict) {
    meet(communicator, rank, verdict);
    trireme_operation_options soon = TRIREME_OPERATION_OPTIONS_INIT;
    soon.timeout_ns = SHORT_NS;
    for (uint64_t round = 0; round < 40; ++round) {
        const bool shared = round % 2 != 0;
        const uint64_t bytes = round % 4 < 2 ? LARGE : 20001;
        struct memory memory = allocate(communicator, bytes, shared);
        if (rank == 0) {
            trireme_request *request = NULL;
            fill(memory.data, 777, bytes);
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_send_start(communicator, memory.data, bytes, TRIREME_DTYPE_U8, 1,
                                             5, round == 0 ? &soon : NULL, &request));
            if (round == 0) {
                EXPECT_STATUS(verdict, TRIREME_ERROR_TIMEOUT, finish(request));
            } else {
                EXPECT_STATUS(verdict, TRIREME_OK, trireme_request_cancel(request));
                EXPECT_STATUS(verdict, TRIREME_ERROR_CANCELLED, finish(request));
            }
            release(memory);
            memory = allocate(communicator, bytes, shared);
            fill(memory.data, round, bytes);
        }
        /* A collective reads no messages: so the receive begins when the first send is gone. */
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
        if (rank == 0) {
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_send(communicator, memory.data, bytes, TRIREME_DTYPE_U8, 1, 5,
                                       NULL));
        } else {
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_receive(communicator, memory.data, bytes, TRIREME_DTYPE_U8, 0, 5,
                                          NULL));
            EXPECT(verdict, has_pattern(memory.data, round, bytes));
            EXPECT(verdict, memory.data[bytes] == 0xee);
        }
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
        release(memory);
    }
}

#define MORE_THAN_ASIDE ((65ull << 20) + 1)

/* The receiver sleeps behind a message that it does not want and has no room for. When the sender
 * takes that one back, the receiver gets the next one at once. */
static void
take_back_what_blocks(trireme_communicator *communicator, int rank, struct verdict *verdict) {
    meet(communicator, rank, verdict);
    for (uint64_t round = 0; round < 2; ++round) {
        if (rank == 0) {
            struct memory memory = allocate(communicator, MORE_THAN_ASIDE, round % 2 != 0);
            trireme_request *request = NULL;
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_send_start(communicator, memory.data, MORE_THAN_ASIDE,
                                             TRIREME_DTYPE_U8, 1, 5, NULL, &request));
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_send(communicator, "next", 5, TRIREME_DTYPE_U8, 1, 6, NULL));
            sleep_ms(100);
            EXPECT_STATUS(verdict, TRIREME_OK, trireme_request_cancel(request));
            EXPECT_STATUS(verdict, TRIREME_ERROR_CANCELLED, finish(request));
            release(memory);
        } else {
            char text[5] = "";
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_receive(communicator, text, 5, TRIREME_DTYPE_U8, 0, 6, NULL));
            EXPECT(verdict, strcmp(text, "next") == 0);
        }
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
    }
}

/* --- between processes --- */

struct job {
    body_function *body;
    char rendezvous[96];
    int world_size;
    bool shared;
    bool kills_sender;
};

static void run_body(int rank, void *context, struct outcome *outcome) {
    const struct job *const job = context;
    struct verdict verdict = {{0}};
    trireme_communicator *const communicator =
        join_process(rank, job->world_size, job->rendezvous, PATIENT_NS);
    job->body(communicator, rank, &verdict);
    if (verdict.text[0] == 0) {
        EXPECT_STATUS(&verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
    }
    trireme_communicator_destroy(communicator);
    snprintf(outcome->message, sizeof outcome->message, "%s", verdict.text);
}

static void run_in_processes(body_function *body, int world_size) {
    struct job job = {.body = body, .world_size = world_size};
    struct processes processes;
    unique_host_rendezvous(job.rendezvous, sizeof job.rendezvous);
    start_processes(&processes, world_size, run_body, &job);
    wait_processes(&processes);
    for (int rank = 0; rank < world_size; ++rank) {
        const struct outcome *const outcome = &processes.outcomes[rank];
        if (outcome->exit_code != 0 || outcome->message[0] != 0) {
            fail_msg("rank %d: exit code %d, signal %d, %s", rank, outcome->exit_code,
                     outcome->signal, outcome->message);
        }
    }
    free_processes(&processes);
}

static void processes_exchange_all_sizes(void **state) {
    (void)state;
    run_in_processes(exchange_all_sizes, 2);
}

static void processes_have_many_under_way(void **state) {
    (void)state;
    run_in_processes(send_many_at_once, 2);
}

static void processes_take_from_any(void **state) {
    (void)state;
    run_in_processes(take_from_any, 3);
}

static void processes_take_back_what_blocks(void **state) {
    (void)state;
    run_in_processes(take_back_what_blocks, 2);
}

#define GROUPS 8
#define BUFFERED 32768

/* Rank 0 leaves as soon as rank 1 has taken its buffered messages: in order, so that the other two
 * go on. */
static void leave_after_buffered(int rank, void *context, struct outcome *outcome) {
    const struct job *const job = context;
    struct verdict verdict = {{0}};
    trireme_operation_options buffered = TRIREME_OPERATION_OPTIONS_INIT;
    buffered.flags = TRIREME_OPERATION_FLAG_BUFFERED;
    for (int i = 0; i < GROUPS && verdict.text[0] == 0; ++i) {
        char rendezvous[120];
        snprintf(rendezvous, sizeof rendezvous, "%s-%d", job->rendezvous, i);
        trireme_communicator *const communicator = join_process(rank, 3, rendezvous, PATIENT_NS);
        const struct memory memory = allocate(communicator, BUFFERED, false);
        for (uint64_t round = 0; round < 4; ++round) { /* the first ones make them known */
            fill(memory.data, round, BUFFERED);
            if (rank == 0) {
                EXPECT_STATUS(&verdict, TRIREME_OK,
                              trireme_send(communicator, memory.data, BUFFERED, TRIREME_DTYPE_U8, 1,
                                           round, &buffered));
            } else if (rank == 1) {
                memset(memory.data, 0, BUFFERED);
                EXPECT_STATUS(&verdict, TRIREME_OK,
                              trireme_receive(communicator, memory.data, BUFFERED, TRIREME_DTYPE_U8,
                                              0, round, NULL));
                EXPECT(&verdict, has_pattern(memory.data, round, BUFFERED));
            }
        }
        EXPECT_STATUS(&verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
        if (rank != 0) {
            unsigned char other[1000];
            sleep_ms(2);
            EXPECT_STATUS(&verdict, TRIREME_OK,
                          trireme_send_receive(communicator, memory.data, sizeof other, 3 - rank, 9,
                                               other, sizeof other, 3 - rank, 9, TRIREME_DTYPE_U8,
                                               NULL));
        }
        trireme_communicator_destroy(communicator);
        release(memory);
    }
    snprintf(outcome->message, sizeof outcome->message, "%s", verdict.text);
}

static void who_leaves_after_its_buffered_messages_leaves_in_order(void **state) {
    (void)state;
    struct job job = {.world_size = 3};
    struct processes processes;
    unique_host_rendezvous(job.rendezvous, sizeof job.rendezvous);
    start_processes(&processes, 3, leave_after_buffered, &job);
    wait_processes(&processes);
    for (int rank = 0; rank < 3; ++rank) {
        const struct outcome *const outcome = &processes.outcomes[rank];
        if (outcome->exit_code != 0 || outcome->message[0] != 0) {
            fail_msg("rank %d: exit code %d, %s", rank, outcome->exit_code, outcome->message);
        }
    }
    free_processes(&processes);
}

static void processes_withdraw_sends(void **state) {
    (void)state;
    run_in_processes(withdraw_sends, 2);
}

/* One of the two dies in the middle of the copy, which is the second piece. */
static void die_in_the_middle(int rank, void *context, struct outcome *outcome) {
    const struct job *const job = context;
    struct verdict verdict = {{0}};
    trireme_communicator *const communicator = join_process(rank, 2, job->rendezvous, PATIENT_NS);
    meet(communicator, rank, &verdict);
    if (verdict.text[0] != 0) _exit(91);
    const struct memory memory = allocate(communicator, LARGE, job->shared);
    trireme_status status = TRIREME_OK;
    if (rank == 0) {
        trireme_request *request = NULL;
        if (trireme_send_start(communicator, memory.data, LARGE, TRIREME_DTYPE_U8, 1, 0, NULL,
                               &request) != TRIREME_OK) {
            _exit(92);
        }
        if (job->kills_sender) {
            sleep_ms(150);
            raise(SIGKILL);
        }
        status = finish(request);
    } else {
        const char *const point =
            job->kills_sender ? "receive.mid_message=sleep(400)@2" : "receive.mid_message=kill@2";
        if (trireme_failpoint_set(point) != TRIREME_OK) _exit(93);
        status = trireme_receive(communicator, memory.data, LARGE, TRIREME_DTYPE_U8, 0, 0, NULL);
    }
    keep_error(outcome, status);
    if (status == TRIREME_OK) outcome->later = trireme_barrier(communicator, NULL);
    trireme_communicator_destroy(communicator);
}

static void the_death_of_either_process_in_the_middle_is_told(void **state) {
    (void)state;
    for (int trial = 0; trial < 4; ++trial) {
        struct job job = {.shared = trial % 2 != 0, .kills_sender = trial / 2 != 0};
        struct processes processes;
        unique_host_rendezvous(job.rendezvous, sizeof job.rendezvous);
        start_processes(&processes, 2, die_in_the_middle, &job);
        wait_processes(&processes);
        const int dead = job.kills_sender ? 0 : 1;
        const struct outcome *const survivor = &processes.outcomes[1 - dead];
        if (processes.outcomes[dead].signal != SIGKILL || survivor->exit_code != 0 ||
            survivor->status != TRIREME_ERROR_PEER_LOST || !blames_only(&survivor->info, dead)) {
            fail_msg("trial %d: the survivor's code %d, status %d, %s", trial, survivor->exit_code,
                     survivor->status, survivor->message);
        }
        free_processes(&processes);
    }
}

/* The receiver is in the middle when the sender's deadline passes: the sender's memory is its own
 * again, and the receiver does not answer OK. */
static void be_late_in_the_middle(int rank, void *context, struct outcome *outcome) {
    const struct job *const job = context;
    struct verdict verdict = {{0}};
    trireme_communicator *const communicator = join_process(rank, 2, job->rendezvous, PATIENT_NS);
    meet(communicator, rank, &verdict);
    if (verdict.text[0] != 0) _exit(91);
    struct memory memory = allocate(communicator, LARGE, job->shared);
    trireme_status status = TRIREME_OK;
    if (rank == 0) {
        trireme_operation_options soon = TRIREME_OPERATION_OPTIONS_INIT;
        soon.timeout_ns = 5 * SHORT_NS;
        status = trireme_send(communicator, memory.data, LARGE, TRIREME_DTYPE_U8, 1, 0, &soon);
        keep_error(outcome, status);
        release(memory);
    } else {
        if (trireme_failpoint_set("receive.mid_message=sleep(600)@2") != TRIREME_OK) _exit(93);
        status = trireme_receive(communicator, memory.data, LARGE, TRIREME_DTYPE_U8, 0, 0, NULL);
        keep_error(outcome, status);
    }
    outcome->later = trireme_barrier(communicator, NULL);
    trireme_communicator_destroy(communicator);
}

static void processes_are_late_in_the_middle(void **state) {
    (void)state;
    for (int shared = 0; shared < 2; ++shared) {
        struct job job = {.shared = shared != 0};
        struct processes processes;
        unique_host_rendezvous(job.rendezvous, sizeof job.rendezvous);
        start_processes(&processes, 2, be_late_in_the_middle, &job);
        wait_processes(&processes);
        for (int rank = 0; rank < 2; ++rank) {
            const struct outcome *const outcome = &processes.outcomes[rank];
            if (outcome->exit_code != 0 || outcome->status != TRIREME_ERROR_TIMEOUT ||
                outcome->later != TRIREME_ERROR_TIMEOUT) {
                fail_msg("rank %d: exit code %d, status %d, later %d, %s", rank, outcome->exit_code,
                         outcome->status, outcome->later, outcome->message);
            }
        }
        free_processes(&processes);
    }
}

/* --- between threads --- */

struct threads {
    body_function *body;
    struct verdict verdicts[3];
};

static void run_in_thread(trireme_communicator *communicator, int rank, void *context) {
    struct threads *const threads = context;
    threads->body(communicator, rank, &threads->verdicts[rank]);
    if (threads->verdicts[rank].text[0] == 0) {
        EXPECT_STATUS(&threads->verdicts[rank], TRIREME_OK, trireme_barrier(communicator, NULL));
    }
}

static void run_in_threads(body_function *body, int world_size) {
    struct threads threads = {.body = body};
    run_ranks(world_size, run_in_thread, &threads);
    assert_verdicts(threads.verdicts, world_size);
}

static void threads_exchange_all_sizes(void **state) {
    (void)state;
    run_in_threads(exchange_all_sizes, 2);
}

static void threads_have_many_under_way(void **state) {
    (void)state;
    run_in_threads(send_many_at_once, 2);
}

static void threads_take_from_any(void **state) {
    (void)state;
    run_in_threads(take_from_any, 3);
}

static void threads_take_back_what_blocks(void **state) {
    (void)state;
    run_in_threads(take_back_what_blocks, 2);
}

static void threads_withdraw_sends(void **state) {
    (void)state;
    run_in_threads(withdraw_sends, 2);
}

/* The failpoint lies between two pieces: a receiver that went on would read freed memory. */
static void
be_late_in_threads(trireme_communicator *communicator, int rank, struct verdict *verdict) {
    const struct memory memory = allocate(communicator, LARGE, false);
    if (rank == 0) {
        trireme_operation_options soon = TRIREME_OPERATION_OPTIONS_INIT;
        soon.timeout_ns = 5 * SHORT_NS;
        EXPECT_STATUS(verdict, TRIREME_ERROR_TIMEOUT,
                      trireme_send(communicator, memory.data, LARGE, TRIREME_DTYPE_U8, 1, 0,
                                   &soon));
        memset(memory.data, 0, LARGE);
    } else {
        EXPECT_STATUS(verdict, TRIREME_ERROR_TIMEOUT,
                      trireme_receive(communicator, memory.data, LARGE, TRIREME_DTYPE_U8, 0, 0,
                                      NULL));
    }
    release(memory);
}

static void late_thread(trireme_communicator *communicator, int rank, void *context) {
    struct threads *const threads = context;
    be_late_in_threads(communicator, rank, &threads->verdicts[rank]);
}

static void threads_are_late_in_the_middle(void **state) {
    (void)state;
    struct threads threads = {0};
    assert_int_equal(trireme_failpoint_set("receive.mid_message=sleep(600)@2"), TRIREME_OK);
    run_ranks(2, late_thread, &threads);
    assert_int_equal(trireme_failpoint_set(NULL), TRIREME_OK);
    assert_verdicts(threads.verdicts, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        /* Before any thread: the parent of the processes must not have used the library. */
        cmocka_unit_test(processes_exchange_all_sizes),
        cmocka_unit_test(processes_have_many_under_way),
        cmocka_unit_test(processes_take_from_any),
        cmocka_unit_test(processes_withdraw_sends),
        cmocka_unit_test(processes_take_back_what_blocks),
        cmocka_unit_test(who_leaves_after_its_buffered_messages_leaves_in_order),
        cmocka_unit_test(the_death_of_either_process_in_the_middle_is_told),
        cmocka_unit_test(processes_are_late_in_the_middle),
        cmocka_unit_test(threads_exchange_all_sizes),
        cmocka_unit_test(threads_have_many_under_way),
        cmocka_unit_test(threads_take_from_any),
        cmocka_unit_test(threads_withdraw_sends),
        cmocka_unit_test(threads_take_back_what_blocks),
        cmocka_unit_test(threads_are_late_in_the_middle),
    };
    return cmocka_run_group_tests_name("lent messages", tests, NULL, NULL);
}
