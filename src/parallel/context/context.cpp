#include "parallel/context/context.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "parallel/context/attention_passes.hpp"
#include "parallel/context/context_checks.hpp"
#include "platform/names.hpp"
#include "platform/pass_guard.hpp"
#include "platform/utf8.hpp"

namespace trireme::parallel {
namespace {

const char* pass_name(AttentionPass pass) {
  return pass == AttentionPass::forward ? "forward" : "backward";
}

std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 29;
}

// One array of a pass.
struct Argument {
  const char* name;
  const void* data;
  std::uint64_t bytes;
  bool written;
};

Status check_apart(const Argument& a, const Argument& b) {
  const auto a_at = reinterpret_cast<std::uintptr_t>(a.data);
  const auto b_at = reinterpret_cast<std::uintptr_t>(b.data);
  const bool overlap = a.bytes > 0 && b.bytes > 0 && a_at < b_at + b.bytes && b_at < a_at + a.bytes;
  if (!overlap || (!a.written && !b.written)) return Status::success();
  return invalid_argument(std::string("arrays.") + a.name + " and arrays." + b.name +
                          " overlap, and the pass writes one of them");
}

}  // namespace

Status Context::create(std::shared_ptr<Communicator> communicator, ContextOptions options,
                       std::shared_ptr<Context>* out) {
  if (options.shape.kv_heads == 0) options.shape.kv_heads = options.shape.heads;
  TRIREME_RETURN_IF_ERROR(
      check_context_options(options, static_cast<std::uint32_t>(communicator->world_size())));
  if (options.scale == 0) {
    options.scale = 1 / std::sqrt(static_cast<double>(options.shape.width));
  }
  out->reset(new Context(std::move(communicator), std::move(options)));
  return Status::success();
}

Context::Context(std::shared_ptr<Communicator> communicator, ContextOptions options)
    : communicator_(std::move(communicator)),
      options_(std::move(options)),
      chunks_(options_.positions, options_.chunks,
              static_cast<std::uint32_t>(communicator_->world_size()),
              options_.layout == TRIREME_CONTEXT_LAYOUT_ZIGZAG),
      plans_{plan_attention(options_.shape, chunks_, rank(), AttentionPass::forward),
             plan_attention(options_.shape, chunks_, rank(), AttentionPass::backward)} {}

Status Context::check_rank(std::int32_t number) const {
  if (number >= 0 && number < communicator_->world_size()) return Status::success();
  return invalid_argument("rank is " + std::to_string(number) + ", but the ranks are 0 to " +
                          std::to_string(communicator_->world_size() - 1));
}

// --- the arguments of a pass -------------------------------------------------------------------

Status Context::check_arrays(AttentionPass pass, const trireme_attention_arrays& arrays) const {
  const bool backward = pass == AttentionPass::backward;
  const std::uint64_t size = dtype_size(options_.shape.dtype);
  const std::uint64_t q_bytes = own_rows() * options_.shape.q_row() * size;
  const std::uint64_t kv_bytes = own_rows() * options_.shape.kv_row() * size;
  const Argument all[] = {{"q", arrays.q, q_bytes, false},
                          {"k", arrays.k, kv_bytes, false},
                          {"v", arrays.v, kv_bytes, false},
                          {"output", arrays.output, q_bytes, !backward},
                          {"kept", arrays.kept, kept_count() * sizeof(float), !backward},
                          {"d_output", arrays.d_output, q_bytes, false},
                          {"dq", arrays.dq, q_bytes, true},
                          {"dk", arrays.dk, kv_bytes, true},
                          {"dv", arrays.dv, kv_bytes, true}};
  constexpr std::size_t kOfForward = 5;
  const std::size_t count = backward ? std::size(all) : kOfForward;
  for (std::size_t i = 0; i < std::size(all); ++i) {
    if (i >= count && all[i].data != nullptr) {
      return invalid_argument(std::string("arrays.") + all[i].name +
                              " is not NULL, but a forward pass has no gradient");
    }
    if (i < count && all[i].data == nullptr && all[i].bytes > 0) {
      return invalid_argument(std::string("arrays.") + all[i].name + " is NULL but holds " +
                              std::to_string(own_rows()) + " rows");
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t j = i + 1; j < count; ++j) {
      TRIREME_RETURN_IF_ERROR(check_apart(all[i], all[j]));
    }
  }
  return Status::success();
}

Status Context::check_starts(const std::vector<std::uint64_t>& starts) const {
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const std::string what =
        "options.sequence_starts[" + std::to_string(i) + "] is " + std::to_string(starts[i]);
    if (starts[i] >= options_.positions) {
      return invalid_argument(what + ", but the sequence has " +
                              std::to_string(options_.positions) + " positions");
    }
    if (i > 0 && starts[i] <= starts[i - 1]) {
      return invalid_argument(what + ", not above the one before, " +
                              std::to_string(starts[i - 1]));
    }
  }
  return Status::success();
}

// --- one pass ----------------------------------------------------------------------------------

std::string Context::describe(AttentionPass pass) const {
  constexpr std::size_t kMost = 47;   // bytes of a fingerprint's name
  constexpr std::size_t kLeast = 12;  // of the context's name
  const std::string form = "\", " + std::to_string(options_.positions) + " positions in " +
                           std::to_string(options_.chunks);
  const std::string begin = std::string(pass_name(pass)) + " \"";
  const std::size_t rest = begin.size() + form.size();
  const std::size_t room = std::max(kLeast, kMost - std::min(kMost, rest));
  return begin + options_.name.substr(0, whole_characters(options_.name, room)) + form;
}

std::uint64_t Context::agreement(AttentionPass pass,
                                 const std::vector<std::uint64_t>& starts) const {
  const AttentionShape& shape = options_.shape;
  std::uint64_t hash = 0xbb67ae8584caa73bu;
  for (const char letter : options_.name) hash = mixed(hash, static_cast<unsigned char>(letter));
  for (const std::uint64_t number :
       {std::uint64_t{options_.name.size()}, options_.positions, std::uint64_t{options_.chunks},
        static_cast<std::uint64_t>(options_.layout), static_cast<std::uint64_t>(shape.method),
        static_cast<std::uint64_t>(shape.dtype), static_cast<std::uint64_t>(shape.provider),
        shape.heads, shape.kv_heads, shape.width, std::uint64_t{shape.causal},
        std::bit_cast<std::uint64_t>(options_.scale), std::uint64_t{index(pass)},
        std::uint64_t{starts.size()}}) {
    hash = mixed(hash, number);
  }
  for (const std::uint64_t start : starts) hash = mixed(hash, start);
  return hash | 1;  // never 0, which other calls have
}

// Kept for the next passes.
Status Context::take_memory(std::uint64_t bytes) {
  if (memory_ != nullptr && memory_->bytes() >= bytes) return Status::success();
  memory_.reset();
  held_bytes_ = 0;
  TRIREME_RETURN_IF_ERROR(communicator_->allocate(bytes, &memory_));
  held_bytes_ = memory_->bytes();
  return Status::success();
}

Status Context::name_pass(AttentionPass pass, const Status& status) const {
  if (status.ok()) return status;
  FailureDetails details = status.details() != nullptr ? *status.details() : FailureDetails{};
  if (details.communicator.empty()) details.communicator = communicator_->name();
  return Status::failure(status.code(), std::string(pass_name(pass)) + " pass of context \"" +
                                            options_.name + "\": " + status.message())
      .with_details(std::move(details));
}

Status Context::pass(AttentionPass pass, const trireme_attention_arrays& arrays,
                     std::vector<std::uint64_t> starts, std::uint64_t timeout_ns) {
  const PassGuard busy(busy_);
  if (!busy.entered()) {
    return invalid_state("a pass of context \"" + options_.name +
                         "\" runs already, and its callback cannot make another one");
  }
  TRIREME_RETURN_IF_ERROR(check_arrays(pass, arrays));
  TRIREME_RETURN_IF_ERROR(check_starts(starts));
  const char* const kNoMemory = "no memory left for a pass";
  try {
    const Status status = run(pass, arrays, std::move(starts), timeout_ns);
    if (status.ok()) ++passes_[index(pass)];
    // An operation that cannot begin, without memory or a thread, fails nothing by itself. Peers
    // may wait for it in the middle of the pass.
    if (status.code() == TRIREME_ERROR_OUT_OF_MEMORY) {
      communicator_->fail(TRIREME_ERROR_OUT_OF_MEMORY, kNoMemory);
    } else if (status.code() == TRIREME_ERROR_SYSTEM) {
      communicator_->fail(TRIREME_ERROR_SYSTEM, status.message());
    }
    return name_pass(pass, status);
  } catch (...) {  // peers may be in the pass already
    communicator_->fail(TRIREME_ERROR_OUT_OF_MEMORY, kNoMemory);
    throw;
  }
}

Status Context::run(AttentionPass pass, const trireme_attention_arrays& arrays,
                    std::vector<std::uint64_t> starts, std::uint64_t timeout_ns) {
  const std::uint64_t hash = agreement(pass, starts);
  const Visibility visibility(options_.positions, options_.shape.causal, std::move(starts));
  if (const Status taken = take_memory(plan(pass).memory.bytes); !taken.ok()) {
    communicator_->fail(taken.code(), taken.message());  // peers may be in the pass already
    return taken;
  }
  PassMoves moves(*communicator_, describe(pass), hash, timeout_ns);
  const PassTask task{*this,      pass,  arrays,
                      visibility, moves, static_cast<std::byte*>(memory_->data())};
  return pass == AttentionPass::forward ? attention_forward(task) : attention_backward(task);
}

}  // namespace trireme::parallel
