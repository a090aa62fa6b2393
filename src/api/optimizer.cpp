// optimizer.h: check, call down, hand over.
#include "optimizer/optimizer.hpp"

#include <trireme/optimizer.h>

#include <string>
#include <vector>

#include "api/boundary.hpp"
#include "api/handles.hpp"
#include "api/optimizer_options.hpp"
#include "api/schedule.hpp"
#include "optimizer/rules/settings.hpp"

using trireme::Status;
using trireme::strategies::Model;
using trireme::strategies::Optimizer;
namespace api = trireme::api;

namespace {

template <class Body>
trireme_status with_optimizer(const char* function, const trireme_optimizer* handle,
                              Body&& body) noexcept {
  return api::guard(function, [&]() -> Status {
    std::shared_ptr<Optimizer> optimizer;
    TRIREME_RETURN_IF_ERROR(api::find(handle, &optimizer));
    TRIREME_RETURN_IF_ERROR(optimizer->check_call());
    return body(*optimizer);
  });
}

}  // namespace

const char* trireme_rule_name(trireme_rule_kind kind) { return trireme::kernels::rule_name(kind); }

trireme_status trireme_optimizer_create(trireme_model* model,
                                        const trireme_optimizer_options* caller_options,
                                        trireme_optimizer** out_optimizer) {
  return api::guard(__func__, [&]() -> Status {
    trireme::optimizers::Options options;
    std::shared_ptr<trireme::Communicator> norm_ranks;
    Status read = api::read_optimizer_options(caller_options, &options, &norm_ranks);
    if (read.ok()) read = api::require(out_optimizer, "out_optimizer");
    std::shared_ptr<Model> found;
    Status known = api::find(model, &found);
    if (known.ok()) known = found->check_call();
    if (!known.ok()) return read.ok() ? known : read;
    std::shared_ptr<Optimizer> optimizer;
    Status status = Status::success();
    const auto create = [&] {
      status = Optimizer::create(found, options, std::move(read), norm_ranks, &optimizer);
      if (status.ok()) *out_optimizer = api::insert<trireme_optimizer>(optimizer);
    };
    // All ranks create it together: if memory runs out in the middle of it, the group fails. So
    // does the group of the norm, where other models wait for this one.
    api::hand_out(*found, [&] {
      if (norm_ranks == nullptr) return create();
      api::hand_out(*norm_ranks, create);
    });
    return status;
  });
}

void trireme_optimizer_destroy(trireme_optimizer* optimizer) { api::destroy(optimizer); }

trireme_status trireme_optimizer_step(trireme_optimizer* optimizer) {
  return with_optimizer(__func__, optimizer, [](Optimizer& found) -> Status {
    Status status = Status::success();
    api::hand_out(found, [&] { status = found.step(); });
    return status;
  });
}

trireme_status trireme_optimizer_step_together(trireme_optimizer* const* optimizers,
                                               uint64_t count) {
  return api::guard(__func__, [&]() -> Status {
    constexpr uint64_t kMost = 64;
    TRIREME_RETURN_IF_ERROR(api::require(optimizers, "optimizers"));
    if (count == 0 || count > kMost) {
      return trireme::invalid_argument("count is " + std::to_string(count) + ", but must be 1 to " +
                                       std::to_string(kMost));
    }
    std::vector<std::shared_ptr<Optimizer>> found(count);
    for (uint64_t i = 0; i < count; ++i) {
      TRIREME_RETURN_IF_ERROR(api::find(optimizers[i], &found[i]));
      TRIREME_RETURN_IF_ERROR(found[i]->check_call());
    }
    Status status = Status::success();
    api::hand_out(found, [&] { status = Optimizer::step_together(found); });
    return status;
  });
}

trireme_status trireme_optimizer_join(trireme_optimizer* optimizer, uint64_t* out_steps) {
  return with_optimizer(__func__, optimizer, [&](Optimizer& found) -> Status {
    uint64_t steps = 0;
    Status status = Status::success();
    api::hand_out(found, [&] { status = found.join(&steps); });
    if (status.ok() && out_steps != nullptr) *out_steps = steps;
    return status;
  });
}

trireme_status trireme_optimizer_set_learning_rate(trireme_optimizer* optimizer,
                                                   double learning_rate) {
  return with_optimizer(__func__, optimizer,
                        [&](Optimizer& found) { return found.set_learning_rate(learning_rate); });
}

trireme_status trireme_optimizer_set_group_rate_factor(trireme_optimizer* optimizer, uint64_t group,
                                                       double factor) {
  return with_optimizer(__func__, optimizer, [&](Optimizer& found) {
    return found.set_group_rate_factor(group, factor);
  });
}

trireme_status trireme_optimizer_set_schedule(trireme_optimizer* optimizer,
                                              const trireme_schedule_options* caller_options) {
  return with_optimizer(__func__, optimizer, [&](Optimizer& found) -> Status {
    if (caller_options == nullptr) return found.set_schedule(nullptr);
    trireme::optimizers::ScheduleOptions options;
    TRIREME_RETURN_IF_ERROR(api::read_schedule_options(caller_options, &options));
    return found.set_schedule(&options);
  });
}

trireme_status trireme_optimizer_get_step_rate(trireme_optimizer* optimizer, double* out_rate) {
  return with_optimizer(__func__, optimizer, [&](Optimizer& found) -> Status {
    TRIREME_RETURN_IF_ERROR(api::require(out_rate, "out_rate"));
    return found.next_rate(out_rate);
  });
}

trireme_status trireme_optimizer_get_learning_rate(const trireme_optimizer* optimizer,
                                                   double* out_learning_rate) {
  return with_optimizer(__func__, optimizer, [&](Optimizer& found) -> Status {
    TRIREME_RETURN_IF_ERROR(api::require(out_learning_rate, "out_learning_rate"));
    *out_learning_rate = found.settings().learning_rate;
    return Status::success();
  });
}

trireme_status trireme_optimizer_get_step_count(const trireme_optimizer* optimizer,
                                                uint64_t* out_steps) {
  return with_optimizer(__func__, optimizer, [&](Optimizer& found) -> Status {
    TRIREME_RETURN_IF_ERROR(api::require(out_steps, "out_steps"));
    *out_steps = found.step_count();
    return Status::success();
  });
}

trireme_status trireme_optimizer_get_gradient_norm(const trireme_optimizer* optimizer,
                                                   double* out_norm) {
  return with_optimizer(__func__, optimizer, [&](Optimizer& found) -> Status {
    TRIREME_RETURN_IF_ERROR(api::require(out_norm, "out_norm"));
    return found.norms().gradient_norm(out_norm);
  });
}

trireme_status trireme_optimizer_get_group_norm(const trireme_optimizer* optimizer, uint64_t group,
                                                double* out_norm) {
  return with_optimizer(__func__, optimizer, [&](Optimizer& found) -> Status {
    TRIREME_RETURN_IF_ERROR(api::require(out_norm, "out_norm"));
    return found.norms().group_norm(group, out_norm);
  });
}

trireme_status trireme_optimizer_get_loss_scale(const trireme_optimizer* optimizer,
                                                double* out_scale) {
  return with_optimizer(__func__, optimizer, [&](Optimizer& found) -> Status {
    TRIREME_RETURN_IF_ERROR(api::require(out_scale, "out_scale"));
    *out_scale = found.norms().loss_scale().scale();
    return Status::success();
  });
}

trireme_status trireme_optimizer_get_loss_scale_info(const trireme_optimizer* optimizer,
                                                     trireme_loss_scale_info* out_info) {
  return with_optimizer(__func__, optimizer, [&](Optimizer& found) -> Status {
    TRIREME_RETURN_IF_ERROR(api::check_info(out_info, "out_info"));
    trireme_loss_scale_info info = {};
    TRIREME_RETURN_IF_ERROR(found.norms().loss_scale_info(&info));
    api::write_info(info, out_info);
    return Status::success();
  });
}

trireme_status trireme_optimizer_get_counters(const trireme_optimizer* optimizer,
                                              trireme_optimizer_counters* caller_counters) {
  return with_optimizer(__func__, optimizer, [&](Optimizer& found) -> Status {
    trireme_optimizer_counters counters = TRIREME_OPTIMIZER_COUNTERS_INIT;
    TRIREME_RETURN_IF_ERROR(api::read_struct(caller_counters, "counters", &counters));
    TRIREME_RETURN_IF_ERROR(found.counters(&counters));
    api::write_info(counters, caller_counters);
    return Status::success();
  });
}

trireme_status trireme_optimizer_restore(trireme_optimizer* optimizer,
                                         const trireme_optimizer_counters* caller_counters) {
  return with_optimizer(__func__, optimizer, [&](Optimizer& found) -> Status {
    trireme_optimizer_counters counters = TRIREME_OPTIMIZER_COUNTERS_INIT;
    Status read = api::read_struct(caller_counters, "counters", &counters);
    Status status = Status::success();
    api::hand_out(found, [&] { status = found.restore(&counters, std::move(read)); });
    return status;
  });
}

trireme_status trireme_optimizer_get_range_count(const trireme_optimizer* optimizer,
                                                 uint64_t* out_count) {
  return with_optimizer(__func__, optimizer, [&](Optimizer& found) -> Status {
    TRIREME_RETURN_IF_ERROR(api::require(out_count, "out_count"));
    *out_count = found.ranges().count();
    return Status::success();
  });
}

trireme_status trireme_optimizer_get_range(const trireme_optimizer* optimizer, uint64_t index,
                                           trireme_state_range* out_range) {
  return with_optimizer(__func__, optimizer, [&](Optimizer& found) -> Status {
    TRIREME_RETURN_IF_ERROR(api::check_info(out_range, "out_range"));
    trireme_state_range range = {};
    TRIREME_RETURN_IF_ERROR(found.ranges().describe(index, &range));
    api::write_info(range, out_range);
    return Status::success();
  });
}

trireme_status trireme_optimizer_read_range(const trireme_optimizer* optimizer, uint64_t index,
                                            void* data, uint64_t bytes) {
  return with_optimizer(__func__, optimizer,
                        [&](Optimizer& found) { return found.ranges().read(index, data, bytes); });
}

trireme_status trireme_optimizer_write_range(trireme_optimizer* optimizer, uint64_t index,
                                             const void* data, uint64_t bytes) {
  return with_optimizer(__func__, optimizer,
                        [&](Optimizer& found) { return found.ranges().write(index, data, bytes); });
}

trireme_status trireme_optimizer_get_offload_info(const trireme_optimizer* optimizer,
                                                  trireme_offload_info* out_info) {
  return with_optimizer(__func__, optimizer, [&](Optimizer& found) -> Status {
    TRIREME_RETURN_IF_ERROR(api::check_info(out_info, "out_info"));
    trireme_offload_info info = {};
    TRIREME_RETURN_IF_ERROR(found.offload_info(&info));
    api::write_info(info, out_info);
    return Status::success();
  });
}

trireme_status trireme_optimizer_get_saved_bytes(const trireme_optimizer* optimizer,
                                                 uint64_t* out_bytes) {
  return with_optimizer(__func__, optimizer, [&](Optimizer& found) -> Status {
    TRIREME_RETURN_IF_ERROR(api::require(out_bytes, "out_bytes"));
    *out_bytes = found.saved_bytes();
    return Status::success();
  });
}

trireme_status trireme_optimizer_save(const trireme_optimizer* optimizer, void* state,
                                      uint64_t capacity, uint64_t* out_bytes) {
  return with_optimizer(__func__, optimizer, [&](Optimizer& found) -> Status {
    TRIREME_RETURN_IF_ERROR(api::require(state, "state"));
    TRIREME_RETURN_IF_ERROR(found.save(static_cast<char*>(state), capacity));
    if (out_bytes != nullptr) *out_bytes = found.saved_bytes();
    return Status::success();
  });
}

trireme_status trireme_optimizer_load(trireme_optimizer* optimizer, const void* state,
                                      uint64_t bytes) {
  return with_optimizer(__func__, optimizer, [&](Optimizer& found) -> Status {
    Status status = Status::success();
    api::hand_out(found, [&] { status = found.load(static_cast<const char*>(state), bytes); });
    return status;
  });
}
