// NCCL: found at run time, without a driver. The search loads nothing; open_nccl() does.
#pragma once

#include <cstddef>
#include <string>

#include "devices/cuda/plugin.hpp"
#include "devices/cuda/plugin/driver.hpp"
#include "platform/status.hpp"

namespace trireme::cuda {

struct Nccl {
  std::string file;
  int version = 0;  // 10000 * major + 100 * minor + patch; 0 if it is not loaded
};

// The copy that the process has loaded, if it is new enough and has all functions that collectives
// need. Else the first file that is there. UNSUPPORTED has every try.
Status find_nccl(Nccl* out);

using NcclResult = int;   // ncclResult_t
struct NcclCommunicator;  // ncclComm
constexpr NcclResult kNcclDone = 0, kNcclInvalidUsage = 5, kNcclBusy = 7;

// ncclConfig_t as NCCL 2.18 has it. A newer NCCL takes the rest as its own defaults.
struct NcclConfig {
  std::size_t size;
  unsigned magic, version;
  int blocking, cluster_size, least_blocks, most_blocks;
  const char* net;
  int shares;
};

// X(name without "nccl", its parameters). All are there from NCCL 2.18 on. NCCL keeps their types;
// tests/unit/nccl_headers.cpp compares them with nccl.h where that is.
#define TRIREME_NCCL_FUNCTIONS(X)                                                                \
  X(AllGather, (const void* send, void* receive, std::size_t count, int type,                    \
                NcclCommunicator* communicator, StreamHandle* stream))                           \
  X(AllReduce, (const void* send, void* receive, std::size_t count, int type, int reduction,     \
                NcclCommunicator* communicator, StreamHandle* stream))                           \
  X(Broadcast, (const void* send, void* receive, std::size_t count, int type, int root,          \
                NcclCommunicator* communicator, StreamHandle* stream))                           \
  X(CommAbort, (NcclCommunicator * communicator))                                                \
  X(CommDestroy, (NcclCommunicator * communicator))                                              \
  X(CommFinalize, (NcclCommunicator * communicator))                                             \
  X(CommGetAsyncError, (NcclCommunicator * communicator, NcclResult * result))                   \
  X(CommInitRankConfig,                                                                          \
    (NcclCommunicator * *communicator, int world_size, NcclId id, int rank, NcclConfig* config)) \
  X(GetUniqueId, (NcclId * id))                                                                  \
  X(GroupEnd, ())                                                                                \
  X(GroupStart, ())                                                                              \
  X(Recv, (void* receive, std::size_t count, int type, int peer, NcclCommunicator* communicator, \
           StreamHandle* stream))                                                                \
  X(ReduceScatter, (const void* send, void* receive, std::size_t count, int type, int reduction, \
                    NcclCommunicator* communicator, StreamHandle* stream))                       \
  X(Send, (const void* send, std::size_t count, int type, int peer,                              \
           NcclCommunicator* communicator, StreamHandle* stream))

struct NcclLibrary {
#define TRIREME_NCCL_POINTER(name, parameters) NcclResult(*name) parameters = nullptr;
  TRIREME_NCCL_FUNCTIONS(TRIREME_NCCL_POINTER)
#undef TRIREME_NCCL_POINTER
  const char* (*GetErrorString)(NcclResult result) = nullptr;
  const char* (*GetLastError)(NcclCommunicator* communicator) = nullptr;

  std::string file;
  int version = 0;

  // OK, also while the communicator is busy. Or DEVICE with the function's name and NCCL's words.
  Status check(const char* function, NcclResult result) const;
};

// Loads the first NCCL that serves, once for the process. UNSUPPORTED has every try.
Status open_nccl(const NcclLibrary** out);

}  // namespace trireme::cuda
