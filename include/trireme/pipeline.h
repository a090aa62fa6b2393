/**
 * @file pipeline.h
 * @brief Schedules of pipeline parallelism as data: made, checked, simulated, searched, drawn.
 *
 * A pipeline cuts the layers of a model into stages. Each rank holds one or more stages. A step
 * sends micro-batches forward through all stages and gradients backward. A schedule lists, for each
 * rank, the actions of a step in order. docs/pipeline.md tells which schedule suits which job.
 */
#ifndef TRIREME_PIPELINE_H
#define TRIREME_PIPELINE_H

#include <stdint.h>
#include <trireme/export.h>
#include <trireme/status.h>

TRIREME_BEGIN_C

/** A kind of action. 0 is none. */
typedef int32_t trireme_pipeline_kind;

/** Numbers of the kinds, with the letters of the text forms. */
enum {
    /** F: forward of a micro-batch through a stage. */
    TRIREME_PIPELINE_KIND_F = 1,
    /** I: backward for the input of the stage. */
    TRIREME_PIPELINE_KIND_I = 2,
    /** W: backward for the weights, after I. */
    TRIREME_PIPELINE_KIND_W = 3,
    /** B: I and W in one. */
    TRIREME_PIPELINE_KIND_B = 4,
    /** R: recomputes what F did not keep, before I or B. */
    TRIREME_PIPELINE_KIND_R = 5,
    /** SEND_F: sends the output of F to the next stage. */
    TRIREME_PIPELINE_KIND_SEND_F = 6,
    /** RECV_F: receives the input of F from the stage before. */
    TRIREME_PIPELINE_KIND_RECV_F = 7,
    /** SEND_B: sends the gradient of the input to the stage before. */
    TRIREME_PIPELINE_KIND_SEND_B = 8,
    /** RECV_B: receives the gradient of the output from the next stage. */
    TRIREME_PIPELINE_KIND_RECV_B = 9,
    /** GATHER: gathers the parameters of a stage. Micro-batch 0. */
    TRIREME_PIPELINE_KIND_GATHER = 10,
    /** RELEASE: frees the gathered parameters of a stage. Micro-batch 0. */
    TRIREME_PIPELINE_KIND_RELEASE = 11,
    /** REDUCE: reduces the gradients of a stage, after its last W or B. Micro-batch 0. */
    TRIREME_PIPELINE_KIND_REDUCE = 12
};

/** One action of a rank. */
typedef struct trireme_pipeline_action {
    /** TRIREME_PIPELINE_KIND_*. */
    trireme_pipeline_kind kind;
    /** Number of the stage, from 0. */
    uint32_t stage;
    /** Number of the micro-batch, from 0. */
    uint32_t micro_batch;
    /**
     * 0, or a number that this action shares with the action beside it: the two may overlap. One is
     * F, the other one I or B.
     */
    uint32_t pair;
} trireme_pipeline_action; /* since 1.0 */

/** One schedule. */
typedef struct trireme_pipeline_schedule trireme_pipeline_schedule;

/** An order of actions that has a name. 0 is none. */
typedef int32_t trireme_pipeline_order;

/**
 * Numbers of the orders. p is the ranks, m the micro-batches, v the stages of a rank. Where a line
 * tells v, other numbers are refused. docs/pipeline.md has bubbles and memory of each.
 */
enum {
    /** All F, then all B. Huang et al. 2019 (arXiv 1811.06965). */
    TRIREME_PIPELINE_ORDER_GPIPE = 1,
    /** F and B in turn, after p-r-1 F. v is 1. Narayanan et al. 2019 (PipeDream-Flush). */
    TRIREME_PIPELINE_ORDER_1F1B = 2,
    /** 1F1B over groups of p micro-batches. v is 2 or more. Narayanan et al. 2021. */
    TRIREME_PIPELINE_ORDER_INTERLEAVED = 3,
    /** As GPIPE, stage by stage. Lamy-Poirier 2023 (arXiv 2211.05953). */
    TRIREME_PIPELINE_ORDER_LOOPED_BFS = 4,
    /** I and W apart; rank r holds back r of W. v is 1. Qi et al. 2024 (arXiv 2401.10241). */
    TRIREME_PIPELINE_ORDER_ZB_H1 = 5,
    /** As ZB_H1, with up to 2p-1 micro-batches on their way. v is 1. */
    TRIREME_PIPELINE_ORDER_ZB_H2 = 6,
    /** I and W apart, along a V. v is 2. */
    TRIREME_PIPELINE_ORDER_ZB_V = 7,
    /** Along a V, with about half the memory of ZB_V. v is 2. Qi et al. 2024 (arXiv 2405.15362). */
    TRIREME_PIPELINE_ORDER_V_HALF = 8,
    /** Along a V, with about a third of the memory of ZB_V. v is 2. */
    TRIREME_PIPELINE_ORDER_V_MIN = 9,
    /** Pairs of F and B that may overlap, along a V. v is 2. DeepSeek 2025. */
    TRIREME_PIPELINE_ORDER_DUALPIPE_V = 10,
    /** Along a snake, by the list scheduler for equal stages. Liu et al. 2023 (arXiv 2308.15762).
     */
    TRIREME_PIPELINE_ORDER_WAVE = 11,
    /** The shortest that a search finds for given costs and limits. */
    TRIREME_PIPELINE_ORDER_BEST = 12
};

/** Where stages lie. 0 is the one of the order. */
typedef int32_t trireme_pipeline_placement;

/** Numbers of the placements. */
enum {
    /** Stage s lies on rank s mod p. */
    TRIREME_PIPELINE_PLACEMENT_LOOP = 1,
    /** Rank r holds stages r and 2p-1-r. */
    TRIREME_PIPELINE_PLACEMENT_V = 2,
    /** Stages go to rank p-1, back to rank 0, and so on. */
    TRIREME_PIPELINE_PLACEMENT_WAVE = 3,
    /** The list `rank_of`. */
    TRIREME_PIPELINE_PLACEMENT_LIST = 4
};

/** The number that BEST makes small. */
typedef int32_t trireme_pipeline_objective;

/** Numbers of the objectives. */
enum {
    /** From the begin of the first action to the end of the last one. */
    TRIREME_PIPELINE_OBJECTIVE_MAKESPAN = 0,
    /** The longest time from a rank's first action to its last one. */
    TRIREME_PIPELINE_OBJECTIVE_SPAN = 1
};

/** A rule of a valid schedule. */
typedef int32_t trireme_pipeline_rule;

/** Numbers of the rules. */
enum {
    /** All rules hold. */
    TRIREME_PIPELINE_RULE_NONE = 0,
    /** Kinds, stages and micro-batches are known. */
    TRIREME_PIPELINE_RULE_KNOWN = 1,
    /** The actions of a stage stand in the list of its rank. */
    TRIREME_PIPELINE_RULE_RANK = 2,
    /** No action comes twice. B excludes I and W of the same micro-batch. */
    TRIREME_PIPELINE_RULE_ONCE = 3,
    /** Each stage has F, and B or I and W, of each micro-batch. */
    TRIREME_PIPELINE_RULE_COMPLETE = 4,
    /** I comes after F, W after I, and a stage after the one before it on the same rank. */
    TRIREME_PIPELINE_RULE_ORDER = 5,
    /** Each message is sent and received. */
    TRIREME_PIPELINE_RULE_MESSAGE = 6,
    /** A link's messages are received in the order in which they are sent. */
    TRIREME_PIPELINE_RULE_MESSAGE_ORDER = 7,
    /** No ranks wait for each other in a circle. */
    TRIREME_PIPELINE_RULE_CYCLE = 8,
    /** Each rank's peak is within its limit. */
    TRIREME_PIPELINE_RULE_MEMORY = 9,
    /** A pair is two neighbours, one F and one I or B, of two micro-batches. */
    TRIREME_PIPELINE_RULE_PAIR = 10,
    /** A stage that is gathered anywhere is gathered where it is used. REDUCE comes last. */
    TRIREME_PIPELINE_RULE_UNIT = 11
};

/** A form in which a schedule is written. */
typedef int32_t trireme_pipeline_format;

/** Numbers of the forms. */
enum {
    /** A line of sizes and placement, then the actions of each rank: "0F0 0F1 0B0". */
    TRIREME_PIPELINE_FORMAT_TEXT = 1,
    /** The CSV of PyTorch's torch.distributed.pipelining. */
    TRIREME_PIPELINE_FORMAT_CSV = 2,
    /** A drawing along time, a line for each rank. */
    TRIREME_PIPELINE_FORMAT_DRAWING = 3,
    /** The same as SVG. */
    TRIREME_PIPELINE_FORMAT_SVG = 4,
    /** Events of chrome://tracing and Perfetto, as JSON. */
    TRIREME_PIPELINE_FORMAT_TRACE = 5
};

/** Costs of one stage. Start from TRIREME_PIPELINE_STAGE_COSTS_INIT. */
typedef struct trireme_pipeline_stage_costs {
    /** sizeof this struct as the caller knows it. All of a list have the same. */
    uint32_t struct_size;
    /** Must be 0. */
    uint32_t reserved;
    /** Seconds of F. All seconds are finite and 0 or more. Default: 0. */
    double forward;
    /** Seconds of I. Default: 0. */
    double input;
    /** Seconds of W. Default: 0. */
    double weight;
    /** Seconds of B. Default: 0, which means those of I and W. */
    double backward;
    /** Seconds of R. Default: 0. */
    double recompute;
    /** Seconds of GATHER. Default: 0. */
    double gather;
    /** Seconds of REDUCE. Default: 0. */
    double reduce;
    /** Bytes of a micro-batch from F until I or B; at most 2^48, as all bytes. Default: 0. */
    uint64_t kept_bytes;
    /** Bytes of a micro-batch from I until W. Default: 0. */
    uint64_t held_bytes;
    /** Bytes of a micro-batch from F until R, where the schedule has an R for it. Default: 0. */
    uint64_t checkpoint_bytes;
    /** Bytes from GATHER until RELEASE. Default: 0. */
    uint64_t parameter_bytes;
    /** Bytes of the output of the stage, and of the gradient that comes back. Default: 0. */
    uint64_t message_bytes;
} trireme_pipeline_stage_costs; /* since 1.0 */

/** A stage that takes no time and no memory. */
#define TRIREME_PIPELINE_STAGE_COSTS_INIT TRIREME_INIT(trireme_pipeline_stage_costs)

/** Costs of all stages, and of messages. Start from TRIREME_PIPELINE_COSTS_INIT. */
typedef struct trireme_pipeline_costs {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** Must be 0. */
    uint32_t reserved;
    /** One for each stage. Required. */
    const trireme_pipeline_stage_costs *stages;
    /** Stages at `stages`. */
    uint64_t stage_count;
    /** Seconds of each action beyond its own. Default: 0. */
    double overhead;
    /** Seconds from the end of a message's sending to its arrival. Default: 0. */
    double latency;
    /**
     * Bytes per second from one rank to another. A link carries its messages one after the other.
     * Default: 0, no limit.
     */
    double bytes_per_second;
} trireme_pipeline_costs; /* since 1.0 */

/** Costs that lack their stages. */
#define TRIREME_PIPELINE_COSTS_INIT TRIREME_INIT(trireme_pipeline_costs)

/** Limits of a schedule. Start from TRIREME_PIPELINE_LIMITS_INIT. */
typedef struct trireme_pipeline_limits {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /**
     * Messages of one stage boundary and one direction that may wait for their receiver. A sender
     * begins the next action of the boundary when one is taken. Default: 0, no limit.
     */
    uint32_t buffers;
    /** Bytes that each rank may hold, as kept_bytes and held_bytes count. Default: NULL, any. */
    const uint64_t *bytes;
    /** Ranks at `bytes`. */
    uint64_t rank_count;
} trireme_pipeline_limits; /* since 1.0 */

/** No limits. */
#define TRIREME_PIPELINE_LIMITS_INIT TRIREME_INIT(trireme_pipeline_limits)

/** Flags of trireme_pipeline_schedule_options. */
enum {
    /** The lists name SEND and RECV. Without, F, I and B receive and send by themselves. */
    TRIREME_PIPELINE_FLAG_MESSAGES = 1
};

/** Options of trireme_pipeline_schedule_create(). */
typedef struct trireme_pipeline_schedule_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** Required. */
    trireme_pipeline_order order;
    /** 0, or TRIREME_PIPELINE_FLAG_MESSAGES. */
    uint32_t flags;
    /** Ranks of the pipeline, 1 to 65,536. Required. */
    uint32_t ranks;
    /** Stages of each rank. Default: 0, which means 1. With LIST it must be 0. */
    uint32_t stages_per_rank;
    /** Micro-batches of a step, 1 or more. Any number, also below `ranks`. Required. */
    uint32_t micro_batches;
    /** BEST: any, or 0 to try LOOP and WAVE. Other orders: 0 or their own. Default: 0. */
    trireme_pipeline_placement placement;
    /** LIST: stages at `rank_of`. Else 0. */
    uint32_t stage_count;
    /** LIST: the rank of each stage; each rank has one at least. Else NULL. */
    const uint32_t *rank_of;
    /** BEST: required. Else NULL. */
    const trireme_pipeline_costs *costs;
    /** BEST: the schedule is within these. Else NULL. Default: NULL, none. */
    const trireme_pipeline_limits *limits;
    /** BEST: the number to make small. Default: MAKESPAN. */
    trireme_pipeline_objective objective;
    /** Must be 0. */
    uint32_t reserved;
    /** BEST: equal options and seeds give equal schedules. Default: 0. */
    uint64_t seed;
    /** BEST: schedules that the local search simulates. Default: 0, which means 2,000. */
    uint64_t evaluations;
} trireme_pipeline_schedule_options; /* since 1.0 */

/** Options that lack order, ranks and micro-batches. */
#define TRIREME_PIPELINE_SCHEDULE_OPTIONS_INIT TRIREME_INIT(trireme_pipeline_schedule_options)

/** Sizes of a schedule. Set struct_size before the call. */
typedef struct trireme_pipeline_schedule_info {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** Ranks. */
    uint32_t ranks;
    /** Stages of all ranks. */
    uint32_t stages;
    /** Micro-batches of a step. */
    uint32_t micro_batches;
    /** Actions of all ranks. */
    uint64_t action_count;
    /**
     * The order of the options. BEST: the order from which the search began, or BEST if that was
     * the list scheduler. Of a text or of actions: 0.
     */
    trireme_pipeline_order order;
    /** 1 if the lists name SEND and RECV. */
    uint32_t has_messages;
    /** BEST: the objective that was reached, in seconds. Else 0. */
    double value;
    /** BEST: no schedule of this placement comes below it. Else 0. */
    double bound;
    /** BEST: schedules that were simulated. Else 0. */
    uint64_t evaluations;
} trireme_pipeline_schedule_info; /* since 1.0 */

/** An info ready for trireme_pipeline_schedule_get_info(). */
#define TRIREME_PIPELINE_SCHEDULE_INFO_INIT TRIREME_INIT(trireme_pipeline_schedule_info)

/** The result of a check. Set struct_size before the call. */
typedef struct trireme_pipeline_check_report {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** The first rule that is broken, or TRIREME_PIPELINE_RULE_NONE. */
    trireme_pipeline_rule rule;
    /** The rank that breaks it. */
    uint32_t rank;
    /** 0. */
    uint32_t reserved;
    /** The place of the action in the rank's list. That of a missing one is the list's length. */
    uint64_t index;
    /** The action. */
    trireme_pipeline_action action;
    /** The largest peak of a rank, if all rules hold and costs were given. Else 0. */
    uint64_t peak_bytes;
} trireme_pipeline_check_report; /* since 1.0 */

/** A report ready for trireme_pipeline_schedule_check(). */
#define TRIREME_PIPELINE_CHECK_REPORT_INIT TRIREME_INIT(trireme_pipeline_check_report)

/** Times of a step, in seconds. Set struct_size before the call. */
typedef struct trireme_pipeline_step_report {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** 0. */
    uint32_t reserved;
    /** From the begin of the step to the end of its last action. */
    double makespan;
    /** The longest time from a rank's first action to its last one. */
    double span;
    /** Time in actions, of all ranks. */
    double work;
    /** Ranks times makespan, less `work`. */
    double idle;
    /** The part of idle: 1 - work / (ranks * makespan). */
    double bubble;
    /** No schedule of these stages and costs has a shorter makespan. */
    double lower_bound;
    /** The largest peak of a rank. */
    uint64_t peak_bytes;
    /** Bytes of all messages between ranks. */
    uint64_t sent_bytes;
    /** Steps of the critical path: trireme_pipeline_schedule_critical_path(). */
    uint64_t critical_count;
} trireme_pipeline_step_report; /* since 1.0 */

/** A report ready for trireme_pipeline_schedule_simulate(). */
#define TRIREME_PIPELINE_STEP_REPORT_INIT TRIREME_INIT(trireme_pipeline_step_report)

/** Times of one rank, in seconds. */
typedef struct trireme_pipeline_rank_times {
    /** When its first action begins. */
    double first_start;
    /** When its last action ends. */
    double last_end;
    /** Time in actions. */
    double work;
    /** Its peak. */
    uint64_t peak_bytes;
    /** Bytes that it sends. */
    uint64_t sent_bytes;
} trireme_pipeline_rank_times; /* since 1.0 */

/** A step of the critical path. */
typedef struct trireme_pipeline_critical_step {
    /** The rank. */
    uint32_t rank;
    /** 1 if the action waited for the one before it in the path, on another rank. */
    uint32_t waited;
    /** The place of the action in the rank's list. */
    uint64_t index;
} trireme_pipeline_critical_step; /* since 1.0 */

/** Costs of one layer. Start from TRIREME_PIPELINE_LAYER_COSTS_INIT. */
typedef struct trireme_pipeline_layer_costs {
    /** sizeof this struct as the caller knows it. All of a list have the same. */
    uint32_t struct_size;
    /** Must be 0. */
    uint32_t reserved;
    /** Seconds of F, I and W together; finite and 0 or more. Default: 0. */
    double seconds;
    /** Bytes of parameters, gradients and state; at most 2^40. Default: 0. */
    uint64_t bytes;
    /** Bytes of each micro-batch that a rank keeps; at most 2^40. Default: 0. */
    uint64_t kept_bytes;
} trireme_pipeline_layer_costs; /* since 1.0 */

/** A layer that costs nothing. */
#define TRIREME_PIPELINE_LAYER_COSTS_INIT TRIREME_INIT(trireme_pipeline_layer_costs)

/** Flags of trireme_partition_options. */
enum {
    /** Stages may be without layers. */
    TRIREME_PARTITION_FLAG_ALLOW_EMPTY = 1
};

/** Options of trireme_partition(). */
typedef struct trireme_partition_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** 0, or TRIREME_PARTITION_FLAG_ALLOW_EMPTY. */
    uint32_t flags;
    /** Ranks of the pipeline. Required. */
    uint32_t ranks;
    /** Stages of each rank. Along a wave at most 4. Default: 0, which means 1. */
    uint32_t stages_per_rank;
    /** LOOP, V or WAVE. Default: 0, which means LOOP. */
    trireme_pipeline_placement placement;
    /** Must be 0. */
    uint32_t reserved;
    /** Bytes that each of `ranks` may hold. Default: NULL, any. */
    const uint64_t *limits;
    /** Micro-batches that each of `ranks` keeps at a time; at most 64. Default: NULL, 1 each. */
    const uint32_t *in_flight;
} trireme_partition_options; /* since 1.0 */

/** Options that lack the ranks. */
#define TRIREME_PARTITION_OPTIONS_INIT TRIREME_INIT(trireme_partition_options)

/**
 * Names an order, such as "zb-h1". Does not block.
 *
 * @param order  Any number.
 * @return The name, which lives as long as the library. Never NULL: "unknown" for a number that is
 *         no order.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_API const char *TRIREME_CALLCONV trireme_pipeline_order_name(trireme_pipeline_order order);

/**
 * Reads the name of an order. Letters may be large or small; "-", "_" and spaces do not count.
 * Synonyms of other libraries are known, such as "Interleaved1F1B", "ZBVZeroBubble" and "hanayo".
 *
 * Does not block.
 *
 * @param name  The name.
 * @param[out] out_order  The order. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, or no order has the name.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_pipeline_order_parse(const char *name, trireme_pipeline_order *out_order);

/**
 * Makes a schedule of an order that has a name, or the best one that a search finds. Local: needs
 * no communicator. Keeps no pointer into `options`.
 *
 * BEST simulates all orders that suit the stages and limits, then schedules of a list scheduler.
 * Then it moves actions and keeps what is no worse. The result is never worse than an order with a
 * name that is within the limits.
 *
 * @param options  The schedule. Required.
 * @param[out] out_schedule  Free it with trireme_pipeline_schedule_destroy(). Not written on
 *                 failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, or a number is unknown or out of
 * range. Or the order does not have so many stages a rank. Or costs are negative, not finite or of
 * another number of stages. Or no schedule is within the limits.
 * @retval TRIREME_ERROR_UNSUPPORTED  `options` sets a field newer than this library.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_pipeline_schedule_create(
    const trireme_pipeline_schedule_options *options, trireme_pipeline_schedule **out_schedule);

/**
 * Reads a schedule from the text or CSV that trireme_pipeline_schedule_write() writes, or that
 * PyTorch writes. Does not check it: see trireme_pipeline_schedule_check().
 *
 * Of a CSV, stages and micro-batches are the largest numbers in it, and a stage lies where its F
 * are. Empty fields are slots in which a rank waits. B with a W of the same micro-batch means I.
 *
 * Does not block.
 *
 * @param text    The text; needs no final 0.
 * @param length  Its bytes, at most 2^28.
 * @param[out] out_schedule  Free it with trireme_pipeline_schedule_destroy(). Not written on
 *                failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, or the text is no schedule. The
 *                message names the line.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_pipeline_schedule_parse(
    const char *text, uint64_t length, trireme_pipeline_schedule **out_schedule);

/**
 * Makes a schedule from the caller's own lists. Does not check it: see
 * trireme_pipeline_schedule_check(). Keeps no pointer.
 *
 * Does not block.
 *
 * @param ranks          Ranks, 1 to 65,536.
 * @param micro_batches  Micro-batches of a step, 1 or more.
 * @param rank_of        The rank of each stage. Each rank has one at least.
 * @param stage_count    Stages.
 * @param actions        The actions of rank 0, then those of rank 1, and so on.
 * @param counts         Actions of each rank.
 * @param[out] out_schedule  Free it with trireme_pipeline_schedule_destroy(). Not written on
 *                       failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, or a number or rank is out of range.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_pipeline_schedule_from_actions(
    uint32_t ranks, uint32_t micro_batches, const uint32_t *rank_of, uint32_t stage_count,
    const trireme_pipeline_action *actions, const uint64_t *counts,
    trireme_pipeline_schedule **out_schedule);

/**
 * Destroys a schedule.
 *
 * Does not block.
 *
 * @param schedule  A schedule; NULL and a stale handle are ignored.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_API void TRIREME_CALLCONV
trireme_pipeline_schedule_destroy(trireme_pipeline_schedule *schedule);

/**
 * Tells the sizes of a schedule. Does not block.
 *
 * @param schedule  The schedule.
 * @param[out] info  Where to write it. Only struct_size is read.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live schedule of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  `info` is NULL, or its struct_size is too small.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_pipeline_schedule_get_info(
    const trireme_pipeline_schedule *schedule, trireme_pipeline_schedule_info *info);

/**
 * Tells on which rank each stage lies.
 *
 * Does not block.
 *
 * @param schedule  The schedule.
 * @param[out] rank_of   The ranks of the first `capacity` stages. NULL if capacity is 0.
 * @param capacity  Stages that fit there.
 * @param[out] out_count  All stages.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live schedule of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_pipeline_schedule_placement(const trireme_pipeline_schedule *schedule, uint32_t *rank_of,
                                    uint64_t capacity, uint64_t *out_count);

/**
 * Tells the actions of a rank, in order.
 *
 * Does not block.
 *
 * @param schedule  The schedule.
 * @param rank      A rank of the schedule.
 * @param[out] actions  The first `capacity` actions. NULL if capacity is 0.
 * @param capacity  Actions that fit there.
 * @param[out] out_count  All actions of the rank.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live schedule of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, or there is no such rank.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_pipeline_schedule_actions(
    const trireme_pipeline_schedule *schedule, uint32_t rank, trireme_pipeline_action *actions,
    uint64_t capacity, uint64_t *out_count);

/**
 * Looks whether a schedule can run: all rules of trireme_pipeline_rule. A schedule that holds them
 * never waits for ever, and no rank holds more bytes than its limit.
 *
 * Does not block.
 *
 * @param schedule  The schedule.
 * @param costs     Bytes of each stage. NULL: memory is not looked at.
 * @param limits    Buffers, and bytes of each rank. NULL: none.
 * @param[out] report  The first rule that is broken, and where. Only struct_size is read. NULL: not
 *                  told.
 * @retval TRIREME_OK  All rules hold.
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live schedule of this process.
 * @retval TRIREME_ERROR_INVALID_STATE  A rule is broken. The message names rank, index, action and
 *                  reason, and all actions of a circle. `report` is written.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A struct_size is too small, costs or limits are of
 *                  another number of stages or ranks, or limits have bytes without costs. `report`
 *                  is not written.
 * @retval TRIREME_ERROR_UNSUPPORTED  A struct sets a field newer than this library.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_pipeline_schedule_check(
    const trireme_pipeline_schedule *schedule, const trireme_pipeline_costs *costs,
    const trireme_pipeline_limits *limits, trireme_pipeline_check_report *report);

/**
 * Counts the times of a step.
 *
 * An action begins when the one before it on its rank has ended and its message is there. Pairs run
 * one after the other. SEND and RECV take `overhead` alone.
 *
 * Does not block.
 *
 * @param schedule  The schedule.
 * @param costs     Times and bytes of each stage. Required.
 * @param limits    `buffers` count as times to wait; `bytes` must be NULL. NULL: none.
 * @param[out] report  Times of the step. Only struct_size is read.
 * @param[out] ranks   Times of the first `rank_capacity` ranks. NULL if that is 0.
 * @param rank_capacity  Ranks that fit there.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live schedule of this process.
 * @retval TRIREME_ERROR_INVALID_STATE  The schedule cannot run, as
 *                  trireme_pipeline_schedule_check() tells.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, a struct_size is too small, or costs
 *                  are negative, not finite or of another number of stages.
 * @retval TRIREME_ERROR_UNSUPPORTED  A struct sets a field newer than this library.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_pipeline_schedule_simulate(
    const trireme_pipeline_schedule *schedule, const trireme_pipeline_costs *costs,
    const trireme_pipeline_limits *limits, trireme_pipeline_step_report *report,
    trireme_pipeline_rank_times *ranks, uint64_t rank_capacity);

/**
 * Tells when each action of a rank begins and ends, in seconds from the begin of the step.
 *
 * Does not block.
 *
 * @param schedule  The schedule.
 * @param costs     As for trireme_pipeline_schedule_simulate().
 * @param limits    As there.
 * @param rank      A rank of the schedule.
 * @param[out] starts  The begins of the first `capacity` actions. NULL if capacity is 0.
 * @param[out] ends    The same for their ends.
 * @param capacity  Actions that fit at each.
 * @param[out] out_count  All actions of the rank.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live schedule of this process.
 * @retval TRIREME_ERROR_INVALID_STATE  The schedule cannot run.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  As for trireme_pipeline_schedule_simulate(), or there is
 *                  no such rank.
 * @retval TRIREME_ERROR_UNSUPPORTED  A struct sets a field newer than this library.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_pipeline_schedule_times(
    const trireme_pipeline_schedule *schedule, const trireme_pipeline_costs *costs,
    const trireme_pipeline_limits *limits, uint32_t rank, double *starts, double *ends,
    uint64_t capacity, uint64_t *out_count);

/**
 * Tells the actions that decide the makespan, from the first one to the last one.
 *
 * Does not block.
 *
 * @param schedule  The schedule.
 * @param costs     As for trireme_pipeline_schedule_simulate().
 * @param limits    As there.
 * @param[out] steps  The first `capacity` steps. NULL if capacity is 0.
 * @param capacity  Steps that fit there.
 * @param[out] out_count  All steps.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live schedule of this process.
 * @retval TRIREME_ERROR_INVALID_STATE  The schedule cannot run.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  As for trireme_pipeline_schedule_simulate().
 * @retval TRIREME_ERROR_UNSUPPORTED  A struct sets a field newer than this library.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_pipeline_schedule_critical_path(
    const trireme_pipeline_schedule *schedule, const trireme_pipeline_costs *costs,
    const trireme_pipeline_limits *limits, trireme_pipeline_critical_step *steps, uint64_t capacity,
    uint64_t *out_count);

/**
 * Writes a schedule as text.
 *
 * Does not block.
 *
 * @param schedule  The schedule.
 * @param format    The form.
 * @param costs     DRAWING, SVG and TRACE: times of the actions. NULL: F, I and W of a rank's
 *                  stages together take 1 second each. TEXT and CSV: must be NULL.
 * @param[out] text  The text with a final 0, cut to `capacity` bytes. NULL if capacity is 0.
 * @param capacity  Bytes at `text`.
 * @param[out] out_length  Bytes of the whole text, without the final 0.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live schedule of this process.
 * @retval TRIREME_ERROR_INVALID_STATE  A drawing of a schedule that cannot run.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, the form is unknown, or as for
 *                  trireme_pipeline_schedule_simulate().
 * @retval TRIREME_ERROR_UNSUPPORTED  A struct sets a field newer than this library.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_pipeline_schedule_write(
    const trireme_pipeline_schedule *schedule, trireme_pipeline_format format,
    const trireme_pipeline_costs *costs, char *text, uint64_t capacity, uint64_t *out_length);

/**
 * Cuts layers into stages so that the slowest is as fast as possible. Optimal, by dynamic
 * programming. Stage s has the layers from cuts[s] up to, but without, cuts[s+1].
 *
 * LOOP makes the slowest stage fast, and each stage is within the limit of its rank. V and WAVE
 * take the stages of a rank together, in time and bytes.
 *
 * Does not block.
 *
 * @param layers       Costs of the layers, in order.
 * @param layer_count  Layers, 1 to 65,536. Each stage has one at least, without ALLOW_EMPTY.
 * @param options      Ranks, stages, limits. Required.
 * @param[out] cuts    ranks * stages_per_rank + 1 numbers: the first layer of each stage, and
 *                     layer_count. Not written on failure.
 * @param cut_count    Numbers at `cuts`.
 * @param[out] out_seconds  The time of the slowest stage, or rank. NULL: not told. Not written on
 *                     failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, or a number is out of range. Or costs
 *                     are negative or not finite. Or cut_count is wrong, or no cut is within the
 *                     limits.
 * @retval TRIREME_ERROR_UNSUPPORTED  There are too many cuts to try, as along a wave of hundreds of
 *                     layers. Or a struct sets a field newer than this library.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_partition(const trireme_pipeline_layer_costs *layers, uint64_t layer_count,
                  const trireme_partition_options *options, uint64_t *cuts, uint64_t cut_count,
                  double *out_seconds);

TRIREME_END_C

#endif
