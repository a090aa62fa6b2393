/*
 * Processes as ranks: forked children that run a function, write their observations into shared
 * memory and end. Their parent only watches; it must never have used the library itself, so that
 * each child begins like a fresh program. A child that hangs is killed and counted.
 */
#ifndef TRIREME_TESTS_PROCESSES_H
#define TRIREME_TESTS_PROCESSES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <trireme/trireme.h>

#include "ranks.h"

#define MOST_PROCESSES 80

/* After this long a child hangs. Every deadline of a test is far shorter. */
#define HANG_NS (90ull * 1000 * 1000 * 1000)

/* Deadline of operations that must not reach it. */
#define PATIENT_NS (40ull * 1000 * 1000 * 1000)

/* The result of one process. The process itself writes the first half. */
struct outcome {
    uint64_t entered_ns;     /* last call of an operation began */
    uint64_t returned_ns;    /* and came back */
    int32_t rounds;          /* operations that went well */
    bool wrong;              /* an operation said OK and its result was not right */
    trireme_status status;   /* of the last operation */
    trireme_status later;    /* of one more operation after a failure */
    trireme_status again;    /* of a new group of the survivors */
    trireme_error_info info; /* about `status` */
    char message[640];       /* the same as text */
    int64_t numbers[16];     /* anything else */
    char text[256];

    int exit_code; /* -1 if a signal ended it */
    int signal;    /* 0 if none did */
    bool hung;
};

typedef void process_function(int rank, void *context, struct outcome *outcome);

struct processes {
    int count;
    pid_t ids[MOST_PROCESSES];
    bool ended[MOST_PROCESSES];
    int alive; /* end of file when all have ended */
    struct outcome *outcomes;
};

/* Starts `count` children. Each sees a copy of the parent's memory, so also of `context`. */
void start_processes(struct processes *processes, int count, process_function *function,
                     void *context);

/* Waits until all have ended; afterwards their outcomes are whole. */
void wait_processes(struct processes *processes);
/* The same for so long, where HANG_NS is too short. */
void wait_processes_for(struct processes *processes, uint64_t most_ns);

/* Waits until a child has been stopped by a signal. False if it ends instead, or hangs. */
bool wait_stopped(struct processes *processes, int rank);

void free_processes(struct processes *processes);

uint64_t monotonic_ns(void);
void sleep_ms(unsigned milliseconds);

/* Keeps status, message and error info of a call that has just returned on this thread. */
void keep_error(struct outcome *outcome, trireme_status status);

/* Writes "host://..." with a unique name. */
void unique_host_rendezvous(char *text, size_t capacity);

/* The same, or "tcp://..." where TRIREME_TESTS_NETWORK asks for it. */
void unique_process_rendezvous(char *text, size_t capacity);

/* Joins; ends the process with code 90 if that fails. */
trireme_communicator *
join_process(int rank, int world_size, const char *rendezvous, uint64_t timeout_ns);

/* Notes the files in places that all processes see, which have the library's name in theirs. No
 * file of a test has it. */
void remember_files(void);

/* Whether there is no other such file now. One of a test beside this one goes away: it has time. */
bool no_file_is_left(void);

/* Whether the error info blames exactly this rank. */
bool blames_only(const trireme_error_info *info, int rank);

#endif
