/*
 * Units that are spread between a few neighbours once they are gathered: they come from all ranks
 * first and then from these few, and every training must give the bits of plain loops.
 */
/* The model, the trainings and their checks are those of test_layouts.c. */
#define main run_the_layouts
#include "test_layouts.c"
#undef main

static const int kUnitElements[UNITS] = {35, 17, 1, 33, 24, 1};

static uint64_t part_of(int elements, int parts, int which) {
    return (uint64_t)(elements / parts + (which < elements % parts));
}

/* World size, shard_ranks and shard_stride of hybrid_shard, reshard_ranks. */
static const struct {
    int world_size;
    uint32_t shard_ranks, shard_stride, reshard_ranks;
} kSpreads[] = {{4, 0, 0, 2}, {6, 0, 0, 2}, {6, 0, 0, 3}, {8, 0, 0, 2}, {8, 0, 0, 4},
                {4, 4, 1, 2}, {8, 4, 1, 2}, {8, 4, 2, 2}, {6, 6, 1, 3}};
enum { SPREADS = sizeof kSpreads / sizeof kSpreads[0] };

static void spread_of(struct job *job, int i) {
    job->strategy =
        kSpreads[i].shard_ranks > 0 ? TRIREME_STRATEGY_HYBRID_SHARD : TRIREME_STRATEGY_ZERO3;
    job->world_size = kSpreads[i].world_size;
    job->shard_ranks = kSpreads[i].shard_ranks;
    job->shard_stride = kSpreads[i].shard_stride;
    job->reshard_ranks = kSpreads[i].reshard_ranks;
}

static void units_come_from_all_and_then_from_a_few(void **state) {
    (void)state;
    for (int i = 0; i < (is_quick() ? 6 : SPREADS); ++i) {
        struct job plain = {.minimum_unit_bytes = i % 3 == 2 ? 200 : 1,
                            .leaves = leaves_by_turns(i),
                            .share = TRIREME_SHARE_NEVER};
        spread_of(&plain, i);
        struct job job = plain;
        plain.reshard_ranks = 0;
        check_training(&plain);
        check_training(&job);
        const uint64_t groups = job.infos[0].unit_groups;
        const uint64_t passes = job.leaves > 0 ? 2 * job.infos[0].micro_batches : 2;
        const int few = (int)job.reshard_ranks;
        const int all = job.shard_ranks > 0 ? (int)job.shard_ranks : job.world_size;
        const int stride = job.shard_stride > 0 ? (int)job.shard_stride : 1;
        for (int rank = 0; rank < job.world_size; ++rank) {
            for (int step = 0; step < STEPS; ++step) {
                const trireme_model_statistics *const s = &job.statistics[rank][step];
                const uint64_t steps = (uint64_t)step + 1;
                assert_int_equal(s->gathers, steps * groups * passes);
                assert_int_equal(s->reshard_gathers, steps * groups * (passes - 1));
                assert_int_equal(plain.statistics[rank][step].gathers, s->gathers);
                assert_int_equal(plain.statistics[rank][step].reshard_gathers, 0);
            }
            if (job.minimum_unit_bytes > 1) continue;
            uint64_t kept = 0, first = 0, again = 0;
            for (int unit = 0; unit < UNITS; ++unit) {
                const uint64_t part = part_of(kUnitElements[unit], few, rank / stride % few);
                kept += (4 * part + 63) / 64 * 64;
                again += 4 * part * (uint64_t)(few - 1);
                first += 4 * part_of(kUnitElements[unit], all, rank / stride % all) *
                         (uint64_t)(all - 1);
            }
            const trireme_model_memory *const m = &job.memories[rank];
            const trireme_model_memory *const p = &plain.memories[rank];
            assert_int_equal(m->planned_working, p->planned_working + kept);
            assert_int_equal(m->planned_parameters, p->planned_parameters);
            assert_int_equal(m->planned_step_bytes + first, p->planned_step_bytes + again);
        }
    }
}

/* All of them is as without; one alone keeps units whole; and where ranks share, nothing moves. */
static void all_or_one_or_shared_is_what_it_is_without(void **state) {
    (void)state;
    for (int i = 0; i < 4; ++i) {
        struct job job = {.strategy =
                              i < 2 ? TRIREME_STRATEGY_ZERO3 : TRIREME_STRATEGY_HYBRID_SHARD,
                          .world_size = 4,
                          .shard_ranks = i < 2 ? 0 : 2,
                          .minimum_unit_bytes = 1,
                          .share = TRIREME_SHARE_NEVER};
        struct job same = job;
        job.reshard_ranks = i % 2 == 1 ? 1 : i < 2 ? 4 : 2;
        same.flags = i % 2 == 1 ? TRIREME_MODEL_FLAG_KEEP_GATHERED : 0;
        check_training(&job);
        check_training(&same);
        for (int rank = 0; rank < 4; ++rank) {
            assert_memory_equal(&job.memories[rank], &same.memories[rank], sizeof same.memories[0]);
            assert_int_equal(job.statistics[rank][2].gathers, same.statistics[rank][2].gathers);
            assert_int_equal(job.statistics[rank][2].reshard_gathers, 0);
        }
    }
    if (ranks_use_transport()) return; /* they have no memory in common */
    struct job job = {.strategy = TRIREME_STRATEGY_ZERO3,
                      .world_size = 4,
                      .reshard_ranks = 2,
                      .minimum_unit_bytes = 1,
                      .share = TRIREME_SHARE_AUTO};
    struct job same = job;
    same.reshard_ranks = 0;
    check_training(&job);
    check_training(&same);
    for (int rank = 0; rank < 4; ++rank) {
        assert_int_equal(job.statistics[rank][2].gathers, 0);
        assert_memory_equal(&job.memories[rank], &same.memories[rank], sizeof same.memories[0]);
    }
}

/* A rank's writes to its own copy stay its own, and no part outlives a change. */
static void change_and_look(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    const trireme_model_options options = options_of(job);
    trireme_model *const model = make_model(v, communicator, &options, TRIREME_OK);
    trireme_optimizer *const optimizer = make_optimizer(v, model);
    float p[ELEMENTS], q[ELEMENTS];
    for (int i = 0; i < ELEMENTS; ++i) p[i] = (float)i;
    uint64_t gathers = 0;
    for (int round = 0; round < 3; ++round) {
        p[0] = (float)round;
        p[ELEMENTS - 1] = (float)-round;
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_broadcast_parameters(model, p, ELEMENTS, F32, 1));
        for (int pass = 0; pass < 3; ++pass) {
            for (int unit = 0; unit < UNITS; ++unit) read_unit(v, model, unit, q);
            EXPECT(v, memcmp(p, q, sizeof p) == 0);
            EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, q, ELEMENTS, F32));
            EXPECT(v, memcmp(p, q, sizeof p) == 0);
            float *data = NULL;
            uint64_t count = 0;
            EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_unit(model, 3));
            EXPECT_STATUS(v, TRIREME_OK,
                          trireme_model_get_parameter_data(model, 5, (void **)&data, &count));
            for (uint64_t i = 0; data != NULL && i < count; ++i) data[i] = (float)rank - 77;
            EXPECT_STATUS(v, TRIREME_OK, trireme_model_release_unit(model, 3));
        }
        trireme_model_statistics s = TRIREME_MODEL_STATISTICS_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_statistics(model, &s));
        gathers += 3 * (2 * UNITS + 1);
        EXPECT(v, s.gathers == gathers);
        EXPECT(v, s.reshard_gathers == gathers - (uint64_t)(round + 1) * UNITS);
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_accumulate_flat(model, p, ELEMENTS, F32, 0));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    for (int unit = 0; unit < UNITS; ++unit) read_unit(v, model, unit, q);
    for (int i = 0; i < ELEMENTS; ++i) EXPECT(v, q[i] == p[i] - 0.05F * p[i]);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void parts_are_those_of_the_last_change(void **state) {
    (void)state;
    for (int i = 0; i < SPREADS; i += 2) {
        struct job job = {.minimum_unit_bytes = 1, .share = TRIREME_SHARE_NEVER};
        spread_of(&job, i);
        run_job(&job, change_and_look);
    }
}

/* Writes `value` to all parameters that this rank owns; answers the worst that was answered. */
static trireme_status write_all(struct verdict *v, trireme_optimizer *optimizer, float value) {
    float values[ELEMENTS];
    for (int i = 0; i < ELEMENTS; ++i) values[i] = value;
    uint64_t ranges = 0;
    trireme_status worst = TRIREME_OK;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_range_count(optimizer, &ranges));
    for (uint64_t i = 0; i < ranges; ++i) {
        trireme_state_range range = TRIREME_STATE_RANGE_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_range(optimizer, i, &range));
        if (range.kind != TRIREME_STATE_KIND_PARAMETER) continue;
        const trireme_status status =
            trireme_optimizer_write_range(optimizer, i, values, range.count * sizeof(float));
        if (status < worst) worst = status;
    }
    return worst;
}

/* A write that a copy would hide is refused, and has no effect; else each gather has the new
 * values. */
static void write_and_look(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    const trireme_model_options options = options_of(job);
    trireme_model *const model = make_model(v, communicator, &options, TRIREME_OK);
    trireme_optimizer *const optimizer = make_optimizer(v, model);
    float p[ELEMENTS], q[ELEMENTS];
    /* A group of several units stays until another one is gathered. */
    const int stays = (job->flags & TRIREME_MODEL_FLAG_KEEP_GATHERED) != 0 ||
                      job->reshard_ranks != 0 || job->minimum_unit_bytes > 1;
    for (int round = 0; round < 4; ++round) {
        for (int i = 0; i < ELEMENTS; ++i) p[i] = (float)round;
        EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(communicator, NULL));
        EXPECT_STATUS(v, TRIREME_OK, write_all(v, optimizer, (float)round));
        EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(communicator, NULL));
        for (int unit = 0; unit < UNITS; ++unit) read_unit(v, model, unit, q);
        EXPECT(v, memcmp(p, q, sizeof p) == 0);
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_unit(model, 1));
        const trireme_status held = write_all(v, optimizer, -5);
        EXPECT(v, held == TRIREME_ERROR_INVALID_STATE);
        EXPECT(v, strstr(trireme_last_error(), "was gathered since the last step") != NULL);
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_release_unit(model, 1));
        EXPECT_STATUS(v, stays ? TRIREME_ERROR_INVALID_STATE : TRIREME_OK,
                      write_all(v, optimizer, stays ? -5 : (float)round));
        if (round % 2 == 0) {
            EXPECT_STATUS(v, TRIREME_OK,
                          trireme_model_broadcast_parameters(model, p, ELEMENTS, F32, 0));
        } else {
            EXPECT_STATUS(v, TRIREME_OK, trireme_model_accumulate_flat(model, p, ELEMENTS, F32, 0));
            EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
        }
    }
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void no_copy_hides_what_is_written(void **state) {
    (void)state;
    for (int i = 0; i < 6; ++i) {
        struct job job = {.strategy = TRIREME_STRATEGY_ZERO3,
                          .world_size = i == 0 ? 2 : 4,
                          .reshard_ranks = i % 3 == 2 ? 2 : 0,
                          .flags = i % 3 == 1 ? TRIREME_MODEL_FLAG_KEEP_GATHERED : 0,
                          .minimum_unit_bytes = i < 3 ? 1 : 200,
                          .share = TRIREME_SHARE_NEVER};
        run_job(&job, write_and_look);
    }
}

static void who_follows_gathers_from_the_same_few(void **state) {
    (void)state;
    for (int i = 0; i < 4; ++i) {
        struct job job = {.strategy = TRIREME_STRATEGY_ZERO3,
                          .world_size = 4,
                          .reshard_ranks = 2,
                          .flags = TRIREME_MODEL_FLAG_UNEVEN,
                          .kind = i % 2,
                          .minimum_unit_bytes = i < 2 ? 1 : 1000000,
                          .share = TRIREME_SHARE_NEVER};
        run_job(&job, look_and_follow);
    }
}

/* ---- failures ---- */

static void refuse_numbers(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    static const struct {
        trireme_strategy strategy;
        uint32_t shard_ranks, reshard_ranks, flags;
        const char *says;
    } kWrong[] = {
        {TRIREME_STRATEGY_DATA_PARALLEL, 0, 1, 0, "options.units.reshard_ranks 1 is for"},
        {TRIREME_STRATEGY_ZERO1, 0, 2, 0, "options.units.reshard_ranks 2 is for"},
        {TRIREME_STRATEGY_ZERO2, 0, 4, 0, "options.units.reshard_ranks 4 is for"},
        {TRIREME_STRATEGY_ZERO3, 0, 3, 0,
         "options.units.reshard_ranks 3 does not divide the 4 ranks"},
        {TRIREME_STRATEGY_ZERO3, 0, 8, 0,
         "options.units.reshard_ranks 8 does not divide the 4 ranks"},
        {TRIREME_STRATEGY_ZERO3, 0, UINT32_MAX, 0,
         "options.units.reshard_ranks 4294967295 does not"},
        {TRIREME_STRATEGY_HYBRID_SHARD, 2, 4, 0, "reshard_ranks 4 does not divide the 2 ranks"},
        {TRIREME_STRATEGY_ZERO3, 0, 2, TRIREME_MODEL_FLAG_KEEP_GATHERED,
         "TRIREME_MODEL_FLAG_KEEP_GATHERED"},
    };
    trireme_model *model = NULL;
    for (size_t i = 0; i < sizeof kWrong / sizeof kWrong[0]; ++i) {
        trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
        options.strategy = kWrong[i].strategy;
        shards_of(&options)->ranks = kWrong[i].shard_ranks;
        units_of(&options)->reshard_ranks = kWrong[i].reshard_ranks;
        options.flags = kWrong[i].flags;
        EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                      trireme_model_create(communicator, &options, &model));
        EXPECT(v, strstr(trireme_last_error(), kWrong[i].says) != NULL);
        EXPECT(v, model == NULL);
    }
    /* Some want groups, some want none, some want others. */
    for (uint32_t other = 0; other <= 4; other += 4) {
        trireme_model_options options = options_of(job);
        units_of(&options)->reshard_ranks = rank == 3 ? other : 2;
        model = make_model(v, communicator, &options, TRIREME_ERROR_MISMATCH);
        char says[64];
        snprintf(says, sizeof says, "reshard_ranks is 2 on rank 0 and %u on rank 3", other);
        EXPECT(v, strstr(trireme_last_error(), says) != NULL);
        trireme_model_destroy(model);
    }
    /* The group does not mind. */
    trireme_model_options options = options_of(job);
    units_of(&options)->reshard_ranks = 2;
    model = make_model(v, communicator, &options, TRIREME_OK);
    trireme_model_destroy(model);
}

static void numbers_that_cannot_be_are_refused(void **state) {
    (void)state;
    for (int share = TRIREME_SHARE_AUTO; share <= TRIREME_SHARE_NEVER; share += 2) {
        struct job job = {.strategy = TRIREME_STRATEGY_ZERO3,
                          .world_size = 4,
                          .minimum_unit_bytes = 1,
                          .share = share};
        run_job(&job, refuse_numbers);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(units_come_from_all_and_then_from_a_few),
        cmocka_unit_test(all_or_one_or_shared_is_what_it_is_without),
        cmocka_unit_test(parts_are_those_of_the_last_change),
        cmocka_unit_test(no_copy_hides_what_is_written),
        cmocka_unit_test(who_follows_gathers_from_the_same_few),
        cmocka_unit_test(numbers_that_cannot_be_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
