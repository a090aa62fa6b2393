// The operations of an MPI, in place, f32.
#define OMPI_SKIP_MPICXX 1  // the C interface alone
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include "peer.hpp"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const peer::Arguments arguments = peer::parse(argc - 1, argv + 1);
  int rank = 0;
  int n = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &n);
  const auto meet = [] { MPI_Barrier(MPI_COMM_WORLD); };
  const auto agree = [](double value) {
    MPI_Bcast(&value, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    return value;
  };
  const auto slowest = [](std::vector<double>& samples) {
    std::vector<double> mine = samples;
    MPI_Reduce(mine.data(), samples.data(), static_cast<int>(mine.size()), MPI_DOUBLE, MPI_MAX, 0,
               MPI_COMM_WORLD);
  };
  for (const peer::Case& what : arguments.cases) {
    const int count = static_cast<int>(what.bytes / sizeof(float));
    const int block = count / n;
    std::vector<float> data(static_cast<std::size_t>(count) + 1, 1e-3f);
    std::vector<float> other(static_cast<std::size_t>(count) + 1, 1e-3f);
    const auto call = [&] {
      if (what.op == "all_reduce") {
        MPI_Allreduce(MPI_IN_PLACE, data.data(), count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      } else if (what.op == "reduce_scatter") {
        MPI_Reduce_scatter_block(data.data(), other.data(), block, MPI_FLOAT, MPI_SUM,
                                 MPI_COMM_WORLD);
      } else if (what.op == "all_gather") {
        MPI_Allgather(MPI_IN_PLACE, 0, MPI_FLOAT, data.data(), block, MPI_FLOAT, MPI_COMM_WORLD);
      } else if (what.op == "broadcast") {
        MPI_Bcast(data.data(), count, MPI_FLOAT, 0, MPI_COMM_WORLD);
      } else if (what.op == "send_receive") {
        MPI_Sendrecv(data.data(), count, MPI_FLOAT, (rank + 1) % n, 0, other.data(), count,
                     MPI_FLOAT, (rank + n - 1) % n, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      } else if (what.op == "reduce") {
        MPI_Reduce(rank == 0 ? MPI_IN_PLACE : data.data(), data.data(), count, MPI_FLOAT, MPI_SUM,
                   0, MPI_COMM_WORLD);
      } else if (what.op == "gather") {
        MPI_Gather(rank == 0 ? MPI_IN_PLACE : data.data(), block, MPI_FLOAT, data.data(), block,
                   MPI_FLOAT, 0, MPI_COMM_WORLD);
      } else if (what.op == "scatter") {
        MPI_Scatter(data.data(), block, MPI_FLOAT, rank == 0 ? MPI_IN_PLACE : data.data(), block,
                    MPI_FLOAT, 0, MPI_COMM_WORLD);
      } else if (what.op == "all_to_all") {
        MPI_Alltoall(data.data(), block, MPI_FLOAT, other.data(), block, MPI_FLOAT, MPI_COMM_WORLD);
      } else {
        MPI_Barrier(MPI_COMM_WORLD);
      }
    };
    const double median = peer::measure(arguments, meet, agree, slowest, call);
    if (rank == 0) peer::print(what, median);
  }
  MPI_Finalize();
}
