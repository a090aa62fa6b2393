/*
 * Gradients that backward writes where they are exchanged: which gradients have such memory, its
 * contents, and the outcome of wrong calls. test_strategies.c checks the numbers, too.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
/* cmocka.h comes after those it needs. */
#include <cmocka.h>
#include <options.h>
#include <ranks.h>

#define MOST_RANKS 5
#define F32 TRIREME_DTYPE_F32
#define STATE TRIREME_ERROR_INVALID_STATE
#define ARGUMENT TRIREME_ERROR_INVALID_ARGUMENT

struct job {
    int world_size;
    trireme_model_options options;
    struct verdict verdicts[MOST_RANKS];
};

static void run_job(struct job *job, rank_function *function) {
    run_ranks(job->world_size, function, job);
    assert_verdicts(job->verdicts, job->world_size);
}

static bool says(const char *words) {
    return strstr(trireme_last_error(), words) != NULL;
}

static void add(struct verdict *v, trireme_model *model, const char *name, uint64_t elements,
                uint32_t flags, const char *tied_to) {
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    parameter.name = name;
    parameter.dtype = F32;
    parameter.dimensions = 1;
    parameter.shape = &elements;
    parameter.flags = flags;
    parameter.tied_to = tied_to;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
}

enum { A, FIXED, NOTHING, B, A_AGAIN, NAMES };

/* "a" of 7, "fixed" of 3 that is frozen, "nothing" of 0, "b" of 6, and another name of "a". */
static trireme_model *make(struct verdict *v, trireme_communicator *communicator,
                           const trireme_model_options *options, bool seal) {
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(communicator, options, &model));
    add(v, model, "a", 7, 0, NULL);
    add(v, model, "fixed", 3, TRIREME_PARAMETER_FLAG_FROZEN, NULL);
    add(v, model, "nothing", 0, 0, NULL);
    add(v, model, "b", 6, 0, NULL);
    add(v, model, "again", 7, 0, "a");
    if (seal) EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    return model;
}

static trireme_optimizer *sgd(struct verdict *v, trireme_model *model) {
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = TRIREME_RULE_SGD;
    options.learning_rate = 1;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &options, &optimizer));
    return optimizer;
}

struct view {
    float *data;
    uint64_t count;
    trireme_dtype dtype;
    int32_t adds;
};

static struct view view_of(struct verdict *v, trireme_model *model, uint64_t parameter) {
    struct view view = {NULL, 99, 99, 99};
    void *data = &view;
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_get_gradient_data(model, parameter, &data, &view.count, &view.dtype,
                                                  &view.adds));
    EXPECT(v, view.dtype == F32 && (view.adds == 0 || view.adds == 1));
    EXPECT(v, data != NULL || view.adds == 0);
    view.data = data;
    return view;
}

static trireme_status
ready(trireme_model *model, uint64_t parameter, const float *gradient, uint64_t count) {
    return trireme_model_gradient_ready(model, parameter, gradient, count, F32);
}

static void fill(float *data, uint64_t count, float value) {
    for (uint64_t i = 0; i < count; ++i) data[i] = value;
}

/* Hands in `value` for every element, in the view if there is one. */
static void give(struct verdict *v, trireme_model *model, uint64_t parameter, float value) {
    const struct view view = view_of(v, model, parameter);
    float own[7];
    float *const to = view.data != NULL ? view.data : own;
    for (uint64_t i = 0; i < view.count; ++i) to[i] = view.adds != 0 ? to[i] + value : value;
    EXPECT_STATUS(v, TRIREME_OK, ready(model, parameter, to, view.count));
}

static void hand_in_rest(struct verdict *v, trireme_model *model) {
    const float zeros[7] = {0};
    EXPECT_STATUS(v, TRIREME_OK, ready(model, NOTHING, zeros, 0));
    EXPECT_STATUS(v, TRIREME_OK, ready(model, A_AGAIN, zeros, 7));
}

/* Parameters began at 0 and the rate is 1: a and b are minus the sums of their gradients. */
static void expect_values(struct verdict *v, trireme_model *model, float a, float b) {
    float values[16];
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, values, 16, F32));
    for (int i = 0; i < 7; ++i) EXPECT(v, values[i] == -a);
    for (int i = 7; i < 10; ++i) EXPECT(v, values[i] == 0);
    for (int i = 10; i < 16; ++i) EXPECT(v, values[i] == -b);
}

/* ---- who has a view ---- */

static void look_for_views(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *const model = make(v, communicator, &job->options, true);
    trireme_optimizer *const optimizer = sgd(v, model);
    const trireme_strategy strategy = job->options.strategy;
    const trireme_bucket_options *const buckets = job->options.buckets;
    const bool alone = buckets && buckets->bytes == 1; /* each unit is a bucket */
    const bool all = strategy == TRIREME_STRATEGY_DATA_PARALLEL ||
                     (strategy == TRIREME_STRATEGY_ZERO1 && (job->world_size == 1 || alone));
    float *first[2] = {NULL, NULL};
    for (int step = 0; step < 2; ++step) {
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
        const struct view a = view_of(v, model, A), b = view_of(v, model, B);
        EXPECT(v, a.count == 7 && b.count == 6 && a.adds == 0 && b.adds == 0);
        EXPECT(v, (a.data != NULL) == all && (b.data != NULL) == all);
        EXPECT(v, step == 0 || (a.data == first[0] && b.data == first[1]));
        EXPECT(v, !all || a.data + 7 <= b.data || b.data + 6 <= a.data);
        first[0] = a.data;
        first[1] = b.data;
        /* One name after the other. */
        EXPECT(v, view_of(v, model, A_AGAIN).data == NULL);
        EXPECT(v, view_of(v, model, NOTHING).data == NULL);
        EXPECT(v, view_of(v, model, NOTHING).count == 0);
        give(v, model, A, 1);
        const struct view again = view_of(v, model, A_AGAIN);
        EXPECT(v, again.data == a.data && again.count == 7 && again.adds == (all ? 1 : 0));
        give(v, model, A_AGAIN, 2);
        give(v, model, B, 5);
        give(v, model, NOTHING, 0);
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model));
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
        expect_values(v, model, 3 * (float)(step + 1), 5 * (float)(step + 1));
    }
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void whole_gradients_of_one_stretch_have_a_view(void **state) {
    (void)state;
    for (int world = 1; world <= MOST_RANKS; ++world) {
        for (trireme_strategy strategy = 1; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
            if (strategy == TRIREME_STRATEGY_HYBRID_SHARD && !ranks_make_groups()) continue;
            for (uint64_t bucket_bytes = 0; bucket_bytes <= 1; ++bucket_bytes) {
                struct job job = {.world_size = world, .options = TRIREME_MODEL_OPTIONS_INIT};
                job.options.strategy = strategy;
                units_of(&job.options)->minimum_bytes = 1;
                buckets_of(&job.options)->bytes = bucket_bytes;
                if (strategy == TRIREME_STRATEGY_HYBRID_SHARD) {
                    shards_of(&job.options)->ranks = (uint32_t)world;
                }
                run_job(&job, look_for_views);
            }
        }
    }
}

/* ---- contents ---- */

static void accumulate(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *const model = make(v, communicator, &job->options, true);
    trireme_optimizer *const optimizer = sgd(v, model);
    float own[7];
    /* Three passes: in views, out of views, in views again. */
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_begin_backward(model, TRIREME_BACKWARD_FLAG_NO_SYNC));
    give(v, model, A, 1);
    give(v, model, A_AGAIN, 2);
    give(v, model, B, (float)rank);
    give(v, model, NOTHING, 0);
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model));
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_begin_backward(model, TRIREME_BACKWARD_FLAG_NO_SYNC));
    const struct view sum = view_of(v, model, A);
    EXPECT(v, sum.data != NULL && sum.adds == 1 && sum.data[0] == 3 && sum.data[6] == 3);
    /* Asked for and left alone: other memory may be handed in. */
    fill(own, 7, 10);
    EXPECT_STATUS(v, TRIREME_OK, ready(model, A, own, 7));
    EXPECT_STATUS(v, TRIREME_OK, ready(model, B, own, 6));
    hand_in_rest(v, model);
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
    give(v, model, B, 100);
    EXPECT(v, view_of(v, model, A).data[3] == 13);
    give(v, model, A, 100);
    give(v, model, A_AGAIN, 200);
    give(v, model, NOTHING, 0);
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    const float n = (float)job->world_size, ranks = n * (n - 1) / 2;
    expect_values(v, model, 313 * n, 110 * n + ranks);
    /* A step later its contents are gone, even if the written gradients are not handed in. */
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
    const struct view next = view_of(v, model, A);
    EXPECT(v, next.adds == 0);
    fill(next.data, 7, 1e30f);
    fill(view_of(v, model, B).data, 6, 1e30f);
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_discard_gradients(model));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
    EXPECT(v, view_of(v, model, A).adds == 0);
    fill(view_of(v, model, B).data, 6, 1e30f);
    give(v, model, A, 0);
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model)); /* the others count as 0 */
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    expect_values(v, model, 313 * n, 110 * n + ranks);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void views_hold_the_sum_so_far(void **state) {
    (void)state;
    for (int world = 1; world <= MOST_RANKS; ++world) {
        for (trireme_strategy strategy = 1; strategy <= TRIREME_STRATEGY_ZERO1; ++strategy) {
            struct job job = {.world_size = world, .options = TRIREME_MODEL_OPTIONS_INIT};
            job.options.strategy = strategy;
            job.options.gradients = TRIREME_GRADIENTS_SUM;
            units_of(&job.options)->minimum_bytes = 1;
            buckets_of(&job.options)->bytes = 1;
            job.options.unused = TRIREME_UNUSED_ZERO;
            run_job(&job, accumulate);
        }
    }
}

static void pause_a_while(void) {
    nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
}

/* Rank 0 writes its second leaf where rank 1 may not have read the first one. */
static void write_the_next_leaf(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *const model = make(v, communicator, &job->options, true);
    trireme_optimizer *const optimizer = sgd(v, model);
    for (int leaf = rank; leaf < 4; leaf += 2) {
        if (rank == 1) pause_a_while();
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
        const struct view b = view_of(v, model, B);
        EXPECT(v, b.data != NULL && b.adds == 0);
        fill(b.data, 6, 1e30f);
        give(v, model, B, (float)(1 << leaf));
        give(v, model, A, (float)(10 << leaf));
        hand_in_rest(v, model);
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    expect_values(v, model, 150, 15);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void a_later_leaf_waits_for_those_who_read_the_one_before(void **state) {
    (void)state;
    for (trireme_strategy strategy = 1; strategy <= TRIREME_STRATEGY_ZERO1; ++strategy) {
        struct job job = {.world_size = 2, .options = TRIREME_MODEL_OPTIONS_INIT};
        job.options.strategy = strategy;
        job.options.leaves = 4;
        job.options.gradients = TRIREME_GRADIENTS_SUM;
        units_of(&job.options)->minimum_bytes = 1;
        buckets_of(&job.options)->bytes = 1;
        run_job(&job, write_the_next_leaf);
    }
}

/* ---- failures ---- */

static void ask_wrongly(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *const model = make(v, communicator, &job->options, false);
    char place = 0;
    void *data = &place;
    uint64_t count = 77;
    trireme_dtype dtype = 78;
    int32_t adds = 79;
#define ASK(parameter) \
    trireme_model_get_gradient_data(model, parameter, &data, &count, &dtype, &adds)
    EXPECT_STATUS(v, STATE, ASK(A));
    EXPECT(v, says("not sealed"));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    trireme_optimizer *const optimizer = sgd(v, model);
    EXPECT_STATUS(v, STATE, ASK(A));
    EXPECT(v, says("no backward pass is under way"));
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_begin_backward(model, TRIREME_BACKWARD_FLAG_ABSENT |
                                                          TRIREME_BACKWARD_FLAG_NO_SYNC));
    EXPECT_STATUS(v, STATE, ASK(A));
    EXPECT(v, says("ABSENT"));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
    EXPECT_STATUS(v, ARGUMENT, ASK(NAMES));
    EXPECT(v, says("parameter 5 of a model with 5"));
    EXPECT_STATUS(v, ARGUMENT, ASK(UINT64_MAX));
    EXPECT_STATUS(v, ARGUMENT, ASK(FIXED));
    EXPECT(v, says("parameter 1 (\"fixed\") is frozen"));
    EXPECT_STATUS(v, ARGUMENT,
                  trireme_model_get_gradient_data(model, A, NULL, &count, &dtype, &adds));
    EXPECT(v, says("out_data is NULL"));
    EXPECT_STATUS(v, ARGUMENT,
                  trireme_model_get_gradient_data(model, A, &data, &count, &dtype, NULL));
    EXPECT(v, says("out_adds is NULL"));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_HANDLE,
                  trireme_model_get_gradient_data(NULL, A, &data, &count, &dtype, &adds));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_HANDLE,
                  trireme_model_get_gradient_data((trireme_model *)optimizer, A, &data, &count,
                                                  &dtype, &adds));
    give(v, model, B, 1);
    EXPECT_STATUS(v, STATE, ASK(B));
    EXPECT(v, says("parameter 3 (\"b\") was handed in before"));
    EXPECT(v, data == &place && count == 77 && dtype == 78 && adds == 79);
#undef ASK
    /* An output that is not asked for is not written. */
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_get_gradient_data(model, A, &data, NULL, NULL, &adds));
    give(v, model, A, 1);
    hand_in_rest(v, model);
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    expect_values(v, model, 1, 1);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void hand_in_wrongly(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *const model = make(v, communicator, &job->options, true);
    trireme_optimizer *const optimizer = sgd(v, model);
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
    const struct view a = view_of(v, model, A), b = view_of(v, model, B);
    fill(a.data, 7, 1);
    fill(b.data, 6, 1);
    /* Of another parameter, a stretch that begins or ends in the gradients, their middle. */
    EXPECT_STATUS(v, ARGUMENT, ready(model, A, b.data, 7));
    EXPECT(v, says("is not the view of parameter 0 (\"a\")"));
    EXPECT_STATUS(v, ARGUMENT, ready(model, B, a.data, 6));
    EXPECT_STATUS(v, ARGUMENT, ready(model, B, b.data + 1, 6));
    EXPECT_STATUS(v, ARGUMENT, ready(model, B, b.data - 1, 6));
    EXPECT_STATUS(v, ARGUMENT, ready(model, B, a.data + 5, 6));
    EXPECT_STATUS(v, ARGUMENT, ready(model, B, b.data, 7));
    EXPECT(v, says("has 6 of f32"));
    EXPECT_STATUS(v, TRIREME_OK, ready(model, B, b.data, 6));
    EXPECT_STATUS(v, STATE, ready(model, B, b.data, 6));
    EXPECT_STATUS(v, TRIREME_OK, ready(model, A, a.data, 7));
    /* The view of one name does not hand in another. */
    EXPECT_STATUS(v, STATE, ready(model, A_AGAIN, a.data, 7));
    EXPECT(v, says("parameter 4 (\"again\") was not asked for"));
    hand_in_rest(v, model);
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model));
    /* Peers read it now. */
    EXPECT_STATUS(v, STATE, ready(model, A, a.data, 7));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    expect_values(v, model, 1, 1);
    /* An address of an earlier pass, and the flat way. */
    EXPECT_STATUS(v, ARGUMENT, trireme_model_accumulate_flat(model, a.data, 16, F32, 0));
    EXPECT(v, says("gradients lie in the gradients of the model"));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
    EXPECT_STATUS(v, STATE, ready(model, A, a.data, 7));
    EXPECT(v, says("the view of parameter 0 (\"a\") was not asked for in this backward pass"));
    EXPECT(v, view_of(v, model, A).data == a.data);
    fill(a.data, 7, 2);
    EXPECT_STATUS(v, TRIREME_OK, ready(model, A, a.data, 7));
    give(v, model, B, 3);
    hand_in_rest(v, model);
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    expect_values(v, model, 3, 4);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void wrong_calls_are_refused_and_forgotten(void **state) {
    (void)state;
    for (int world = 1; world <= 3; ++world) {
        for (trireme_strategy strategy = 1; strategy <= TRIREME_STRATEGY_ZERO3; ++strategy) {
            struct job job = {.world_size = world, .options = TRIREME_MODEL_OPTIONS_INIT};
            job.options.strategy = strategy;
            units_of(&job.options)->minimum_bytes = 1;
            buckets_of(&job.options)->bytes = 1;
            if (strategy <= TRIREME_STRATEGY_ZERO1) run_job(&job, hand_in_wrongly);
            job.options.flags = TRIREME_MODEL_FLAG_UNEVEN;
            run_job(&job, ask_wrongly);
        }
    }
}

/* Rank 1 never brings the leaf that rank 0 would have to wait for. */
static void wait_in_vain(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *const model = make(v, communicator, &job->options, true);
    /* Rank 0 must not fail the group while others are still about to seal. */
    const trireme_status met = trireme_barrier(communicator, NULL);
    if (rank == 0) {
        EXPECT(v, met == TRIREME_OK);
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
        give(v, model, B, 1);
        give(v, model, A, 1);
        hand_in_rest(v, model);
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model));
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
        char place = 0;
        void *data = &place;
        int32_t adds = 9;
        const bool aborts = job->options.timeout_ns == 0;
        if (aborts) {
            EXPECT_STATUS(v, TRIREME_OK, trireme_communicator_abort(communicator, "enough"));
        }
        const trireme_status status = aborts ? TRIREME_ERROR_ABORTED : TRIREME_ERROR_TIMEOUT;
        EXPECT_STATUS(v, status,
                      trireme_model_get_gradient_data(model, B, &data, NULL, NULL, &adds));
        EXPECT(v, data == &place && adds == 9);
        /* The model has failed for good, and says so again. */
        EXPECT_STATUS(v, status,
                      trireme_model_get_gradient_data(model, A, &data, NULL, NULL, &adds));
    } else {
        /* Ends when rank 0's failure has come here. */
        float one = 1;
        EXPECT(v, trireme_all_reduce(communicator, &one, &one, 1, F32, TRIREME_REDUCTION_SUM,
                                     NULL) != TRIREME_OK);
    }
    trireme_model_destroy(model);
}

static void a_view_that_peers_never_leave_is_an_error(void **state) {
    (void)state;
    const uint64_t timeouts[] = {0, 2000ull * 1000 * 1000};
    for (int i = 0; i < 2; ++i) {
        struct job job = {.world_size = 2, .options = TRIREME_MODEL_OPTIONS_INIT};
        job.options.strategy = TRIREME_STRATEGY_DATA_PARALLEL;
        job.options.leaves = 4;
        job.options.timeout_ns = timeouts[i];
        run_job(&job, wait_in_vain);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_gradients_of_one_stretch_have_a_view),
        cmocka_unit_test(views_hold_the_sum_so_far),
        cmocka_unit_test(a_later_leaf_waits_for_those_who_read_the_one_before),
        cmocka_unit_test(wrong_calls_are_refused_and_forgotten),
        cmocka_unit_test(a_view_that_peers_never_leave_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
