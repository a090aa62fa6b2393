/*
 * Times of the sharded engine, for table.py:
 *
 *   trireme run --no-prefix --nproc-per-node 2 -- bench_engine ROW ROUNDS [FOLDER ELEMENTS]
 *
 * A round runs every way of the row once, so the machine's moods hit all of them. Rank 0 prints
 * "NAME MICROSECONDS..." for each way, a number for each round, and "# TEXT" for a person to read.
 * FOLDER and ELEMENTS (a model's, in units of 2^20) are for the rows offload and parameters.
 */
#include <string.h>

#include "engine.h"

trireme_communicator *communicator;
int rank, rounds;
const char *folder = ".";
uint64_t elements = 64u << 20;

static const struct {
    const char *name;
    void (*run)(void);
} ROWS[] = {
    {"step", row_step},       {"sweep", row_sweep},           {"backward", row_backward},
    {"overlap", row_overlap}, {"layers", row_layers},         {"gather", row_gather},
    {"hooks", row_hooks},     {"update", row_update},         {"trainer", row_trainer},
    {"offload", row_offload}, {"parameters", row_parameters}, {"activations", row_activations},
};
enum { ROW_COUNT = sizeof ROWS / sizeof *ROWS };

int main(int argc, char **argv) {
    int row = 0;
    const bool whole = argc == 3 || argc == 5;
    while (whole && row < ROW_COUNT && strcmp(argv[1], ROWS[row].name) != 0) ++row;
    if (whole) rounds = atoi(argv[2]);
    if (argc == 5) {
        folder = argv[3];
        elements = strtoull(argv[4], NULL, 10) << 20;
    }
    if (!whole || row == ROW_COUNT || rounds < 1 || rounds > MOST_ROUNDS || elements == 0) {
        fprintf(stderr, "bench_engine ");
        for (row = 0; row < ROW_COUNT; ++row) {
            fprintf(stderr, "%s%s", row > 0 ? "|" : "", ROWS[row].name);
        }
        fprintf(stderr, " ROUNDS [FOLDER ELEMENTS]\n");
        return 2;
    }
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    options.rendezvous = "env://";
    MUST(trireme_communicator_create(&options, &communicator));
    int32_t number = 0;
    MUST(trireme_communicator_get_rank(communicator, &number));
    rank = number;
    ROWS[row].run();
    meet();
    trireme_communicator_destroy(communicator);
    return 0;
}
