/*
 * Messages for a caller that has made a mistake: the macro that starts a struct, the handle that
 * was given for another, the length of a deadline and its option, the aborting rank.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
/* cmocka.h comes after those it needs. */
#include <cmocka.h>
#include <options.h>
#include <ranks.h>

static void expect_words(struct verdict *v, int line, const char *words) {
    if (strstr(trireme_last_error(), words) != NULL) return;
    char text[500];
    snprintf(text, sizeof text, "\"%s\" does not say \"%s\"", trireme_last_error(), words);
    expect_failed(v, __FILE__, line, text);
}
#define SAYS(words) expect_words(v, __LINE__, words)

static struct verdict verdicts[2];

static trireme_model *
model_of(struct verdict *v, trireme_communicator *communicator, trireme_model_options *options) {
    trireme_model *model = NULL;
    const uint64_t size = 8;
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    parameter.name = "w";
    parameter.dtype = TRIREME_DTYPE_F32;
    parameter.dimensions = 1;
    parameter.shape = &size;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(communicator, options, &model));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    return model;
}

static void mistake(trireme_communicator *communicator, int rank, void *context) {
    (void)context;
    struct verdict *const v = &verdicts[rank];
    const trireme_status bad = TRIREME_ERROR_INVALID_ARGUMENT;
    /* A struct that was not initialised. */
    trireme_model_options options;
    memset(&options, 0, sizeof options);
    trireme_model *model = NULL;
    EXPECT_STATUS(v, bad, trireme_model_create(communicator, &options, &model));
    SAYS("start from TRIREME_MODEL_OPTIONS_INIT");
    struct {
        trireme_model_options known;
        uint64_t more;
    } later;
    memset(&later, 0xee, sizeof later);
    later.known.struct_size = sizeof later;
    EXPECT_STATUS(v, TRIREME_ERROR_UNSUPPORTED,
                  trireme_model_create(communicator, &later.known, &model));
    SAYS("or was not initialised; start from TRIREME_MODEL_OPTIONS_INIT");
    trireme_model_memory memory;
    memset(&memory, 0, sizeof memory);

    options = (trireme_model_options)TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = TRIREME_STRATEGY_ZERO1;
    options.leaves = 1; /* rank 1 has none */
    model = model_of(v, communicator, &options);
    EXPECT_STATUS(v, bad, trireme_model_get_memory(model, &memory));
    SAYS("start from TRIREME_MODEL_MEMORY_INIT");
    if (rank == 1) {
        EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE, trireme_model_begin_backward(model, 0));
        SAYS("this rank has no leaf: options.leaves 1 are fewer than the 2 ranks");
    }
    /* Handles of other types. */
    const trireme_status wrong = TRIREME_ERROR_INVALID_HANDLE;
    EXPECT_STATUS(v, wrong, trireme_barrier((trireme_communicator *)model, NULL));
    SAYS("a model handle was given where a communicator is expected");
    EXPECT_STATUS(v, wrong, trireme_optimizer_step((trireme_optimizer *)communicator));
    SAYS("a communicator handle was given where an optimizer is expected");
    /* A directory that is none. */
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_ADAM;
    rule.learning_rate = 1;
    state_file_of(&rule)->path = "/no/such/directory";
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_ERROR_SYSTEM, trireme_optimizer_create(model, &rule, &optimizer));
    SAYS("options.offload.path: ");
    SAYS("/no/such/directory");
    trireme_model_destroy(model);
    /* One that is gone is no handle of another type. */
    EXPECT_STATUS(v, wrong, trireme_barrier((trireme_communicator *)model, NULL));
    SAYS("is not live");
}

static void mistakes_are_answered_with_what_to_do(void **state) {
    (void)state;
    memset(verdicts, 0, sizeof verdicts);
    run_ranks(2, mistake, NULL);
    assert_verdicts(verdicts, 2);
}

static void abort_it(trireme_communicator *communicator, int rank, void *context) {
    (void)context;
    struct verdict *const v = &verdicts[rank];
    if (rank == 1) {
        while (trireme_barrier(communicator, NULL) == TRIREME_OK) {
        }
        return;
    }
    trireme_operation_options soon = TRIREME_OPERATION_OPTIONS_INIT;
    soon.timeout_ns = 50000000;
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(communicator, NULL));
    EXPECT_STATUS(v, TRIREME_OK, trireme_communicator_abort(communicator, "over budget"));
    EXPECT_STATUS(v, TRIREME_ERROR_ABORTED, trireme_barrier(communicator, &soon));
    SAYS("rank 0 aborted: \"over budget\" (rank 0 is this rank)");
}

static void an_abort_quotes_its_reason(void **state) {
    (void)state;
    memset(verdicts, 0, sizeof verdicts);
    run_ranks(2, abort_it, NULL);
    assert_verdicts(verdicts, 2);
}

static void a_late_call_tells_its_deadline(void **state) {
    (void)state;
    struct verdict verdict = {""}, *const v = &verdict;
    char rendezvous[96];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *const ranks[2] = {join_rank(0, 2, rendezvous),
                                            join_rank(1, 2, rendezvous)};
    trireme_operation_options soon = TRIREME_OPERATION_OPTIONS_INIT;
    soon.timeout_ns = 50000000;
    EXPECT_STATUS(v, TRIREME_ERROR_TIMEOUT, trireme_barrier(ranks[0], &soon));
    SAYS("the deadline is 0.05 s, timeout_ns of the call's options");
    for (int i = 0; i < 2; ++i) trireme_communicator_destroy(ranks[i]);
    assert_verdicts(v, 1);
}

/* Started, batched and sent operations tell their deadlines, too. Rank 1 does nothing. */
static void be_late(struct verdict *v, trireme_communicator *communicator, int kind,
                    const trireme_operation_options *soon) {
    const trireme_status late = TRIREME_ERROR_TIMEOUT;
    int32_t one = 1, sum = 0;
    const void *const sends[1] = {&one};
    void *const receives[1] = {&sum};
    const uint64_t counts[1] = {1};
    trireme_message_info info = TRIREME_MESSAGE_INFO_INIT;
    trireme_buffer *buffer = NULL;
    trireme_request *request = NULL;
    const trireme_dtype i32 = TRIREME_DTYPE_I32;
    switch (kind) {
        case 0:
            EXPECT_STATUS(v, TRIREME_OK, trireme_barrier_start(communicator, soon, &request));
            break;
        case 1:
            EXPECT_STATUS(v, TRIREME_OK,
                          trireme_receive_start(communicator, &sum, 1, i32, 1, 0, soon, &request));
            break;
        case 2:
            EXPECT_STATUS(v, TRIREME_OK, trireme_batch_begin());
            EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(communicator, soon));
            EXPECT_STATUS(v, late, trireme_batch_end());
            break;
        case 3:
            EXPECT_STATUS(v, late,
                          trireme_all_reduce_list(communicator, sends, receives, counts, 1, i32,
                                                  TRIREME_REDUCTION_SUM, soon));
            break;
        case 4:
            EXPECT_STATUS(v, late, trireme_receive(communicator, &sum, 1, i32, 1, 0, soon));
            break;
        case 5: EXPECT_STATUS(v, late, trireme_probe(communicator, 1, 0, soon, &info)); break;
        case 6:
            EXPECT_STATUS(v, late,
                          trireme_scatter_to_buffer(communicator, &one, NULL, i32, 1, soon,
                                                    &buffer));
            break;
        default:
            EXPECT_STATUS(v, TRIREME_OK, trireme_batch_begin());
            EXPECT_STATUS(v, TRIREME_OK, trireme_receive(communicator, &sum, 1, i32, 1, 0, soon));
            EXPECT_STATUS(v, late, trireme_batch_end());
            break;
    }
    if (request == NULL) return;
    EXPECT_STATUS(v, late, trireme_request_wait(request, 0));
    EXPECT(v, strstr(trireme_last_error(), "the deadline is") == NULL); /* it has not passed */
    EXPECT_STATUS(v, late, trireme_request_wait(request, UINT64_C(60000000000)));
    trireme_request_destroy(request);
}

static void a_late_operation_of_any_form_tells_its_deadline(void **state) {
    (void)state;
    struct verdict verdict = {""}, *const v = &verdict;
    for (int kind = 0; kind < 8; ++kind) {
        char rendezvous[96];
        unique_rendezvous(rendezvous, sizeof rendezvous);
        trireme_communicator *const ranks[2] = {join_rank(0, 2, rendezvous),
                                                join_rank(1, 2, rendezvous)};
        trireme_operation_options soon = TRIREME_OPERATION_OPTIONS_INIT;
        soon.timeout_ns = 50000000;
        be_late(v, ranks[0], kind, &soon);
        SAYS("the deadline is 0.05 s, timeout_ns of the call's options");
        for (int i = 0; i < 2; ++i) trireme_communicator_destroy(ranks[i]);
    }
    assert_verdicts(v, 1);
}

/* Its own deadline has not passed: that of another rank's call has. */
static void a_request_that_another_deadline_fails_says_so(void **state) {
    (void)state;
    struct verdict verdict = {""}, *const v = &verdict;
    const trireme_status late = TRIREME_ERROR_TIMEOUT;
    const trireme_dtype i32 = TRIREME_DTYPE_I32;
    for (int kind = 0; kind < 2; ++kind) {
        char rendezvous[96];
        unique_rendezvous(rendezvous, sizeof rendezvous);
        trireme_communicator *const ranks[2] = {join_rank(0, 2, rendezvous),
                                                join_rank(1, 2, rendezvous)};
        trireme_operation_options soon = TRIREME_OPERATION_OPTIONS_INIT;
        soon.timeout_ns = 50000000;
        trireme_operation_options patient = TRIREME_OPERATION_OPTIONS_INIT;
        patient.timeout_ns = UINT64_C(60000000000);
        trireme_request *hasty = NULL, *request = NULL;
        int32_t sum = 0;
        if (kind == 0) {
            EXPECT_STATUS(v, TRIREME_OK,
                          trireme_receive_start(ranks[1], &sum, 1, i32, 0, 0, &patient, &request));
        } else {
            patient.priority = TRIREME_PRIORITY_HIGH; /* in a queue of its own */
            EXPECT_STATUS(v, TRIREME_OK, trireme_barrier_start(ranks[1], &patient, &request));
        }
        EXPECT_STATUS(v, TRIREME_OK, trireme_barrier_start(ranks[0], &soon, &hasty));
        EXPECT_STATUS(v, late, trireme_request_wait(hasty, patient.timeout_ns));
        SAYS("the deadline is 0.05 s, timeout_ns of the call's options");
        EXPECT_STATUS(v, late, trireme_request_wait(request, patient.timeout_ns));
        SAYS(
            "the deadline of another call has passed, that of this one is 60 s, timeout_ns of the call's");
        trireme_request_destroy(request);
        trireme_request_destroy(hasty);
        for (int i = 0; i < 2; ++i) trireme_communicator_destroy(ranks[i]);
    }
    assert_verdicts(v, 1);
}

static void leave_in_the_middle(trireme_communicator *communicator, int rank, void *context) {
    (void)context;
    struct verdict *const v = &verdicts[rank];
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = TRIREME_STRATEGY_ZERO2;
    options.timeout_ns = 2000000000; /* both ranks seal and create an optimizer within it */
    trireme_model *const model = model_of(v, communicator, &options);
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_SGD;
    rule.learning_rate = 1;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    const float gradients[8] = {1};
    if (rank == 0) {
        trireme_status status = TRIREME_OK;
        status = trireme_model_accumulate_flat(model, gradients, 8, TRIREME_DTYPE_F32, 0);
        if (status == TRIREME_OK) status = trireme_optimizer_step(optimizer);
        EXPECT(v, status == TRIREME_ERROR_TIMEOUT || status == TRIREME_ERROR_PEER_LOST);
        EXPECT(v, strstr(trireme_last_error(), "fold") == NULL);
        SAYS("gradient reduction");
        trireme_error_info info = TRIREME_ERROR_INFO_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_last_error_info(&info));
        EXPECT(v, strcmp(info.operation, "gradient reduction") == 0);
        SAYS("in step 1");
        if (status == TRIREME_ERROR_TIMEOUT) SAYS("the deadline is 2 s, timeout_ns of the model's");
    }
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    if (rank == 1) {
        while (trireme_barrier(communicator, NULL) == TRIREME_OK) {
        }
    }
}

static void a_reduction_names_its_step(void **state) {
    (void)state;
    memset(verdicts, 0, sizeof verdicts);
    run_ranks(2, leave_in_the_middle, NULL);
    assert_verdicts(verdicts, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mistakes_are_answered_with_what_to_do),
        cmocka_unit_test(an_abort_quotes_its_reason),
        cmocka_unit_test(a_late_call_tells_its_deadline),
        cmocka_unit_test(a_late_operation_of_any_form_tells_its_deadline),
        cmocka_unit_test(a_request_that_another_deadline_fails_says_so),
        cmocka_unit_test(a_reduction_names_its_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
