/*
 * Times of the sharded engine, for table.py:
 *
 *   trireme run --no-prefix --nproc-per-node 2 -- bench_engine ROW ROUNDS
 *
 * A round runs every way of the row once, so the machine's moods hit all of them. Rank 0 prints
 * "NAME MICROSECONDS..." for each way, a number for each round.
 */
#include <string.h>

#include "engine.h"

trireme_communicator *communicator;
int rank, rounds;

static const struct {
    const char *name;
    void (*run)(void);
} ROWS[] = {
    {"step", row_step},     {"sweep", row_sweep},   {"overlap", row_overlap},
    {"layers", row_layers}, {"gather", row_gather}, {"hooks", row_hooks},
    {"update", row_update}, {"trainer", row_trainer},
};
enum { ROW_COUNT = sizeof ROWS / sizeof *ROWS };

int main(int argc, char **argv) {
    int row = 0;
    while (argc == 3 && row < ROW_COUNT && strcmp(argv[1], ROWS[row].name) != 0) ++row;
    if (argc == 3) rounds = atoi(argv[2]);
    if (argc != 3 || row == ROW_COUNT || rounds < 1 || rounds > MOST_ROUNDS) {
        fprintf(stderr, "bench_engine step|sweep|overlap|layers|gather|hooks|update|trainer ROUNDS\n");
        return 2;
    }
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    options.rendezvous = "env://";
    MUST(trireme_communicator_create(&options, &communicator));
    int32_t number = 0;
    MUST(trireme_communicator_rank(communicator, &number));
    rank = number;
    ROWS[row].run();
    meet();
    trireme_communicator_destroy(communicator);
    return 0;
}
