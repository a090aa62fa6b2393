#include "kernels/reduce.hpp"
#include "parallel/context/attention_passes.hpp"
#include "parallel/context/builtin_attention.hpp"
#include "parallel/context/partial.hpp"
#include "parallel/context/walk.hpp"
#include "platform/names.hpp"

namespace trireme::parallel {
namespace {

class BackwardWorker : public PairWorker {
 public:
  explicit BackwardWorker(const PassTask& task)
      : PairWorker(task), sum_rows_(gradient_rows(chunks(), task.visibility)) {}

  // The products of outputs and their gradients.
  void make_delta();

  Status begin_step(std::uint32_t step);
  Status end_step(std::uint32_t) {
    given_ = taken_ = 0;
    return task().moves.wait();
  }
  void pair(std::uint32_t q, std::uint32_t kv, std::uint32_t q_slot_number, std::uint32_t kv_slot);

  void add_queries(std::uint32_t q, std::uint32_t left, std::uint32_t right) {
    if (failed()) return;
    add_summands(q_slot(left), q_slot(right), chunks().range(q).count * shape().q_row());
  }
  void add_keys(std::uint32_t kv, std::uint32_t left, std::uint32_t right) {
    if (failed()) return;
    add_summands(keys_slot(left), keys_slot(right), keys_count(kv));
  }
  void unpack(std::uint32_t kv, std::uint32_t slot) {
    copy_sum(keys_slot(slot), floats(areas().taken) + taken_, kv);
    taken_ += keys_count(kv);
  }
  void pack(std::uint32_t kv, std::uint32_t slot) {
    copy_sum(floats(areas().given) + given_, keys_slot(slot), kv);
    given_ += keys_count(kv);
  }

  void queries(std::uint32_t q, std::uint32_t slot) {
    write(q_rows(static_cast<std::byte*>(task().arrays.dq), q), q_slot(slot),
          chunks().range(q).count * shape().q_row());
  }
  void keys(std::uint32_t kv, std::uint32_t slot) {
    const std::uint64_t count = keys_count(kv) / 2;
    write(kv_rows(static_cast<std::byte*>(task().arrays.dk), kv), keys_slot(slot), count);
    write(kv_rows(static_cast<std::byte*>(task().arrays.dv), kv), keys_slot(slot) + count, count);
  }

 private:
  float* keys_slot(std::uint32_t slot) const {
    return floats(areas().kv_slots + slot * areas().kv_slot_bytes);
  }
  // Gradients of keys, and then those of values.
  std::uint64_t keys_count(std::uint32_t kv) const {
    return 2 * chunks().range(kv).count * shape().kv_row();
  }
  void copy_sum(float* to, const float* from, std::uint32_t kv) const {
    kernels::copy(to, from, keys_count(kv) * sizeof(float));
  }
  void write(void* to, const float* from, std::uint64_t count) const {
    if (shape().dtype == TRIREME_DTYPE_F32) {
      kernels::copy(to, from, count * sizeof(float));
    } else {
      kernels::narrow(shape().dtype, to, from, count);
    }
  }
  Transfer sums_of_step(std::uint32_t step) const;

  const std::vector<std::uint64_t> sum_rows_;  // from each rank to each
  std::uint64_t given_ = 0;                    // floats that are packed, and
  std::uint64_t taken_ = 0;                    // unpacked
};

void BackwardWorker::make_delta() {
  const std::uint64_t row = shape().q_row();
  const std::uint64_t bytes = row * dtype_size(shape().dtype);
  float* delta = floats(areas().delta);
  for (std::uint64_t i = 0; i < task().context.own_rows(); ++i) {
    const void* output = static_cast<const std::byte*>(task().arrays.output) + i * bytes;
    const void* gradient = static_cast<const std::byte*>(task().arrays.d_output) + i * bytes;
    if (shape().dtype != TRIREME_DTYPE_F32) {
      float* const wide = floats(areas().scratch);
      kernels::widen(shape().dtype, wide, output, row);
      kernels::widen(shape().dtype, wide + row, gradient, row);
      output = wide;
      gradient = wide + row;
    }
    for (std::uint64_t head = 0; head < shape().heads; ++head) {
      *delta++ = dot(static_cast<const float*>(output) + head * shape().width,
                     static_cast<const float*>(gradient) + head * shape().width, shape().width);
    }
  }
}

// In step s go the sums that were packed in step s - 1, to the ranks whose keys they are for.
Transfer BackwardWorker::sums_of_step(std::uint32_t step) const {
  const std::uint32_t ranks = chunks().ranks();
  Transfer transfer;
  transfer.bytes.resize(std::size_t{ranks} * ranks);
  for (std::uint32_t from = 0; from < ranks && step >= 2; ++from) {
    const std::size_t place = std::size_t{from} * ranks + source_in_step(chunks(), from, step - 1);
    transfer.bytes[place] = sum_rows_[place] * 2 * shape().kv_row() * sizeof(float);
  }
  transfer.send = task().memory + areas().given;
  transfer.receive = task().memory + areas().taken;
  return transfer;
}

Status BackwardWorker::begin_step(std::uint32_t step) {
  use_step(step);
  std::vector<Transfer> transfers;
  if (auto next = shift(step)) transfers.push_back(std::move(*next));
  transfers.push_back(sums_of_step(step));
  return task().moves.start(std::move(transfers));
}

void BackwardWorker::pair(std::uint32_t q, std::uint32_t kv, std::uint32_t q_slot_number,
                          std::uint32_t kv_slot) {
  trireme_attention_call call = call_of(q, kv);
  const std::uint64_t first = chunks().row(q) * shape().heads;
  call.d_output = q_rows(static_cast<const std::byte*>(task().arrays.d_output), q);
  call.total_maximum = task().arrays.kept + first;
  call.total_sum = call.total_maximum + task().context.kept_count() / 2;
  call.delta = floats(areas().delta) + first;
  call.dq = q_slot(q_slot_number);
  call.dk = keys_slot(kv_slot);
  call.dv = call.dk + keys_count(kv) / 2;
  compute(&call);
}

}  // namespace

Status attention_backward(const PassTask& task) {
  BackwardWorker worker(task);
  TRIREME_RETURN_IF_ERROR(worker.bring_keys());
  worker.make_delta();
  BackwardSlots slots;
  return BackwardWalk(task.context.chunks(), task.visibility, task.context.rank(), worker)
      .run(&slots);
}

}  // namespace trireme::parallel
