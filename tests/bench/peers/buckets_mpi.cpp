// The exchange of a step as data-parallel training over an MPI does it: each bucket of gradients is
// all-reduced in place, f32. `buckets_mpi STEPS BYTES...` prints the microseconds of each step, as
// the slowest rank has them.
#define OMPI_SKIP_MPICXX 1  // the C interface alone
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const int steps = argc > 1 ? std::atoi(argv[1]) : 0;
  std::vector<std::vector<float>> buckets;
  for (int i = 2; i < argc; ++i) {
    buckets.emplace_back(std::strtoul(argv[i], nullptr, 10) / sizeof(float), 1e-3f);
  }
  for (int step = -2; step < steps; ++step) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime();
    for (std::vector<float>& bucket : buckets) {
      MPI_Allreduce(MPI_IN_PLACE, bucket.data(), static_cast<int>(bucket.size()), MPI_FLOAT,
                    MPI_SUM, MPI_COMM_WORLD);
    }
    const double mine = (MPI_Wtime() - begin) * 1e6;
    double slowest = 0;
    MPI_Reduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0 && step >= 0) std::printf("%.3f ", slowest);
  }
  if (rank == 0) std::printf("\n");
  MPI_Finalize();
}
