/**
 * @file mesh.h
 * @brief Ranks arranged in named axes, such as data, tensor and pipeline.
 *
 * A mesh gives every rank of a communicator one coordinate on each axis. It also makes one
 * communicator for each axis, of the ranks that differ in this coordinate only. parallel.h makes a
 * mesh of the six known axes, with all that training on them needs.
 *
 * Ownership: trireme_mesh_create() creates a mesh, and trireme_mesh_destroy() destroys it. The
 * communicators of its axes belong to it. Once there is a mesh, the caller may destroy its
 * communicator: axes and models go on. Only trireme_mesh_create_communicator() needs it.
 *
 * Groups: one for each axis. For models a mesh also makes up to three groups that no handle names.
 * One is of the ranks along "data", "shard", "context" and "expert". Another one is of these
 * without "expert". The third one is of all ranks, where "tensor", "pipeline" or "expert" has
 * several. It makes none twice, nor where one axis has these ranks, nor where no model can lie on
 * the axes.
 *
 * A model on a mesh (trireme_mesh_create_model()): the names of the axes tell how the model lies.
 * - "data": along it lie copies of the model, and each rank has data of its own.
 * - "shard": the ranks along it keep one copy between them.
 * - "context" and "expert": as "data". So their sizes multiply the ranks of a strategy.
 * - "tensor" and "pipeline": each rank along them has a model of its own, such as parts of the same
 *   layers, or other layers. Gradients are added up along these axes for parameters that are
 *   TRIREME_PLACEMENT_SHARED or TRIREME_PLACEMENT_TIED there, and for no others.
 *
 * The axes decide about these options, so each may stay at its default:
 * - data_parallel, zero1, zero2 and zero3 spread a model over "data". zero1, zero2 and zero3 may
 *   spread it over "shard" instead.
 * - hybrid_shard takes both axes. The size of "shard" is shards.ranks, and the distance of
 *   neighbours along it is shards.stride.
 * - The models along "tensor" and "pipeline" step together. So norm_ranks of an optimizer are all
 *   ranks of the mesh, if the optimizer has a max_norm or a loss_scale. All of these models have
 *   one, or none has.
 * - A parameter that ranks of such an axis hold whole says so (trireme_parameter_placement). Its
 *   `replicas` are the ranks along these axes.
 *
 * Thread safety: every function here may run on any thread concurrently with other calls on the
 * same mesh. All ranks must make collective calls in the same order.
 */
#ifndef TRIREME_MESH_H
#define TRIREME_MESH_H

#include <stdint.h>
#include <trireme/communicator.h>
#include <trireme/export.h>
#include <trireme/model_options.h>
#include <trireme/status.h>
#include <trireme/types.h>

TRIREME_BEGIN_C

/** Most axes of a mesh. */
#define TRIREME_MESH_MAX_AXES 16

/** How ranks are numbered along the axes. 0 is the default, by name. */
typedef int32_t trireme_mesh_order;

/** Numbers of the orders. Ranks along the fastest axis have consecutive numbers. */
enum {
    /**
     * "tensor" is fastest, then "context", "expert", "shard", "data", "pipeline". Other names are
     * slower than these. Of the other names the last one is fastest.
     */
    TRIREME_MESH_ORDER_BY_NAME = 0,
    /** The last axis of the list is fastest. */
    TRIREME_MESH_ORDER_LAST_FASTEST = 1,
    /** The first axis of the list is fastest. */
    TRIREME_MESH_ORDER_FIRST_FASTEST = 2
};

/** The axes of a mesh. Start from TRIREME_MESH_OPTIONS_INIT. */
typedef struct trireme_mesh_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** Must be 0. */
    uint32_t flags;
    /** Number of axes: entries of the two lists below; 1 to TRIREME_MESH_MAX_AXES. Required. */
    uint32_t axis_count;
    /** How ranks are numbered. Default: TRIREME_MESH_ORDER_BY_NAME. */
    trireme_mesh_order order;
    /** Names of the axes, any text, each once; UTF-8, at most 31 bytes. Required. */
    const char *const *axis_names;
    /** Ranks along each axis. One of them may be 0: that axis gets the rest. Required. */
    const int32_t *axis_sizes;
    /** Longest that the creation may wait, in nanoseconds. Default: the communicator's timeout. */
    uint64_t timeout_ns;
} trireme_mesh_options; /* since 1.0 */

/** No axes yet. */
#define TRIREME_MESH_OPTIONS_INIT TRIREME_INIT(trireme_mesh_options)

/**
 * Arranges the ranks of a communicator in axes and makes a communicator for each axis.
 *
 * Collective: blocks until the ranks along each of this rank's axes have met. All ranks give the
 * same axes. Keeps no pointer into `options`. Does not use the communicator after it returns.
 *
 * @param communicator  All ranks of the mesh.
 * @param options       The axes. Required.
 * @param[out] out_mesh  The new mesh; free it with trireme_mesh_destroy(). Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live communicator of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL. A name is empty, too long or given
 * twice. Or a size is negative, two sizes are 0, or their product is not the world size.
 * @retval TRIREME_ERROR_INVALID_STATE  Called inside a completion callback of the communicator.
 * @retval TRIREME_ERROR_UNSUPPORTED  `options` sets a field newer than this library. Or MPI, or a
 * transport of the caller's, moves the bytes of the communicator's ranks.
 * @retval TRIREME_ERROR_MISMATCH  Ranks gave different axes, or called different things.
 * @retval TRIREME_ERROR_TIMEOUT  The deadline passed; names the ranks that are missing.
 * @retval TRIREME_ERROR_PEER_LOST  A rank died or left; names it.
 * @retval TRIREME_ERROR_ABORTED  The communicator was aborted.
 * @retval TRIREME_ERROR_SYSTEM  A rank could not make a socket, thread or mapping; names it.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out on a rank.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_mesh_create(trireme_communicator *communicator, const trireme_mesh_options *options,
                    trireme_mesh **out_mesh);

/**
 * Leaves the communicators of the axes and destroys the handle.
 *
 * Never waits for a peer. Handles of trireme_mesh_get_axis_communicator() are stale afterwards.
 * Communicators of trireme_mesh_create_communicator() live on.
 *
 * @param mesh  A mesh; NULL and a stale handle are ignored.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_API void TRIREME_CALLCONV trireme_mesh_destroy(trireme_mesh *mesh);

/**
 * Gives the size of an axis, also of the one whose size was given as 0.
 *
 * Does not block.
 *
 * @param mesh           The mesh.
 * @param axis           Name of an axis.
 * @param[out] out_size  Ranks along it. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live mesh of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, or there is no such axis.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_mesh_get_axis_size(const trireme_mesh *mesh, const char *axis, int32_t *out_size);

/**
 * Gives a rank's place on every axis.
 *
 * Does not block.
 *
 * @param mesh  The mesh.
 * @param rank  Rank of the mesh's communicator.
 * @param[out] out_coordinates  One number for each axis, in the order of the options. Not written
 *                  on failure.
 * @param capacity  Numbers that fit in out_coordinates; at least the number of axes.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live mesh of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_coordinates is NULL, or a number is out of range.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_mesh_get_coordinates(
    const trireme_mesh *mesh, int32_t rank, int32_t *out_coordinates, uint64_t capacity);

/**
 * Gives the rank with these coordinates.
 *
 * Does not block.
 *
 * @param mesh         The mesh.
 * @param coordinates  One number for each axis, in the order of the options.
 * @param count        Numbers at `coordinates`; must be the number of axes.
 * @param[out] out_rank  Rank of the mesh's communicator. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live mesh of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, or a number is out of range.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_mesh_get_rank(const trireme_mesh *mesh,
                                                                       const int32_t *coordinates,
                                                                       uint64_t count,
                                                                       int32_t *out_rank);

/**
 * Lists the ranks that differ from a rank on the given axes only: its group along these axes.
 *
 * Does not block.
 *
 * @param mesh        The mesh.
 * @param axes        Names of axes, each once.
 * @param axis_count  Number of names; 1 or more.
 * @param rank        Rank of the mesh's communicator; it is in the list.
 * @param[out] out_ranks  Ranks of the mesh's communicator, ascending; NULL to ask for their number
 *                    only. Not written on failure.
 * @param capacity    Numbers that fit in out_ranks; at least the number of ranks, unless out_ranks
 *                    is NULL.
 * @param[out] out_count  Number of ranks in the list; may be NULL.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live mesh of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A name is NULL, given twice or no axis. Or the rank is
 *                  out of range, or capacity is too small.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_mesh_get_group(const trireme_mesh *mesh, const char *const *axes, uint32_t axis_count,
                       int32_t rank, int32_t *out_ranks, uint64_t capacity, uint64_t *out_count);

/**
 * Gives the communicator of the ranks along one axis that this rank is in. A rank's number there is
 * its coordinate.
 *
 * Does not block: the mesh has made the communicator. Every call gives the same handle.
 *
 * @param mesh  The mesh.
 * @param axis  Name of an axis.
 * @param[out] out_communicator  The communicator. It belongs to the mesh and ends with it; do not
 *                  destroy it. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live mesh of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, or there is no such axis.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_mesh_get_axis_communicator(
    const trireme_mesh *mesh, const char *axis, trireme_communicator **out_communicator);

/**
 * Makes a communicator over several axes together, for example "data" and "shard".
 *
 * Collective over the mesh's communicator, which must be live and well on all ranks. Blocks until
 * the ranks of this rank's group have met. Ranks are in ascending order. Keeps no pointer.
 *
 * @param mesh        The mesh.
 * @param axes        Names of axes, each once, the same on all ranks in any order.
 * @param axis_count  Number of names; 1 or more.
 * @param options     Name and deadline; NULL for the defaults.
 * @param[out] out_communicator  The new communicator; free it with trireme_communicator_destroy().
 *                    Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live mesh of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, a name is no axis or given twice, or
 *                  an option is out of range.
 * @retval TRIREME_ERROR_INVALID_STATE  The mesh's communicator was destroyed, or this is a
 *                  completion callback of it.
 * @retval TRIREME_ERROR_UNSUPPORTED  `options` sets a field newer than this library. Or MPI, or a
 *                  transport of the caller's, moves the bytes of the mesh's ranks.
 * @retval TRIREME_ERROR_MISMATCH  Ranks gave different axes, or called different things.
 * @retval TRIREME_ERROR_TIMEOUT  The deadline passed; names the ranks that are missing.
 * @retval TRIREME_ERROR_PEER_LOST  A rank died or left; names it.
 * @retval TRIREME_ERROR_ABORTED  The mesh's communicator was aborted.
 * @retval TRIREME_ERROR_SYSTEM  A rank could not make a socket, thread or mapping; names it.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out on a rank.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_mesh_create_communicator(
    const trireme_mesh *mesh, const char *const *axes, uint32_t axis_count,
    const trireme_child_options *options, trireme_communicator **out_communicator);

/**
 * Begins the description of a model on a mesh: as trireme_model_create(), on the ranks that the
 * axes "data", "shard", "context" and "expert" give this rank.
 *
 * Local: does not wait for the peers. Keeps no pointer into `options`.
 *
 * All ranks of the mesh make these calls in one order, with any options. trireme_model_seal() and
 * trireme_optimizer_create() are then collective over the whole mesh. Several threads may make them
 * for several models in any order. Along "tensor" and "pipeline" the seal compares the parameters
 * that are whole there. The model trains as long as the mesh lives.
 *
 * A rank may seal a model on a communicator in place of the one on the mesh. Then that seal is a
 * MISMATCH, and the mesh seals no other model. Ranks that lie with it along "tensor" or "pipeline"
 * hear nothing of it, and wait until the deadline.
 *
 * @param mesh     The mesh. It needs an axis "data" or "shard", of 1 rank at least.
 * @param options  How to spread the model. Required.
 * @param[out] out_model  The new model; free it with trireme_model_destroy(). Not written on
 *                 failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live mesh of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  As for trireme_model_create(). Or the mesh has neither
 *                 "data" nor "shard", or more than one rank on an axis of an unknown name. Or an
 *                 option contradicts an axis; the message names both. data_parallel needs 1 rank on
 *                 "shard". zero1, zero2 and zero3 need 1 rank on "data" or on "shard". hybrid_shard
 *                 needs the axis "shard".
 * @retval TRIREME_ERROR_UNSUPPORTED  As for trireme_model_create().
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_mesh_create_model(
    const trireme_mesh *mesh, const trireme_model_options *options, trireme_model **out_model);

TRIREME_END_C

#endif
