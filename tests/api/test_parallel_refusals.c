/* Parallel objects that cannot be: wrong options, ranks that disagree, wrong calls. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ranks.h"

#define BAD TRIREME_ERROR_INVALID_ARGUMENT
#define UNTOUCHED ((trireme_parallel *)(uintptr_t)0x5a5a)

static bool says(const char *words) {
    return strstr(trireme_last_error(), words) != NULL;
}

static const trireme_pipeline_stage_costs bad_stages[] = {
    {.struct_size = sizeof bad_stages[0], .forward = 1},
    {.struct_size = sizeof bad_stages[0], .forward = -1},
};
static const trireme_pipeline_costs bad_costs = {.struct_size = sizeof bad_costs,
                                                 .stages = bad_stages,
                                                 .stage_count = 2};
static const trireme_pipeline_costs few_costs = {.struct_size = sizeof few_costs,
                                                 .stages = bad_stages,
                                                 .stage_count = 1};
static const trireme_tensor_options small_blocks = {.struct_size = sizeof small_blocks,
                                                    .blocks = 1};
static const trireme_tensor_options bad_flags = {.struct_size = sizeof bad_flags, .flags = 64};
static const trireme_gemm_options bad_gemm = {.struct_size = sizeof bad_gemm, .kind = 9};
static const trireme_tensor_options bad_provider = {.struct_size = sizeof bad_provider,
                                                    .gemm = &bad_gemm};

static const char two_ranks[] =
    "pipeline ranks=2 stages=2 micro_batches=2 placement=0,1\n"
    "0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1\n";
static const char no_way[] =
    "pipeline ranks=2 stages=2 micro_batches=2 placement=0,1\n"
    "0F0 0B0 0F1 0B1\n1F0 1F1 1B0 1B1\n";

struct row {
    trireme_parallel_options options;
    trireme_status status;
    const char *words;
};

#define OPTIONS(...) \
    { .struct_size = sizeof(trireme_parallel_options), __VA_ARGS__ }
#define REST TRIREME_PARALLEL_REST

/* Of a world of 4 ranks. */
static const struct row rows[] = {
    {OPTIONS(.data = 2), BAD,
     "the axes data 2 x shard 1 x tensor 1 x pipeline 1 x context 1 x expert 1 make 2, but the "
     "communicator has 4 ranks"},
    {OPTIONS(.data = 2, .shard = 2, .expert = 2), BAD, "make 8, but the communicator has 4 ranks"},
    {OPTIONS(.tensor = 3, .data = REST), BAD, "make 3 times something, but"},
    {OPTIONS(.flags = 0), BAD, "make 1, but the communicator has 4 ranks"},
    {OPTIONS(.data = REST, .context = REST), BAD,
     "options.data and options.context are TRIREME_PARALLEL_REST, but one axis can have the rest"},
    {OPTIONS(.data = 4, .expert = -2), BAD, "options.expert is -2, neither a number of ranks nor"},
    {OPTIONS(.data = 4, .flags = 1), BAD, "options.flags is 1, but must be 0"},
    {OPTIONS(.data = 2, .pipeline = 2), BAD,
     "options.micro_batches is 0, but a pipeline needs 1 or more"},
    {OPTIONS(.data = 4, .order = TRIREME_PIPELINE_ORDER_1F1B), BAD,
     "options.order is set, but there is 1 rank along pipeline"},
    {OPTIONS(.data = 4, .placement = TRIREME_PIPELINE_PLACEMENT_V), BAD,
     "options.placement is set, but there is 1 rank along pipeline"},
    {OPTIONS(.data = 4, .schedule_text = two_ranks), BAD,
     "options.schedule_text is set, but there is 1 rank along pipeline"},
    {OPTIONS(.data = 4, .costs = &few_costs), BAD,
     "options.costs is set, but there is 1 rank along pipeline"},
    {OPTIONS(.data = 4, .stages_per_rank = 2), BAD,
     "options.stages_per_rank is set, but there is 1 rank along pipeline"},
    {OPTIONS(.pipeline = 4, .micro_batches = 4, .order = 13), BAD, "options.order 13 is unknown"},
    {OPTIONS(.pipeline = 4, .micro_batches = 4, .order = TRIREME_PIPELINE_ORDER_ZB_V), BAD,
     "zbv has 2 stages a rank, not 1"},
    {OPTIONS(.pipeline = 4, .micro_batches = 4, .order = TRIREME_PIPELINE_ORDER_1F1B,
             .stages_per_rank = 2),
     BAD, "1f1b has 1 stage a rank, not 2"},
    {OPTIONS(.pipeline = 4, .micro_batches = 4, .order = TRIREME_PIPELINE_ORDER_1F1B,
             .placement = TRIREME_PIPELINE_PLACEMENT_V),
     BAD, "1f1b has placement 1, not 2"},
    {OPTIONS(.pipeline = 4, .micro_batches = 4, .order = TRIREME_PIPELINE_ORDER_BEST,
             .placement = TRIREME_PIPELINE_PLACEMENT_LIST),
     BAD, "options.placement is LIST"},
    {OPTIONS(.pipeline = 4, .micro_batches = 4, .order = TRIREME_PIPELINE_ORDER_BEST), BAD,
     "options.costs is NULL, but options.order is BEST"},
    {OPTIONS(.pipeline = 4, .micro_batches = 1u << 25), BAD, "micro-batches"},
    {OPTIONS(.data = 2, .pipeline = 2, .micro_batches = 2, .costs = &few_costs), BAD,
     "costs.stage_count is 1, but there are 2 stages"},
    {OPTIONS(.data = 2, .pipeline = 2, .micro_batches = 2, .costs = &bad_costs), BAD,
     "forward of stage 1 is -1"},
    {OPTIONS(.pipeline = 4, .schedule_text = two_ranks), BAD,
     "options.pipeline is 4, but options.schedule_text has 2 ranks"},
    {OPTIONS(.data = 2, .pipeline = 2, .micro_batches = 3, .schedule_text = two_ranks), BAD,
     "options.micro_batches is 3, but options.schedule_text has 2 micro-batches"},
    {OPTIONS(.data = 2, .pipeline = 2, .stages_per_rank = 2, .schedule_text = two_ranks), BAD,
     "options.stages_per_rank is 4, but options.schedule_text has 2 stages in all"},
    {OPTIONS(.data = 2, .pipeline = 2, .order = 1, .schedule_text = two_ranks), BAD,
     "options.order and options.schedule_text are both set"},
    {OPTIONS(.data = 2, .pipeline = 2, .placement = 1, .schedule_text = two_ranks), BAD,
     "options.placement is set, but options.schedule_text has its own"},
    {OPTIONS(.data = 2, .pipeline = 2, .schedule_text = "0F0 what"), BAD, "line 1"},
    {OPTIONS(.data = 2, .pipeline = 2, .schedule_text = no_way), TRIREME_ERROR_INVALID_STATE,
     "the schedule cannot run: "},
    {OPTIONS(.data = 2, .tensor = 2, .tensor_options = &small_blocks), BAD,
     "options.tensor_options.blocks is 1, below the 2 ranks along tensor"},
    {OPTIONS(.data = 4, .tensor_options = &bad_flags), BAD,
     "options.tensor_options.flags is 64, of which this library does not know 64"},
    {OPTIONS(.data = 2, .tensor = 2, .tensor_options = &bad_provider), BAD,
     "options.tensor_options.gemm.kind is 9"},
};

enum { ROWS = sizeof rows / sizeof rows[0] };

static bool on_one_rank;

static void expect_well(struct verdict *v, trireme_communicator *communicator) {
    trireme_parallel_options options = TRIREME_PARALLEL_OPTIONS_INIT;
    options.data = 2;
    options.tensor = TRIREME_PARALLEL_REST;
    trireme_parallel *parallel = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_create(communicator, &options, &parallel));
    trireme_parallel_destroy(parallel);
}

static void give_wrong_options(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const v = (struct verdict *)context + rank;
    for (int i = 0; i < ROWS; ++i) {
        trireme_parallel_options good = TRIREME_PARALLEL_OPTIONS_INIT;
        good.data = 4;
        const bool odd = !on_one_rank || rank == 2;
        trireme_parallel *parallel = UNTOUCHED;
        EXPECT_STATUS(v, rows[i].status,
                      trireme_parallel_create(communicator, odd ? &rows[i].options : &good,
                                              &parallel));
        EXPECT(v, parallel == UNTOUCHED);
        if (odd && !says(rows[i].words)) {
            EXPECT(v, says(rows[i].words));
            print_error("row %d: \"%s\" is not in: %s\n", i, rows[i].words, trireme_last_error());
        }
        if (!odd) EXPECT(v, says("rank 2 answered "));
    }
    expect_well(v, communicator);
}

static void wrong_options_are_refused_with_their_reason(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    struct verdict verdicts[4] = {0};
    on_one_rank = false;
    run_ranks(4, give_wrong_options, verdicts);
    assert_verdicts(verdicts, 4);
}

static void other_ranks_hear_of_wrong_options(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    struct verdict verdicts[4] = {0};
    on_one_rank = true;
    run_ranks(4, give_wrong_options, verdicts);
    assert_verdicts(verdicts, 4);
}

/* ---- ranks that disagree ---- */

static const char other_order[] =
    "pipeline ranks=2 stages=2 micro_batches=2 placement=0,1\n"
    "0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1\n";
static const char turned[] =
    "pipeline ranks=2 stages=2 micro_batches=2 placement=1,0\n"
    "1F0 1F1 1B0 1B1\n0F0 0F1 0B0 0B1\n";
#define STAGE(f, i, w) \
    { .struct_size = sizeof(trireme_pipeline_stage_costs), .forward = f, .input = i, .weight = w }
static const trireme_pipeline_stage_costs even[] = {STAGE(1, 1, 1), STAGE(1, 1, 1), STAGE(1, 1, 1),
                                                    STAGE(1, 1, 1)};
static const trireme_pipeline_stage_costs odd_ones[] = {STAGE(9, 1, 1), STAGE(1, 5, 1),
                                                        STAGE(1, 1, 9), STAGE(2, 7, 1)};
static const trireme_pipeline_stage_costs odd_at_the_end[] = {STAGE(1, 1, 1), STAGE(1, 1, 2)};
static const trireme_pipeline_costs even_costs = {.struct_size = sizeof even_costs,
                                                  .stages = even,
                                                  .stage_count = 4};
static const trireme_pipeline_costs odd_costs = {.struct_size = sizeof odd_costs,
                                                 .stages = odd_ones,
                                                 .stage_count = 4};
static const trireme_pipeline_costs two_costs = {.struct_size = sizeof two_costs,
                                                 .stages = even,
                                                 .stage_count = 2};
static const trireme_pipeline_costs two_odd_costs = {.struct_size = sizeof two_odd_costs,
                                                     .stages = odd_at_the_end,
                                                     .stage_count = 2};
static const trireme_pipeline_costs far_costs = {.struct_size = sizeof far_costs,
                                                 .stages = even,
                                                 .stage_count = 2,
                                                 .latency = 0.5};
static const trireme_tensor_options four_blocks = {.struct_size = sizeof four_blocks, .blocks = 4};
static const trireme_tensor_options eight_blocks = {.struct_size = sizeof eight_blocks,
                                                    .blocks = 8};
static const trireme_tensor_options sequences = {.struct_size = sizeof sequences,
                                                 .blocks = 4,
                                                 .flags = TRIREME_TENSOR_FLAG_SEQUENCE};

static const struct {
    trireme_parallel_options first, second;
    const char *words;
} differences[] = {
    {OPTIONS(.data = 4), OPTIONS(.data = 2, .shard = 2),
     "options.data is 4 on rank 0 and 2 on rank 3"},
    {OPTIONS(.tensor = 4), OPTIONS(.context = 4), "options.tensor is 4 on rank 0 and 1 on rank 3"},
    {OPTIONS(.expert = 4), OPTIONS(.shard = 4), "options.shard is 1 on rank 0 and 4 on rank 3"},
    {OPTIONS(.data = 2, .context = 2), OPTIONS(.data = 2, .expert = 2),
     "options.context is 2 on rank 0 and 1 on rank 3"},
    {OPTIONS(.data = 4, .micro_batches = 2), OPTIONS(.data = 4, .micro_batches = 3),
     "options.micro_batches is 2 on rank 0 and 3 on rank 3"},
    {OPTIONS(.data = 4, .activation_limit_bytes = 2),
     OPTIONS(.data = 4, .activation_limit_bytes = 3),
     "options.activation_limit_bytes is 2 on rank 0 and 3 on rank 3"},
    {OPTIONS(.pipeline = 4, .micro_batches = 2, .order = TRIREME_PIPELINE_ORDER_1F1B),
     OPTIONS(.pipeline = 4, .micro_batches = 2, .order = TRIREME_PIPELINE_ORDER_GPIPE),
     "options.order is 2 on rank 0 and 1 on rank 3"},
    {OPTIONS(.pipeline = 4, .micro_batches = 2, .stages_per_rank = 2),
     OPTIONS(.pipeline = 4, .micro_batches = 2, .stages_per_rank = 3),
     "options.stages_per_rank is 2 on rank 0 and 3 on rank 3"},
    {OPTIONS(.data = 2, .pipeline = 2, .micro_batches = 2),
     OPTIONS(.data = 2, .pipeline = 2, .schedule_text = two_ranks),
     "options.schedule_text is not set on rank 0 and set on rank 3"},
    {OPTIONS(.data = 2, .pipeline = 2, .schedule_text = two_ranks),
     OPTIONS(.data = 2, .pipeline = 2, .schedule_text = other_order),
     "action 1 of rank 1 along pipeline is 1F1 on rank 0 and 1B0 on rank 3"},
    {OPTIONS(.data = 2, .pipeline = 2, .micro_batches = 4, .order = TRIREME_PIPELINE_ORDER_BEST,
             .stages_per_rank = 2, .costs = &even_costs),
     OPTIONS(.data = 2, .pipeline = 2, .micro_batches = 4, .order = TRIREME_PIPELINE_ORDER_BEST,
             .stages_per_rank = 2, .costs = &odd_costs),
     "options.costs.stages[0] is forward 0x1p+0, backward "},
    {OPTIONS(.data = 2, .pipeline = 2, .micro_batches = 2),
     OPTIONS(.data = 2, .pipeline = 2, .micro_batches = 2, .costs = &two_costs),
     "options.costs is not set on rank 0 and set on rank 3"},
    {OPTIONS(.data = 2, .pipeline = 2, .micro_batches = 2, .costs = &two_costs),
     OPTIONS(.data = 2, .pipeline = 2, .micro_batches = 2, .costs = &far_costs),
     "options.costs.latency is 0x0p+0 on rank 0 and 0x1p-1 on rank 3"},
    {OPTIONS(.data = 2, .pipeline = 2, .micro_batches = 2, .order = TRIREME_PIPELINE_ORDER_GPIPE,
             .costs = &two_costs),
     OPTIONS(.data = 2, .pipeline = 2, .micro_batches = 2, .order = TRIREME_PIPELINE_ORDER_GPIPE,
             .costs = &two_odd_costs),
     "options.costs.stages[1] is forward 0x1p+0, backward "},
    {OPTIONS(.data = 2, .pipeline = 2, .schedule_text = two_ranks),
     OPTIONS(.data = 2, .pipeline = 2, .schedule_text = turned),
     "the rank of stage 0 of the schedule is 0 on rank 0 and 1 on rank 3"},
    {OPTIONS(.data = 4), OPTIONS(.data = 4, .tensor_options = &four_blocks),
     "options.tensor_options is not set on rank 0 and set on rank 3"},
    {OPTIONS(.data = 4, .tensor_options = &four_blocks),
     OPTIONS(.data = 4, .tensor_options = &eight_blocks),
     "options.tensor_options.blocks is 4 on rank 0 and 8 on rank 3"},
    {OPTIONS(.data = 4, .tensor_options = &four_blocks),
     OPTIONS(.data = 4, .tensor_options = &sequences),
     "options.tensor_options.flags is 0 on rank 0 and 1 on rank 3"},
};

static void disagree(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const v = (struct verdict *)context + rank;
    for (size_t i = 0; i < sizeof differences / sizeof differences[0]; ++i) {
        trireme_parallel *parallel = UNTOUCHED;
        EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH,
                      trireme_parallel_create(communicator,
                                              rank == 3 ? &differences[i].second
                                                        : &differences[i].first,
                                              &parallel));
        EXPECT(v, parallel == UNTOUCHED);
        if (!says(differences[i].words)) {
            EXPECT(v, says(differences[i].words));
            print_error("\"%s\" is not in: %s\n", differences[i].words, trireme_last_error());
        }
    }
    expect_well(v, communicator);
    /* Another function. */
    trireme_parallel_options options = TRIREME_PARALLEL_OPTIONS_INIT;
    options.data = 4;
    trireme_parallel *parallel = NULL;
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH,
                  rank == 1 ? trireme_barrier(communicator, NULL)
                            : trireme_parallel_create(communicator, &options, &parallel));
}

static void ranks_that_disagree_hear_in_what(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    struct verdict verdicts[4] = {0};
    run_ranks(4, disagree, verdicts);
    assert_verdicts(verdicts, 4);
}

/* Ranks may have other timeouts, and other providers of products. */
static void differ_in_private(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const v = (struct verdict *)context + rank;
    trireme_gemm_options gemm = TRIREME_GEMM_OPTIONS_INIT;
    gemm.kind = TRIREME_GEMM_KIND_BUILTIN;
    trireme_tensor_options tensor = TRIREME_TENSOR_OPTIONS_INIT;
    tensor.timeout_ns = LONG_NS + (uint64_t)rank;
    if (rank == 1) tensor.gemm = &gemm;
    trireme_parallel_options options = TRIREME_PARALLEL_OPTIONS_INIT;
    options.tensor = 2;
    options.tensor_options = &tensor;
    options.timeout_ns = LONG_NS + (uint64_t)rank;
    trireme_parallel *parallel = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_create(communicator, &options, &parallel));
    trireme_parallel_destroy(parallel);
}

/* A provider that is there on one rank alone fails on both. */
static void lack_a_library(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const v = (struct verdict *)context + rank;
    trireme_gemm_options gemm = TRIREME_GEMM_OPTIONS_INIT;
    gemm.kind = rank == 0 ? TRIREME_GEMM_KIND_LOADED : TRIREME_GEMM_KIND_BUILTIN;
    if (rank == 0) gemm.library = "/no/such/blas.so";
    trireme_tensor_options tensor = TRIREME_TENSOR_OPTIONS_INIT;
    tensor.gemm = &gemm;
    trireme_parallel_options options = TRIREME_PARALLEL_OPTIONS_INIT;
    options.tensor = 2;
    options.tensor_options = &tensor;
    trireme_parallel *parallel = UNTOUCHED;
    EXPECT_STATUS(v, TRIREME_ERROR_UNSUPPORTED,
                  trireme_parallel_create(communicator, &options, &parallel));
    EXPECT(v, says(rank == 0 ? "/no/such/blas.so" : "rank 0 answered UNSUPPORTED"));
    EXPECT(v, parallel == UNTOUCHED);
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(communicator, NULL));
}

static void providers_are_private_but_must_be_there(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    struct verdict verdicts[2] = {0};
    run_ranks(2, differ_in_private, verdicts);
    assert_verdicts(verdicts, 2);
    run_ranks(2, lack_a_library, verdicts);
    assert_verdicts(verdicts, 2);
}

/* ---- wrong calls ---- */

static void call_wrongly(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const v = (struct verdict *)context + rank;
    trireme_parallel_options options = TRIREME_PARALLEL_OPTIONS_INIT;
    options.data = 2;
    options.pipeline = 2;
    options.micro_batches = 2;
    trireme_parallel *parallel = UNTOUCHED;
    trireme_communicator *group = NULL;
    EXPECT_STATUS(v, BAD, trireme_parallel_create(communicator, NULL, &parallel));
    EXPECT(v, says("options is NULL"));
    EXPECT_STATUS(v, BAD, trireme_parallel_create(communicator, &options, NULL));
    EXPECT(v, says("out_parallel is NULL"));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_HANDLE,
                  trireme_parallel_create(NULL, &options, &parallel));
    options.struct_size = 8;
    EXPECT_STATUS(v, BAD, trireme_parallel_create(communicator, &options, &parallel));
    EXPECT(v, says("start from TRIREME_PARALLEL_OPTIONS_INIT"));
    struct {
        trireme_parallel_options known;
        uint64_t newer;
    } newer = {.known = options, .newer = 1};
    newer.known.struct_size = sizeof newer;
    EXPECT_STATUS(v, TRIREME_ERROR_UNSUPPORTED,
                  trireme_parallel_create(communicator, &newer.known, &parallel));
    options.struct_size = sizeof options;
    EXPECT(v, parallel == UNTOUCHED);
    EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_create(communicator, &options, &parallel));

    trireme_parallel_info info = TRIREME_PARALLEL_INFO_INIT;
    info.struct_size = 4;
    EXPECT_STATUS(v, BAD, trireme_parallel_get_info(parallel, &info));
    EXPECT_STATUS(v, BAD, trireme_parallel_get_info(parallel, NULL));
    int32_t at[TRIREME_PARALLEL_AXES] = {0}, of = -7;
    EXPECT_STATUS(v, BAD, trireme_parallel_get_coordinates(parallel, 4, at, 6));
    EXPECT_STATUS(v, BAD, trireme_parallel_get_coordinates(parallel, -1, at, 6));
    EXPECT_STATUS(v, BAD, trireme_parallel_get_coordinates(parallel, 0, at, 5));
    EXPECT_STATUS(v, BAD, trireme_parallel_get_coordinates(parallel, 0, NULL, 6));
    EXPECT_STATUS(v, BAD, trireme_parallel_get_rank(parallel, at, 5, &of));
    EXPECT_STATUS(v, BAD, trireme_parallel_get_rank(parallel, NULL, 6, &of));
    EXPECT_STATUS(v, BAD, trireme_parallel_get_rank(parallel, at, 6, NULL));
    at[4] = 1;
    EXPECT_STATUS(v, BAD, trireme_parallel_get_rank(parallel, at, 6, &of));
    EXPECT(v, says("coordinate 1 of axis \"context\" is not in 0 to 0") && of == -7);
    EXPECT_STATUS(v, BAD, trireme_parallel_get_communicator(parallel, 0, &group));
    EXPECT_STATUS(v, BAD, trireme_parallel_get_communicator(parallel, 64, &group));
    EXPECT_STATUS(v, BAD, trireme_parallel_get_communicator(parallel, 1, NULL));
    EXPECT_STATUS(v, BAD, trireme_parallel_create_communicator(parallel, 0, NULL, &group));
    EXPECT_STATUS(v, BAD, trireme_parallel_create_communicator(parallel, 65, NULL, &group));
    EXPECT_STATUS(v, BAD, trireme_parallel_create_communicator(parallel, 1, NULL, NULL));
    EXPECT(v, group == NULL);
    EXPECT_STATUS(v, BAD,
                  trireme_parallel_create_communicator(parallel, rank == 2 ? 64 : 1, NULL, &group));
    EXPECT(v, says(rank == 2 ? "axes is 64" : "rank 2 answered INVALID_ARGUMENT"));
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH,
                  trireme_parallel_create_communicator(parallel, rank == 2 ? 8 : 1, NULL, &group));
    EXPECT(v, says("axes is 1 on rank 0 and 8 on rank 2") && group == NULL);
    uint32_t stage = 0;
    uint64_t count = 0, first = 0;
    EXPECT_STATUS(v, BAD, trireme_parallel_get_stages(parallel, 2, &stage, 1, &count));
    EXPECT_STATUS(v, BAD, trireme_parallel_get_stages(parallel, -1, &stage, 1, &count));
    EXPECT_STATUS(v, BAD, trireme_parallel_get_stages(parallel, 0, NULL, 1, &count));
    EXPECT_STATUS(v, BAD, trireme_parallel_get_stages(parallel, 0, &stage, 1, NULL));
    EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_get_stages(parallel, 0, NULL, 0, &count));
    EXPECT(v, count == 1);
    EXPECT_STATUS(v, BAD, trireme_parallel_get_stage_rank(parallel, 2, &of));
    EXPECT_STATUS(v, BAD, trireme_parallel_get_stage_rank(parallel, 0, NULL));
    EXPECT_STATUS(v, BAD, trireme_parallel_get_rows(parallel, 8, 2, &first, &count));
    EXPECT_STATUS(v, BAD, trireme_parallel_get_rows(parallel, 8, 0, NULL, &count));
    EXPECT_STATUS(v, BAD, trireme_parallel_get_rows(parallel, 8, 0, &first, NULL));
    EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_get_rows(parallel, 0, 0, &first, &count));
    EXPECT(v, first == 0 && count == 0);
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_parallel_get_rows(parallel, UINT64_MAX, 1, &first, &count));
    EXPECT(v, first == (rank % 2 == 0 ? UINT64_MAX / 2 : UINT64_MAX - UINT64_MAX / 4 - 1));
    trireme_tensor *tensor = NULL;
    EXPECT_STATUS(v, BAD, trireme_parallel_get_tensor(parallel, NULL));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE, trireme_parallel_get_tensor(parallel, &tensor));
    EXPECT_STATUS(v, BAD, trireme_parallel_get_schedule(parallel, NULL));
    trireme_model_options model_options = TRIREME_MODEL_OPTIONS_INIT;
    model_options.strategy = TRIREME_STRATEGY_ZERO1;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, BAD, trireme_parallel_create_model(parallel, 2, &model_options, &model));
    EXPECT_STATUS(v, BAD, trireme_parallel_create_model(parallel, 0, NULL, &model));
    EXPECT_STATUS(v, BAD, trireme_parallel_create_model(parallel, 0, &model_options, NULL));

    /* Costs: each call is wrong on one rank, and all hear of it. */
    trireme_pipeline_layer_costs layers[3] = {TRIREME_PIPELINE_LAYER_COSTS_INIT,
                                              TRIREME_PIPELINE_LAYER_COSTS_INIT,
                                              TRIREME_PIPELINE_LAYER_COSTS_INIT};
    uint64_t cuts[3] = {77, 77, 77};
    const bool odd = rank == 1;
    EXPECT_STATUS(v, BAD,
                  trireme_parallel_partition(parallel, odd ? NULL : layers, 3, cuts, 3, NULL));
    EXPECT(v, says(odd ? "layers is NULL" : "rank 1 answered INVALID_ARGUMENT"));
    EXPECT_STATUS(v, BAD,
                  trireme_parallel_partition(parallel, layers, 3, odd ? NULL : cuts, 3, NULL));
    EXPECT_STATUS(v, BAD, trireme_parallel_partition(parallel, layers, 3, cuts, odd ? 4 : 3, NULL));
    EXPECT(v, says(odd ? "cut_count is 4, but 2 stages have 3 cuts" : "rank 1 answered"));
    EXPECT_STATUS(v, BAD,
                  trireme_parallel_partition(parallel, layers, odd ? 65537 : 3, cuts, 3, NULL));
    EXPECT_STATUS(v, BAD, trireme_parallel_partition(parallel, layers, 0, cuts, 3, NULL));
    EXPECT_STATUS(v, BAD, trireme_parallel_partition(parallel, layers, 1, cuts, 3, NULL));
    EXPECT(v, says("1 layers are fewer than 2 stages"));
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH,
                  trireme_parallel_partition(parallel, layers, odd ? 2 : 3, cuts, 3, NULL));
    EXPECT(v, says("layer_count is 3 on rank 0 and 2 on rank 1"));
    layers[0].seconds = odd ? 0.0 / (rank - 1.0) : 1;
    EXPECT_STATUS(v, BAD, trireme_parallel_partition(parallel, layers, 3, cuts, 3, NULL));
    EXPECT(v, says(odd ? "seconds of layer 0 are" : "rank 1 answered INVALID_ARGUMENT"));
    /* Not the largest number of all ranks. */
    layers[0].seconds = odd ? -5 : 1;
    EXPECT_STATUS(v, BAD, trireme_parallel_partition(parallel, layers, 3, cuts, 3, NULL));
    EXPECT(v, says(odd ? "seconds of layer 0 are -5" : "rank 1 answered INVALID_ARGUMENT"));
    layers[0].seconds = 1;
    layers[2].kept_bytes = odd ? (1ULL << 40) + 1 : 0;
    EXPECT_STATUS(v, BAD, trireme_parallel_partition(parallel, layers, 3, cuts, 3, NULL));
    EXPECT(v, says(odd ? "bytes of layer 2 are above 2^40" : "rank 1 answered INVALID_ARGUMENT"));
    layers[2].kept_bytes = 0;
    layers[1].bytes = odd ? 1 : 0;
    EXPECT_STATUS(v, BAD, trireme_parallel_partition(parallel, layers, 3, cuts, 3, NULL));
    EXPECT(v, says(odd ? "layers[1].bytes is 1, but must be 0" : "rank 1 answered"));
    EXPECT(v, cuts[0] == 77);
    layers[1].bytes = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_partition(parallel, layers, 3, cuts, 3, NULL));
    EXPECT(v, cuts[0] == 0 && cuts[1] >= 1 && cuts[1] <= 2 && cuts[2] == 3);
    trireme_parallel_destroy(parallel);
}

static void wrong_calls_are_refused(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    struct verdict verdicts[4] = {0};
    run_ranks(4, call_wrongly, verdicts);
    assert_verdicts(verdicts, 4);
}

/* Stages that lie in no known way can run, but not be cut. */
static void lie_in_a_list(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const v = (struct verdict *)context + rank;
    trireme_parallel_options options = TRIREME_PARALLEL_OPTIONS_INIT;
    options.pipeline = 2;
    options.schedule_text =
        "pipeline ranks=2 stages=3 micro_batches=1 placement=0,1,1\n"
        "0F0 0B0\n1F0 2F0 2B0 1B0\n";
    trireme_parallel *parallel = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_create(communicator, &options, &parallel));
    trireme_parallel_info info = TRIREME_PARALLEL_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_get_info(parallel, &info));
    EXPECT(v, info.stages == 3 && info.own_stages == (rank == 0 ? 1u : 2u));
    EXPECT(v, info.kept_micro_batches == (rank == 0 ? 1u : 2u));
    trireme_pipeline_layer_costs layers[3] = {TRIREME_PIPELINE_LAYER_COSTS_INIT,
                                              TRIREME_PIPELINE_LAYER_COSTS_INIT,
                                              TRIREME_PIPELINE_LAYER_COSTS_INIT};
    uint64_t cuts[4] = {0};
    EXPECT_STATUS(v, TRIREME_ERROR_UNSUPPORTED,
                  trireme_parallel_partition(parallel, layers, 3, cuts, 4, NULL));
    EXPECT(v, says("lie neither as LOOP nor as V nor as WAVE"));
    trireme_parallel_destroy(parallel);
}

static void stages_of_a_list_are_not_cut(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    struct verdict verdicts[2] = {0};
    run_ranks(2, lie_in_a_list, verdicts);
    assert_verdicts(verdicts, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_options_are_refused_with_their_reason),
        cmocka_unit_test(other_ranks_hear_of_wrong_options),
        cmocka_unit_test(ranks_that_disagree_hear_in_what),
        cmocka_unit_test(providers_are_private_but_must_be_there),
        cmocka_unit_test(wrong_calls_are_refused),
        cmocka_unit_test(stages_of_a_list_are_not_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
