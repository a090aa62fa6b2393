// Runtime: the one MPI of this process: who initialises and finalises it, and that nobody calls it
// afterwards.
#pragma once

#define OMPI_SKIP_MPICXX 1  // the C interface alone
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <cstdint>
#include <mutex>
#include <string>

namespace trireme::mpi {

// Whoever calls MPI holds one of these, one at a time: MPICH over UCX says that it bears several
// threads, and does not. False: MPI is finalised, or about to be.
class Inside {
 public:
  Inside();
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  explicit operator bool() const { return inside_; }

 private:
  const std::unique_lock<std::mutex> lock_;
  const bool inside_;
};

// Initialises MPI, or looks at what the program has done. A trireme_status. Before the library
// finalises MPI `forget_groups` is called within an Inside until it says true, or for 2 s.
std::int32_t begin_mpi(std::int32_t* rank, std::int32_t* world_size, bool (*forget_groups)(),
                       std::string* error);

// Groups that still have something to say; finalising waits a moment for them.
void count_group(int change);

std::string error_text(const char* call, int code);

}  // namespace trireme::mpi
