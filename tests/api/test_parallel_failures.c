/* A failure of all ranks of a parallel object ends the waits in each communicator of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "ranks.h"

enum { AXES = TRIREME_PARALLEL_AXES, MOST = 8 };

struct job {
    int32_t sizes[AXES]; /* in the order of the bits */
    int world_size;
    struct verdict verdicts[MOST];
};

/* Rank 0 aborts the communicator of all ranks. The others wait in other ones, in vain. */
static void abort_all(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    static const uint32_t waits[] = {TRIREME_PARALLEL_AXIS_DATA, TRIREME_PARALLEL_GROUP_GRADIENTS,
                                     TRIREME_PARALLEL_GROUP_EXPERT_GRADIENTS};
    for (size_t i = 0; i < sizeof waits / sizeof waits[0]; ++i) {
        trireme_parallel_options options = TRIREME_PARALLEL_OPTIONS_INIT;
        options.data = job->sizes[0];
        options.shard = job->sizes[1];
        options.tensor = job->sizes[2];
        options.context = job->sizes[4];
        options.expert = job->sizes[5];
        trireme_parallel *parallel = NULL;
        trireme_communicator *all = NULL, *along = NULL;
        int32_t own = -1, size = 0;
        EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_create(communicator, &options, &parallel));
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_parallel_get_communicator(parallel, TRIREME_PARALLEL_GROUP_ALL,
                                                        &all));
        EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_get_communicator(parallel, waits[i], &along));
        EXPECT_STATUS(v, TRIREME_OK, trireme_communicator_get_rank(along, &own));
        EXPECT_STATUS(v, TRIREME_OK, trireme_communicator_get_world_size(along, &size));
        /* Until all have created it: an abort may end the creation, too. */
        EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(communicator, NULL));
        if (rank == 0) EXPECT_STATUS(v, TRIREME_OK, trireme_communicator_abort(all, "enough"));
        char byte = 0;
        EXPECT_STATUS(v, TRIREME_ERROR_ABORTED,
                      trireme_receive(along, &byte, 1, TRIREME_DTYPE_BYTES, (own + 1) % size, 7,
                                      NULL));
        trireme_parallel_destroy(parallel);
    }
}

static void an_abort_of_all_ranks_ends_waits_along_every_axis(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static const int32_t layouts[][AXES] = {{2, 1, 1, 1, 1, 1},
                                            {2, 2, 1, 1, 1, 1},
                                            {2, 1, 1, 1, 1, 2},
                                            {2, 1, 2, 1, 2, 1}};
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; ++i) {
        static struct job job;
        memset(&job, 0, sizeof job);
        job.world_size = 1;
        memcpy(job.sizes, layouts[i], sizeof job.sizes);
        for (int axis = 0; axis < AXES; ++axis) job.world_size *= job.sizes[axis];
        run_ranks(job.world_size, abort_all, &job);
        assert_verdicts(job.verdicts, job.world_size);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_abort_of_all_ranks_ends_waits_along_every_axis),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
