/*
 * Threads as ranks: each joins one local:// group of its own name, runs a function and leaves.
 * Rank threads record what they saw; the main thread asserts, where cmocka can jump safely.
 */
#ifndef TRIREME_TESTS_RANKS_H
#define TRIREME_TESTS_RANKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <trireme/trireme.h>

/* Longer than any healthy operation takes, also under a sanitizer on a busy machine. */
#define LONG_NS (100ull * 1000 * 1000 * 1000)

typedef void rank_function(trireme_communicator *communicator, int rank, void *context);

/*
 * Returns when all ranks are done. All have joined before the first function runs: a rank that
 * leaves earlier would not be missed but waited for. The communicator is destroyed after the
 * function, unless it did so itself. A group that cannot form ends the program.
 */
void run_ranks(int world_size, rank_function *function, void *context);

/* Sanitizers make everything slow: tests then do a part of their trials. */
bool is_quick(void);

/* Whether run_ranks() joins over a transport inside this process, or over sockets:
 * TRIREME_TESTS_TRANSPORT or TRIREME_TESTS_NETWORK is set. Such ranks have no memory in common. */
bool ranks_use_transport(void);
/* The latter. */
bool ranks_use_network(void);

/* Whether groups can be made from those of run_ranks(). */
bool ranks_make_groups(void);

/* Runs one function on `count` threads, each with its number, and joins them. */
void run_threads(int count, void (*function)(int index, void *context), void *context);

/* Writes "local://..." with a name nobody else uses, also not another process. */
void unique_rendezvous(char *text, size_t capacity);

/* Writes "tcp://..." likewise: an address of the loopback of its own, so that nobody takes the port. Joining
 * needs TRIREME_TOKEN. */
void unique_network_rendezvous(char *text, size_t capacity);
/* And with a port of its own, for ranks that no other group's rank 0 may keep from meeting. */
void unique_meeting(char *text, size_t capacity);

/* The backend that groups of tcp:// are tested with: "gloo" if TRIREME_TESTS_NETWORK says so, else NULL. */
const char *network_backend(void);
/* Adds to a rendezvous of tcp:// on which host this rank is, if TRIREME_TESTS_HOSTS says so: it has a letter for each
 * rank, and begins again where it ends. Ranks with the same letter share a host. */
void add_host(char *rendezvous, size_t capacity, int rank);

/* Joins one rank; ends the program if that fails. The default deadline is LONG_NS. */
trireme_communicator *join_rank(int rank, int world_size, const char *rendezvous);

/*
 * What one rank found wrong first; "" if nothing. Rank threads fill it with EXPECT(), the main
 * thread asserts that it is empty.
 */
struct verdict {
    char text[600];
};

#define EXPECT(verdict, condition) \
    ((condition) ? 1 : expect_failed((verdict), __FILE__, __LINE__, #condition))
#define EXPECT_STATUS(verdict, status, call) \
    expect_status((verdict), __FILE__, __LINE__, #call, (status), (call))

/* Both answer whether the expectation was met. */
int expect_failed(struct verdict *verdict, const char *file, int line, const char *condition);
int expect_status(struct verdict *verdict, const char *file, int line, const char *call,
                  trireme_status expected, trireme_status status);

/* Ends the program's current test if a verdict is not empty; on the main thread only. */
void assert_verdicts(const struct verdict *verdicts, int count);

#endif
