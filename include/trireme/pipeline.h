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

TRIREME_END_C

#endif
