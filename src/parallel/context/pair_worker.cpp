#include "parallel/context/pair_worker.hpp"

#include <algorithm>
#include <string>

#include "kernels/reduce.hpp"
#include "parallel/context/builtin_attention.hpp"
#include "parallel/context/walk.hpp"
#include "platform/names.hpp"

namespace trireme::parallel {
namespace {

// The first word of a verdict.
constexpr std::uint64_t kAnswered = 1;
constexpr std::uint64_t kThrew = 2;

const std::byte* as_bytes(const void* array) { return static_cast<const std::byte*>(array); }

Status failed_pair(std::uint32_t rank, const std::uint64_t* words) {
  std::string text = "the callback of rank " + std::to_string(rank) + " for chunk pair (" +
                     std::to_string(words[1]) + ", " + std::to_string(words[2]) + ") ";
  text += words[0] == kThrew ? std::string("threw an exception")
                             : "answered " + std::to_string(static_cast<std::int64_t>(words[3]));
  FailureDetails details;
  details.blamed = {static_cast<std::int32_t>(rank)};
  return Status::failure(TRIREME_ERROR_CALLBACK, std::move(text)).with_details(std::move(details));
}

}  // namespace

PairWorker::PairWorker(const PassTask& task)
    : task_(task), size_(dtype_size(shape().dtype)), verdict_(kVerdictWords) {
  std::uint64_t rows = 0;
  for (std::uint32_t other = 0; other < chunks().ranks(); ++other) {
    rows_before_.push_back(rows);
    rows += chunks().rows(other);
  }
}

Status PairWorker::bring_keys() {
  if (chunks().ranks() == 1) return task_.moves.meet();
  if (shape().method == TRIREME_CONTEXT_METHOD_GATHER) return gather_keys();
  TRIREME_RETURN_IF_ERROR(task_.moves.meet());
  const std::uint64_t bytes = chunks().rows(rank()) * shape().kv_row() * size_;
  if (bytes == 0) return Status::success();
  std::byte* const own = task_.memory + areas().keys[0];
  kernels::copy(own, task_.arrays.k, bytes);
  kernels::copy(own + bytes, task_.arrays.v, bytes);
  return Status::success();
}

Status PairWorker::gather_keys() const {
  std::vector<std::uint64_t> bytes;
  for (std::uint32_t other = 0; other < chunks().ranks(); ++other) {
    bytes.push_back(chunks().rows(other) * shape().kv_row() * size_);
  }
  return task_.moves.gather(task_.arrays.k, task_.memory + areas().keys[0], task_.arrays.v,
                            task_.memory + areas().keys[1], bytes);
}

std::optional<Transfer> PairWorker::shift(std::uint32_t step) const {
  const std::uint32_t ranks = chunks().ranks();
  if (shape().method == TRIREME_CONTEXT_METHOD_GATHER || step + 1 >= ranks) return std::nullopt;
  Transfer transfer;
  transfer.bytes.resize(std::size_t{ranks} * ranks);
  for (std::uint32_t from = 0; from < ranks; ++from) {
    transfer.bytes[std::size_t{from} * ranks + (from + 1) % ranks] =
        chunks().rows(source_in_step(chunks(), from, step)) * shape().kv_bytes();
  }
  transfer.send = task_.memory + areas().keys[step % 2];
  transfer.receive = task_.memory + areas().keys[(step + 1) % 2];
  return transfer;
}

const std::byte* PairWorker::keys_of(std::uint32_t chunk, bool values) const {
  if (chunks().ranks() == 1) {
    return kv_rows(as_bytes(values ? task_.arrays.v : task_.arrays.k), chunk);
  }
  const std::uint32_t source = source_in_step(chunks(), rank(), step_);
  const std::uint64_t row = shape().kv_row() * size_;
  if (shape().method == TRIREME_CONTEXT_METHOD_GATHER) {
    return kv_rows(task_.memory + areas().keys[values ? 1 : 0] + rows_before_[source] * row, chunk);
  }
  const std::byte* const block = task_.memory + areas().keys[step_ % 2];
  return kv_rows(block + (values ? chunks().rows(source) * row : 0), chunk);
}

trireme_attention_call PairWorker::call_of(std::uint32_t q, std::uint32_t kv) const {
  const sharding::Range queries = chunks().range(q);
  const sharding::Range keys = chunks().range(kv);
  auto* const first = reinterpret_cast<std::uint64_t*>(task_.memory + areas().visible);
  std::uint64_t* const end = first + chunks().most_chunk_rows();
  for (std::uint64_t row = 0; row < queries.count; ++row) {
    const sharding::Range seen =
        sharding::intersect(task_.visibility.of(queries.first + row), keys);
    first[row] = seen.count == 0 ? 0 : seen.first - keys.first;
    end[row] = first[row] + seen.count;
  }
  trireme_attention_call call = {};
  call.struct_size = sizeof call;
  call.mask = task_.visibility.mask(queries, keys);
  call.q_chunk = q;
  call.kv_chunk = kv;
  call.q_first = queries.first;
  call.q_count = queries.count;
  call.kv_first = keys.first;
  call.kv_count = keys.count;
  call.heads = shape().heads;
  call.kv_heads = shape().kv_heads;
  call.width = shape().width;
  call.scale = task_.context.options().scale;
  call.dtype = shape().dtype;
  call.visible_first = first;
  call.visible_end = end;
  call.q = q_rows(as_bytes(task_.arrays.q), q);
  call.k = keys_of(kv, false);
  call.v = keys_of(kv, true);
  return call;
}

void PairWorker::compute(trireme_attention_call* call) {
  if (failed()) return;
  if (shape().provider == TRIREME_ATTENTION_PROVIDER_BUILTIN) return compute_builtin(*call);
  const ContextOptions& options = task_.context.options();
  const trireme_attention_callback callback =
      task_.pass == AttentionPass::forward ? options.forward : options.backward;
  const std::uint64_t q = call->q_chunk;
  const std::uint64_t kv = call->kv_chunk;
  try {
    const std::int32_t answer = callback(call, options.user_data);
    if (answer != 0) {
      verdict_ = {kAnswered, q, kv, static_cast<std::uint64_t>(std::int64_t{answer})};
    }
  } catch (...) {  // of a caller in C++
    verdict_ = {kThrew, q, kv, 0};
  }
}

// Replaces arrays of 16 bits by copies in f32.
void PairWorker::widen_arrays(trireme_attention_call* call, float** scratch) const {
  const auto widen = [&](const void** array, std::uint64_t count) {
    if (*array == nullptr) return;
    kernels::widen(call->dtype, *scratch, *array, count);
    *array = *scratch;
    *scratch += count;
  };
  widen(&call->q, call->q_count * shape().q_row());
  widen(&call->k, call->kv_count * shape().kv_row());
  widen(&call->v, call->kv_count * shape().kv_row());
  widen(&call->d_output, call->q_count * shape().q_row());
}

void PairWorker::compute_builtin(trireme_attention_call call) const {
  float* scratch = floats(areas().scratch);
  if (call.dtype != TRIREME_DTYPE_F32) widen_arrays(&call, &scratch);
  if (task_.pass == AttentionPass::forward) {
    builtin_forward(call, scratch);
  } else {
    builtin_backward(call);
  }
}

Status PairWorker::agree() {
  if (chunks().ranks() == 1) return failed() ? failed_pair(0, verdict_.data()) : Status::success();
  std::vector<std::uint64_t> all;
  TRIREME_RETURN_IF_ERROR(task_.moves.tell(verdict_, &all));
  for (std::uint32_t other = 0; other < chunks().ranks(); ++other) {
    const std::uint64_t* const words = all.data() + other * kVerdictWords;
    if (words[0] != 0) return failed_pair(other, words);
  }
  return Status::success();
}

}  // namespace trireme::parallel
