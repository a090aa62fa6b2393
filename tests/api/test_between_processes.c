/* Every collective between processes, from memory of the library and memory of their own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "calls.h"
#include "processes.h"

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

struct group {
    int world_size;
    char rendezvous[96];
};

static const trireme_operation_kind operations[] =
    {TRIREME_OPERATION_KIND_ALL_REDUCE,       TRIREME_OPERATION_KIND_REDUCE_SCATTER,
     TRIREME_OPERATION_KIND_REDUCE_SCATTER_V, TRIREME_OPERATION_KIND_ALL_GATHER,
     TRIREME_OPERATION_KIND_ALL_GATHER_V,     TRIREME_OPERATION_KIND_BROADCAST,
     TRIREME_OPERATION_KIND_BARRIER,          TRIREME_OPERATION_KIND_REDUCE,
     TRIREME_OPERATION_KIND_GATHER,           TRIREME_OPERATION_KIND_GATHER_V,
     TRIREME_OPERATION_KIND_SCATTER,          TRIREME_OPERATION_KIND_SCATTER_V,
     TRIREME_OPERATION_KIND_ALL_TO_ALL,       TRIREME_OPERATION_KIND_ALL_TO_ALL_V};

/* Elements of a whole operation: nothing, inside a slot, around one staging chunk, several. */
static const uint64_t totals[] = {0, 1, 5, 1000, 1025, 65536, 65537, 300001};

static struct call
make_call(trireme_operation_kind operation, uint64_t total, int number, int world_size) {
    struct call call = {.operation = operation, .dtype = TRIREME_DTYPE_F32};
    const bool whole = operation == TRIREME_OPERATION_KIND_ALL_REDUCE ||
                       operation == TRIREME_OPERATION_KIND_REDUCE ||
                       operation == TRIREME_OPERATION_KIND_BROADCAST;
    const uint64_t block =
        whole ? total : (total + (uint64_t)world_size - 1) / (uint64_t)world_size;
    if (reduces(operation)) call.reduction = TRIREME_REDUCTION_SUM;
    if (has_root(operation)) call.root = number % world_size;
    if (operation != TRIREME_OPERATION_KIND_BARRIER && !is_v_form(operation)) call.count = block;
    if (is_v_form(operation)) {
        /* Some empty, one twice as long as the mean. */
        for (int r = 0; r < MOST_RANKS; ++r) call.counts[r] = (uint64_t)((r + number) % 3) * block;
    }
    return call;
}

static void run_everything(int rank, void *context, struct outcome *outcome) {
    const struct group *const group = context;
    trireme_communicator *const communicator =
        join_process(rank, group->world_size, group->rendezvous, PATIENT_NS);
    int number = 0;
    for (size_t t = 0; t < COUNT_OF(totals); ++t) {
        for (size_t o = 0; o < COUNT_OF(operations); ++o, ++number) {
            const struct call call = make_call(operations[o], totals[t], number, group->world_size);
            /* Both kinds of memory, also mixed among the ranks. */
            for (int kind = 0; kind < 3; ++kind) {
                const bool shared = kind == 1 || (kind == 2 && rank % 2 == 0);
                struct call_memory memory;
                if (!allocate_call(communicator, &call, rank, group->world_size, shared, &memory)) {
                    exit(91);
                }
                fill_call(&call, &memory, rank, group->world_size, number);
                const trireme_status status =
                    run_call(communicator, &call, &memory, number % 2 == 1, PATIENT_NS);
                if (status != TRIREME_OK) {
                    keep_error(outcome, status);
                    exit(92);
                }
                if (!is_call_right(&call, &memory, rank, group->world_size, number)) {
                    outcome->wrong = true;
                    snprintf(outcome->text, sizeof outcome->text, "%s of %llu elements, memory %d",
                             operation_text(call.operation), (unsigned long long)totals[t], kind);
                }
                free_call(&memory, shared);
                ++outcome->rounds;
            }
        }
    }
    trireme_communicator_destroy(communicator);
}

static void every_collective_is_right_from_every_kind_of_memory(void **state) {
    (void)state;
    static const int world_sizes[] = {1, 2, 3, 4, 5, 8};
    for (size_t i = 0; i < COUNT_OF(world_sizes); ++i) {
        if (is_quick() && world_sizes[i] > 4) continue;
        struct group group = {.world_size = world_sizes[i]};
        struct processes processes;
        unique_host_rendezvous(group.rendezvous, sizeof group.rendezvous);
        start_processes(&processes, group.world_size, run_everything, &group);
        wait_processes(&processes);
        for (int rank = 0; rank < group.world_size; ++rank) {
            const struct outcome *const outcome = &processes.outcomes[rank];
            if (outcome->exit_code != 0 || outcome->wrong) {
                fail_msg("rank %d of %d: exit code %d, %s %s", rank, group.world_size,
                         outcome->exit_code, outcome->message, outcome->text);
            }
            assert_int_equal(outcome->rounds, COUNT_OF(totals) * COUNT_OF(operations) * 3);
        }
        free_processes(&processes);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_collective_is_right_from_every_kind_of_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
