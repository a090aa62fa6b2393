// Runtime: the one MPI of this process: initialises and finalises it, and keeps threads out of it
// afterwards.
#pragma once

#define OMPI_SKIP_MPICXX 1  // the C interface alone
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <cstdint>
#include <mutex>
#include <string>

namespace trireme::mpi {

// A thread holds one of these to call MPI, one thread at a time: MPICH over UCX claims to allow
// several threads, and does not. False: MPI is finalised, or about to be.
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

// Initialises MPI, or adopts the program's initialisation. Returns a trireme_status. Before the
// library finalises MPI, it calls `forget_groups` within an Inside until that returns true, or for
// 2 s.
std::int32_t begin_mpi(std::int32_t* rank, std::int32_t* world_size, bool (*forget_groups)(),
                       std::string* error);

// Counts groups that still have messages to send; finalising waits for them a moment.
void count_group(int change);

std::string error_text(const char* call, int code);

}  // namespace trireme::mpi
