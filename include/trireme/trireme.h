/**
 * @file trireme.h
 * @brief Everything: distributed training behind a stable C ABI.
 *
 * Ownership and thread safety: see each header.
 */
#ifndef TRIREME_TRIREME_H
#define TRIREME_TRIREME_H

#include <trireme/buffer.h>
#include <trireme/batch.h>
#include <trireme/collectives.h>
#include <trireme/communicator.h>
#include <trireme/context.h>
#include <trireme/experts.h>
#include <trireme/device.h>
#include <trireme/export.h>
#include <trireme/failpoint.h>
#include <trireme/layers.h>
#include <trireme/log.h>
#include <trireme/mesh.h>
#include <trireme/messages.h>
#include <trireme/model_options.h>
#include <trireme/model.h>
#include <trireme/model_device.h>
#include <trireme/offload.h>
#include <trireme/optimizer_options.h>
#include <trireme/optimizer.h>
#include <trireme/parallel.h>
#include <trireme/pipeline.h>
#include <trireme/random.h>
#include <trireme/rebalance.h>
#include <trireme/request.h>
#include <trireme/rooted_collectives.h>
#include <trireme/rules.h>
#include <trireme/schedule.h>
#include <trireme/status.h>
#include <trireme/store.h>
#include <trireme/tensor.h>
#include <trireme/trainer.h>
#include <trireme/transport.h>
#include <trireme/types.h>
#include <trireme/version.h>
#include <trireme/vocabulary.h>

#endif
