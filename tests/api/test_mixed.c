/*
 * A model of several types: its parameters go to all ranks and come back as bytes, each of its own
 * type, in the order in which they were added.
 */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka.h comes after those it needs. */
#include <cmocka.h>
#include <options.h>
#include <ranks.h>

#include "directory.inc"

enum { MOST_RANKS = 4, PARAMETERS = 5, BYTES = 5 * 2 + 3 * 8 + 6 * 4 + 0 + 7 * 4 };
static const uint64_t kCounts[PARAMETERS] = {5, 3, 6, 0, 7};
static const trireme_dtype kDtypes[PARAMETERS] = {TRIREME_DTYPE_BF16, TRIREME_DTYPE_F64,
                                                  TRIREME_DTYPE_F32, TRIREME_DTYPE_F64,
                                                  TRIREME_DTYPE_F32};

struct job {
    trireme_strategy strategy;
    int world_size;
    bool shared, in_file;
    struct verdict verdicts[MOST_RANKS];
};

static trireme_model *
make_model(struct verdict *v, trireme_communicator *ranks, const struct job *job) {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = job->strategy;
    units_of(&options)->minimum_bytes = 1;
    shards_of(&options)->share = job->shared ? TRIREME_SHARE_ALWAYS : TRIREME_SHARE_NEVER;
    if (job->strategy == TRIREME_STRATEGY_HYBRID_SHARD) shards_of(&options)->ranks = 2;
    if (job->in_file) {
        parameter_file_of(&options)->path = directory;
        shards_of(&options)->share = TRIREME_SHARE_AUTO;
    }
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(ranks, &options, &model));
    const char *const names[PARAMETERS] = {"narrow", "wide", "single", "none", "frozen"};
    for (int i = 0; i < PARAMETERS; ++i) {
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = names[i];
        parameter.dtype = kDtypes[i];
        parameter.dimensions = 1;
        parameter.shape = &kCounts[i];
        parameter.flags = i == 4 ? TRIREME_PARAMETER_FLAG_FROZEN : 0;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    return model;
}

static void fill(unsigned char *bytes, int from) {
    for (int i = 0; i < BYTES; ++i) bytes[i] = (unsigned char)(i * 7 + from);
}

static bool says(const char *words) {
    return strstr(trireme_last_error(), words) != NULL;
}

static void go_round(trireme_communicator *ranks, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *const model = make_model(v, ranks, job);
    const trireme_dtype bytes = TRIREME_DTYPE_BYTES;
    unsigned char values[BYTES], seen[BYTES + 1];
    for (int root = 0; root < job->world_size; ++root) {
        fill(values, root);
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_broadcast_parameters(model, rank == root ? values : NULL, BYTES,
                                                         bytes, root));
        memset(seen, 0xee, sizeof seen);
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, seen, BYTES, bytes));
        EXPECT(v, memcmp(seen, values, BYTES) == 0 && seen[BYTES] == 0xee);
    }
    /* Parameter by parameter they are the same. */
    for (uint64_t i = 0, at = 0; i < PARAMETERS; ++i) {
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_unit(model, i));
        void *data = NULL;
        uint64_t count = 0;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_parameter_data(model, i, &data, &count));
        const uint64_t size = count * trireme_dtype_bytes(kDtypes[i]);
        EXPECT(v, count == kCounts[i] && (size == 0 || memcmp(data, values + at, size) == 0));
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_release_unit(model, i));
        at += size;
    }
    const trireme_status bad = TRIREME_ERROR_INVALID_ARGUMENT;
    EXPECT_STATUS(v, bad, trireme_model_gather_parameters(model, seen, BYTES - 1, bytes));
    EXPECT(v, says("count 85, but the model has 86 bytes"));
    EXPECT_STATUS(v, bad, trireme_model_gather_parameters(model, NULL, BYTES, bytes));
    EXPECT(v, says("values is NULL"));
    EXPECT_STATUS(v, bad, trireme_model_broadcast_parameters(model, values, BYTES + 1, bytes, 0));
    EXPECT_STATUS(v, bad, trireme_model_gather_parameters(model, seen, 21, TRIREME_DTYPE_F32));
    EXPECT(v,
           says("different dtypes; give its parameters as bytes, with dtype TRIREME_DTYPE_BYTES"));
    EXPECT_STATUS(v, bad, trireme_model_accumulate_flat(model, values, BYTES, bytes, 0));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, seen, BYTES, bytes));
    EXPECT(v, memcmp(seen, values, BYTES) == 0);
    trireme_model_destroy(model);
}

static void test_bytes_go_to_all_ranks_and_back(void **state) {
    (void)state;
    for (int strategy = 1; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
        for (int world_size = 1; world_size <= MOST_RANKS; ++world_size) {
            for (int way = 0; way < 3; ++way) {
                struct job job = {.strategy = strategy,
                                  .world_size = world_size,
                                  .shared = way == 1,
                                  .in_file = way == 2};
                if (strategy == TRIREME_STRATEGY_HYBRID_SHARD && world_size % 2 != 0) continue;
                if (job.shared &&
                    (strategy == TRIREME_STRATEGY_DATA_PARALLEL || ranks_use_transport())) {
                    continue;
                }
                if (job.in_file && strategy < TRIREME_STRATEGY_ZERO3) continue;
                run_ranks(world_size, go_round, &job);
                assert_verdicts(job.verdicts, world_size);
            }
        }
    }
    assert_int_equal(files_in_directory(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_go_to_all_ranks_and_back),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
