/* Lists of buffers, batches of calls, and calls that find out how much comes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "processes.h"
#include "ranks.h"

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))
#define MOST 8

static const int world_sizes[] = {1, 2, 3, 4, 5, 8};

static void run_world_sizes(rank_function *function) {
    for (size_t i = 0; i < COUNT_OF(world_sizes); ++i) {
        if (is_quick() && world_sizes[i] > 5) continue;
        struct verdict verdicts[MOST] = {0};
        run_ranks(world_sizes[i], function, verdicts);
        assert_verdicts(verdicts, world_sizes[i]);
    }
}

static int32_t size_of(trireme_communicator *communicator) {
    int32_t world_size = 0;
    if (trireme_communicator_get_world_size(communicator, &world_size) != TRIREME_OK) abort();
    return world_size;
}

/* --- lists --- */

/* Nothing, tiny, many that share a pack, one that is too large for any, tiny again. */
static const uint64_t counts[] = {0, 1, 7, 30000, 30000, 30000, 30000, 30000, 70001, 3, 0, 129};
#define LENGTH COUNT_OF(counts)

static float value_of(int rank, size_t entry, uint64_t index) {
    return (float)(rank * 5 + (int)entry * 3 + (int)(index % 11));
}

static float sum_of(int world_size, size_t entry, uint64_t index) {
    float sum = 0;
    for (int rank = 0; rank < world_size; ++rank) sum += value_of(rank, entry, index);
    return sum;
}

/* One of the four lists; `kind` is the operation, and of each entry one block or world_size. */
struct list {
    trireme_operation_kind kind;
    uint64_t send_blocks, receive_blocks;
    float *sends[LENGTH], *receives[LENGTH];
};

static struct list make_list(trireme_operation_kind kind, int rank, int world_size, bool in_place) {
    const uint64_t n = (uint64_t)world_size;
    struct list list = {.kind = kind,
                        .send_blocks = kind == TRIREME_OPERATION_KIND_REDUCE_SCATTER ? n : 1,
                        .receive_blocks = kind == TRIREME_OPERATION_KIND_ALL_GATHER ? n : 1};
    for (size_t i = 0; i < LENGTH; ++i) {
        const uint64_t whole = counts[i] * n;
        float *const memory = malloc((2 * whole + 1) * sizeof(float));
        if (memory == NULL) abort();
        list.sends[i] = memory;
        list.receives[i] = memory + whole;
        if (in_place) list.receives[i] = memory;
        if (in_place && list.send_blocks > 1) {
            list.receives[i] = memory + counts[i] * (uint64_t)rank;
        }
        if (in_place && list.receive_blocks > 1) {
            list.sends[i] = memory + counts[i] * (uint64_t)rank;
        }
        for (uint64_t k = 0; k < counts[i] * list.send_blocks; ++k) {
            list.sends[i][k] = value_of(rank, i, k);
        }
        if (kind == TRIREME_OPERATION_KIND_BROADCAST) list.receives[i] = list.sends[i];
    }
    return list;
}

static void free_list(struct list *list) {
    /* The lower of the two is where the memory begins, unless in place in the middle of it. */
    for (size_t i = 0; i < LENGTH; ++i) {
        free(list->send_blocks > 1 || list->sends[i] < list->receives[i] ? list->sends[i]
                                                                         : list->receives[i]);
    }
}

static trireme_status
run_list(trireme_communicator *communicator, struct list *list, int32_t root, bool started) {
    const void *const *const sends = (const void *const *)list->sends;
    void *const *const receives = (void *const *)list->receives;
    trireme_request *request = NULL;
    trireme_status status;
    switch (list->kind) {
        case TRIREME_OPERATION_KIND_ALL_REDUCE:
            if (!started) {
                return trireme_all_reduce_list(communicator, sends, receives, counts, LENGTH,
                                               TRIREME_DTYPE_F32, TRIREME_REDUCTION_SUM, NULL);
            }
            status = trireme_all_reduce_list_start(communicator, sends, receives, counts, LENGTH,
                                                   TRIREME_DTYPE_F32, TRIREME_REDUCTION_SUM, NULL,
                                                   &request);
            break;
        case TRIREME_OPERATION_KIND_REDUCE_SCATTER:
            if (!started) {
                return trireme_reduce_scatter_list(communicator, sends, receives, counts, LENGTH,
                                                   TRIREME_DTYPE_F32, TRIREME_REDUCTION_SUM, NULL);
            }
            status = trireme_reduce_scatter_list_start(communicator, sends, receives, counts,
                                                       LENGTH, TRIREME_DTYPE_F32,
                                                       TRIREME_REDUCTION_SUM, NULL, &request);
            break;
        case TRIREME_OPERATION_KIND_ALL_GATHER:
            if (!started) {
                return trireme_all_gather_list(communicator, sends, receives, counts, LENGTH,
                                               TRIREME_DTYPE_F32, NULL);
            }
            status = trireme_all_gather_list_start(communicator, sends, receives, counts, LENGTH,
                                                   TRIREME_DTYPE_F32, NULL, &request);
            break;
        default:
            if (!started) {
                return trireme_broadcast_list(communicator, receives, counts, LENGTH,
                                              TRIREME_DTYPE_F32, root, NULL);
            }
            status = trireme_broadcast_list_start(communicator, receives, counts, LENGTH,
                                                  TRIREME_DTYPE_F32, root, NULL, &request);
    }
    if (status != TRIREME_OK) return status;
    status = trireme_request_wait(request, LONG_NS);
    trireme_request_destroy(request);
    return status;
}

static bool is_list_right(const struct list *list, int rank, int world_size, int root) {
    for (size_t i = 0; i < LENGTH; ++i) {
        for (uint64_t k = 0; k < counts[i] * list->receive_blocks; ++k) {
            float expected = value_of(root, i, k);
            if (list->kind == TRIREME_OPERATION_KIND_ALL_REDUCE)
                expected = sum_of(world_size, i, k);
            if (list->kind == TRIREME_OPERATION_KIND_REDUCE_SCATTER) {
                expected = sum_of(world_size, i, k + counts[i] * (uint64_t)rank);
            }
            if (list->kind == TRIREME_OPERATION_KIND_ALL_GATHER) {
                expected = value_of((int)(k / counts[i]), i, k % counts[i]);
            }
            if (list->receives[i][k] != expected) return false;
        }
    }
    return true;
}

static const trireme_operation_kind kinds[] = {TRIREME_OPERATION_KIND_ALL_REDUCE,
                                               TRIREME_OPERATION_KIND_REDUCE_SCATTER,
                                               TRIREME_OPERATION_KIND_ALL_GATHER,
                                               TRIREME_OPERATION_KIND_BROADCAST};

static void run_lists(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    const int world_size = size_of(communicator);
    for (int number = 0; number < 16; ++number) {
        const int root = number % world_size;
        struct list list = make_list(kinds[number / 4], rank, world_size, number % 4 >= 2);
        EXPECT_STATUS(verdict, TRIREME_OK, run_list(communicator, &list, root, number % 2 == 1));
        EXPECT(verdict, is_list_right(&list, rank, world_size, root));
        free_list(&list);
    }
    /* Options count for every entry, packed or not. */
    trireme_operation_options options = TRIREME_OPERATION_OPTIONS_INIT;
    options.scale = 0.5;
    float *const memory = calloc(50000, sizeof *memory);
    if (memory == NULL) abort();
    memory[0] = memory[1] = memory[2] = 4;
    const void *const from[] = {memory, memory + 1, memory + 2};
    void *const to[] = {memory, memory + 1, memory + 2};
    const uint64_t lengths[] = {1, 1, 49998};
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_all_reduce_list(communicator, from, to, lengths, 3, TRIREME_DTYPE_F32,
                                          TRIREME_REDUCTION_SCALED_SUM, &options));
    for (int i = 0; i < 3; ++i) EXPECT(verdict, memory[i] == (float)(2 * world_size));
    free(memory);
    /* An empty list is a meeting. */
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_all_reduce_list(communicator, NULL, NULL, NULL, 0, TRIREME_DTYPE_F32,
                                          TRIREME_REDUCTION_SUM, NULL));
}

static void lists_are_as_one_call_for_each_entry(void **state) {
    (void)state;
    run_world_sizes(run_lists);
}

struct meeting {
    char rendezvous[96];
    int world_size;
};

static void lists_of_a_process(int rank, void *context, struct outcome *outcome) {
    const struct meeting *const meeting = context;
    struct verdict verdicts[MOST] = {0};
    trireme_communicator *const communicator =
        join_process(rank, meeting->world_size, meeting->rendezvous, PATIENT_NS);
    run_lists(communicator, rank, verdicts);
    memcpy(outcome->message, verdicts[rank].text, sizeof verdicts[rank].text);
    trireme_communicator_destroy(communicator);
}

static void lists_work_between_processes(void **state) {
    (void)state;
    for (int world_size = 2; world_size <= 3; ++world_size) {
        struct meeting meeting = {.world_size = world_size};
        struct processes processes;
        unique_host_rendezvous(meeting.rendezvous, sizeof meeting.rendezvous);
        start_processes(&processes, world_size, lists_of_a_process, &meeting);
        wait_processes(&processes);
        for (int rank = 0; rank < world_size; ++rank) {
            assert_int_equal(processes.outcomes[rank].exit_code, 0);
            assert_string_equal(processes.outcomes[rank].message, "");
        }
        free_processes(&processes);
    }
}

static void disagree_about_a_list(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    float data[8] = {1}, result[8] = {-7};
    const void *const sends[] = {data, data + 4};
    void *const receives[] = {result, result + 4};
    /* The same sum of counts in all lists. */
    const uint64_t even[] = {3, 3}, uneven[] = {2, 4};
    EXPECT_STATUS(verdict, TRIREME_ERROR_MISMATCH,
                  trireme_all_reduce_list(communicator, sends, receives, rank == 1 ? uneven : even,
                                          2, TRIREME_DTYPE_F32, TRIREME_REDUCTION_SUM, NULL));
    EXPECT(verdict, strstr(trireme_last_error(), "lists of counts") != NULL);
    EXPECT(verdict, result[0] == -7);
}

static void a_list_and_a_plain_call(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    float data[4] = {1}, result[4] = {-7};
    const void *const sends[] = {data};
    void *const receives[] = {result};
    const uint64_t four = 4;
    EXPECT_STATUS(verdict, TRIREME_ERROR_MISMATCH,
                  rank == 0
                      ? trireme_all_reduce_list(communicator, sends, receives, &four, 1,
                                                TRIREME_DTYPE_F32, TRIREME_REDUCTION_SUM, NULL)
                      : trireme_all_reduce(communicator, data, result, 4, TRIREME_DTYPE_F32,
                                           TRIREME_REDUCTION_SUM, NULL));
    EXPECT(verdict, result[0] == -7);
}

static void lists_that_differ_are_a_mismatch(void **state) {
    (void)state;
    struct verdict verdicts[3] = {0};
    run_ranks(3, disagree_about_a_list, verdicts);
    assert_verdicts(verdicts, 3);
    memset(verdicts, 0, sizeof verdicts);
    run_ranks(2, a_list_and_a_plain_call, verdicts);
    assert_verdicts(verdicts, 2);
}

static void bad_lists_are_refused(void **state) {
    (void)state;
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *const alone = join_rank(0, 1, rendezvous);
    float data[8] = {0}, result[8] = {-7};
    const void *sends[] = {data, data + 4};
    void *receives[] = {result, result + 4};
    uint64_t some[] = {4, 4};
    const trireme_dtype f32 = TRIREME_DTYPE_F32;
#define REFUSED(call, part)                                                 \
    do {                                                                    \
        assert_int_equal(call, TRIREME_ERROR_INVALID_ARGUMENT);             \
        if (strstr(trireme_last_error(), part) == NULL) {                   \
            fail_msg("\"%s\" does not say %s", trireme_last_error(), part); \
        }                                                                   \
    } while (0)
    REFUSED(trireme_all_reduce_list(alone, NULL, receives, some, 2, f32, TRIREME_REDUCTION_SUM,
                                    NULL),
            "sends");
    REFUSED(trireme_all_reduce_list(alone, sends, NULL, some, 2, f32, TRIREME_REDUCTION_SUM, NULL),
            "receives");
    REFUSED(trireme_all_gather_list(alone, sends, receives, NULL, 2, f32, NULL), "counts");
    REFUSED(trireme_broadcast_list(alone, NULL, some, 2, f32, 0, NULL), "data");
    REFUSED(trireme_broadcast_list(alone, receives, some, 2, f32, 1, NULL), "root");
    REFUSED(trireme_reduce_scatter_list(alone, sends, receives, some, UINT64_MAX, f32,
                                        TRIREME_REDUCTION_SUM, NULL),
            "length");
    REFUSED(trireme_all_reduce_list(alone, sends, receives, some, 0, 0, TRIREME_REDUCTION_SUM,
                                    NULL),
            "dtype");
    receives[1] = data + 5;
    REFUSED(trireme_all_reduce_list(alone, sends, receives, some, 2, f32, TRIREME_REDUCTION_SUM,
                                    NULL),
            "entry 1");
    receives[1] = NULL;
    REFUSED(trireme_all_reduce_list(alone, sends, receives, some, 2, f32, TRIREME_REDUCTION_SUM,
                                    NULL),
            "entry 1");
    receives[1] = result + 4;
    some[1] = UINT64_MAX;
    REFUSED(trireme_all_gather_list(alone, sends, receives, some, 2, f32, NULL), "entry 1");
    trireme_request *request = NULL;
    some[1] = 4;
    REFUSED(trireme_all_gather_list_start(alone, sends, receives, some, 2, f32, NULL, NULL),
            "out_request");
    assert_int_equal(trireme_broadcast_list_start(NULL, receives, some, 2, f32, 0, NULL, &request),
                     TRIREME_ERROR_INVALID_HANDLE);
    assert_null(request);
    for (int i = 0; i < 8; ++i) assert_true(result[i] == (i == 0 ? -7 : 0));
    trireme_communicator_destroy(alone);
}

/* --- how much comes --- */

static bool holds(const trireme_buffer *buffer, int rank, uint64_t first, uint64_t count) {
    void *data = NULL;
    if (trireme_buffer_get_data(buffer, &data) != TRIREME_OK) return false;
    for (uint64_t i = 0; i < count; ++i) {
        if (((const float *)data)[first + i] != value_of(rank, 1, i)) return false;
    }
    return true;
}

static uint64_t elements_of(const trireme_buffer *buffer) {
    uint64_t bytes = 0;
    if (trireme_buffer_get_bytes(buffer, &bytes) != TRIREME_OK) abort();
    return bytes / sizeof(float);
}

static void find_out(trireme_communicator *communicator, int rank, void *context) {
    static const uint64_t amounts[] = {0, 1, 3, 1000, 200003};
    struct verdict *const verdict = (struct verdict *)context + rank;
    const int world_size = size_of(communicator);
    const trireme_dtype f32 = TRIREME_DTYPE_F32;
    for (size_t number = 0; number < 2 * COUNT_OF(amounts); ++number) {
        const uint64_t amount = amounts[number / 2];
        const int root = (int)number % world_size;
        /* Each rank gives another count; only the rank itself knows it. */
        uint64_t blocks[MOST], gathered[MOST], all = 0;
        for (int r = 0; r < world_size; ++r) {
            blocks[r] = (amount * (uint64_t)(r + (int)number % 3)) / 2;
            all += blocks[r];
        }
        float *const data = malloc((all + amount + 1) * sizeof(float));
        if (data == NULL) abort();
        for (uint64_t i = 0; i < amount; ++i) data[i] = value_of(rank, 1, i);

        trireme_buffer *buffer = NULL;
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_broadcast_to_buffer(communicator, rank == root ? data : NULL,
                                                  rank == root ? amount : 12345, f32, root, NULL,
                                                  rank == root && number % 2 == 0 ? NULL
                                                                                  : &buffer));
        if (rank != root || number % 2 == 1) {
            EXPECT(verdict, elements_of(buffer) == amount && holds(buffer, root, 0, amount));
        }
        trireme_buffer_destroy(buffer);

        uint64_t at = 0;
        for (int r = 0; r < world_size; ++r) {
            for (uint64_t i = 0; i < blocks[r]; ++i) data[at++] = value_of(r, 1, i);
        }
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_scatter_to_buffer(communicator, rank == root ? data : NULL,
                                                rank == root ? blocks : NULL, f32, root, NULL,
                                                &buffer));
        EXPECT(verdict,
               elements_of(buffer) == blocks[rank] && holds(buffer, rank, 0, blocks[rank]));
        trireme_buffer_destroy(buffer);

        for (uint64_t i = 0; i < blocks[rank]; ++i) data[i] = value_of(rank, 1, i);
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_all_gather_to_buffer(communicator, data, blocks[rank], f32, NULL,
                                                   gathered, &buffer));
        at = 0;
        for (int r = 0; r < world_size; ++r) {
            EXPECT(verdict, gathered[r] == blocks[r] && holds(buffer, r, at, blocks[r]));
            at += blocks[r];
        }
        EXPECT(verdict, elements_of(buffer) == at);
        /* Received memory is like any other of the library. */
        void *received = NULL;
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_buffer_get_data(buffer, &received));
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_broadcast(communicator, received, at, f32, 0, NULL));
        trireme_buffer_destroy(buffer);
        free(data);
    }
}

static void only_who_gives_knows_how_much(void **state) {
    (void)state;
    run_world_sizes(find_out);
}

static void discover_against_plain(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    float data[4] = {0};
    trireme_buffer *buffer = NULL;
    EXPECT_STATUS(verdict, TRIREME_ERROR_MISMATCH,
                  rank == 0 ? trireme_broadcast(communicator, data, 4, TRIREME_DTYPE_F32, 0, NULL)
                            : trireme_broadcast_to_buffer(communicator, NULL, 0, TRIREME_DTYPE_F32,
                                                          0, NULL, &buffer));
    EXPECT(verdict, buffer == NULL);
    EXPECT(verdict, strstr(trireme_last_error(), "broadcast") != NULL);
}

static void discover_other_dtypes(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    double data[4] = {0};
    trireme_buffer *buffer = NULL;
    uint64_t gathered[2] = {77, 77};
    EXPECT_STATUS(verdict, TRIREME_ERROR_MISMATCH,
                  trireme_all_gather_to_buffer(communicator, data, 2,
                                               rank == 0 ? TRIREME_DTYPE_F32 : TRIREME_DTYPE_F64,
                                               NULL, gathered, &buffer));
    EXPECT(verdict, buffer == NULL && gathered[0] == 77);
}

static void finding_out_disagreements_and_bad_arguments(void **state) {
    (void)state;
    struct verdict verdicts[2] = {0};
    run_ranks(2, discover_against_plain, verdicts);
    assert_verdicts(verdicts, 2);
    run_ranks(2, discover_other_dtypes, verdicts);
    assert_verdicts(verdicts, 2);

    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *const alone = join_rank(0, 1, rendezvous);
    float data[4] = {0};
    uint64_t count = 4;
    trireme_buffer *buffer = NULL;
    const trireme_dtype f32 = TRIREME_DTYPE_F32;
    REFUSED(trireme_broadcast_to_buffer(alone, NULL, 4, f32, 0, NULL, &buffer), "NULL");
    REFUSED(trireme_broadcast_to_buffer(alone, data, 4, 77, 0, NULL, &buffer), "dtype");
    REFUSED(trireme_broadcast_to_buffer(alone, data, 4, f32, 3, NULL, &buffer), "root");
    REFUSED(trireme_broadcast_to_buffer(alone, data, UINT64_MAX, f32, 0, NULL, &buffer), "count");
    REFUSED(trireme_scatter_to_buffer(alone, data, NULL, f32, 0, NULL, &buffer), "counts");
    REFUSED(trireme_scatter_to_buffer(alone, NULL, &count, f32, 0, NULL, &buffer), "send");
    REFUSED(trireme_scatter_to_buffer(alone, data, &count, f32, 0, NULL, NULL), "out_buffer");
    REFUSED(trireme_all_gather_to_buffer(alone, data, 4, f32, NULL, NULL, &buffer), "out_counts");
    REFUSED(trireme_all_gather_to_buffer(alone, data, 4, f32, NULL, &count, NULL), "out_buffer");
    REFUSED(trireme_all_gather_to_buffer(alone, NULL, 4, f32, NULL, &count, &buffer), "send");
    assert_null(buffer);
    assert_int_equal(count, 4);
    assert_int_equal(trireme_batch_begin(), TRIREME_OK);
    assert_int_equal(trireme_broadcast_to_buffer(alone, data, 4, f32, 0, NULL, &buffer),
                     TRIREME_ERROR_INVALID_STATE);
    assert_int_equal(trireme_batch_end(), TRIREME_OK);
    trireme_communicator_destroy(alone);
}

/* --- groups --- */

static void exchange_in_a_group(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    const int world_size = size_of(communicator);
    for (int turn = 0; turn < 5; ++turn) {
        int32_t sent[MOST], received[MOST], sum = 0;
        const int32_t one = 1;
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_batch_begin());
        for (int i = 0; i < world_size; ++i) {
            /* Every rank sends first, also to itself: alone, each of these would wait for ever. */
            const int to = (rank + i) % world_size;
            sent[to] = rank * 100 + to + turn;
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_send(communicator, &sent[to], 1, TRIREME_DTYPE_I32, to, 5, NULL));
        }
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_batch_begin()); /* nested */
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_all_reduce(communicator, &one, &sum, 1, TRIREME_DTYPE_I32,
                                         TRIREME_REDUCTION_SUM, NULL));
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_batch_end());
        for (int from = 0; from < world_size; ++from) {
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_receive(communicator, &received[from], 1, TRIREME_DTYPE_I32, from,
                                          5, NULL));
        }
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_batch_end());
        EXPECT(verdict, sum == world_size);
        for (int from = 0; from < world_size; ++from) {
            EXPECT(verdict, received[from] == from * 100 + rank + turn);
        }
    }
}

static void calls_of_a_group_need_no_order(void **state) {
    (void)state;
    run_world_sizes(exchange_in_a_group);
}

static void fail_in_a_group(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    int32_t data = 0, result = -7;
    trireme_operation_options soon = TRIREME_OPERATION_OPTIONS_INIT;
    soon.timeout_ns = 50 * 1000 * 1000;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_batch_begin());
    /* Refused at once, and no part of the group. */
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_all_reduce(communicator, NULL, &result, 1, TRIREME_DTYPE_I32,
                                     TRIREME_REDUCTION_SUM, NULL));
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_receive(communicator, &data, 1, TRIREME_DTYPE_I32, (rank + 1) % 2, 9,
                                  &soon));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
    EXPECT_STATUS(verdict, TRIREME_ERROR_TIMEOUT, trireme_batch_end());
    EXPECT(verdict, strstr(trireme_last_error(), "has not sent") != NULL);
    EXPECT(verdict, result == -7);
    /* The late message harmed no other operation. */
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_STATE, trireme_batch_end());
}

static void a_group_ends_with_the_failure_of_its_first_call_that_failed(void **state) {
    (void)state;
    struct verdict verdicts[2] = {0};
    run_ranks(2, fail_in_a_group, verdicts);
    assert_verdicts(verdicts, 2);
    assert_int_equal(trireme_batch_end(), TRIREME_ERROR_INVALID_STATE);
    assert_int_equal(trireme_batch_begin(), TRIREME_OK);
    assert_int_equal(trireme_batch_end(), TRIREME_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_work_between_processes), /* first: it forks */
        cmocka_unit_test(lists_are_as_one_call_for_each_entry),
        cmocka_unit_test(lists_that_differ_are_a_mismatch),
        cmocka_unit_test(bad_lists_are_refused),
        cmocka_unit_test(only_who_gives_knows_how_much),
        cmocka_unit_test(finding_out_disagreements_and_bad_arguments),
        cmocka_unit_test(calls_of_a_group_need_no_order),
        cmocka_unit_test(a_group_ends_with_the_failure_of_its_first_call_that_failed),
    };
    return cmocka_run_group_tests_name("batch", tests, NULL, NULL);
}
