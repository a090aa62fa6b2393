/*
 * Pipeline schedules through the ABI: orders by hand, reports, texts that read back, a search, a
 * partition, and every bad argument.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h comes after those it needs. */
#include <cmocka.h>
#include <trireme/trireme.h>

#define assert_ok(call)                                                            \
    do {                                                                           \
        if ((call) != TRIREME_OK) fail_msg("%s: %s", #call, trireme_last_error()); \
    } while (0)

static void assert_refused(trireme_status status, trireme_status expected, const char *words) {
    if (status != expected || strstr(trireme_last_error(), words) == NULL) {
        fail_msg("%s, not %s with \"%s\": %s", trireme_status_name(status),
                 trireme_status_name(expected), words, trireme_last_error());
    }
}

static trireme_pipeline_schedule *made(trireme_pipeline_order order, uint32_t ranks,
                                       uint32_t stages_per_rank, uint32_t micro_batches) {
    trireme_pipeline_schedule_options options = TRIREME_PIPELINE_SCHEDULE_OPTIONS_INIT;
    options.order = order;
    options.ranks = ranks;
    options.stages_per_rank = stages_per_rank;
    options.micro_batches = micro_batches;
    trireme_pipeline_schedule *schedule = NULL;
    assert_ok(trireme_pipeline_schedule_create(&options, &schedule));
    return schedule;
}

static trireme_pipeline_schedule *parsed(const char *text) {
    trireme_pipeline_schedule *schedule = NULL;
    assert_ok(trireme_pipeline_schedule_parse(text, strlen(text), &schedule));
    return schedule;
}

/* Stages with F, I and W of a second, and 10 bytes from F until W. */
static trireme_pipeline_costs costs_of(trireme_pipeline_stage_costs *stages, uint64_t count) {
    for (uint64_t s = 0; s < count; ++s) {
        stages[s] = (trireme_pipeline_stage_costs)TRIREME_PIPELINE_STAGE_COSTS_INIT;
        stages[s].forward = stages[s].input = stages[s].weight = 1;
        stages[s].kept_bytes = stages[s].held_bytes = 10;
        stages[s].message_bytes = 3;
    }
    trireme_pipeline_costs costs = TRIREME_PIPELINE_COSTS_INIT;
    costs.stages = stages;
    costs.stage_count = count;
    return costs;
}

static void lists_are_those_of_the_order(void **state) {
    (void)state;
    trireme_pipeline_schedule *schedule = made(TRIREME_PIPELINE_ORDER_1F1B, 2, 0, 2);
    trireme_pipeline_schedule_info info = TRIREME_PIPELINE_SCHEDULE_INFO_INIT;
    assert_ok(trireme_pipeline_schedule_get_info(schedule, &info));
    assert_int_equal(info.ranks, 2);
    assert_int_equal(info.stages, 2);
    assert_int_equal(info.micro_batches, 2);
    assert_int_equal(info.action_count, 8);
    assert_int_equal(info.order, TRIREME_PIPELINE_ORDER_1F1B);
    assert_int_equal(info.has_messages, 0);
    trireme_pipeline_action actions[8];
    uint64_t count = 0;
    assert_ok(trireme_pipeline_schedule_actions(schedule, 1, actions, 8, &count));
    assert_int_equal(count, 4);
    const int kinds[] = {TRIREME_PIPELINE_KIND_F, TRIREME_PIPELINE_KIND_B, TRIREME_PIPELINE_KIND_F,
                         TRIREME_PIPELINE_KIND_B};
    for (int i = 0; i < 4; ++i) {
        assert_int_equal(actions[i].kind, kinds[i]);
        assert_int_equal(actions[i].stage, 1);
        assert_int_equal(actions[i].micro_batch, i / 2);
        assert_int_equal(actions[i].pair, 0);
    }
    /* Less room: no more than fits is written. */
    memset(actions, 0x55, sizeof actions);
    assert_ok(trireme_pipeline_schedule_actions(schedule, 1, actions, 1, &count));
    assert_int_equal(count, 4);
    assert_int_equal(actions[1].kind, 0x55555555);
    assert_ok(trireme_pipeline_schedule_actions(schedule, 1, NULL, 0, &count));
    uint32_t rank_of[3] = {7, 7, 7};
    assert_ok(trireme_pipeline_schedule_placement(schedule, rank_of, 3, &count));
    assert_int_equal(count, 2);
    assert_true(rank_of[0] == 0 && rank_of[1] == 1 && rank_of[2] == 7);
    trireme_pipeline_schedule_destroy(schedule);
    assert_refused(trireme_pipeline_schedule_get_info(schedule, &info),
                   TRIREME_ERROR_INVALID_HANDLE, "schedule");
    trireme_pipeline_schedule_destroy(schedule);
    trireme_pipeline_schedule_destroy(NULL);
}

static void reports_tell_times_and_bytes(void **state) {
    (void)state;
    trireme_pipeline_schedule *schedule = made(TRIREME_PIPELINE_ORDER_1F1B, 4, 1, 8);
    trireme_pipeline_stage_costs stages[4];
    trireme_pipeline_costs costs = costs_of(stages, 4);
    trireme_pipeline_step_report report = TRIREME_PIPELINE_STEP_REPORT_INIT;
    trireme_pipeline_rank_times ranks[4];
    assert_ok(trireme_pipeline_schedule_simulate(schedule, &costs, NULL, &report, ranks, 4));
    assert_true(report.makespan == 33 && report.span == 33 && report.work == 96);
    assert_true(report.idle == 36 && report.lower_bound == 27);
    assert_true(fabs(report.bubble - 3.0 / 11) < 1e-12);
    assert_int_equal(report.peak_bytes, 40);
    assert_int_equal(report.sent_bytes, 2 * 3 * 8 * 3); /* two ways, 3 boundaries, 8 times */
    for (int r = 0; r < 4; ++r) {
        assert_true(ranks[r].first_start == r && ranks[r].work == 24);
        assert_int_equal(ranks[r].peak_bytes, 10 * (4 - r));
    }
    double starts[16], ends[16];
    uint64_t count = 0;
    assert_ok(trireme_pipeline_schedule_times(schedule, &costs, NULL, 3, starts, ends, 16, &count));
    assert_int_equal(count, 16);
    assert_true(starts[0] == 3 && ends[0] == 4 && starts[1] == 4 && ends[1] == 6);
    trireme_pipeline_critical_step *steps =
        calloc(report.critical_count, sizeof(trireme_pipeline_critical_step));
    assert_non_null(steps);
    assert_ok(trireme_pipeline_schedule_critical_path(schedule, &costs, NULL, steps,
                                                      report.critical_count, &count));
    assert_int_equal(count, report.critical_count);
    assert_true(steps[0].rank == 0 && steps[0].index == 0 && steps[0].waited == 0);
    free(steps);
    /* B counts as I and W, unless it has a time of its own. */
    for (int s = 0; s < 4; ++s) stages[s].backward = 1;
    assert_ok(trireme_pipeline_schedule_simulate(schedule, &costs, NULL, &report, NULL, 0));
    assert_true(report.makespan == 22);
    trireme_pipeline_schedule_destroy(schedule);
}

static void a_broken_schedule_names_rule_and_place(void **state) {
    (void)state;
    trireme_pipeline_schedule *schedule = parsed("0F0,0W0,0I0\n1F0,1I0,1W0\n");
    trireme_pipeline_check_report report = TRIREME_PIPELINE_CHECK_REPORT_INIT;
    assert_refused(trireme_pipeline_schedule_check(schedule, NULL, NULL, &report),
                   TRIREME_ERROR_INVALID_STATE, "rank 0, action 1 (0W0): comes before 0I0");
    assert_int_equal(report.rule, TRIREME_PIPELINE_RULE_ORDER);
    assert_int_equal(report.rank, 0);
    assert_int_equal(report.index, 1);
    assert_int_equal(report.action.kind, TRIREME_PIPELINE_KIND_W);
    trireme_pipeline_stage_costs stages[2];
    trireme_pipeline_costs costs = costs_of(stages, 2);
    trireme_pipeline_step_report step = TRIREME_PIPELINE_STEP_REPORT_INIT;
    assert_refused(trireme_pipeline_schedule_simulate(schedule, &costs, NULL, &step, NULL, 0),
                   TRIREME_ERROR_INVALID_STATE, "comes before");
    uint64_t length = 0;
    assert_refused(trireme_pipeline_schedule_write(schedule, TRIREME_PIPELINE_FORMAT_SVG, NULL,
                                                   NULL, 0, &length),
                   TRIREME_ERROR_INVALID_STATE, "comes before");
    trireme_pipeline_schedule_destroy(schedule);

    schedule = made(TRIREME_PIPELINE_ORDER_ZB_H1, 2, 1, 4);
    uint64_t bytes[2] = {20, 20};
    trireme_pipeline_limits limits = TRIREME_PIPELINE_LIMITS_INIT;
    limits.bytes = bytes;
    limits.rank_count = 2;
    assert_ok(trireme_pipeline_schedule_check(schedule, &costs, &limits, &report));
    assert_int_equal(report.rule, TRIREME_PIPELINE_RULE_NONE);
    assert_int_equal(report.peak_bytes, 20);
    bytes[1] = 19;
    assert_refused(trireme_pipeline_schedule_check(schedule, &costs, &limits, &report),
                   TRIREME_ERROR_INVALID_STATE, "limit of 19 bytes");
    assert_int_equal(report.rule, TRIREME_PIPELINE_RULE_MEMORY);
    assert_int_equal(report.rank, 1);
    assert_refused(trireme_pipeline_schedule_check(schedule, NULL, &limits, NULL),
                   TRIREME_ERROR_INVALID_ARGUMENT, "costs is NULL");
    limits.rank_count = 3;
    assert_refused(trireme_pipeline_schedule_check(schedule, &costs, &limits, NULL),
                   TRIREME_ERROR_INVALID_ARGUMENT, "limits.rank_count");
    trireme_pipeline_schedule_destroy(schedule);
}

static void texts_read_back(void **state) {
    (void)state;
    trireme_pipeline_schedule *schedule = made(TRIREME_PIPELINE_ORDER_1F1B, 2, 1, 2);
    char text[200], small[4];
    uint64_t length = 0;
    assert_ok(trireme_pipeline_schedule_write(schedule, TRIREME_PIPELINE_FORMAT_CSV, NULL, text,
                                              sizeof text, &length));
    assert_string_equal(text, "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
    assert_int_equal(length, strlen(text));
    assert_ok(trireme_pipeline_schedule_write(schedule, TRIREME_PIPELINE_FORMAT_CSV, NULL, small,
                                              sizeof small, &length));
    assert_string_equal(small, "0F0");
    assert_ok(trireme_pipeline_schedule_write(schedule, TRIREME_PIPELINE_FORMAT_TEXT, NULL, text,
                                              sizeof text, &length));
    trireme_pipeline_schedule *again = parsed(text);
    trireme_pipeline_action ours[4], theirs[4];
    uint64_t count = 0;
    for (uint32_t rank = 0; rank < 2; ++rank) {
        assert_ok(trireme_pipeline_schedule_actions(schedule, rank, ours, 4, &count));
        assert_ok(trireme_pipeline_schedule_actions(again, rank, theirs, 4, &count));
        assert_memory_equal(ours, theirs, sizeof ours);
    }
    trireme_pipeline_schedule_destroy(again);
    const trireme_pipeline_format drawings[] = {TRIREME_PIPELINE_FORMAT_DRAWING,
                                                TRIREME_PIPELINE_FORMAT_SVG,
                                                TRIREME_PIPELINE_FORMAT_TRACE};
    for (int i = 0; i < 3; ++i) {
        assert_ok(trireme_pipeline_schedule_write(schedule, drawings[i], NULL, NULL, 0, &length));
        char *whole = malloc(length + 1);
        assert_non_null(whole);
        assert_ok(trireme_pipeline_schedule_write(schedule, drawings[i], NULL, whole, length + 1,
                                                  &length));
        assert_non_null(strstr(whole, "1B1"));
        free(whole);
    }
    trireme_pipeline_schedule_destroy(schedule);
    again = NULL;
    assert_refused(trireme_pipeline_schedule_parse("0F0\n1X0", 7, &again),
                   TRIREME_ERROR_INVALID_ARGUMENT, "line 2");
    assert_refused(trireme_pipeline_schedule_parse("0F0", UINT64_C(1) << 30, &again),
                   TRIREME_ERROR_INVALID_ARGUMENT, "1073741824 bytes");
    assert_null(again);
}

static void lists_of_the_caller_are_taken(void **state) {
    (void)state;
    const uint32_t rank_of[] = {0, 1};
    const trireme_pipeline_action actions[] = {{TRIREME_PIPELINE_KIND_F, 0, 0, 0},
                                               {TRIREME_PIPELINE_KIND_B, 0, 0, 0},
                                               {TRIREME_PIPELINE_KIND_F, 1, 0, 0},
                                               {TRIREME_PIPELINE_KIND_B, 1, 0, 0}};
    const uint64_t counts[] = {2, 2}, huge[] = {2, UINT64_MAX};
    trireme_pipeline_schedule *schedule = NULL;
    assert_ok(trireme_pipeline_schedule_from_actions(2, 1, rank_of, 2, actions, counts, &schedule));
    assert_ok(trireme_pipeline_schedule_check(schedule, NULL, NULL, NULL));
    trireme_pipeline_schedule_destroy(schedule);
    const uint32_t outside[] = {0, 2}, lonely[] = {0, 0};
    schedule = NULL;
    assert_refused(trireme_pipeline_schedule_from_actions(2, 1, outside, 2, actions, counts,
                                                          &schedule),
                   TRIREME_ERROR_INVALID_ARGUMENT, "rank 2");
    assert_refused(trireme_pipeline_schedule_from_actions(2, 1, lonely, 2, actions, counts,
                                                          &schedule),
                   TRIREME_ERROR_INVALID_ARGUMENT, "no stage");
    assert_refused(trireme_pipeline_schedule_from_actions(2, 1, rank_of, 2, actions, huge,
                                                          &schedule),
                   TRIREME_ERROR_INVALID_ARGUMENT, "counts[1]");
    assert_refused(trireme_pipeline_schedule_from_actions(2, 0, rank_of, 2, actions, counts,
                                                          &schedule),
                   TRIREME_ERROR_INVALID_ARGUMENT, "micro-batches");
    assert_refused(trireme_pipeline_schedule_from_actions(2, 1, NULL, 2, actions, counts,
                                                          &schedule),
                   TRIREME_ERROR_INVALID_ARGUMENT, "rank_of is NULL");
    assert_refused(trireme_pipeline_schedule_from_actions(2, 1, rank_of, 2, NULL, counts,
                                                          &schedule),
                   TRIREME_ERROR_INVALID_ARGUMENT, "actions is NULL");
    assert_refused(trireme_pipeline_schedule_from_actions(2, 1, rank_of, 2, actions, NULL,
                                                          &schedule),
                   TRIREME_ERROR_INVALID_ARGUMENT, "counts is NULL");
    assert_refused(trireme_pipeline_schedule_from_actions(2, 1, rank_of, 2, actions, counts, NULL),
                   TRIREME_ERROR_INVALID_ARGUMENT, "out_schedule is NULL");
    assert_null(schedule);
}

static void best_is_searched_within_limits(void **state) {
    (void)state;
    trireme_pipeline_stage_costs stages[8];
    trireme_pipeline_costs costs = costs_of(stages, 8);
    trireme_pipeline_limits limits = TRIREME_PIPELINE_LIMITS_INIT;
    uint64_t bytes[] = {60, 60, 60, 60};
    limits.bytes = bytes;
    limits.rank_count = 4;
    trireme_pipeline_schedule_options options = TRIREME_PIPELINE_SCHEDULE_OPTIONS_INIT;
    options.order = TRIREME_PIPELINE_ORDER_BEST;
    options.ranks = 4;
    options.stages_per_rank = 2;
    options.micro_batches = 8;
    options.costs = &costs;
    options.limits = &limits;
    options.flags = TRIREME_PIPELINE_FLAG_MESSAGES;
    trireme_pipeline_schedule *schedule = NULL;
    assert_ok(trireme_pipeline_schedule_create(&options, &schedule));
    trireme_pipeline_schedule_info info = TRIREME_PIPELINE_SCHEDULE_INFO_INIT;
    assert_ok(trireme_pipeline_schedule_get_info(schedule, &info));
    assert_true(info.value <= 53); /* that of V-Half */
    assert_true(info.bound >= 51 && info.bound <= info.value);
    assert_true(info.evaluations > 0);
    assert_int_equal(info.has_messages, 1);
    assert_ok(trireme_pipeline_schedule_check(schedule, &costs, &limits, NULL));
    trireme_pipeline_schedule_destroy(schedule);
    const uint32_t rank_of[] = {0, 1, 2, 3, 3, 2, 1, 0};
    options.placement = TRIREME_PIPELINE_PLACEMENT_LIST;
    options.rank_of = rank_of;
    options.stage_count = 8;
    schedule = NULL;
    assert_refused(trireme_pipeline_schedule_create(&options, &schedule),
                   TRIREME_ERROR_INVALID_ARGUMENT, "stages_per_rank must be 0");
    options.stages_per_rank = 0;
    assert_ok(trireme_pipeline_schedule_create(&options, &schedule));
    uint32_t found[8];
    uint64_t count = 0;
    assert_ok(trireme_pipeline_schedule_placement(schedule, found, 8, &count));
    assert_memory_equal(found, rank_of, sizeof found);
    trireme_pipeline_schedule_destroy(schedule);
    bytes[2] = 19;
    assert_refused(trireme_pipeline_schedule_create(&options, &schedule),
                   TRIREME_ERROR_INVALID_ARGUMENT, "rank 2 needs 20 bytes");
    stages[5].input = NAN;
    assert_refused(trireme_pipeline_schedule_create(&options, &schedule),
                   TRIREME_ERROR_INVALID_ARGUMENT, "of stage 5");
    stages[5].input = -1;
    assert_refused(trireme_pipeline_schedule_create(&options, &schedule),
                   TRIREME_ERROR_INVALID_ARGUMENT, "of stage 5");
    costs.stage_count = 7;
    assert_refused(trireme_pipeline_schedule_create(&options, &schedule),
                   TRIREME_ERROR_INVALID_ARGUMENT, "costs.stage_count");
}

static void bad_options_are_refused(void **state) {
    (void)state;
    trireme_pipeline_schedule *schedule = NULL;
    trireme_pipeline_stage_costs stages[4];
    const trireme_pipeline_costs costs = costs_of(stages, 4);
    const trireme_pipeline_limits limits = TRIREME_PIPELINE_LIMITS_INIT;
    const uint32_t rank_of[] = {0};
    const trireme_pipeline_schedule_options good = {.struct_size = sizeof good,
                                                    .order = TRIREME_PIPELINE_ORDER_GPIPE,
                                                    .ranks = 4,
                                                    .micro_batches = 2};
    trireme_pipeline_schedule_options bad;
#define REFUSED(change, words)                                            \
    do {                                                                  \
        bad = good;                                                       \
        change;                                                           \
        assert_refused(trireme_pipeline_schedule_create(&bad, &schedule), \
                       TRIREME_ERROR_INVALID_ARGUMENT, words);            \
    } while (0)
    REFUSED(bad.struct_size = 8, "struct_size");
    REFUSED(bad.order = 0, "order 0 is unknown");
    REFUSED(bad.order = 13, "order 13 is unknown");
    REFUSED(bad.flags = 2, "unknown bits");
    REFUSED(bad.ranks = 0, "ranks");
    REFUSED(bad.ranks = UINT32_MAX, "ranks");
    REFUSED(bad.micro_batches = 0, "micro-batches");
    REFUSED(bad.stages_per_rank = UINT32_MAX, "stages");
    REFUSED(bad.placement = TRIREME_PIPELINE_PLACEMENT_V, "has placement 1");
    REFUSED(bad.reserved = 1, "options.reserved");
    REFUSED(bad.costs = &costs, "costs is of order BEST");
    REFUSED(bad.limits = &limits, "limits is of order BEST");
    REFUSED(bad.objective = 1, "objective is of order BEST");
    REFUSED(bad.seed = 1, "seed is of order BEST");
    REFUSED(bad.evaluations = 1, "evaluations is of order BEST");
    REFUSED(bad.rank_of = rank_of, "rank_of is of order BEST");
    REFUSED((bad.order = TRIREME_PIPELINE_ORDER_ZB_V, bad.stages_per_rank = 1), "2 stages a rank");
    REFUSED((bad.order = TRIREME_PIPELINE_ORDER_1F1B, bad.stages_per_rank = 2), "1 stage a rank");
    REFUSED(bad.order = TRIREME_PIPELINE_ORDER_BEST, "costs is NULL");
    REFUSED((bad.order = TRIREME_PIPELINE_ORDER_BEST, bad.costs = &costs, bad.objective = 2),
            "objective 2 is unknown");
    REFUSED((bad.order = TRIREME_PIPELINE_ORDER_BEST, bad.costs = &costs, bad.placement = 5),
            "placement 5 is unknown");
    assert_refused(trireme_pipeline_schedule_create(NULL, &schedule),
                   TRIREME_ERROR_INVALID_ARGUMENT, "options is NULL");
    assert_refused(trireme_pipeline_schedule_create(&good, NULL), TRIREME_ERROR_INVALID_ARGUMENT,
                   "out_schedule is NULL");
    assert_null(schedule);
    uint64_t count = 0;
    trireme_pipeline_action action;
    schedule = made(TRIREME_PIPELINE_ORDER_GPIPE, 2, 1, 2);
    assert_refused(trireme_pipeline_schedule_actions(schedule, 2, &action, 1, &count),
                   TRIREME_ERROR_INVALID_ARGUMENT, "rank 2");
    assert_refused(trireme_pipeline_schedule_actions(schedule, 0, NULL, 1, &count),
                   TRIREME_ERROR_INVALID_ARGUMENT, "actions is NULL");
    assert_refused(trireme_pipeline_schedule_actions(schedule, 0, &action, 1, NULL),
                   TRIREME_ERROR_INVALID_ARGUMENT, "out_count is NULL");
    assert_refused(trireme_pipeline_schedule_write(schedule, 6, NULL, NULL, 0, &count),
                   TRIREME_ERROR_INVALID_ARGUMENT, "format 6");
    assert_refused(trireme_pipeline_schedule_write(schedule, TRIREME_PIPELINE_FORMAT_CSV, &costs,
                                                   NULL, 0, &count),
                   TRIREME_ERROR_INVALID_ARGUMENT, "costs must be NULL");
    trireme_pipeline_step_report report = TRIREME_PIPELINE_STEP_REPORT_INIT;
    assert_refused(trireme_pipeline_schedule_simulate(schedule, NULL, NULL, &report, NULL, 0),
                   TRIREME_ERROR_INVALID_ARGUMENT, "costs is NULL");
    assert_refused(trireme_pipeline_schedule_simulate(schedule, &costs, NULL, NULL, NULL, 0),
                   TRIREME_ERROR_INVALID_ARGUMENT, "report is NULL");
    trireme_pipeline_schedule_destroy(schedule);
}

static void orders_have_names(void **state) {
    (void)state;
    trireme_pipeline_order order = 0;
    for (trireme_pipeline_order each = 1; each <= TRIREME_PIPELINE_ORDER_BEST; ++each) {
        assert_ok(trireme_pipeline_order_parse(trireme_pipeline_order_name(each), &order));
        assert_int_equal(order, each);
    }
    assert_string_equal(trireme_pipeline_order_name(0), "unknown");
    assert_string_equal(trireme_pipeline_order_name(13), "unknown");
    assert_ok(trireme_pipeline_order_parse("Interleaved1F1B", &order));
    assert_int_equal(order, TRIREME_PIPELINE_ORDER_INTERLEAVED);
    assert_refused(trireme_pipeline_order_parse("fastest", &order), TRIREME_ERROR_INVALID_ARGUMENT,
                   "names are gpipe");
    assert_refused(trireme_pipeline_order_parse(NULL, &order), TRIREME_ERROR_INVALID_ARGUMENT,
                   "name is NULL");
    assert_refused(trireme_pipeline_order_parse("best", NULL), TRIREME_ERROR_INVALID_ARGUMENT,
                   "out_order is NULL");
}

static void layers_are_cut(void **state) {
    (void)state;
    trireme_pipeline_layer_costs layers[5];
    const double seconds[] = {1, 1, 1, 3, 2};
    for (int i = 0; i < 5; ++i) {
        layers[i] = (trireme_pipeline_layer_costs)TRIREME_PIPELINE_LAYER_COSTS_INIT;
        layers[i].seconds = seconds[i];
        layers[i].bytes = 4;
        layers[i].kept_bytes = 1;
    }
    trireme_partition_options options = TRIREME_PARTITION_OPTIONS_INIT;
    options.ranks = 2;
    uint64_t cuts[5];
    double slowest = 0;
    assert_ok(trireme_partition(layers, 5, &options, cuts, 3, &slowest));
    assert_true(cuts[0] == 0 && cuts[1] == 3 && cuts[2] == 5 && slowest == 5);
    options.stages_per_rank = 2;
    options.placement = TRIREME_PIPELINE_PLACEMENT_V;
    assert_ok(trireme_partition(layers, 5, &options, cuts, 5, &slowest));
    assert_true(slowest == 4 && cuts[0] == 0 && cuts[4] == 5);
    uint64_t limits[] = {15, 15};
    const uint32_t in_flight[] = {3, 1}; /* a layer of rank 0 has 7 bytes, of rank 1 has 5 */
    options.limits = limits;
    options.in_flight = in_flight;
    assert_ok(trireme_partition(layers, 5, &options, cuts, 5, &slowest));
    assert_true(cuts[1] + 5 - cuts[3] == 2);
    limits[0] = 13;
    assert_refused(trireme_partition(layers, 5, &options, cuts, 5, &slowest),
                   TRIREME_ERROR_INVALID_ARGUMENT, "within the limits");
    assert_refused(trireme_partition(layers, 5, &options, cuts, 4, &slowest),
                   TRIREME_ERROR_INVALID_ARGUMENT, "cut_count");
    options.limits = NULL;
    layers[2].seconds = -1;
    assert_refused(trireme_partition(layers, 5, &options, cuts, 5, NULL),
                   TRIREME_ERROR_INVALID_ARGUMENT, "layer 2");
    layers[2].seconds = 1;
    layers[2].struct_size = 4;
    assert_refused(trireme_partition(layers, 5, &options, cuts, 5, NULL),
                   TRIREME_ERROR_INVALID_ARGUMENT, "layers[2].struct_size");
    layers[2].struct_size = sizeof layers[2];
    assert_refused(trireme_partition(layers, 3, &options, cuts, 5, NULL),
                   TRIREME_ERROR_INVALID_ARGUMENT, "fewer than 4 stages");
    options.flags = TRIREME_PARTITION_FLAG_ALLOW_EMPTY;
    assert_ok(trireme_partition(layers, 3, &options, cuts, 5, NULL));
    options.placement = TRIREME_PIPELINE_PLACEMENT_LIST;
    assert_refused(trireme_partition(layers, 3, &options, cuts, 5, NULL),
                   TRIREME_ERROR_INVALID_ARGUMENT, "must be LOOP, V or WAVE");
    options.placement = 0;
    options.flags = 2;
    assert_refused(trireme_partition(layers, 3, &options, cuts, 5, NULL),
                   TRIREME_ERROR_INVALID_ARGUMENT, "unknown bits");
    assert_refused(trireme_partition(layers, 3, NULL, cuts, 5, NULL),
                   TRIREME_ERROR_INVALID_ARGUMENT, "options is NULL");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_are_those_of_the_order),
        cmocka_unit_test(reports_tell_times_and_bytes),
        cmocka_unit_test(a_broken_schedule_names_rule_and_place),
        cmocka_unit_test(texts_read_back),
        cmocka_unit_test(lists_of_the_caller_are_taken),
        cmocka_unit_test(best_is_searched_within_limits),
        cmocka_unit_test(bad_options_are_refused),
        cmocka_unit_test(orders_have_names),
        cmocka_unit_test(layers_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
