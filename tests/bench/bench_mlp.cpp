// The time of an MLP block, forward and backward, over OpenBLAS: one process with one BLAS thread
// and with two, and two ranks with one thread each. Plain, and with 8 blocks. Ranks are threads.
#include <trireme/trireme.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace {

struct Case {
  std::uint64_t width, rows;
};

void require(trireme_status status) {
  if (status == TRIREME_OK) return;
  std::fprintf(stderr, "%s\n", trireme_last_error());
  std::exit(1);
}

std::vector<float> numbers(std::uint64_t count, std::uint64_t salt) {
  std::vector<float> made(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    made[i] = static_cast<float>(((i + salt) * 2654435761u >> 8) % 2001) / 1000.0f - 1.0f;
  }
  return made;
}

// The median of several steps, in milliseconds, on rank 0.
double run_rank(const std::string& group, int rank, int ranks, std::uint32_t threads,
                std::uint32_t blocks, const Case& sizes) {
  trireme_communicator_options join = TRIREME_COMMUNICATOR_OPTIONS_INIT;
  join.rank = rank;
  join.world_size = ranks;
  join.rendezvous = group.c_str();
  trireme_communicator* communicator = nullptr;
  require(trireme_communicator_create(&join, &communicator));
  trireme_gemm_options gemm = TRIREME_GEMM_OPTIONS_INIT;
  gemm.kind = TRIREME_GEMM_KIND_LOADED;
  gemm.threads = threads;
  trireme_tensor_options split = TRIREME_TENSOR_OPTIONS_INIT;
  split.blocks = blocks;
  split.gemm = &gemm;
  trireme_tensor* tensor = nullptr;
  require(trireme_tensor_create(communicator, &split, &tensor));
  trireme_mlp_options options = TRIREME_MLP_OPTIONS_INIT;
  options.name = "mlp";
  options.flags = TRIREME_MLP_FLAG_BIAS;
  options.dtype = TRIREME_DTYPE_F32;
  options.activation = TRIREME_ACTIVATION_KIND_GELU_TANH;
  options.input = options.output = sizes.width;
  options.hidden = 4 * sizes.width;
  options.rows = sizes.rows;
  trireme_mlp* mlp = nullptr;
  require(trireme_mlp_create(tensor, &options, &mlp));
  trireme_mlp_info info = TRIREME_MLP_INFO_INIT;
  require(trireme_mlp_get_info(mlp, &info));
  const std::uint64_t weight = info.count * sizes.width, array = sizes.rows * sizes.width;
  std::vector<float> w1 = numbers(weight, 1), w2 = numbers(weight, 2), b1 = numbers(info.count, 3);
  std::vector<float> b2 = numbers(sizes.width, 4), x = numbers(array, 5), dy = numbers(array, 6);
  std::vector<float> y(array), dx(array), dw1(weight), dw2(weight), db1(info.count);
  std::vector<float> db2(sizes.width);
  std::vector<unsigned char> kept(info.kept_bytes);
  trireme_mlp_weights weights = TRIREME_MLP_WEIGHTS_INIT;
  weights.fc1_weight = w1.data();
  weights.fc1_bias = b1.data();
  weights.fc2_weight = w2.data();
  weights.fc2_bias = b2.data();
  trireme_mlp_gradients gradients = TRIREME_MLP_GRADIENTS_INIT;
  gradients.fc1_weight = dw1.data();
  gradients.fc1_bias = db1.data();
  gradients.fc2_weight = dw2.data();
  gradients.fc2_bias = db2.data();
  std::vector<double> times;
  for (int step = 0; step < 9; ++step) {
    require(trireme_barrier(communicator, nullptr));
    const auto begin = std::chrono::steady_clock::now();
    require(trireme_mlp_forward(mlp, x.data(), &weights, y.data(), kept.data(), nullptr));
    require(trireme_mlp_backward_input(mlp, dy.data(), &weights, dx.data(), kept.data(), nullptr));
    require(
        trireme_mlp_backward_weight(mlp, x.data(), dy.data(), kept.data(), &gradients, nullptr));
    require(trireme_barrier(communicator, nullptr));
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - begin;
    if (step >= 2) times.push_back(time.count());
  }
  trireme_mlp_destroy(mlp);
  trireme_tensor_destroy(tensor);
  trireme_communicator_destroy(communicator);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

double run(int ranks, std::uint32_t threads, std::uint32_t blocks, const Case& sizes) {
  static std::atomic<int> number{0};
  const std::string group = "local://bench_mlp_" + std::to_string(number++);
  double time = 0;
  std::vector<std::thread> others;
  for (int rank = 1; rank < ranks; ++rank) {
    others.emplace_back([=] { run_rank(group, rank, ranks, threads, blocks, sizes); });
  }
  time = run_rank(group, 0, ranks, threads, blocks, sizes);
  for (std::thread& other : others) other.join();
  return time;
}

}  // namespace

int main() {
  std::printf("%-22s %9s %9s %9s %9s %9s   %s\n", "MLP, f32", "1 rank", "1, G=8", "2 threads",
              "2 ranks", "2, G=8", "2/1  2/1 G=8  2 ranks/2 threads  G=8/plain");
  for (const Case& sizes : {Case{1024, 512}, Case{768, 256}}) {
    const double one = run(1, 1, 0, sizes), one8 = run(1, 1, 8, sizes);
    const double threads = run(1, 2, 0, sizes);
    const double two = run(2, 1, 0, sizes), two8 = run(2, 1, 8, sizes);
    std::printf("h=%-5llu %4llu rows, ms   %9.1f %9.1f %9.1f %9.1f %9.1f   %.2f %.2f %.2f %.2f\n",
                static_cast<unsigned long long>(sizes.width),
                static_cast<unsigned long long>(sizes.rows), one, one8, threads, two, two8,
                one / two, one8 / two8, threads / two, one8 / one);
  }
  return 0;
}
