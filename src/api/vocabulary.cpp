// vocabulary.h.
#include <trireme/vocabulary.h>

#include <memory>
#include <optional>
#include <utility>

#include "api/boundary.hpp"
#include "api/handles.hpp"
#include "api/operation_call.hpp"
#include "parallel/tensor/vocabulary.hpp"

using namespace trireme;
using parallel::TokenArray;
using parallel::Vocabulary;

namespace {

template <class Body>
trireme_status with_vocabulary(const char* function, const trireme_vocabulary* handle,
                               Body body) noexcept {
  return api::guard(function, [&]() -> Status {
    std::shared_ptr<Vocabulary> vocabulary;
    TRIREME_RETURN_IF_ERROR(api::find(handle, &vocabulary));
    return body(*vocabulary);
  });
}

// A pass that waits for peers: body(vocabulary, timeout).
template <class Body>
trireme_status run_vocabulary_pass(const char* function, trireme_vocabulary* handle,
                                   const trireme_pass_options* caller, Body body) noexcept {
  return with_vocabulary(function, handle, [&](Vocabulary& vocabulary) -> Status {
    trireme_pass_options options = TRIREME_PASS_OPTIONS_INIT;
    TRIREME_RETURN_IF_ERROR(api::read_optional(caller, "options", &options));
    TRIREME_RETURN_IF_ERROR(api::check_zero("options.flags", options.flags));
    TRIREME_RETURN_IF_ERROR(api::refuse_in_batch());
    const char* option = "timeout_ns of the pass's options";
    std::uint64_t timeout_ns = options.timeout_ns;
    if (timeout_ns == 0) {
      option = "timeout_ns of the tensor's options";
      timeout_ns = vocabulary.tensor().timeout_ns();
    }
    if (timeout_ns == 0) {
      option = "timeout_ns of the communicator's options";
      timeout_ns = vocabulary.tensor().communicator().timeout_ns();
    }
    return tell_deadline(body(vocabulary, timeout_ns), timeout_ns, option);
  });
}

Status read_vocabulary_options(const trireme_vocabulary_options* caller,
                               parallel::VocabularyOptions* out) {
  trireme_vocabulary_options options = TRIREME_VOCABULARY_OPTIONS_INIT;
  TRIREME_RETURN_IF_ERROR(api::read_struct(caller, "options", &options));
  TRIREME_RETURN_IF_ERROR(
      api::check_zero("options.flags, but for TRIREME_VOCABULARY_FLAG_IGNORE,",
                      options.flags & ~static_cast<std::uint32_t>(TRIREME_VOCABULARY_FLAG_IGNORE)));
  TRIREME_RETURN_IF_ERROR(api::check_zero("options.reserved", options.reserved));
  TRIREME_RETURN_IF_ERROR(api::require(options.name, "options.name"));
  std::optional<std::int64_t> ignored;
  if ((options.flags & TRIREME_VOCABULARY_FLAG_IGNORE) != 0) {
    ignored = options.ignored_target;
  } else if (options.ignored_target != 0) {
    return invalid_argument("options.ignored_target is " + std::to_string(options.ignored_target) +
                            ", but must be 0 without TRIREME_VOCABULARY_FLAG_IGNORE");
  }
  *out = {options.name,  options.classes,         options.width,  options.rows,
          options.dtype, options.label_smoothing, options.z_loss, ignored};
  return Status::success();
}

}  // namespace

trireme_status trireme_vocabulary_create(trireme_tensor* tensor,
                                         const trireme_vocabulary_options* caller,
                                         trireme_vocabulary** out_vocabulary) {
  return api::guard(__func__, [&]() -> Status {
    std::shared_ptr<parallel::Tensor> found;
    TRIREME_RETURN_IF_ERROR(api::find(tensor, &found));
    parallel::VocabularyOptions options;
    TRIREME_RETURN_IF_ERROR(read_vocabulary_options(caller, &options));
    TRIREME_RETURN_IF_ERROR(api::require(out_vocabulary, "out_vocabulary"));
    std::shared_ptr<Vocabulary> vocabulary;
    TRIREME_RETURN_IF_ERROR(Vocabulary::create(std::move(found), std::move(options), &vocabulary));
    *out_vocabulary = api::insert<trireme_vocabulary>(std::move(vocabulary));
    return Status::success();
  });
}

void trireme_vocabulary_destroy(trireme_vocabulary* vocabulary) { api::destroy(vocabulary); }

trireme_status trireme_vocabulary_get_info(const trireme_vocabulary* vocabulary,
                                           trireme_vocabulary_info* info) {
  return with_vocabulary(__func__, vocabulary, [&](const Vocabulary& found) -> Status {
    TRIREME_RETURN_IF_ERROR(api::check_info(info, "info"));
    const Vocabulary::Plan plan = found.plan();
    trireme_vocabulary_info now = TRIREME_VOCABULARY_INFO_INIT;
    now.first_class = plan.own.first;
    now.class_count = plan.own.count;
    now.kept_bytes = plan.kept_bytes;
    now.memory_bytes = plan.memory_bytes;
    now.scratch_bytes = plan.scratch_bytes;
    now.embed_bytes = plan.embed_bytes;
    now.loss_bytes = plan.loss_bytes;
    api::write_info(now, info);
    return Status::success();
  });
}

trireme_status trireme_vocabulary_embed(trireme_vocabulary* vocabulary, const void* tokens,
                                        trireme_dtype token_dtype, uint64_t rows,
                                        const void* weight, void* output,
                                        const trireme_pass_options* options) {
  return run_vocabulary_pass(
      __func__, vocabulary, options, [&](Vocabulary& found, std::uint64_t timeout_ns) {
        return found.embed({"tokens", tokens, token_dtype, rows}, weight, output, timeout_ns);
      });
}

trireme_status trireme_vocabulary_embed_backward(trireme_vocabulary* vocabulary, const void* tokens,
                                                 trireme_dtype token_dtype, uint64_t rows,
                                                 const void* gradients, void* weight_gradient) {
  return with_vocabulary(__func__, vocabulary, [&](Vocabulary& found) {
    return found.embed_backward({"tokens", tokens, token_dtype, rows}, gradients, weight_gradient);
  });
}

trireme_status trireme_vocabulary_loss(trireme_vocabulary* vocabulary, const void* targets,
                                       trireme_dtype target_dtype, uint64_t rows,
                                       const void* logits, void* losses, void* kept,
                                       const trireme_pass_options* options) {
  return run_vocabulary_pass(__func__, vocabulary, options,
                             [&](Vocabulary& found, std::uint64_t timeout_ns) {
                               return found.loss({"targets", targets, target_dtype, rows}, logits,
                                                 losses, kept, timeout_ns);
                             });
}

trireme_status trireme_vocabulary_loss_backward(trireme_vocabulary* vocabulary, const void* targets,
                                                trireme_dtype target_dtype, uint64_t rows,
                                                const void* logits, const void* kept,
                                                const void* loss_gradients, void* gradients) {
  return with_vocabulary(__func__, vocabulary, [&](Vocabulary& found) {
    return found.loss_backward({"targets", targets, target_dtype, rows}, logits, kept,
                               loss_gradients, gradients);
  });
}
