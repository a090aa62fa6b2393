/**
 * @file communicator.h
 * @brief Joining a group of ranks, watching it, and leaving it.
 *
 * Ownership: a communicator is created by trireme_communicator_create() and destroyed by
 * trireme_communicator_destroy(). Objects made from it keep it alive, so handles may be
 * destroyed in any order, also by a garbage collector.
 *
 * Thread safety: every function here may run on any thread concurrently with other calls on the
 * same communicator. All ranks must call its collectives in the same order.
 *
 * Failure: the first failure of an operation makes the communicator fail on every rank; from then
 * on each operation answers that failure at once. A message that ends with TRIREME_ERROR_TIMEOUT or
 * TRIREME_ERROR_CANCELLED before any of it has moved is the exception: it harms nobody else.
 *
 * Children: trireme_communicator_split(), _subgroup() and _duplicate() make groups of ranks of a
 * group. A child is an ordinary communicator. It does not wait for its parent, and both may be used
 * at the same time from several threads. A child that fails leaves its parent as it is; when the
 * parent fails, its children fail with the same status, and theirs: a rank that has heard of the
 * failure elsewhere would come to them no more. Ranks of the child that are to blame are named in its
 * numbers; one that is not in it is named in the message. A parent that is destroyed harms no child.
 * What trireme_communicator_shrink() makes is no child of the group that has failed.
 *
 * Survivors: trireme_communicator_agree() and trireme_communicator_shrink() also work on a
 * communicator that has failed. They go on without the ranks that count as lost: those that died
 * or left, those that the communicator's failure blames if it is TRIREME_ERROR_PEER_LOST or
 * TRIREME_ERROR_TIMEOUT, and those that one of these two calls has waited for in vain. Such a rank
 * gets TRIREME_ERROR_PEER_LOST from both if it still lives.
 *
 * Over tcp:// a rank that is gone cannot be told from one that others do not reach. So each call
 * needs more than half of the ranks that the last one went on with, at first of all, or exactly half
 * with the lowest of them; only ranks that reach each other count, whether they stay or go. Those
 * that are fewer get TRIREME_ERROR_PEER_LOST from both calls from then on, also when they reach the
 * others again. The ranks that go on need neither rank 0 nor the address where they met at first.
 */
#ifndef TRIREME_COMMUNICATOR_H
#define TRIREME_COMMUNICATOR_H

#include <stdint.h>
#include <trireme/export.h>
#include <trireme/status.h>
#include <trireme/transport.h>
#include <trireme/types.h>

TRIREME_BEGIN_C

/** Start from TRIREME_COMMUNICATOR_OPTIONS_INIT. In every field 0 or NULL means the default. */
typedef struct trireme_communicator_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** 0 <= rank < world_size; env:// reads it from the environment, mpi:// asks MPI. */
    int32_t rank;
    /** Number of ranks; required, but env:// reads it from the environment, mpi:// asks MPI. */
    int32_t world_size;
    /** Must be 0. */
    uint32_t flags;
    /**
     * "local://NAME" (threads of this process), "host://NAME" (processes of this host),
     * "tcp://ADDRESS:PORT[/NAME][?interface=NAME][&host=LABEL][&silence_ms=N]" (processes of any
     * hosts, who know the job's token), "host-transport://NAME" (over `transport`), "mpi://" (all
     * ranks of mpirun; MPI is initialised unless the program has done so, and then finalised when
     * the process exits; ranks that all share one host work by its memory) or "env://" (RANK,
     * WORLD_SIZE and TRIREME_RENDEZVOUS, or MASTER_ADDR, MASTER_PORT and the job's token: then over
     * tcp:// where the ranks are on several hosts; without RANK and WORLD_SIZE those of Open MPI,
     * of MPICH or of Slurm, where inside mpirun "mpi://" is meant if nothing else is said; see
     * docs/launching.md); UTF-8; required.
     */
    const char    *rendezvous;
    /** "local", "host" over sockets or a transport, "mpi" (MPI moves everything, on one host, too),
     * or "gloo": with tcp:// alone. The same on all ranks. Default: the best one of the rendezvous,
     * which is never "gloo". */
    const char    *backend;
    /** Name in messages, at most 63 bytes. Default: the rendezvous. */
    const char *name;
    /** Longest any blocking call may wait. Default: 300 s. */
    uint64_t timeout_ns;
    /** Where buffers live. Default: the host. */
    trireme_device device;
    /** What carries the bytes of "host-transport://NAME"; copied. Else NULL. */
    const trireme_transport *transport;
    /**
     * A wait for a peer that lasts this long is told to the log (TRIREME_LOG_WARNING), and again
     * whenever it has doubled; UINT64_MAX: never. Default: 10 s.
     */
    uint64_t stall_warning_ns;
} trireme_communicator_options; /* since 1.0 */

#define TRIREME_COMMUNICATOR_OPTIONS_INIT \
    { sizeof(trireme_communicator_options), 0, 0, 0, 0, 0, 0, 0, {0, 0}, 0, 0 }

/**
 * What a communicator has done so far. Set struct_size before the call. Its bytes leave out what
 * the backend's own collectives move over tcp:// ("gloo (tcp)", "hierarchical (...)") and mpi://.
 */
typedef struct trireme_communicator_statistics {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** 0. */
    uint32_t reserved;
    /** Collectives and messages that ended, well or not. */
    uint64_t operations;
    /** Those that ended in a failure. */
    uint64_t failures;
    /**
     * Bytes of this rank that peers were given to read, by collectives and messages. Not what MPI
     * moves, nor what goes through the memory of each host in a hierarchical group.
     */
    uint64_t bytes_sent;
    /** Bytes of peers that this rank read. */
    uint64_t bytes_received;
} trireme_communicator_statistics; /* since 1.0 */

/** Statistics ready for trireme_communicator_get_statistics(). */
#define TRIREME_COMMUNICATOR_STATISTICS_INIT \
    { sizeof(trireme_communicator_statistics), 0, 0, 0, 0, 0 }

/** How to make a child. Start from TRIREME_CHILD_OPTIONS_INIT. 0 or NULL means the default. */
typedef struct trireme_child_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** Must be 0. */
    uint32_t flags;
    /**
     * Name of the child in messages, at most 63 bytes; need not be the same on all ranks. Default:
     * the parent's and a number.
     */
    const char *name;
    /** Longest this call may wait. Default: the parent's timeout. */
    uint64_t timeout_ns;
} trireme_child_options; /* since 1.0 */

/** Options that change nothing. */
#define TRIREME_CHILD_OPTIONS_INIT { sizeof(trireme_child_options), 0, 0, 0 }

/**
 * Claims this rank's place in a group.
 *
 * Does not wait for the peers: the first operation or trireme_communicator_wait_ready() does. Only
 * the first group of mpi:// in a process waits until all ranks of mpirun make theirs, as
 * initialising MPI does.
 * Keeps no pointer into `options`.
 *
 * @param options   How to join. Required.
 * @param[out] out_communicator  The new communicator; free it with
 *                  trireme_communicator_destroy(). Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, a field is out of range, the rank is
 * taken by another member, the host of tcp:// is not known here, or an environment variable that
 * env:// needs is missing or no number.
 * @retval TRIREME_ERROR_INVALID_STATE  This process was forked by one that had used the library.
 * mpi://: mpirun has not started this process, or MPI has been finalised.
 * @retval TRIREME_ERROR_UNSUPPORTED  The backend, the device or the kind of rendezvous is not in
 * this build, backend and rendezvous do not go together, the world is too large, or `options` sets
 * a field newer than this library. mpi://: its plugin cannot be loaded, or the program's MPI_Init
 * gave less than MPI_THREAD_MULTIPLE, or was that of MPICH. "gloo": its plugin cannot be loaded.
 * @retval TRIREME_ERROR_MISMATCH  Ranks of a local:// group name different world sizes.
 * @retval TRIREME_ERROR_TIMEOUT   The first group of mpi://: not all ranks of mpirun made theirs
 * within timeout_ns. May be tried again.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 * @retval TRIREME_ERROR_SYSTEM  A socket, thread or mapping could not be made.
 * @retval TRIREME_ERROR_AUTHENTICATION  tcp:// without a token of 16 bytes or more in a file named
 * by TRIREME_TOKEN_FILE, which others may not read, by TRIREME_TOKEN_FD, or in TRIREME_TOKEN.
 * host:// needs none, but a file that is named must be one that others may not read.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_communicator_create(const trireme_communicator_options *options,
                            trireme_communicator **out_communicator);

/**
 * Leaves the group and gives the handle back.
 *
 * Never waits for what a peer calls; operations that still run fail on every rank. Peers that
 * start an operation afterwards get PEER_LOST, which says that this rank left. Over a network what
 * the rank has sent is handed over first, so that the process may end at once; 300 ms in which
 * nothing of it moves end that wait. The memory of children such as models and requests lives on
 * until they are destroyed, but a model trains no more: its next call that needs the peers answers
 * INVALID_STATE, which says that the communicator was destroyed before the model, and all later ones
 * repeat that. So destroy optimizers and models first, on all ranks.
 *
 * @param communicator  A communicator; NULL and a stale handle are ignored.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_API void TRIREME_CALL trireme_communicator_destroy(trireme_communicator *communicator);

/**
 * Waits until every rank has joined.
 *
 * Blocks until all have joined or the deadline passes. Keeps no pointer.
 *
 * @param communicator  The communicator.
 * @param timeout_ns    Longest wait; 0 asks without waiting.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live communicator of this process.
 * @retval TRIREME_ERROR_TIMEOUT  The message names the ranks that have not joined. May be called
 * again.
 * @retval TRIREME_ERROR_MISMATCH  Ranks name different world sizes, backends or library versions.
 * @retval TRIREME_ERROR_PEER_LOST  A rank died or left on the way in.
 * @retval TRIREME_ERROR_CORRUPT  tcp://: what came from a rank is not what it sent.
 * @retval TRIREME_ERROR_ABORTED  The communicator was aborted.
 * @retval TRIREME_ERROR_AUTHENTICATION  A process of another user holds a place in the group, or
 * who serves the meeting of tcp://, or a rank of it, does not know this rank's token, or that of
 * rank 0 of host:// is another one.
 * @retval TRIREME_ERROR_INVALID_STATE  Another process claimed this rank of a tcp:// group before.
 * @retval TRIREME_ERROR_SYSTEM  A socket or mapping could not be made.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_communicator_wait_ready(const trireme_communicator *communicator, uint64_t timeout_ns);

/**
 * Gives this rank's number.
 *
 * Does not block.
 *
 * @param communicator   The communicator.
 * @param[out] out_rank  0 to world size - 1. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live communicator of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_rank is NULL.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_communicator_get_rank(const trireme_communicator *communicator, int32_t *out_rank);

/**
 * Gives the number of ranks.
 *
 * Does not block.
 *
 * @param communicator   The communicator.
 * @param[out] out_world_size  1 or more. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live communicator of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_world_size is NULL.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_communicator_get_world_size(const trireme_communicator *communicator, int32_t *out_world_size);

/**
 * Tells which backend and transport carry the bytes, for example "local (processes)", or "local
 * (processes, met by Open MPI)" where mpi:// has found all ranks on one host. Over tcp:// it may
 * say more once all ranks have joined: "hierarchical (2 hosts x 4)" where they share hosts, as
 * mpi:// says at once.
 *
 * Does not block. Copies the text with its final 0 into the caller's memory.
 *
 * @param communicator  The communicator.
 * @param[out] text     Memory for the text; NULL to ask for the length only.
 * @param capacity      Bytes at `text`; a longer text is cut so that the final 0 fits.
 * @param[out] out_length  Bytes of the whole text without its final 0; may be NULL.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live communicator of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  text is NULL while capacity is not 0.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_communicator_get_backend(const trireme_communicator *communicator, char *text,
                             uint64_t capacity, uint64_t *out_length);

/**
 * Makes the group fail on every rank, now.
 *
 * Does not block. Operations that run or wait end with TRIREME_ERROR_ABORTED within
 * milliseconds, on all ranks; so does every later one. This is what others call revoke: a rank
 * that met a failure calls it so that no rank waits in vain, and then all call
 * trireme_communicator_agree() or trireme_communicator_shrink(), which work on.
 *
 * @param communicator  The communicator; stale handles are refused, not followed.
 * @param reason        One line for the messages of all ranks, cut after 127 bytes; may be NULL.
 * @retval TRIREME_OK   Also when the communicator had failed before; then the first failure stays.
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live communicator of this process.
 *
 * Thread safety: any thread, any time.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_communicator_abort(trireme_communicator *communicator, const char *reason);

/**
 * Tells what the communicator has done so far.
 *
 * Does not block.
 *
 * @param communicator  The communicator.
 * @param[out] out_statistics  Filled up to its own struct_size. Required.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live communicator of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_statistics is NULL or its struct_size is too small.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_communicator_get_statistics(const trireme_communicator *communicator,
                                    trireme_communicator_statistics *out_statistics);

/**
 * Writes the flight record: the last 2,048 operations of this rank, oldest first.
 *
 * Does not block; works while operations run and after a failure. One line of JSON an
 * operation: sequence, operation, dtype, count, peer or root, start and end in ns, status.
 *
 * @param communicator  The communicator.
 * @param[out] text     Memory for the text; NULL to ask for the length only.
 * @param capacity      Bytes at `text`; a longer text is cut so that the final 0 fits.
 * @param[out] out_length  Bytes of the whole text without its final 0; may be NULL.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live communicator of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  text is NULL while capacity is not 0.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_communicator_get_flight_record(const trireme_communicator *communicator, char *text,
                                   uint64_t capacity, uint64_t *out_length);

/**
 * Writes what each rank called last, as far as this rank can see it.
 *
 * Does not block; works while operations run and after a failure. One line of JSON a rank: rank;
 * state ("absent", "joined", "left" or "lost"); known (false where the backend does not show the
 * calls of that rank: peers of tcp://, mpi:// or a transport, and ranks of host:// before rank 0
 * has come); collective, its sequence and channel (0, 1 for high priority, else one of a model, and
 * then model: 1, 2, ... in the order in which they were created); message ("send", "receive" or
 * "probe"), its peer (-1: any) and message_sequence. collective and message are null if there was
 * none.
 *
 * @param communicator  The communicator.
 * @param[out] text     Memory for the text; NULL to ask for the length only.
 * @param capacity      Bytes at `text`; a longer text is cut so that the final 0 fits.
 * @param[out] out_length  Bytes of the whole text without its final 0; may be NULL.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live communicator of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  text is NULL while capacity is not 0.
 * @retval TRIREME_ERROR_INVALID_STATE  This rank has left the group.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_communicator_get_last_calls(const trireme_communicator *communicator, char *text,
                                uint64_t capacity, uint64_t *out_length);

/**
 * Gives each rank's number in the group this communicator descends from.
 *
 * Does not block. A communicator of trireme_communicator_create() gives 0, 1, 2 and so on; a child,
 * also the child of a child, the numbers its ranks have there.
 *
 * @param communicator  The communicator.
 * @param[out] out_ranks  One number for each rank. Not written on failure.
 * @param capacity      Numbers that fit at `out_ranks`; at least the world size.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live communicator of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_ranks is NULL, or capacity is below the world size.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_communicator_get_original_ranks(const trireme_communicator *communicator, int32_t *out_ranks,
                           uint64_t capacity);

/**
 * Splits the group: ranks of one color become a new group.
 *
 * Collective: all ranks call it in the same order as their other collectives; blocks until the
 * ranks of this rank's new group have met. All ranks succeed or all get the same failure, unless
 * one dies on the way. The child keeps the parent's backend and timeout. Keeps no pointer into
 * `options`.
 *
 * @param communicator  The parent.
 * @param color         The group this rank wants, 0 or more; negative: none.
 * @param key           Ranks of the child are in the order of their keys, those with the same key
 *                  in the order of the parent.
 * @param options       Name and deadline; NULL for the defaults.
 * @param[out] out_communicator  The child; free it with trireme_communicator_destroy(). NULL if the
 *                  color is negative. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live communicator of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, or an option is out of range; the
 * communicator goes on as if the call had not been made.
 * @retval TRIREME_ERROR_INVALID_STATE  Called inside a completion callback of this communicator, or
 * after it was destroyed.
 * @retval TRIREME_ERROR_MISMATCH  Ranks called different things.
 * @retval TRIREME_ERROR_TIMEOUT  The deadline passed; names the ranks that are missing.
 * @retval TRIREME_ERROR_PEER_LOST  A rank died or left; names it.
 * @retval TRIREME_ERROR_ABORTED  The communicator was aborted.
 * @retval TRIREME_ERROR_SYSTEM  A rank could not make a socket, thread or mapping; all ranks get
 * this, name it, and their communicator goes on.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out on a rank.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_communicator_split(trireme_communicator *communicator, int32_t color, int32_t key,
                           const trireme_child_options *options,
                           trireme_communicator **out_communicator);

/**
 * Makes a group of some ranks, in the order of a list.
 *
 * Collective over the parent: also ranks that are not in the list call it, with the same list.
 * Blocks as trireme_communicator_split() does, and is the same in all else. Keeps no pointer.
 *
 * @param communicator  The parent.
 * @param ranks         Ranks of the parent, each at most once; ranks[i] becomes rank i.
 * @param count         How many; 1 or more.
 * @param options       Name and deadline; NULL for the defaults.
 * @param[out] out_communicator  The child; free it with trireme_communicator_destroy(). NULL if
 *                  this rank is not in the list. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live communicator of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, an option is out of range, or the
 * list is empty or names a rank twice or one that is not there; the communicator goes on as if the
 * call had not been made.
 * @retval TRIREME_ERROR_INVALID_STATE  Called inside a completion callback of this communicator, or
 * after it was destroyed.
 * @retval TRIREME_ERROR_MISMATCH  Ranks called different things or gave different lists.
 * @retval TRIREME_ERROR_TIMEOUT  The deadline passed; names the ranks that are missing.
 * @retval TRIREME_ERROR_PEER_LOST  A rank died or left; names it.
 * @retval TRIREME_ERROR_ABORTED  The communicator was aborted.
 * @retval TRIREME_ERROR_SYSTEM  A rank could not make a socket, thread or mapping; all ranks get
 * this, name it, and their communicator goes on.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out on a rank.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_communicator_subgroup(trireme_communicator *communicator, const int32_t *ranks,
                              uint64_t count, const trireme_child_options *options,
                              trireme_communicator **out_communicator);

/**
 * Makes a second group of the same ranks, so that two parts of a program need no common order.
 *
 * Collective: blocks as trireme_communicator_split() does. Keeps no pointer.
 *
 * @param communicator  The parent.
 * @param options       Name and deadline; NULL for the defaults.
 * @param[out] out_communicator  The child; free it with trireme_communicator_destroy(). Not written
 *                  on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live communicator of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, or an option is out of range; the
 * communicator goes on as if the call had not been made.
 * @retval TRIREME_ERROR_INVALID_STATE  Called inside a completion callback of this communicator, or
 * after it was destroyed.
 * @retval TRIREME_ERROR_MISMATCH  Ranks called different things.
 * @retval TRIREME_ERROR_TIMEOUT  The deadline passed; names the ranks that are missing.
 * @retval TRIREME_ERROR_PEER_LOST  A rank died or left; names it.
 * @retval TRIREME_ERROR_ABORTED  The communicator was aborted.
 * @retval TRIREME_ERROR_SYSTEM  A rank could not make a socket, thread or mapping; all ranks get
 * this, name it, and their communicator goes on.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out on a rank.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_communicator_duplicate(trireme_communicator *communicator,
                               const trireme_child_options *options,
                               trireme_communicator **out_communicator);

/**
 * Agrees on flags with all ranks that are there, whatever has failed and whoever dies meanwhile.
 *
 * All ranks call it in the same order as trireme_communicator_shrink(). Blocks until each rank has
 * called it or counts as lost. Every rank that gets TRIREME_OK gets the same value, also when ranks
 * die or leave in the middle. Moves nothing else; neither hurts nor heals the communicator, but for
 * a deadline that passes.
 *
 * @param communicator  The communicator; it may have failed.
 * @param[out] flags    In: this rank's flags. Out: the bitwise and of the flags of the ranks that
 *                  are there. Not written on failure.
 * @param timeout_ns    Longest wait; 0 means the communicator's timeout.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live communicator of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  flags is NULL.
 * @retval TRIREME_ERROR_INVALID_STATE  Called inside a completion callback of this communicator, or
 * it was destroyed meanwhile.
 * @retval TRIREME_ERROR_UNSUPPORTED  Ranks whose bytes MPI or a transport of the caller's moves
 * cannot agree.
 * @retval TRIREME_ERROR_TIMEOUT  The deadline passed; the communicator has failed, and the ranks it
 * names count as lost. Others with a later deadline may get TRIREME_OK, all with the same value.
 * @retval TRIREME_ERROR_PEER_LOST  This rank itself counts as lost, or reaches too few others
 *                  (tcp://): the message says "no majority", and whom it has lost.
 * @retval TRIREME_ERROR_MISMATCH  Other ranks called trireme_communicator_shrink().
 * @return Also the communicator's failure, if it failed before this rank had met the others.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_communicator_agree(trireme_communicator *communicator, uint64_t *flags,
                           uint64_t timeout_ns);

/**
 * Makes a group of the ranks that are there, after others were lost.
 *
 * All ranks that are there call it, in the same order as trireme_communicator_agree(). Blocks until
 * each rank has called it or counts as lost, and until those that did have met. Every rank that
 * gets TRIREME_OK is in the same new group, in the old order; trireme_communicator_get_original_ranks() tells
 * who that is. The old communicator stays as it is, mostly failed, until it is destroyed.
 *
 * @param communicator  The communicator; it may have failed.
 * @param options       Name and deadline; NULL for the defaults.
 * @param[out] out_communicator  The new group; free it with trireme_communicator_destroy(). Not
 *                  written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live communicator of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, or an option is out of range.
 * @retval TRIREME_ERROR_INVALID_STATE  Called inside a completion callback of this communicator, or
 * it was destroyed meanwhile.
 * @retval TRIREME_ERROR_UNSUPPORTED  Ranks whose bytes MPI or a transport of the caller's moves
 * cannot agree.
 * @retval TRIREME_ERROR_TIMEOUT  The deadline passed; the ranks it names count as lost. May be
 *                  called again.
 * @retval TRIREME_ERROR_PEER_LOST  Another rank was lost meanwhile: call it again (try_again is 1);
 * or this rank itself counts as lost, or reaches too few others, which it says.
 * @retval TRIREME_ERROR_MISMATCH  Other ranks called trireme_communicator_agree().
 * @retval TRIREME_ERROR_SYSTEM  A rank could not make a socket, thread or mapping; names it.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 * @return Also the communicator's failure, if it failed before this rank had met the others.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_communicator_shrink(trireme_communicator *communicator,
                            const trireme_child_options *options,
                            trireme_communicator **out_communicator);

TRIREME_END_C

#endif
