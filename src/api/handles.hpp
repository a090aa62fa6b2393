// The handle table: a handle's value is a token {type, generation, index} that is looked up and
// never dereferenced. So a stale, foreign or doubly destroyed handle is an error and not a crash.
#pragma once

#include <trireme/context.h>
#include <trireme/experts.h>
#include <trireme/layers.h>
#include <trireme/parallel.h>
#include <trireme/pipeline.h>
#include <trireme/store.h>
#include <trireme/tensor.h>
#include <trireme/types.h>
#include <trireme/vocabulary.h>

#include <cstdint>
#include <memory>
#include <string>

#include "platform/status.hpp"
#include "platform/thread.hpp"

namespace trireme {
class Communicator;
class Request;
class Memory;
}  // namespace trireme

namespace trireme::strategies {
class Model;
class Optimizer;
class StepCaller;
}  // namespace trireme::strategies

namespace trireme::parallel {
class Linear;
class Context;
class Experts;
class Mlp;
class Region;
class Tensor;
class Vocabulary;
}  // namespace trireme::parallel

namespace trireme::api {

class MeshHandles;        // a mesh and the handles that belong to it
class ParallelHandles;    // the same of a parallel object
class StoreHandle;        // a store and its timeout
struct PipelineSchedule;  // a schedule and how it was found

enum class HandleType : std::uint8_t {
  communicator = 1,
  request,
  buffer,
  model,
  optimizer,
  mesh,
  trainer,
  store,
  tensor,
  region,
  vocabulary,
  linear,
  context,
  mlp,
  pipeline_schedule,
  experts,
  parallel
};

// The object behind each public type.
template <class Public>
struct HandleTraits;
#define TRIREME_HANDLE(public_type, object_type, handle_type)   \
  template <>                                                   \
  struct HandleTraits<public_type> {                            \
    using Object = object_type;                                 \
    static constexpr HandleType type = HandleType::handle_type; \
    static constexpr const char* name = #handle_type;           \
  }
TRIREME_HANDLE(trireme_communicator, Communicator, communicator);
TRIREME_HANDLE(trireme_request, Request, request);
TRIREME_HANDLE(trireme_buffer, Memory, buffer);
TRIREME_HANDLE(trireme_model, strategies::Model, model);
TRIREME_HANDLE(trireme_optimizer, strategies::Optimizer, optimizer);
TRIREME_HANDLE(trireme_mesh, MeshHandles, mesh);
TRIREME_HANDLE(trireme_trainer, strategies::StepCaller, trainer);
TRIREME_HANDLE(trireme_store, StoreHandle, store);
TRIREME_HANDLE(trireme_tensor, parallel::Tensor, tensor);
TRIREME_HANDLE(trireme_region, parallel::Region, region);
TRIREME_HANDLE(trireme_vocabulary, parallel::Vocabulary, vocabulary);
TRIREME_HANDLE(trireme_linear, parallel::Linear, linear);
TRIREME_HANDLE(trireme_context, parallel::Context, context);
TRIREME_HANDLE(trireme_mlp, parallel::Mlp, mlp);
TRIREME_HANDLE(trireme_pipeline_schedule, PipelineSchedule, pipeline_schedule);
TRIREME_HANDLE(trireme_experts, parallel::Experts, experts);
TRIREME_HANDLE(trireme_parallel, ParallelHandles, parallel);
#undef TRIREME_HANDLE

namespace detail {
// Throws bad_alloc when memory has run out; 0 is never a token.
std::uintptr_t insert_handle(HandleType type, std::shared_ptr<void> object);
// Null when there is no such live handle in this process.
std::shared_ptr<void> find_handle(HandleType type, std::uintptr_t token) noexcept;
// Removes the object from the table; null as above. The caller releases it, outside any lock.
std::shared_ptr<void> remove_handle(HandleType type, std::uintptr_t token) noexcept;
Status refuse_after_fork();  // or success
Status no_such_handle(const char* name, std::uintptr_t token);
}  // namespace detail

void fail_to_hand_out(Communicator& communicator) noexcept;

template <class Public>
Public* insert(std::shared_ptr<typename HandleTraits<Public>::Object> object) {
  return reinterpret_cast<Public*>(
      detail::insert_handle(HandleTraits<Public>::type, std::move(object)));
}

// Keeps the object alive as long as *out, even if another thread destroys the handle meanwhile.
template <class Public>
Status find(const Public* handle, std::shared_ptr<typename HandleTraits<Public>::Object>* out) {
  const auto token = reinterpret_cast<std::uintptr_t>(handle);
  auto object = detail::find_handle(HandleTraits<Public>::type, token);
  if (object == nullptr) [[unlikely]] {
    return detail::no_such_handle(HandleTraits<Public>::name, token);
  }
  *out = std::static_pointer_cast<typename HandleTraits<Public>::Object>(std::move(object));
  return Status::success();
}

// The same for callers that work on memory of the host alone. UNSUPPORTED if the communicator works
// on a device.
Status find_on_host(const trireme_communicator* handle, std::shared_ptr<Communicator>* out);

// Null for a stale handle.
template <class Public>
std::shared_ptr<typename HandleTraits<Public>::Object> remove(const Public* handle) noexcept {
  return std::static_pointer_cast<typename HandleTraits<Public>::Object>(
      detail::remove_handle(HandleTraits<Public>::type, reinterpret_cast<std::uintptr_t>(handle)));
}

// A thread that is cancelled inside ends afterwards: the released object may close files.
template <class Public>
void destroy(const Public* handle) noexcept {
  const NoCancellation whole_call;
  remove(handle);
}

// Runs `body`, which makes a handle for the result of an operation. If it throws, the group fails,
// or the groups of a model or optimizer.
template <class Ranks, class Body>
void hand_out(Ranks& communicator, Body&& body) {
  try {
    body();
  } catch (...) {
    fail_to_hand_out(communicator);
    throw;
  }
}

// A handle of memory that keeps the communicator alive.
trireme_buffer* insert_buffer(std::shared_ptr<Communicator> communicator,
                              std::shared_ptr<Memory> memory);

}  // namespace trireme::api
