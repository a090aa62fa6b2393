/*
 * A library for LD_PRELOAD. It stands between a test and the library under test. Each communicator
 * works on a device of the fake driver then, and each operand is memory of that device. The test
 * knows nothing of it, and its expectations are the same.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "passage.h"

/* ---- calls that have not ended ---- */

struct pending {
    const trireme_request *request; /* NULL: of a batch, or destroyed */
    struct passage passage;
    pthread_mutex_t mutex;
    bool is_over;
    trireme_completion_callback callback;
    void *user_data;
    struct pending *next;
};
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct pending *requests;
static _Thread_local struct pending *batch;
static _Thread_local int batch_depth;

static void bring_back(struct pending *pending) {
    pthread_mutex_lock(&pending->mutex);
    if (!pending->is_over) {
        pending->is_over = true;
        move_out(&pending->passage);
    }
    pthread_mutex_unlock(&pending->mutex);
}

static struct pending *keep(const struct passage *passage) {
    struct pending *const pending = calloc(1, sizeof *pending);
    if (pending == NULL) abort();
    pending->passage = *passage;
    pthread_mutex_init(&pending->mutex, NULL);
    return pending;
}

static struct pending *find_pending(const trireme_request *request) {
    pthread_mutex_lock(&mutex);
    struct pending *found = requests;
    while (found != NULL && found->request != request) found = found->next;
    pthread_mutex_unlock(&mutex);
    return found;
}

/* Its memory stays: a callback may come late. */
static void drop(struct pending *pending) {
    pthread_mutex_lock(&mutex);
    struct pending **at = &requests;
    while (*at != pending) at = &(*at)->next;
    *at = pending->next;
    pending->request = NULL;
    pthread_mutex_unlock(&mutex);
}

static void bring_back_of(const trireme_request *request) {
    struct pending *const pending = find_pending(request);
    if (pending != NULL) bring_back(pending);
}

/* The end of a blocking call. */
static trireme_status end(const char *function, struct passage *passage, trireme_status status) {
    if (batch_depth > 0 && status == TRIREME_OK) {
        struct pending *const pending = keep(passage);
        pending->next = batch;
        batch = pending;
        return status;
    }
    note_status(function, status);
    move_out(passage);
    return status;
}

static trireme_status started(const char *function, struct passage *passage, trireme_status status,
                              trireme_request *const *out) {
    note_status(function, status);
    if (status != TRIREME_OK) {
        move_out(passage);
        return status;
    }
    struct pending *const pending = keep(passage);
    pthread_mutex_lock(&mutex);
    pending->request = *out;
    pending->next = requests;
    requests = pending;
    pthread_mutex_unlock(&mutex);
    return status;
}

trireme_status trireme_batch_begin(void) {
    const trireme_status status = REAL(trireme_batch_begin)();
    if (status == TRIREME_OK) ++batch_depth;
    return status;
}

trireme_status trireme_batch_end(void) {
    const trireme_status status = REAL(trireme_batch_end)();
    if (batch_depth > 0) --batch_depth;
    while (batch_depth == 0 && batch != NULL) {
        struct pending *const pending = batch;
        batch = pending->next;
        bring_back(pending);
        free(pending);
    }
    return status;
}

/* ---- requests ---- */

trireme_status trireme_request_test(const trireme_request *request, int32_t *out_done) {
    const trireme_status status = REAL(trireme_request_test)(request, out_done);
    if (status == TRIREME_OK && *out_done != 0) bring_back_of(request);
    return status;
}

trireme_status trireme_request_wait(const trireme_request *request, uint64_t timeout_ns) {
    const trireme_status status = REAL(trireme_request_wait)(request, timeout_ns);
    if (status == TRIREME_OK) bring_back_of(request);
    return status;
}

trireme_status trireme_request_wait_any(const trireme_request *const *list, uint64_t count,
                                        uint64_t timeout_ns, uint64_t *out_index) {
    const trireme_status status =
        REAL(trireme_request_wait_any)(list, count, timeout_ns, out_index);
    if (status == TRIREME_OK) bring_back_of(list[*out_index]);
    return status;
}

trireme_status
trireme_request_wait_all(const trireme_request *const *list, uint64_t count, uint64_t timeout_ns) {
    const trireme_status status = REAL(trireme_request_wait_all)(list, count, timeout_ns);
    for (uint64_t i = 0; status == TRIREME_OK && i < count; ++i) bring_back_of(list[i]);
    return status;
}

static void call_back(trireme_status status, void *data) {
    struct pending *const pending = data;
    if (status == TRIREME_OK) bring_back(pending);
    pending->callback(status, pending->user_data);
}

trireme_status trireme_request_on_complete(trireme_request *request,
                                           trireme_completion_callback callback, void *user_data) {
    struct pending *const pending = find_pending(request);
    if (pending == NULL || callback == NULL || pending->callback != NULL) {
        return REAL(trireme_request_on_complete)(request, callback, user_data);
    }
    pending->callback = callback;
    pending->user_data = user_data;
    return REAL(trireme_request_on_complete)(request, call_back, pending);
}

void trireme_request_destroy(trireme_request *request) {
    struct pending *const pending = request == NULL ? NULL : find_pending(request);
    int32_t done = 0;
    if (pending != NULL && !pending->is_over &&
        REAL(trireme_request_test)(request, &done) == TRIREME_OK && done != 0) {
        bring_back(pending);
    }
    if (pending != NULL) drop(pending);
    REAL(trireme_request_destroy)(request);
}

/* ---- communicators ---- */

trireme_status trireme_communicator_create(const trireme_communicator_options *options,
                                           trireme_communicator **out) {
    if (options == NULL || options->struct_size != sizeof *options || options->device.kind > 1 ||
        options->device.index != 0) {
        return REAL(trireme_communicator_create)(options, out);
    }
    trireme_communicator_options changed = *options;
    const int device = options->rank < 0 ? 0 : options->rank % 2;
    changed.device = (trireme_device){TRIREME_DEVICE_CUDA, device};
    const trireme_status status = REAL(trireme_communicator_create)(&changed, out);
    if (status != TRIREME_OK) return note_status(__func__, status);
    struct seat seat = {.device = device, .rank = options->rank, .world_size = options->world_size};
    seat.stream = stream_for(device, options->rank);
    take_seat(*out, &seat);
    return status;
}

static trireme_status made(const char *function, trireme_status status,
                           const trireme_communicator *parent, trireme_communicator *const *out) {
    struct seat seat;
    if (status != TRIREME_OK || *out == NULL || !find_seat(parent, &seat)) {
        return note_status(function, status);
    }
    int32_t rank = 0, world_size = 0;
    if (REAL(trireme_communicator_get_rank)(*out, &rank) != TRIREME_OK ||
        REAL(trireme_communicator_get_world_size)(*out, &world_size) != TRIREME_OK) {
        abort();
    }
    seat.rank = rank;
    seat.world_size = world_size;
    take_seat(*out, &seat);
    return status;
}

trireme_status
trireme_communicator_split(trireme_communicator *communicator, int32_t color, int32_t key,
                           const trireme_child_options *options, trireme_communicator **out) {
    return made(__func__, REAL(trireme_communicator_split)(communicator, color, key, options, out),
                communicator, out);
}

trireme_status
trireme_communicator_subgroup(trireme_communicator *communicator, const int32_t *ranks,
                              uint64_t count, const trireme_child_options *options,
                              trireme_communicator **out) {
    return made(__func__,
                REAL(trireme_communicator_subgroup)(communicator, ranks, count, options, out),
                communicator, out);
}

trireme_status
trireme_communicator_duplicate(trireme_communicator *communicator,
                               const trireme_child_options *options, trireme_communicator **out) {
    return made(__func__, REAL(trireme_communicator_duplicate)(communicator, options, out),
                communicator, out);
}

trireme_status
trireme_communicator_shrink(trireme_communicator *communicator,
                            const trireme_child_options *options, trireme_communicator **out) {
    return made(__func__, REAL(trireme_communicator_shrink)(communicator, options, out),
                communicator, out);
}

void trireme_communicator_destroy(trireme_communicator *communicator) {
    leave_seat(communicator);
    REAL(trireme_communicator_destroy)(communicator);
}

/* ---- buffers ---- */

trireme_status
trireme_buffer_alloc(trireme_communicator *communicator, uint64_t bytes, trireme_buffer **out) {
    struct seat seat;
    const trireme_status status = REAL(trireme_buffer_alloc)(communicator, bytes, out);
    if (status != TRIREME_OK || !find_seat(communicator, &seat)) {
        return note_status(__func__, status);
    }
    void *data = NULL;
    if (REAL(trireme_buffer_get_data)(*out, &data) != TRIREME_OK) abort();
    shadow_of_buffer(*out, seat.device, data, bytes);
    return status;
}

trireme_status trireme_buffer_get_data(const trireme_buffer *buffer, void **out) {
    const trireme_status status = REAL(trireme_buffer_get_data)(buffer, out);
    void *const shadow = status == TRIREME_OK ? find_shadow(buffer) : NULL;
    if (shadow != NULL) *out = shadow;
    return status;
}

void trireme_buffer_destroy(trireme_buffer *buffer) {
    if (buffer != NULL) drop_shadow(buffer);
    REAL(trireme_buffer_destroy)(buffer);
}

/* ---- operations ---- */

#define LIST(...) __VA_ARGS__

/* Both forms of an operation. The body adds its memory to `passage`. */
#define OPERATION(NAME, PARAMETERS, ARGUMENTS, BODY)                                            \
    trireme_status NAME(trireme_communicator *communicator, LIST PARAMETERS,                    \
                        const trireme_operation_options *options) {                             \
        struct passage passage;                                                                 \
        begin_passage(&passage, communicator, options);                                         \
        BODY move_in(&passage);                                                                 \
        return end(#NAME, &passage, REAL(NAME)(communicator, LIST ARGUMENTS, passage.options)); \
    }                                                                                           \
    trireme_status NAME##_start(trireme_communicator *communicator, LIST PARAMETERS,            \
                                const trireme_operation_options *options,                       \
                                trireme_request **out_request) {                                \
        struct passage passage;                                                                 \
        begin_passage(&passage, communicator, options);                                         \
        BODY move_in(&passage);                                                                 \
        return started(#NAME "_start", &passage,                                                \
                       REAL(NAME##_start)(communicator, LIST ARGUMENTS, passage.options,        \
                                          out_request),                                         \
                       out_request);                                                            \
    }

#define SENDS(pointer, count, blocks) \
    add_piece(&passage, (const void **)&(pointer), (count), (blocks), dtype, false);
#define RECEIVES(pointer, count, blocks) \
    add_piece(&passage, (const void **)(void *)&(pointer), (count), (blocks), dtype, true);
#define RANKS ((uint64_t)passage.seat.world_size)
#define IS_ROOT (passage.seat.rank == root)

/* The sum, as far as the counts are there. */
static uint64_t total(const struct passage *passage, const uint64_t *counts) {
    uint64_t sum = 0;
    for (int i = 0; passage->is_on && counts != NULL && i < passage->seat.world_size; ++i) {
        if (__builtin_add_overflow(sum, counts[i], &sum)) return UINT64_MAX;
    }
    return sum;
}

static uint64_t own(const struct passage *passage, const uint64_t *counts) {
    return passage->is_on && counts != NULL ? counts[passage->seat.rank] : 0;
}

OPERATION(trireme_all_reduce,
          (const void *send, void *receive, uint64_t count, trireme_dtype dtype,
           trireme_reduction reduction),
          (send, receive, count, dtype, reduction),
          SENDS(send, count, 1) RECEIVES(receive, count, 1))

OPERATION(trireme_reduce_scatter,
          (const void *send, void *receive, uint64_t count, trireme_dtype dtype,
           trireme_reduction reduction),
          (send, receive, count, dtype, reduction),
          SENDS(send, count, RANKS) RECEIVES(receive, count, 1))

OPERATION(trireme_reduce_scatter_v,
          (const void *send, void *receive, const uint64_t *counts, trireme_dtype dtype,
           trireme_reduction reduction),
          (send, receive, counts, dtype, reduction),
          SENDS(send, total(&passage, counts), 1) RECEIVES(receive, own(&passage, counts), 1))

OPERATION(trireme_all_gather,
          (const void *send, void *receive, uint64_t count, trireme_dtype dtype),
          (send, receive, count, dtype), SENDS(send, count, 1) RECEIVES(receive, count, RANKS))

OPERATION(trireme_all_gather_v,
          (const void *send, void *receive, const uint64_t *counts, trireme_dtype dtype),
          (send, receive, counts, dtype),
          SENDS(send, own(&passage, counts), 1) RECEIVES(receive, total(&passage, counts), 1))

OPERATION(trireme_broadcast, (void *data, uint64_t count, trireme_dtype dtype, int32_t root),
          (data, count, dtype, root),
          add_piece(&passage, (const void **)(void *)&data, count, 1, dtype, !IS_ROOT);)

OPERATION(trireme_reduce,
          (const void *send, void *receive, uint64_t count, trireme_dtype dtype,
           trireme_reduction reduction, int32_t root),
          (send, receive, count, dtype, reduction, root),
          SENDS(send, count, 1) if (IS_ROOT) RECEIVES(receive, count, 1))

OPERATION(trireme_gather,
          (const void *send, void *receive, uint64_t count, trireme_dtype dtype, int32_t root),
          (send, receive, count, dtype, root),
          SENDS(send, count, 1) if (IS_ROOT) RECEIVES(receive, count, RANKS))

OPERATION(trireme_gather_v,
          (const void *send, void *receive, const uint64_t *counts, trireme_dtype dtype,
           int32_t root),
          (send, receive, counts, dtype, root),
          SENDS(send, own(&passage, counts), 1) if (IS_ROOT)
              RECEIVES(receive, total(&passage, counts), 1))

OPERATION(trireme_scatter,
          (const void *send, void *receive, uint64_t count, trireme_dtype dtype, int32_t root),
          (send, receive, count, dtype, root),
          RECEIVES(receive, count, 1) if (IS_ROOT) SENDS(send, count, RANKS))

OPERATION(trireme_scatter_v,
          (const void *send, void *receive, const uint64_t *counts, trireme_dtype dtype,
           int32_t root),
          (send, receive, counts, dtype, root),
          RECEIVES(receive, own(&passage, counts), 1) if (IS_ROOT)
              SENDS(send, total(&passage, counts), 1))

OPERATION(trireme_all_to_all,
          (const void *send, void *receive, uint64_t count, trireme_dtype dtype),
          (send, receive, count, dtype), SENDS(send, count, RANKS) RECEIVES(receive, count, RANKS))

OPERATION(trireme_all_to_all_v,
          (const void *send, const uint64_t *send_counts, void *receive,
           const uint64_t *receive_counts, trireme_dtype dtype),
          (send, send_counts, receive, receive_counts, dtype),
          SENDS(send, total(&passage, send_counts), 1)
              RECEIVES(receive, total(&passage, receive_counts), 1))

trireme_status
trireme_barrier(trireme_communicator *communicator, const trireme_operation_options *options) {
    struct passage passage;
    begin_passage(&passage, communicator, options);
    return end(__func__, &passage, REAL(trireme_barrier)(communicator, passage.options));
}

trireme_status
trireme_barrier_start(trireme_communicator *communicator, const trireme_operation_options *options,
                      trireme_request **out_request) {
    struct passage passage;
    begin_passage(&passage, communicator, options);
    return started(__func__, &passage,
                   REAL(trireme_barrier_start)(communicator, passage.options, out_request),
                   out_request);
}

/* ---- lists ---- */

enum { MOST_ENTRIES = 4096 };

/* Adds the entries of a list. Returns the list of their new addresses, or `list` itself. */
static const void *const *
add_list(struct passage *passage, const void *const *list, const uint64_t *counts, uint64_t length,
         uint64_t blocks, trireme_dtype dtype, bool writes) {
    if (!passage->is_on || list == NULL || counts == NULL || length > MOST_ENTRIES) return list;
    const void **const changed = malloc((length + 1) * sizeof *changed);
    if (changed == NULL) abort();
    for (uint64_t i = 0; i < length; ++i) changed[i] = list[i];
    for (uint64_t i = 0; i < length; ++i) {
        add_piece(passage, &changed[i], counts[i], blocks, dtype, writes);
    }
    return changed;
}

static void drop_list(const void *const *changed, const void *const *list) {
    if (changed != list) free((void *)(intptr_t)changed);
}

#define LIST_OPERATION(NAME, PARAMETERS, ARGUMENTS, SENT_BLOCKS, RECEIVED_BLOCKS)               \
    trireme_status NAME(trireme_communicator *communicator, const void *const *sends,           \
                        void *const *receives, const uint64_t *counts, uint64_t length,         \
                        LIST PARAMETERS, const trireme_operation_options *options) {            \
        struct passage passage;                                                                 \
        begin_passage(&passage, communicator, options);                                         \
        const void *const *const s =                                                            \
            add_list(&passage, sends, counts, length, SENT_BLOCKS, dtype, false);               \
        const void *const *const r = add_list(&passage, (const void *const *)receives, counts,  \
                                              length, RECEIVED_BLOCKS, dtype, true);            \
        move_in(&passage);                                                                      \
        const trireme_status status =                                                           \
            end(#NAME, &passage,                                                                \
                REAL(NAME)(communicator, s, (void *const *)(intptr_t)r, counts, length,         \
                           LIST ARGUMENTS, passage.options));                                   \
        drop_list(s, sends);                                                                    \
        drop_list(r, (const void *const *)receives);                                            \
        return status;                                                                          \
    }                                                                                           \
    trireme_status NAME##_start(trireme_communicator *communicator, const void *const *sends,   \
                                void *const *receives, const uint64_t *counts, uint64_t length, \
                                LIST PARAMETERS, const trireme_operation_options *options,      \
                                trireme_request **out_request) {                                \
        struct passage passage;                                                                 \
        begin_passage(&passage, communicator, options);                                         \
        const void *const *const s =                                                            \
            add_list(&passage, sends, counts, length, SENT_BLOCKS, dtype, false);               \
        const void *const *const r = add_list(&passage, (const void *const *)receives, counts,  \
                                              length, RECEIVED_BLOCKS, dtype, true);            \
        move_in(&passage);                                                                      \
        const trireme_status status =                                                           \
            started(#NAME "_start", &passage,                                                   \
                    REAL(NAME##_start)(communicator, s, (void *const *)(intptr_t)r, counts,     \
                                       length, LIST ARGUMENTS, passage.options, out_request),   \
                    out_request);                                                               \
        drop_list(s, sends);                                                                    \
        drop_list(r, (const void *const *)receives);                                            \
        return status;                                                                          \
    }

LIST_OPERATION(trireme_all_reduce_list, (trireme_dtype dtype, trireme_reduction reduction),
               (dtype, reduction), 1, 1)
LIST_OPERATION(trireme_reduce_scatter_list, (trireme_dtype dtype, trireme_reduction reduction),
               (dtype, reduction), RANKS, 1)
LIST_OPERATION(trireme_all_gather_list, (trireme_dtype dtype), (dtype), 1, RANKS)

trireme_status trireme_broadcast_list(trireme_communicator *communicator, void *const *data,
                                      const uint64_t *counts, uint64_t length, trireme_dtype dtype,
                                      int32_t root, const trireme_operation_options *options) {
    struct passage passage;
    begin_passage(&passage, communicator, options);
    const void *const *const list = (const void *const *)data;
    const void *const *const d = add_list(&passage, list, counts, length, 1, dtype, !IS_ROOT);
    move_in(&passage);
    const trireme_status status =
        end(__func__, &passage,
            REAL(trireme_broadcast_list)(communicator, (void *const *)(intptr_t)d, counts, length,
                                         dtype, root, passage.options));
    drop_list(d, list);
    return status;
}

trireme_status
trireme_broadcast_list_start(trireme_communicator *communicator, void *const *data,
                             const uint64_t *counts, uint64_t length, trireme_dtype dtype,
                             int32_t root, const trireme_operation_options *options,
                             trireme_request **out_request) {
    struct passage passage;
    begin_passage(&passage, communicator, options);
    const void *const *const list = (const void *const *)data;
    const void *const *const d = add_list(&passage, list, counts, length, 1, dtype, !IS_ROOT);
    move_in(&passage);
    const trireme_status status =
        started(__func__, &passage,
                REAL(trireme_broadcast_list_start)(communicator, (void *const *)(intptr_t)d, counts,
                                                   length, dtype, root, passage.options,
                                                   out_request),
                out_request);
    drop_list(d, list);
    return status;
}

/* ---- messages ---- */

OPERATION(trireme_send,
          (const void *data, uint64_t count, trireme_dtype dtype, int32_t to, uint64_t tag),
          (data, count, dtype, to, tag), SENDS(data, count, 1))

OPERATION(trireme_receive,
          (void *data, uint64_t count, trireme_dtype dtype, int32_t from, uint64_t tag),
          (data, count, dtype, from, tag), RECEIVES(data, count, 1))

trireme_status
trireme_receive_message(trireme_communicator *communicator, void *data, uint64_t capacity,
                        trireme_dtype dtype, int32_t from, uint64_t tag,
                        const trireme_operation_options *options, trireme_message_info *out_info) {
    struct passage passage;
    begin_passage(&passage, communicator, options);
    RECEIVES(data, capacity, 1)
    move_in(&passage);
    return end(__func__, &passage,
               REAL(trireme_receive_message)(communicator, data, capacity, dtype, from, tag,
                                             passage.options, out_info));
}

trireme_status trireme_receive_message_start(trireme_communicator *communicator, void *data,
                                             uint64_t capacity, trireme_dtype dtype, int32_t from,
                                             uint64_t tag, const trireme_operation_options *options,
                                             trireme_request **out_request) {
    struct passage passage;
    begin_passage(&passage, communicator, options);
    RECEIVES(data, capacity, 1)
    move_in(&passage);
    return started(__func__, &passage,
                   REAL(trireme_receive_message_start)(communicator, data, capacity, dtype, from,
                                                       tag, passage.options, out_request),
                   out_request);
}

trireme_status
trireme_send_receive(trireme_communicator *communicator, const void *send, uint64_t send_count,
                     int32_t to, uint64_t send_tag, void *receive, uint64_t receive_count,
                     int32_t from, uint64_t receive_tag, trireme_dtype dtype,
                     const trireme_operation_options *options) {
    struct passage passage;
    begin_passage(&passage, communicator, options);
    SENDS(send, send_count, 1)
    RECEIVES(receive, receive_count, 1)
    move_in(&passage);
    return end(__func__, &passage,
               REAL(trireme_send_receive)(communicator, send, send_count, to, send_tag, receive,
                                          receive_count, from, receive_tag, dtype,
                                          passage.options));
}

/* ---- the tests of a program ---- */

/* Tests that a device cannot pass, and why. */
static const struct {
    const char *group, *test, *why;
} left_out[] = {
#include "left_out.inc"
    {NULL, NULL, NULL},
};

static void is_left_out(void **state) {
    (void)state;
    skip();
}

int _cmocka_run_group_tests(const char *group, const struct CMUnitTest *const tests,
                            const size_t count, CMFixtureFunction setup,
                            CMFixtureFunction teardown) {
    struct CMUnitTest *const chosen = malloc(count * sizeof *chosen);
    if (chosen == NULL) abort();
    memcpy(chosen, tests, count * sizeof *chosen);
    unsigned skipped = 0;
    for (size_t i = 0; left_out[i].test != NULL; ++i) {
        if (strcmp(left_out[i].group, group) != 0) continue;
        size_t at = 0;
        while (at < count && strcmp(chosen[at].name, left_out[i].test) != 0) ++at;
        if (at == count) {
            printf("over device: %s has no test %s\n", group, left_out[i].test);
            abort();
        }
        printf("over device: skips %s: %s\n", left_out[i].test, left_out[i].why);
        chosen[at].test_func = is_left_out;
        ++skipped;
    }
    const int failed = REAL(_cmocka_run_group_tests)(group, chosen, count, setup, teardown);
    printf("over device: %zu tests, %u of them skipped\n", count, skipped);
    free(chosen);
    return device_is_content() ? failed : failed + 1;
}
