/**
 * @file model_device.h
 * @brief Models on a CUDA device.
 *
 * Where the communicator works on a CUDA device, parameters and the state of the optimizer are
 * memory of that device. Gradients, values and results of the caller must be, too; other memory is
 * TRIREME_ERROR_INVALID_ARGUMENT. A call waits for the work in the caller's stream, and returns
 * when the device has done its own. The bits are those of the host. trireme_model_gather_unit()
 * returns earlier: later work in the caller's stream follows its copy.
 *
 * - docs/gpus.md lists the strategies, rules and options that work there. All others are
 *   TRIREME_ERROR_UNSUPPORTED.
 * - Gradients go to the peers through memory of the host, so no gradient has a view.
 * - A device that fails, or is not done by the deadline, fails the model on all ranks with
 *   TRIREME_ERROR_DEVICE or TRIREME_ERROR_TIMEOUT.
 * - The caller's stream is the default stream of the device, until trireme_model_set_stream() names
 *   another one. A trainer hands it to its callbacks, which queue their work there.
 */
#ifndef TRIREME_MODEL_DEVICE_H
#define TRIREME_MODEL_DEVICE_H

#include <trireme/export.h>
#include <trireme/model.h>
#include <trireme/status.h>
#include <trireme/types.h>

TRIREME_BEGIN_C

/**
 * Names the caller's stream of a model on a device. The next call of the model, its optimizer or
 * its trainer waits for the work in this stream, and so do later ones. Each rank names its own.
 *
 * Local: does not wait for the peers. It waits for no work in either stream: let the new stream
 * wait for what is still queued in the one before.
 *
 * The stream must exist until another one is named, or the model, its optimizer and its trainer are
 * destroyed. Each call looks whether it can be used, and answers like this function. Then name
 * another one, and call again. The stream follows the copies of units that are gathered.
 *
 * @param model  A model on a device, sealed or not.
 * @param stream  A stream of the model's device. All zero, or `native` NULL, is its default stream.
 *                Default: NULL, the default stream.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  `stream` is not all zero and no stream of CUDA, or its
 * `reserved` is not 0. Or it is not of the primary context of the model's device, such as a stream
 * of another device. Or the driver knows no such stream, as far as it can tell: for example, it was
 * destroyed. The stream named before stays.
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live model of this process.
 * @retval TRIREME_ERROR_INVALID_STATE  The model works on the host. Or the stream is recorded into
 * a graph. Or this is a callback of the trainer.
 * @retval TRIREME_ERROR_DEVICE  The device has failed; the model fails on all ranks.
 * @return Any other status with which the model has failed before.
 *
 * Thread safety: one call at a time per model.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_model_set_stream(trireme_model *model, const trireme_stream *stream);

TRIREME_END_C

#endif
