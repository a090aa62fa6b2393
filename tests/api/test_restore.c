/*
 * A training goes on in another layout: its ranges and the optimizer's counters are read, written
 * there, and trained on to the bits of an AdamW without the library. A restore that is impossible
 * is refused, on all ranks, and changes nothing.
 */
#include "restore.inc"

static const struct layout kLayouts[] = {
    {"data_parallel of 1", TRIREME_STRATEGY_DATA_PARALLEL, 1, false, false, false},
    {"zero3 of 4", TRIREME_STRATEGY_ZERO3, 4, false, false, false},
    {"zero2 of 2", TRIREME_STRATEGY_ZERO2, 2, false, false, false},
    {"data_parallel of 3", TRIREME_STRATEGY_DATA_PARALLEL, 3, false, false, false},
    {"hybrid_shard of 4", TRIREME_STRATEGY_HYBRID_SHARD, 4, false, false, false},
    {"zero1 of 3", TRIREME_STRATEGY_ZERO1, 3, false, false, false},
    {"zero3 of 2 with both in files", TRIREME_STRATEGY_ZERO3, 2, false, true, true},
    {"data_parallel of 2 with state in a file", TRIREME_STRATEGY_DATA_PARALLEL, 2, false, true,
     false},
    {"zero2 of 4 that share", TRIREME_STRATEGY_ZERO2, 4, true, false, false},
    {"hybrid_shard of 4 with parameters in a file", TRIREME_STRATEGY_HYBRID_SHARD, 4, false, false,
     true},
    {"hybrid_shard of 4 that share", TRIREME_STRATEGY_HYBRID_SHARD, 4, true, false, false},
    {"zero3 of 3 that share", TRIREME_STRATEGY_ZERO3, 3, true, false, false},
};
enum { LAYOUTS = sizeof kLayouts / sizeof kLayouts[0] };
static const struct training kAdamw = {TRIREME_RULE_ADAMW, 0, F32, true};

struct job {
    const struct layout *from, *to;
    struct store store;
    float trained[MOST_RANKS][ELEMENTS];
    struct store after[MOST_RANKS]; /* each rank's counters at the end */
    struct verdict verdicts[MOST_RANKS];
};

static void run_job(struct job *job, int world_size, rank_function *function) {
    memset(job->verdicts, 0, sizeof job->verdicts);
    run_ranks(world_size, function, job);
    assert_verdicts(job->verdicts, world_size);
}

static bool says(const char *words) {
    return strstr(trireme_last_error(), words) != NULL;
}

/* ---- the oracle: one process, plain loops ---- */

/* The sum of all leaves, by the tree. */
static float whole_gradient(int attempt, int i) {
    float sums[LEAVES];
    for (int leaf = 0; leaf < LEAVES; ++leaf) sums[leaf] = leaf_gradient(leaf, attempt, i);
    for (int count = LEAVES; count > 1; count /= 2) {
        for (int k = 0; k < count / 2; ++k) sums[k] = sums[2 * k] + sums[2 * k + 1];
    }
    return sums[0];
}

struct oracle {
    float p[ELEMENTS], m[ELEMENTS], v[ELEMENTS];
    uint64_t steps, parameter_steps[PARAMETERS];
    double rate, factors[2], scale;
    uint64_t clean, overflows, skipped;
};

static double scheduled(const struct oracle *o) {
    const double step = (double)o->steps;
    return step < 3 ? (step + 1) / 3 : 1 - (step - 3) / (20 - 3);
}

static void oracle_step(struct oracle *o, int attempt) {
    if (attempt == 3) {
        o->rate = 0.03;
        o->factors[1] = 0.25;
    }
    if (overflows(&kAdamw, attempt)) {
        ++o->skipped;
        ++o->overflows;
        o->clean = 0;
        o->scale *= 0.5;
        return;
    }
    const double rate = o->rate * scheduled(o);
    for (int p = 0; p < PARAMETERS; ++p) {
        if (p == FROZEN || !is_used(&kAdamw, p, attempt)) continue;
        const double t = (double)++o->parameter_steps[p];
        if (p == AGAIN) continue;
        const double a = rate * o->factors[p == B ? 1 : 0];
        const float size = (float)(a / (1 - pow(0.9, t)));
        const float root = (float)(1 / sqrt(1 - pow(0.999, t)));
        for (int i = (int)kFirst[p]; i < (int)(kFirst[p] + kCount[p]); ++i) {
            const float g = whole_gradient(attempt, i);
            o->p[i] -= (float)(a * 0.1) * o->p[i];
            o->m[i] = 0.9f * o->m[i] + (float)(1 - 0.9) * g;
            o->v[i] = 0.999f * o->v[i] + (float)(1 - 0.999) * g * g;
            o->p[i] -= size * o->m[i] / (sqrtf(o->v[i]) * root + 1e-8f);
        }
    }
    ++o->steps;
    if (++o->clean < 3) return;
    o->clean = o->overflows = 0;
    o->scale *= 2;
}

static struct oracle expected_after(int attempts) {
    struct oracle o = {.rate = 0.05, .factors = {1, 0.5}, .scale = 1024};
    for (int i = 0; i < ELEMENTS; ++i) o.p[i] = initial(i);
    for (int attempt = 0; attempt < attempts; ++attempt) oracle_step(&o, attempt);
    return o;
}

static bool counts_as(const struct store *store, const struct oracle *o) {
    const trireme_optimizer_counters *const c = &store->counters;
    return c->version == TRIREME_OPTIMIZER_COUNTERS_VERSION && c->steps == o->steps &&
           c->learning_rate == o->rate && c->loss_scale == o->scale && c->clean_steps == o->clean &&
           c->overflows == o->overflows && c->skipped_steps == o->skipped &&
           c->parameter_count == PARAMETERS && c->group_count == 2 &&
           memcmp(store->parameter_steps, o->parameter_steps, sizeof o->parameter_steps) == 0 &&
           memcmp(store->rate_factors, o->factors, sizeof o->factors) == 0;
}

/* ---- from one layout to another ---- */

static void begin(trireme_communicator *ranks, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *const model = make_model(v, ranks, job->from, &kAdamw);
    set_start(v, model, F32);
    trireme_optimizer *const optimizer = make_optimizer(v, model, job->from, &kAdamw);
    train(v, model, optimizer, &kAdamw, 0, BEFORE);
    read_all(v, optimizer, &job->store, rank == 0);
    destroy(model, optimizer);
}

static void go_on(trireme_communicator *ranks, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *const model = make_model(v, ranks, job->to, &kAdamw);
    trireme_optimizer *const optimizer = make_optimizer(v, model, job->to, &kAdamw);
    write_all(v, optimizer, &job->store);
    uint64_t steps = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_step_count(optimizer, &steps));
    EXPECT(v, steps == job->store.counters.steps);
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_check_replicas(model));
    train(v, model, optimizer, &kAdamw, BEFORE, STEPS);
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_gather_parameters(model, job->trained[rank], ELEMENTS, F32));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_check_replicas(model));
    read_all(v, optimizer, &job->after[rank], true);
    destroy(model, optimizer);
}

static bool can_be(const struct layout *layout) {
    return !(layout->shared && ranks_use_transport());
}

static void expect_bits(const struct job *job) {
    const struct oracle saved = expected_after(BEFORE), end = expected_after(STEPS);
    assert_true(counts_as(&job->store, &saved));
    for (int rank = 0; rank < job->to->world_size; ++rank) {
        double largest = 0;
        for (int i = 0; i < ELEMENTS; ++i) {
            largest = fmax(largest, fabs((double)job->trained[rank][i] - (double)end.p[i]));
        }
        if (memcmp(job->trained[rank], end.p, sizeof end.p) != 0) {
            fail_msg("%s to %s: rank %d is %g away from plain AdamW", job->from->name,
                     job->to->name, rank, largest);
        }
        assert_true(counts_as(&job->after[rank], &end));
        /* Each element of m is in the range of one rank. */
        for (int i = 0; i < ELEMENTS; ++i) {
            if (job->after[rank].written[1][i] == 0) continue;
            assert_memory_equal(job->after[rank].values[1][i], &end.m[i], sizeof(float));
            assert_memory_equal(job->after[rank].values[2][i], &end.v[i], sizeof(float));
        }
    }
}

static void test_every_pair(void **state) {
    (void)state;
    const int stride = is_quick() || ranks_use_transport() ? 5 : 1;
    int pairs = 0;
    for (int pair = 0; pair < LAYOUTS * LAYOUTS; pair += stride) {
        const struct layout *const from = &kLayouts[pair / LAYOUTS], *const to =
                                                                         &kLayouts[pair % LAYOUTS];
        if (!can_be(from) || !can_be(to)) continue;
        struct job *const job = calloc(1, sizeof *job);
        if (job == NULL) abort();
        job->from = from;
        job->to = to;
        run_job(job, from->world_size, begin);
        run_job(job, to->world_size, go_on);
        expect_bits(job);
        free(job);
        ++pairs;
    }
    printf("restored: %d pairs of layouts\n", pairs);
    assert_int_equal(files_in_directory(), 0);
}

/* ---- refusals ---- */

/* The result of a get, in any memory. */
static void get_counters(trireme_communicator *ranks, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *const model = make_model(v, ranks, job->from, &kAdamw);
    trireme_optimizer *const optimizer = make_optimizer(v, model, job->from, &kAdamw);
    trireme_optimizer_counters counters = TRIREME_OPTIMIZER_COUNTERS_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_counters(optimizer, &counters));
    EXPECT(v, counters.version == 1 && counters.steps == 0 && counters.learning_rate == 0.05);
    EXPECT(v, counters.loss_scale == 1024 && counters.skipped_steps == 0);
    EXPECT(v, counters.parameter_count == PARAMETERS && counters.parameter_steps == NULL);
    EXPECT(v, counters.group_count == 2 && counters.group_rate_factors == NULL);
    struct store small;
    counters = room_for_counters(&small);
    counters.parameter_count = 2;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_optimizer_get_counters(optimizer, &counters));
    EXPECT(v, says("counters.parameter_count is 2, but there are 5 parameters"));
    EXPECT(v, counters.parameter_count == 2 && counters.version == 0);
    counters = room_for_counters(&small);
    counters.group_count = 0;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_optimizer_get_counters(optimizer, &counters));
    EXPECT(v, says("counters.group_count is 0, but there are 2 groups"));
    counters.struct_size = 8;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_optimizer_get_counters(optimizer, &counters));
    EXPECT(v, says("counters.struct_size is 8"));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_optimizer_get_counters(optimizer, NULL));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_HANDLE, trireme_optimizer_get_counters(NULL, &counters));
    destroy(model, optimizer);
}

/* All ranks come with `counters`, changed by `change`, and hear why not. */
typedef void change_counters(struct store *store);

static void expect_refused(struct verdict *v, trireme_optimizer *optimizer,
                           const struct store *from, change_counters *change, const char *words) {
    struct store store = *from;
    store.counters.parameter_steps = store.parameter_steps;
    store.counters.group_rate_factors = store.rate_factors;
    change(&store);
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_optimizer_restore(optimizer, &store.counters));
    if (!says(words)) expect_failed(v, __FILE__, __LINE__, trireme_last_error());
}

static void no_version(struct store *s) {
    s->counters.version = 0;
}
static void later_version(struct store *s) {
    s->counters.version = 2;
}
static void no_rate(struct store *s) {
    s->counters.learning_rate = NAN;
}
static void no_power(struct store *s) {
    s->counters.loss_scale = 3;
}
static void no_scale(struct store *s) {
    s->counters.loss_scale = 0;
}
static void no_steps(struct store *s) {
    s->counters.parameter_count = 0;
}
static void steps_at_null(struct store *s) {
    s->counters.parameter_steps = NULL;
}
static void too_many_steps(struct store *s) {
    s->parameter_steps[B] = s->counters.steps + 1;
}
static void other_tied_steps(struct store *s) {
    s->parameter_steps[AGAIN] -= 1;
}
static void more_groups(struct store *s) {
    s->counters.group_count = 3;
}
static void negative_factor(struct store *s) {
    s->rate_factors[1] = -1;
}
static void small_struct(struct store *s) {
    s->counters.struct_size = 80;
}

static void refuse(trireme_communicator *ranks, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *const model = make_model(v, ranks, job->to, &kAdamw);
    set_start(v, model, F32);
    trireme_optimizer *const optimizer = make_optimizer(v, model, job->to, &kAdamw);
    const struct store *const saved = &job->store;
    expect_refused(v, optimizer, saved, no_version, "counters.version is 0, this library knows 1");
    expect_refused(v, optimizer, saved, later_version, "counters.version is 2");
    expect_refused(v, optimizer, saved, no_rate, "learning_rate");
    expect_refused(v, optimizer, saved, no_power, "counters.loss_scale is 3");
    expect_refused(v, optimizer, saved, no_scale, "counters.loss_scale is 0");
    expect_refused(v, optimizer, saved, no_steps, "counters.parameter_count is 0");
    expect_refused(v, optimizer, saved, steps_at_null, "counters.parameter_count is 5 at NULL");
    expect_refused(v, optimizer, saved, too_many_steps,
                   "parameter 2 (\"b\") is 6, but there were 5");
    expect_refused(v, optimizer, saved, other_tied_steps, "tied to has 5");
    expect_refused(v, optimizer, saved, more_groups, "counters.group_count is 3");
    expect_refused(v, optimizer, saved, negative_factor, "factor");
    expect_refused(v, optimizer, saved, small_struct, "counters.struct_size is 80");
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT, trireme_optimizer_restore(optimizer, NULL));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_HANDLE,
                  trireme_optimizer_restore(NULL, &saved->counters));

    /* One rank's mistake is the answer on all ranks. */
    struct store store = *saved;
    store.counters.version = rank == 1 ? 0 : 1;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_optimizer_restore(optimizer, &store.counters));
    EXPECT(v, says(rank == 1 ? "counters.version is 0" : "rank 1 answered"));
    /* And other counters on one are told with both sides. */
    store = *saved;
    store.counters.steps += rank == 1 ? 2 : 0;
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_optimizer_restore(optimizer, &store.counters));
    EXPECT(v, says("the number of steps is 5 on rank 0 and 7 on rank 1"));
    store = *saved;
    store.parameter_steps[B] -= rank == 1 ? 1 : 0;
    store.counters.parameter_steps = store.parameter_steps;
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_optimizer_restore(optimizer, &store.counters));
    EXPECT(v, says("the number of steps of parameter 2 (\"b\") is 4 on rank 0 and 3 on rank 1"));

    uint64_t steps = 1;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_step_count(optimizer, &steps));
    EXPECT(v, steps == 0);
    /* In the middle of a step, and with a unit gathered. */
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE,
                  trireme_optimizer_restore(optimizer, &saved->counters));
    EXPECT(v, says("a step is under way"));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_discard_gradients(model));
    if (job->to->strategy >= TRIREME_STRATEGY_ZERO3) {
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_unit(model, 0));
        EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE,
                      trireme_optimizer_restore(optimizer, &saved->counters));
        EXPECT(v, says("unit 0 (\"first\") is gathered"));
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_release_unit(model, 0));
    }
    /* After all that it is as new, and can be restored. */
    train(v, model, optimizer, &kAdamw, 0, BEFORE);
    const struct oracle o = expected_after(BEFORE);
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_gather_parameters(model, job->trained[rank], ELEMENTS, F32));
    EXPECT(v, memcmp(job->trained[rank], o.p, sizeof o.p) == 0);
    /* Ranks that share parameters read each other's until here. */
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(ranks, NULL));
    write_all(v, optimizer, &job->store);
    destroy(model, optimizer);
}

/* A training that counts less refuses the counters that it would lose. */
static void refuse_more(trireme_communicator *ranks, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    const struct training plain = {TRIREME_RULE_ADAMW, 0, F32, false};
    trireme_model *const model = make_model(v, ranks, job->to, &plain);
    trireme_optimizer *const optimizer = make_optimizer(v, model, job->to, &plain);
    struct store store = job->store;
    trireme_optimizer_counters *const counters = &store.counters;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_optimizer_restore(optimizer, counters));
    EXPECT(v, says("counters.parameter_count is 5, but this optimizer has 0"));
    counters->parameter_count = 0;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_optimizer_restore(optimizer, counters));
    EXPECT(v, says("counters.group_count is 2, but this optimizer has 0"));
    counters->group_count = 0;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_optimizer_restore(optimizer, counters));
    EXPECT(v, says("the optimizer was created without options.loss_scale"));
    counters->loss_scale = 0;
    counters->clean_steps = counters->overflows = counters->skipped_steps = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_restore(optimizer, counters));
    trireme_optimizer_counters again = TRIREME_OPTIMIZER_COUNTERS_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_counters(optimizer, &again));
    EXPECT(v, again.steps == counters->steps && again.learning_rate == 0.03);
    EXPECT(v, again.loss_scale == 0 && again.parameter_count == 0 && again.group_count == 0);
    destroy(model, optimizer);
}

static void test_refusals(void **state) {
    (void)state;
    for (int layout = 1; layout < LAYOUTS; layout += 2) {
        if (!can_be(&kLayouts[layout])) continue;
        struct job *const job = calloc(1, sizeof *job);
        if (job == NULL) abort();
        job->from = &kLayouts[0];
        job->to = &kLayouts[layout];
        run_job(job, 1, get_counters);
        run_job(job, 1, begin);
        run_job(job, job->to->world_size, refuse);
        run_job(job, job->to->world_size, refuse_more);
        free(job);
    }
}

/* ---- copies that differ ---- */

static void expect_blame(struct verdict *v, trireme_model *model, const char *words, int blamed) {
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_model_check_replicas(model));
    if (!says(words)) expect_failed(v, __FILE__, __LINE__, trireme_last_error());
    trireme_error_info info = TRIREME_ERROR_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_last_error_info(&info));
    EXPECT(v, info.blamed_count == 1 && info.blamed[0] == blamed);
}

/* Of three ranks the last one goes another way, each time back again. */
static void go_astray(trireme_communicator *ranks, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    const bool strays = rank == 2;
    trireme_model *const model = make_model(v, ranks, job->to, &kAdamw);
    set_start(v, model, F32);
    trireme_optimizer *const optimizer = make_optimizer(v, model, job->to, &kAdamw);
    train(v, model, optimizer, &kAdamw, 0, BEFORE);
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_check_replicas(model));
    if (job->to->strategy == TRIREME_STRATEGY_DATA_PARALLEL) {
        uint64_t index = 0;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_range_count(optimizer, &index));
        --index; /* a stretch of the second vector of the matrix */
        trireme_state_range range = TRIREME_STATE_RANGE_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_range(optimizer, index, &range));
        EXPECT(v, range.parameter == MATRIX && range.vector == 1);
        float values[24], other[24];
        const uint64_t bytes = range.count * sizeof(float);
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_read_range(optimizer, index, values, bytes));
        memcpy(other, values, sizeof other);
        other[0] = -other[0];
        if (strays) {
            EXPECT_STATUS(v, TRIREME_OK,
                          trireme_optimizer_write_range(optimizer, index, other, bytes));
        }
        expect_blame(v, model, "the optimizer's state of parameter 3 (\"matrix\")", 2);
        if (strays) {
            EXPECT_STATUS(v, TRIREME_OK,
                          trireme_optimizer_write_range(optimizer, index, values, bytes));
        }
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_check_replicas(model));
    }
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_optimizer_set_learning_rate(optimizer, strays ? 0.5 : 0.25));
    expect_blame(v, model, "the learning rate is 0.25 on rank 0 and 0.5 on rank 2", 2);
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_set_learning_rate(optimizer, 0.25));
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_optimizer_set_group_rate_factor(optimizer, 1, strays ? 2 : 4));
    expect_blame(v, model, "the rate factor of group 1 is 4 on rank 0 and 2 on rank 2", 2);
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_set_group_rate_factor(optimizer, 1, 4));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_check_replicas(model));
    if (strays) trireme_optimizer_destroy(optimizer);
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_model_check_replicas(model));
    if (!strays) trireme_optimizer_destroy(optimizer);
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_check_replicas(model));
    trireme_model_destroy(model);
}

static void test_copies_that_differ_are_found(void **state) {
    (void)state;
    for (int layout = 0; layout < LAYOUTS; ++layout) {
        struct layout to = kLayouts[layout];
        if (!can_be(&to) || to.world_size < 3) continue;
        struct job *const job = calloc(1, sizeof *job);
        if (job == NULL) abort();
        job->to = &to;
        run_job(job, to.world_size, go_astray);
        to.state_in_file = true;
        run_job(job, to.world_size, go_astray);
        free(job);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_pair),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_copies_that_differ_are_found),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
