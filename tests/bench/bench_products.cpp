// Speed of products of matrices and of MUON's direction, beside OpenBLAS on one thread in the same
// run, where that is installed. Usage: bench_products [ROWS] [ROUNDS]
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "kernels/matrix.hpp"
#include "optimizer/rules/orthogonal.hpp"

#ifdef TRIREME_WITH_OPENBLAS
#include <cblas.h>
#endif

namespace {

using namespace trireme::kernels;

int rounds = 7;

// The median of several rounds, in seconds.
template <class Body>
double time_of(Body body) {
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) {
    const auto start = std::chrono::steady_clock::now();
    body();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    times.push_back(took.count());
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

template <class T>
void measure(std::uint64_t side, trireme_dtype dtype, const char* name) {
  std::vector<T> left(side * side), right(side * side), result(side * side);
  for (std::size_t i = 0; i < left.size(); ++i) {
    left[i] = static_cast<T>(i % 1013) / 1013 - T(0.5);
    right[i] = static_cast<T>(i % 997) / 997 - T(0.5);
  }
  MatrixProduct p = {};
  p.left = left.data();
  p.right = right.data();
  p.result = result.data();
  p.left_row = p.right_k = p.result_step = p.rows = p.columns = p.depth = side;
  p.left_k = p.right_column = 1;
  std::vector<double> memory(product_memory(side, side, side));
  const double operations = 2.0 * static_cast<double>(side * side * side) / 1e9;
  const double ours = time_of([&] { multiply(dtype, p, memory.data()); });
  std::printf("  %s product            %8.1f GFlop/s", name, operations / ours);
#ifdef TRIREME_WITH_OPENBLAS
  const auto n = static_cast<int>(side);
  const double theirs = time_of([&] {
    if constexpr (sizeof(T) == 4) {
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1, left.data(), n,
                  right.data(), n, 0, result.data(), n);
    } else {
      cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1, left.data(), n,
                  right.data(), n, 0, result.data(), n);
    }
  });
  std::printf("   OpenBLAS %8.1f   ratio %.2f", operations / theirs, theirs / ours);
#endif
  std::vector<char> scratch(trireme::optimizers::orthogonal_bytes(dtype, side, side));
  const double orthogonal = time_of([&] {
    static_cast<void>(
        trireme::optimizers::orthogonalise(dtype, left.data(), side, side, 5, scratch.data()));
  });
  std::printf("\n  %s five orthogonal steps %5.3f s\n", name, orthogonal);
}

}  // namespace

int main(int argc, char** argv) {
  const auto side = static_cast<std::uint64_t>(argc > 1 ? std::atoi(argv[1]) : 1024);
  if (argc > 2) rounds = std::max(1, std::atoi(argv[2]));
#ifdef TRIREME_WITH_OPENBLAS
  openblas_set_num_threads(1);
#endif
  std::printf("%llu by %llu\n", static_cast<unsigned long long>(side),
              static_cast<unsigned long long>(side));
  measure<float>(side, TRIREME_DTYPE_F32, "f32");
  measure<double>(side, TRIREME_DTYPE_F64, "f64");
  return 0;
}
