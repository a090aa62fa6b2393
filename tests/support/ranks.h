/*
 * Threads as ranks: each joins one local:// group of its own name, runs a function and leaves. Rank
 * threads record their observations; the main thread asserts, where cmocka can jump safely.
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
/* ThreadSanitizer makes the slowest trials of all. It looks at threads, not at numbers, which the
 * other builds see. */
bool sees_threads_alone(void);

/* Whether run_ranks() joins over a transport inside this process, or over sockets: it does if
 * TRIREME_TESTS_TRANSPORT or TRIREME_TESTS_NETWORK is set. Such ranks have no memory in common. */
bool ranks_use_transport(void);
/* Whether it joins over sockets. Ranks that meet there and then use this host's memory do not. */
bool ranks_use_network(void);

/* Whether run_ranks()'s groups can be split. */
bool ranks_make_groups(void);

/* Runs one function on `count` threads, each with its number, and joins them. */
void run_threads(int count, void (*function)(int index, void *context), void *context);

/* A number that no other process has which shares this one's sockets. A process in another
 * namespace of processes may have the same process number. */
unsigned own_number(void);

/* Writes "local://..." with a name that no other group has, in any process. */
void unique_rendezvous(char *text, size_t capacity);

/* Writes "tcp://..." likewise: it has a loopback address of its own, so that its port is free.
 * Joining needs TRIREME_TOKEN. */
void unique_network_rendezvous(char *text, size_t capacity);
/* The same with a port of its own, for ranks that must meet although another group's rank 0 goes.
 */
void unique_meeting(char *text, size_t capacity);

/* The backend that groups of tcp:// are tested with, although their ranks share this host: "gloo"
 * if TRIREME_TESTS_NETWORK says so, NULL if it says "memory", else "frames". NULL takes the host's
 * memory. */
const char *network_backend(void);
bool network_has_engine(void); /* it is "gloo" */
bool network_is_memory(void);  /* it is NULL */
/* Adds this rank's host to a rendezvous of tcp://, if TRIREME_TESTS_HOSTS names one: it has a
 * letter for each rank, and repeats from its end. Ranks with the same letter share a host. */
void add_host(char *rendezvous, size_t capacity, int rank);

/* Joins one rank; ends the program if that fails. The default deadline is LONG_NS. */
trireme_communicator *join_rank(int rank, int world_size, const char *rendezvous);

/* Two ranks of local://, both on the thread of the caller. */
struct rank_pair {
    char rendezvous[64];
    trireme_communicator *ranks[2];
};
struct rank_pair make_rank_pair(void);
void free_rank_pair(struct rank_pair pair);

/*
 * The first unmet expectation of one rank; "" if there is none. Rank threads fill it with EXPECT(),
 * the main thread asserts that it is empty.
 */
struct verdict {
    char text[600];
};

#define EXPECT(verdict, condition) \
    ((condition) ? 1 : expect_failed((verdict), __FILE__, __LINE__, #condition))
#define EXPECT_STATUS(verdict, status, call) \
    expect_status((verdict), __FILE__, __LINE__, #call, (status), (call))

/* Both return whether the expectation was met. */
int expect_failed(struct verdict *verdict, const char *file, int line, const char *condition);
int expect_status(struct verdict *verdict, const char *file, int line, const char *call,
                  trireme_status expected, trireme_status status);

/* Ends the program's current test if a verdict is not empty, after all of them have been printed;
 * on the main thread only. */
void assert_verdicts(const struct verdict *verdicts, int count);

#endif
