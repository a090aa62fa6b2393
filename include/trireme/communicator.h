/**
 * @file communicator.h
 * @brief Joining a group of ranks, watching it, and leaving it.
 *
 * Ownership: trireme_communicator_create() makes a communicator, and
 * trireme_communicator_destroy() destroys it. The caller, or a garbage collector, may destroy
 * handles in any order. But a model needs its communicator: see model.h.
 *
 * Thread safety: every function here may run on any thread concurrently with other calls on the
 * same communicator. All ranks must call its collectives in the same order.
 *
 * Rendezvous: the ranks of a group meet at a name, which is UTF-8. docs/launching.md and
 * docs/several-hosts.md have the details. The kinds are:
 *
 * - "local://NAME": ranks are threads of this process.
 * - "host://NAME": ranks are processes of this host.
 * - "tcp://ADDRESS:PORT[/NAME][?interface=NAME][&host=LABEL][&silence_ms=N][&connections=few]":
 *   ranks are processes of any hosts that know the job's token. Ranks that all share one host use
 *   its memory. `interface` may be a list of up to 8, "eth0,eth1": large collectives go over all.
 * - "transport://NAME": the caller's `transport` carries the bytes.
 * - "mpi://": all ranks of mpirun. Ranks that all share one host use its memory. If the program has
 *   not initialised MPI, the library does so, and finalises it when the process exits.
 * - "env://": the launcher's environment variables name the rendezvous and this rank's place.
 *
 * With env:// the library reads these variables:
 *
 * - RANK and WORLD_SIZE. Without both: the variables of Open MPI, of MPICH or of Slurm.
 * - TRIREME_RENDEZVOUS, a rendezvous of another kind.
 * - Without that: MASTER_ADDR, MASTER_PORT and the job's token. Ranks on several hosts then meet
 *   over tcp://, ranks of one host over host:// if the variables tell that.
 *
 * Inside mpirun env:// means mpi:// if neither TRIREME_RENDEZVOUS nor MASTER_ADDR is set.
 *
 * Failure: the first failure of an operation makes the communicator fail on every rank. From then
 * on each operation answers that failure at once. There is one exception: a message that ends with
 * TRIREME_ERROR_TIMEOUT or TRIREME_ERROR_CANCELLED before any byte of it has moved. It harms no
 * other operation.
 *
 * Children: trireme_communicator_split(), _subgroup() and _duplicate() make a new group of ranks
 * of a group, a child. A child is an ordinary communicator:
 *
 * - It does not wait for its parent. Threads may use both at the same time.
 * - A child that fails leaves its parent as it is.
 * - When the parent fails, its children and their children fail with the same status. Otherwise
 *   they would wait in vain for a rank that has heard of the failure elsewhere.
 * - Such a failure names the ranks to blame by their numbers in the child. The message names a rank
 *   that is not in the child.
 * - A parent that is destroyed harms no child.
 * - Ranks whose bytes MPI or a transport of the caller's moves make no children.
 * - The group that trireme_communicator_shrink() makes is no child of the group that has failed.
 *
 * Survivors: trireme_communicator_agree() and trireme_communicator_shrink() also work on a
 * communicator that has failed. They go on without lost ranks. A rank counts as lost in these
 * cases:
 *
 * - It died or left.
 * - The communicator has failed with TRIREME_ERROR_PEER_LOST or TRIREME_ERROR_TIMEOUT, and that
 *   failure blames the rank.
 * - One of these two calls has waited for it in vain.
 *
 * A lost rank that still lives gets TRIREME_ERROR_PEER_LOST from both calls.
 *
 * Majority: over tcp:// a dead rank looks like a rank that others do not reach. So each of the two
 * calls needs enough ranks that reach each other, unless all share the memory of one host. The
 * ranks of the last such call count, at first all ranks. A call needs either of these:
 *
 * - more than half of them,
 * - exactly half of them, and the lowest one among these.
 *
 * Ranks that are too few get TRIREME_ERROR_PEER_LOST from both calls from then on, also when they
 * reach the others again. The ranks that go on need neither rank 0 nor the address where they met
 * at first.
 */
#ifndef TRIREME_COMMUNICATOR_H
#define TRIREME_COMMUNICATOR_H

#include <stdint.h>
#include <trireme/export.h>
#include <trireme/status.h>
#include <trireme/transport.h>
#include <trireme/types.h>

TRIREME_BEGIN_C

/** How to join a group. Start from TRIREME_COMMUNICATOR_OPTIONS_INIT. 0 or NULL: the default. */
typedef struct trireme_communicator_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** This rank's number: 0 <= rank < world_size. env:// and mpi:// find it themselves. */
    int32_t rank;
    /** Number of ranks. env:// and mpi:// find it themselves; else required. */
    int32_t world_size;
    /** Must be 0. */
    uint32_t flags;
    /**
     * Where the ranks meet, for example "host://training" or "env://". See "Rendezvous" at the top
     * of this file. Required.
     */
    const char *rendezvous;
    /**
     * "local"; "frames", also on one host; "mpi", where MPI moves everything; "gloo", with tcp://
     * alone; "nccl", with a device alone. The same on all ranks, but over tcp:// some may name
     * "frames" and others none: then all send frames. Default: the best one for the rendezvous,
     * never "gloo", and "nccl" for device memory where it serves: docs/gpus.md.
     */
    const char *backend;
    /** Name in messages, at most 63 bytes. Default: the rendezvous. */
    const char *name;
    /** Longest time in ns that any blocking call may wait. Default: 300 s. */
    uint64_t timeout_ns;
    /** Where buffers live. Default: the host. docs/gpus.md lists the calls for a CUDA device. */
    trireme_device device;
    /** Functions that carry the bytes of "transport://NAME"; copied. Default: NULL. */
    const trireme_transport *transport;
    /**
     * When a wait for a peer has lasted this many ns, the log tells it (TRIREME_LOG_WARNING), and
     * again each time it has doubled. UINT64_MAX: never. Default: 10 s.
     */
    uint64_t stall_warning_ns;
} trireme_communicator_options; /* since 1.0 */

#define TRIREME_COMMUNICATOR_OPTIONS_INIT TRIREME_INIT(trireme_communicator_options)

/**
 * Counts of a communicator's work so far. Set struct_size before the call.
 *
 * The bytes leave out those that the backend's own collectives move over tcp:// ("gloo (tcp)",
 * "hierarchical (...)") and mpi://.
 */
typedef struct trireme_communicator_statistics {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** 0. */
    uint32_t reserved;
    /** Collectives and messages that have ended, in success or failure. */
    uint64_t operations;
    /** Collectives and messages that have ended in failure. */
    uint64_t failures;
    /**
     * Bytes of this rank that peers were given to read, by collectives and messages. Leaves out
     * bytes that MPI moves, or that go through the memory of a host in a hierarchical group.
     */
    uint64_t sent_bytes;
    /** Bytes of peers that this rank read. */
    uint64_t received_bytes;
    /**
     * Messages that this rank sent on connections of the library, with those of the protocol.
     * Leaves out the messages of MPI. 0 where all ranks share memory.
     */
    uint64_t sent_messages;
} trireme_communicator_statistics; /* since 1.0 */

/** Statistics ready for trireme_communicator_get_statistics(). */
#define TRIREME_COMMUNICATOR_STATISTICS_INIT TRIREME_INIT(trireme_communicator_statistics)

/** How to make a child. Start from TRIREME_CHILD_OPTIONS_INIT. 0 or NULL means the default. */
typedef struct trireme_child_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** Must be 0. */
    uint32_t flags;
    /**
     * Name of the child in messages, at most 63 bytes; may differ between ranks. Default: the
     * parent's name and a number.
     */
    const char *name;
    /** Longest time in ns that this call may wait. Default: the parent's timeout. */
    uint64_t timeout_ns;
} trireme_child_options; /* since 1.0 */

/** Options that change nothing. */
#define TRIREME_CHILD_OPTIONS_INIT TRIREME_INIT(trireme_child_options)

/**
 * Claims this rank's place in a group.
 *
 * Does not wait for the peers: the first operation or trireme_communicator_wait_ready() does. There
 * is one exception: the first group of mpi:// in a process. It waits until all ranks of mpirun make
 * theirs, as initialising MPI does. Keeps no pointer into `options`.
 *
 * Reads the tuning table that the variable TRIREME_TUNING names, if it is set; the file should be
 * local, as no timeout ends a read. The first plain collective of each queue, normal and high,
 * compares the ranks' tables: if they differ, it gives TRIREME_ERROR_MISMATCH. Wire dtypes, lists
 * and calls that find out counts are not plain. Before it, a call that the tables make differently
 * is a TRIREME_ERROR_MISMATCH, too.
 *
 * @param options   How to join. Required.
 * @param[out] out_communicator  The new communicator; free it with
 *                  trireme_communicator_destroy(). Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, a field is out of range, or another
 * member has taken the rank. Or the host of tcp:// is not known here. Or an environment variable
 * that env:// needs is missing or no number. Or the file of TRIREME_TUNING cannot be read, or is no
 * tuning table.
 * @retval TRIREME_ERROR_INVALID_STATE  This process was forked by one that had used the library.
 * mpi://: mpirun has not started this process, or MPI has been finalised.
 * @retval TRIREME_ERROR_UNSUPPORTED  The backend or the kind of rendezvous is not in this build, or
 * they do not go together. Or the world is too large. Or `options` sets a field newer than this
 * library. mpi://: its plugin cannot be loaded, or the program's MPI_Init gave less than
 * MPI_THREAD_MULTIPLE, or was that of MPICH. "gloo": its plugin cannot be loaded. "nccl": this rank
 * finds none that serves. A CUDA device fails with this, or with TRIREME_ERROR_DEVICE, as
 * trireme_device_get_info() does.
 * @retval TRIREME_ERROR_DEVICE  The device has failed, or still has work of a failed group.
 * @retval TRIREME_ERROR_MISMATCH  Ranks of a local:// group name different world sizes.
 * @retval TRIREME_ERROR_TIMEOUT   The first group of mpi://: not all ranks of mpirun made theirs
 * within timeout_ns. May be tried again.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 * @retval TRIREME_ERROR_SYSTEM  A socket, thread or mapping could not be made.
 * @retval TRIREME_ERROR_AUTHENTICATION  tcp://: the environment has no token of 16 to 1024 bytes.
 * It comes from a file named by TRIREME_TOKEN_FILE, from TRIREME_TOKEN_FD or from TRIREME_TOKEN.
 * tcp:// and host://: others may read or write that file, or it belongs to another user (not root).
 * host:// needs no token.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_communicator_create(
    const trireme_communicator_options *options, trireme_communicator **out_communicator);

/**
 * Leaves the group and gives the handle back.
 *
 * Never waits for a call of a peer. Operations that still run fail on every rank. Peers that start
 * an operation afterwards get PEER_LOST, and the message says that this rank left.
 *
 * Over a network the call first hands over all that the rank has sent, so that the process may end
 * at once. That wait ends when nothing has moved for 300 ms.
 *
 * Models and requests keep their memory until the caller destroys them. But a model trains no more.
 * Its next call that needs the peers answers INVALID_STATE: the communicator was destroyed before
 * the model. All later calls repeat that. So destroy optimizers and models first, on all ranks.
 *
 * @param communicator  A communicator; NULL and a stale handle are ignored.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_API void TRIREME_CALLCONV trireme_communicator_destroy(trireme_communicator *communicator);

/**
 * Waits until every rank has joined.
 *
 * Blocks until all have joined or the deadline passes. Keeps no pointer.
 *
 * @param communicator  The communicator.
 * @param timeout_ns    Longest wait in ns; 0 asks without waiting.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live communicator of this process.
 * @retval TRIREME_ERROR_TIMEOUT  The message names the ranks that have not joined. May be called
 * again.
 * @retval TRIREME_ERROR_MISMATCH  Ranks name different world sizes, backends or library versions.
 * @retval TRIREME_ERROR_PEER_LOST  A rank died or left on the way in.
 * @retval TRIREME_ERROR_CORRUPT  tcp://: bytes that came from a rank are not those that it sent.
 * @retval TRIREME_ERROR_ABORTED  The communicator was aborted.
 * @retval TRIREME_ERROR_AUTHENTICATION  A process of another user holds a place in the group.
 * tcp://: a rank, or the process that serves the meeting, does not know this rank's token. host://:
 * rank 0 has another token.
 * @retval TRIREME_ERROR_INVALID_STATE  Another process claimed this rank of a tcp:// group before.
 * @retval TRIREME_ERROR_SYSTEM  A socket or mapping could not be made.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
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
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
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
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_communicator_get_world_size(
    const trireme_communicator *communicator, int32_t *out_world_size);

/**
 * Tells which backend and transport carry the bytes, for example "local (processes)".
 *
 * If mpi:// or tcp:// finds all ranks on one host, the text is "local (processes, met by Open MPI)"
 * or "local (processes, met by tcp)". If ranks share hosts, it is "hierarchical (2 hosts x 4)", for
 * example. mpi:// says so at once, tcp:// only when all ranks have joined.
 *
 * With a device the text ends in the way of its memory: "; CUDA device 0: NCCL 2.28.9", or "pinned
 * memory" and why NCCL cannot be. The ranks choose it in their first operation of such memory.
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
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_communicator_get_backend(
    const trireme_communicator *communicator, char *text, uint64_t capacity, uint64_t *out_length);

/**
 * Makes the group fail on every rank, now.
 *
 * Does not block. Operations that run or wait end with TRIREME_ERROR_ABORTED within milliseconds,
 * on all ranks. So does every later operation. Other libraries call this revoke: a rank that met a
 * failure calls it, so that no rank waits in vain. Then all ranks call trireme_communicator_agree()
 * or trireme_communicator_shrink(), which still work.
 *
 * @param communicator  The communicator; the library refuses a stale handle.
 * @param reason        One line for the messages of all ranks, cut after 127 bytes; may be NULL.
 * @retval TRIREME_OK   Also when the communicator had failed before; then the first failure stays.
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live communicator of this process.
 *
 * Thread safety: any thread, any time.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_communicator_abort(trireme_communicator *communicator, const char *reason);

/**
 * Counts the communicator's work so far.
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
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_communicator_get_statistics(
    const trireme_communicator *communicator, trireme_communicator_statistics *out_statistics);

/**
 * Writes the flight record: the last 2,048 operations of this rank, oldest first.
 *
 * Does not block. Works while operations run and after a failure. Each operation is one line of
 * JSON: sequence, operation, dtype, count, peer or root, start and end in ns, status.
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
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_communicator_get_flight_record(
    const trireme_communicator *communicator, char *text, uint64_t capacity, uint64_t *out_length);

/**
 * Writes the last calls of each rank, as far as this rank can see them.
 *
 * Does not block. Works while operations run and after a failure. Each rank is one line of JSON:
 *
 * - rank: its number.
 * - state: "absent", "joined", "left" or "lost".
 * - known: false if the backend does not show the calls of that rank. These are peers of tcp://,
 *   mpi:// or a transport, and ranks of host:// before rank 0 has come.
 * - collective: its name, or null if there was none.
 * - sequence and channel of that collective. Channel 0 is the usual one and 1 that of high
 *   priority. Any other belongs to a model; then model tells which, as 1, 2, ... in the order of
 *   creation.
 * - message: "send", "receive" or "probe", or null if there was none.
 * - peer of that message (-1: any), and message_sequence.
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
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_communicator_get_last_calls(
    const trireme_communicator *communicator, char *text, uint64_t capacity, uint64_t *out_length);

/**
 * Gives each rank's number in the group this communicator descends from.
 *
 * Does not block. A communicator of trireme_communicator_create() gives 0, 1, 2 and so on. A child,
 * or a child of a child, gives the numbers that its ranks have in that first group.
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
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_communicator_get_original_ranks(
    const trireme_communicator *communicator, int32_t *out_ranks, uint64_t capacity);

/**
 * Splits the group: ranks of one color become a new group.
 *
 * Collective: all ranks call it in the same order as their other collectives. Blocks until the
 * ranks of this rank's new group have met. All ranks succeed or all get the same failure, unless
 * one dies meanwhile. The child keeps the parent's backend and timeout. Keeps no pointer into
 * `options`.
 *
 * @param communicator  The parent.
 * @param color         The group that this rank joins, 0 or more; negative: none.
 * @param key           Ranks of the child are in the order of their keys. Ranks with the same key
 *                  are in the order of the parent.
 * @param options       Name and deadline; NULL for the defaults.
 * @param[out] out_communicator  The child; free it with trireme_communicator_destroy(). NULL if the
 *                  color is negative. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live communicator of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, or an option is out of range. The
 * communicator goes on as if the call had not been made.
 * @retval TRIREME_ERROR_INVALID_STATE  Called inside a completion callback of this communicator, or
 * after it was destroyed.
 * @retval TRIREME_ERROR_UNSUPPORTED  `options` sets a field newer than this library. Or MPI, or a
 * transport of the caller's, moves the bytes of the parent's ranks.
 * @retval TRIREME_ERROR_MISMATCH  Ranks called different things.
 * @retval TRIREME_ERROR_TIMEOUT  The deadline passed. The message names the missing ranks.
 * @retval TRIREME_ERROR_PEER_LOST  A rank died or left. The message names it.
 * @retval TRIREME_ERROR_ABORTED  The communicator was aborted.
 * @retval TRIREME_ERROR_SYSTEM  A rank could not make a socket, thread or mapping. All ranks get
 * this; the message names that rank. The communicator goes on.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out on a rank.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_communicator_split(
    trireme_communicator *communicator, int32_t color, int32_t key,
    const trireme_child_options *options, trireme_communicator **out_communicator);

/**
 * Makes a group of some ranks, in the order of a list.
 *
 * Collective over the parent: ranks that are not in the list call it, too, with the same list.
 * Blocks as trireme_communicator_split() does, and equals it in all else. Keeps no pointer.
 *
 * @param communicator  The parent.
 * @param ranks         Ranks of the parent, each at most once; ranks[i] becomes rank i.
 * @param count         Number of ranks in the list; 1 or more.
 * @param options       Name and deadline; NULL for the defaults.
 * @param[out] out_communicator  The child; free it with trireme_communicator_destroy(). NULL if
 *                  this rank is not in the list. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live communicator of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, or an option is out of range. Or the
 * list is empty, or names a rank twice or one that is not there. The communicator goes on as if the
 * call had not been made.
 * @retval TRIREME_ERROR_INVALID_STATE  Called inside a completion callback of this communicator, or
 * after it was destroyed.
 * @retval TRIREME_ERROR_UNSUPPORTED  `options` sets a field newer than this library. Or MPI, or a
 * transport of the caller's, moves the bytes of the parent's ranks.
 * @retval TRIREME_ERROR_MISMATCH  Ranks called different things or gave different lists.
 * @retval TRIREME_ERROR_TIMEOUT  The deadline passed. The message names the missing ranks.
 * @retval TRIREME_ERROR_PEER_LOST  A rank died or left. The message names it.
 * @retval TRIREME_ERROR_ABORTED  The communicator was aborted.
 * @retval TRIREME_ERROR_SYSTEM  A rank could not make a socket, thread or mapping. All ranks get
 * this; the message names that rank. The communicator goes on.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out on a rank.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_communicator_subgroup(
    trireme_communicator *communicator, const int32_t *ranks, uint64_t count,
    const trireme_child_options *options, trireme_communicator **out_communicator);

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
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, or an option is out of range. The
 * communicator goes on as if the call had not been made.
 * @retval TRIREME_ERROR_INVALID_STATE  Called inside a completion callback of this communicator, or
 * after it was destroyed.
 * @retval TRIREME_ERROR_UNSUPPORTED  `options` sets a field newer than this library. Or MPI, or a
 * transport of the caller's, moves the bytes of the parent's ranks.
 * @retval TRIREME_ERROR_MISMATCH  Ranks called different things.
 * @retval TRIREME_ERROR_TIMEOUT  The deadline passed. The message names the missing ranks.
 * @retval TRIREME_ERROR_PEER_LOST  A rank died or left. The message names it.
 * @retval TRIREME_ERROR_ABORTED  The communicator was aborted.
 * @retval TRIREME_ERROR_SYSTEM  A rank could not make a socket, thread or mapping. All ranks get
 * this; the message names that rank. The communicator goes on.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out on a rank.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_communicator_duplicate(
    trireme_communicator *communicator, const trireme_child_options *options,
    trireme_communicator **out_communicator);

/**
 * Agrees on flags with all ranks that are there, whatever has failed and whoever dies meanwhile.
 *
 * All ranks call this and trireme_communicator_shrink() in the same order. Blocks until each rank
 * has called it or counts as lost. Every rank that gets TRIREME_OK gets the same value, also when
 * ranks die or leave meanwhile. It moves no other data. It neither harms nor repairs the
 * communicator, unless a deadline passes.
 *
 * @param communicator  The communicator; it may have failed.
 * @param[out] flags    In: this rank's flags. Out: the bitwise and of the flags of the ranks that
 *                  are there. Not written on failure.
 * @param timeout_ns    Longest wait in ns; 0 means the communicator's timeout.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live communicator of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  flags is NULL.
 * @retval TRIREME_ERROR_INVALID_STATE  Called inside a completion callback of this communicator, or
 * it was destroyed meanwhile.
 * @retval TRIREME_ERROR_UNSUPPORTED  Ranks whose bytes MPI or a transport of the caller's moves
 * cannot agree.
 * @retval TRIREME_ERROR_TIMEOUT  The deadline passed. The communicator has failed. The ranks that
 * the message names count as lost. Ranks with a later deadline may get TRIREME_OK, all with the
 * same value.
 * @retval TRIREME_ERROR_PEER_LOST  This rank itself counts as lost. Or it reaches too few others
 *                  (tcp://): the message says "no majority" and names the ranks that it has lost.
 * @retval TRIREME_ERROR_MISMATCH  Other ranks called trireme_communicator_shrink().
 * @return Also the communicator's failure, if that came before this rank had met the others.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_communicator_agree(
    trireme_communicator *communicator, uint64_t *flags, uint64_t timeout_ns);

/**
 * Makes a group of the ranks that are there, after others were lost.
 *
 * All ranks that are there call this and trireme_communicator_agree() in the same order. Blocks
 * until each rank has called it or counts as lost, and until the callers have met. Every rank that
 * gets TRIREME_OK is in the same new group, in the old order.
 * trireme_communicator_get_original_ranks() tells its ranks. The old communicator stays as it is,
 * mostly failed, until it is destroyed.
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
 * @retval TRIREME_ERROR_TIMEOUT  The deadline passed. The ranks that the message names count as
 *                  lost. May be called again.
 * @retval TRIREME_ERROR_PEER_LOST  Another rank was lost meanwhile: call it again (try_again is 1).
 * Or this rank itself counts as lost, or reaches too few others; the message says which.
 * @retval TRIREME_ERROR_MISMATCH  Other ranks called trireme_communicator_agree().
 * @retval TRIREME_ERROR_SYSTEM  A rank could not make a socket, thread or mapping. The message
 * names it.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 * @return Also the communicator's failure, if that came before this rank had met the others.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_communicator_shrink(
    trireme_communicator *communicator, const trireme_child_options *options,
    trireme_communicator **out_communicator);

TRIREME_END_C

#endif
