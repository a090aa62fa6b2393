#include "parallel/tensor/gemm_trial.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "platform/clock.hpp"
#include "platform/mix.hpp"
#include "platform/thread.hpp"

namespace trireme::parallel {
namespace {

// Threads that compute as long as this lives.
class BusyThreads {
 public:
  Status start(int count) {
    for (int i = 0; i < count; ++i) {
      TRIREME_RETURN_IF_ERROR(start_thread([state = state_] {
        ++state->running;
        volatile double number = 1;
        while (!state->stop.load(std::memory_order_relaxed)) number = number * 0.9 + 1;
      }));
    }
    constexpr std::uint64_t kWaitNs = 100'000'000;  // a machine may be too busy for them by itself
    const Deadline deadline = Deadline::after(kWaitNs);
    while (state_->running.load() < count && deadline.remaining_ns() > 0) std::this_thread::yield();
    return Status::success();
  }
  ~BusyThreads() { state_->stop = true; }

 private:
  struct State {
    std::atomic<int> running{0};
    std::atomic<bool> stop{false};
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

struct TrialCase {
  std::uint64_t rows, columns, depth;
  bool left_transposed, right_transposed, add;
};
// Tiny ones, some around the tiles of kernels, and large enough for several threads.
constexpr TrialCase kTrialCases[] = {
    {1, 1, 1, false, false, false},   {5, 7, 3, false, true, true},
    {17, 33, 65, false, false, true}, {33, 17, 64, true, false, false},
    {32, 48, 31, true, true, false},  {96, 130, 257, false, false, false},
    {130, 96, 200, true, false, true}};

template <class T>
class TrialProduct {
 public:
  TrialProduct(Gemm& gemm, const TrialCase& product) : gemm_(gemm), case_(product) {
    fill(1, case_.rows * case_.depth, &left_);
    fill(2, case_.depth * case_.columns, &right_);
    fill(3, case_.rows * case_.columns, &added_);
  }

  // `apart` elements behind the beginning of each matrix's memory.
  Status multiply(std::uint64_t apart, std::vector<T>* result) const {
    std::vector<T> left(apart), right(apart);
    left.insert(left.end(), left_.begin(), left_.end());
    right.insert(right.end(), right_.begin(), right_.end());
    std::vector<T> all(apart);
    // Without `add` the old contents are not read.
    all.insert(all.end(), added_.begin(), added_.end());
    if (!case_.add) std::fill(all.begin(), all.end(), std::numeric_limits<T>::quiet_NaN());
    GemmCall call;
    call.dtype = sizeof(T) == 8 ? TRIREME_DTYPE_F64 : TRIREME_DTYPE_F32;
    call.left_transposed = case_.left_transposed;
    call.right_transposed = case_.right_transposed;
    call.add = case_.add;
    call.rows = case_.rows;
    call.columns = case_.columns;
    call.depth = case_.depth;
    call.left = left.data() + apart;
    call.left_step = case_.left_transposed ? case_.rows : case_.depth;
    call.right = right.data() + apart;
    call.right_step = case_.right_transposed ? case_.depth : case_.columns;
    call.result = all.data() + apart;
    call.result_step = case_.columns;
    TRIREME_RETURN_IF_ERROR(gemm_.multiply(call));
    result->assign(all.begin() + static_cast<std::ptrdiff_t>(apart), all.end());
    return Status::success();
  }

  // Whether each element is the sum, but for roundings.
  bool is_right(const std::vector<T>& result) const {
    const std::uint64_t left_step = case_.left_transposed ? case_.rows : case_.depth;
    const std::uint64_t right_step = case_.right_transposed ? case_.depth : case_.columns;
    for (std::uint64_t i = 0; i < case_.rows; ++i) {
      for (std::uint64_t j = 0; j < case_.columns; ++j) {
        const T first = case_.add ? added_[i * case_.columns + j] : T(0);
        double sum = first, size = std::fabs(sum);
        for (std::uint64_t k = 0; k < case_.depth; ++k) {
          const double a = left_[case_.left_transposed ? k * left_step + i : i * left_step + k];
          const double b = right_[case_.right_transposed ? j * right_step + k : k * right_step + j];
          sum += a * b;
          size += std::fabs(a * b);
        }
        const double unit = std::numeric_limits<T>::epsilon();
        const double bound = static_cast<double>(case_.depth + 2) * unit * size;
        if (!(std::fabs(static_cast<double>(result[i * case_.columns + j]) - sum) <= bound)) {
          return false;
        }
      }
    }
    return true;
  }

  std::string name() const {
    return std::to_string(case_.rows) + " by " + std::to_string(case_.depth) + " by " +
           std::to_string(case_.columns) + (sizeof(T) == 8 ? " of f64" : " of f32");
  }

 private:
  static void fill(std::uint64_t seed, std::uint64_t count, std::vector<T>* out) {
    out->resize(count);
    for (std::uint64_t i = 0; i < count; ++i) {
      (*out)[i] = static_cast<T>(static_cast<double>(mix(seed, i) >> 11) * 0x1p-52 - 1);
    }
  }

  Gemm& gemm_;
  const TrialCase case_;
  std::vector<T> left_, right_, added_;
};

template <class T>
Status try_type(Gemm& gemm, GemmTrial* out) {
  std::vector<TrialProduct<T>> tries;
  std::vector<std::vector<T>> results;
  for (const TrialCase& product : kTrialCases) {
    tries.emplace_back(gemm, product);
    TRIREME_RETURN_IF_ERROR(tries.back().multiply(0, &results.emplace_back()));
    if (tries.back().is_right(results.back())) continue;
    out->wrong = tries.back().name();
    return Status::success();
  }
  BusyThreads busy;
  TRIREME_RETURN_IF_ERROR(busy.start(2));
  for (std::size_t i = 0; i < tries.size() && out->difference.empty(); ++i) {
    for (const std::uint64_t apart : {1, 3, 0}) {
      std::vector<T> again;
      TRIREME_RETURN_IF_ERROR(tries[i].multiply(apart, &again));
      if (std::memcmp(again.data(), results[i].data(), again.size() * sizeof(T)) == 0) continue;
      out->difference = "equal products of " + tries[i].name() + " differ";
      break;
    }
  }
  return Status::success();
}

}  // namespace

Status try_gemm(Gemm& gemm, GemmTrial* out) {
  *out = {};
  TRIREME_RETURN_IF_ERROR(try_type<float>(gemm, out));
  if (!out->wrong.empty() || !out->difference.empty()) return Status::success();
  return try_type<double>(gemm, out);
}

}  // namespace trireme::parallel
