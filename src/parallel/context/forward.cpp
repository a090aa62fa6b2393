#include "parallel/context/attention_passes.hpp"
#include "parallel/context/partial.hpp"
#include "parallel/context/walk.hpp"

namespace trireme::parallel {
namespace {

class ForwardWorker : public PairWorker {
 public:
  using PairWorker::PairWorker;

  Status begin_step(std::uint32_t step) {
    use_step(step);
    std::vector<Transfer> transfers;
    if (auto next = shift(step)) transfers.push_back(std::move(*next));
    return task().moves.start(std::move(transfers));
  }
  Status end_step(std::uint32_t) { return task().moves.wait(); }

  void pair(std::uint32_t q, std::uint32_t kv, std::uint32_t slot) {
    trireme_attention_call call = call_of(q, kv);
    const Partial out = partial(q, slot);
    call.output = out.output;
    call.maximum = out.maximum;
    call.sum = out.sum;
    compute(&call);
  }

  void merge(std::uint32_t q, std::uint32_t left, std::uint32_t right) {
    if (failed()) return;
    merge_partials(partial(q, left), partial(q, right), numbers(q), shape().width);
  }

  void result(std::uint32_t q, std::uint32_t slot) {
    const Partial whole = partial(q, slot);
    const std::uint64_t all = task().context.kept_count() / 2;
    float* const maxima = task().arrays.kept + chunks().row(q) * shape().heads;
    for (std::uint64_t i = 0; i < numbers(q); ++i) {
      maxima[i] = whole.maximum[i];
      maxima[all + i] = whole.sum[i];
    }
    finish_partial(whole, numbers(q), shape().width, shape().dtype,
                   q_rows(static_cast<std::byte*>(task().arrays.output), q));
  }

 private:
  // Rows times heads.
  std::uint64_t numbers(std::uint32_t q) const { return chunks().range(q).count * shape().heads; }
  Partial partial(std::uint32_t q, std::uint32_t slot) const {
    float* const output = q_slot(slot);
    float* const maximum = output + numbers(q) * shape().width;
    return {output, maximum, maximum + numbers(q)};
  }
};

}  // namespace

Status attention_forward(const PassTask& task) {
  ForwardWorker worker(task);
  TRIREME_RETURN_IF_ERROR(worker.bring_keys());
  std::uint32_t slots = 0;
  return walk_forward(task.context.chunks(), task.visibility, task.context.rank(), worker, &slots);
}

}  // namespace trireme::parallel
