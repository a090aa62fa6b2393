#include "backends/mpi/plugin/runtime.hpp"

#include <trireme/status.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <thread>

namespace trireme::mpi {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// How long finalising waits for the last messages of groups whose ranks have left.
constexpr milliseconds kPatience{2000};

std::mutex calling;
std::atomic<bool> closed{false};
std::atomic<int> groups{0};
std::mutex beginning;
bool begun = false;
bool (*forget)() = nullptr;

// From now on no thread enters MPI. A thread that is inside MPI now never waits for a peer there.
void close_entry() {
  closed.store(true);
  const auto end = steady_clock::now() + kPatience;
  // The wait has an end: this may run inside MPI, under one of its locks.
  std::unique_lock lock(calling, std::defer_lock);
  while (!lock.try_lock() && steady_clock::now() < end) std::this_thread::yield();
}

// MPI deletes the attributes of MPI_COMM_SELF first when it is finalised, whoever finalises it.
int close_at_finalize(MPI_Comm, int, void*, void*) {
  const auto end = steady_clock::now() + kPatience;
  while (groups.load() > 0 && !closed.load() && steady_clock::now() < end) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  close_entry();
  return MPI_SUCCESS;
}

// This does not run when the last group ends, because MPI cannot begin again; it runs before
// libraries are torn down.
void finalize_at_exit() {
  int over = 0;
  if (MPI_Finalized(&over) != MPI_SUCCESS || over != 0) return;
  const auto end = steady_clock::now() + kPatience;
  while (steady_clock::now() < end) {
    if (groups.load() == 0) {
      const Inside inside;
      if (forget()) break;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  close_entry();
  MPI_Finalize();
}

const char* level_name(int level) {
  switch (level) {
    case MPI_THREAD_SINGLE: return "MPI_THREAD_SINGLE";
    case MPI_THREAD_FUNNELED: return "MPI_THREAD_FUNNELED";
    case MPI_THREAD_SERIALIZED: return "MPI_THREAD_SERIALIZED";
    default: return "MPI_THREAD_MULTIPLE";
  }
}

std::int32_t begin_once(std::string* error) {
  int over = 0;
  int initialised = 0;
  MPI_Finalized(&over);
  if (over != 0) {
    *error = "MPI has been finalised in this process, and cannot begin again";
    return TRIREME_ERROR_INVALID_STATE;
  }
  MPI_Initialized(&initialised);
#ifdef MPICH_VERSION
  // MPICH's MPI_Finalize aborts if another thread has just been inside MPI, and does not announce
  // itself in time.
  if (initialised != 0) {
    *error = "the program has initialised MPI, which works with Open MPI alone; let mpi:// do it";
    return TRIREME_ERROR_UNSUPPORTED;
  }
#endif
  int level = MPI_THREAD_SINGLE;
  if (initialised == 0) {
    const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
    if (code != MPI_SUCCESS) {
      *error = error_text("MPI_Init_thread", code);
      return TRIREME_ERROR_SYSTEM;
    }
    std::atexit(finalize_at_exit);
  } else {
    MPI_Query_thread(&level);
  }
  if (level != MPI_THREAD_MULTIPLE) {
    *error = std::string(initialised == 0 ? "this MPI gives " : "the program's MPI_Init gave ") +
             level_name(level) + ", but mpi:// needs MPI_THREAD_MULTIPLE" +
             (initialised == 0 ? "" : ": ask MPI_Init_thread for it");
    return TRIREME_ERROR_UNSUPPORTED;
  }
  int key = MPI_KEYVAL_INVALID;
  int code = MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, close_at_finalize, &key, nullptr);
  if (code == MPI_SUCCESS) code = MPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr);
  if (code != MPI_SUCCESS) {
    *error = error_text("MPI_Comm_set_attr", code);
    return TRIREME_ERROR_SYSTEM;
  }
  return TRIREME_OK;
}

}  // namespace

Inside::Inside() : lock_(calling), inside_(!closed.load()) {}

std::int32_t begin_mpi(std::int32_t* rank, std::int32_t* world_size, bool (*forget_groups)(),
                       std::string* error) {
  const std::lock_guard lock(beginning);
  forget = forget_groups;
  if (!begun) {
    const std::int32_t status = begin_once(error);
    if (status != TRIREME_OK) return status;
    begun = true;
  }
  const Inside inside;
  if (!inside) {
    *error = "MPI has been finalised in this process, and cannot begin again";
    return TRIREME_ERROR_INVALID_STATE;
  }
  int code = MPI_Comm_rank(MPI_COMM_WORLD, rank);
  if (code == MPI_SUCCESS) code = MPI_Comm_size(MPI_COMM_WORLD, world_size);
  if (code == MPI_SUCCESS) return TRIREME_OK;
  *error = error_text("MPI_Comm_rank", code);
  return TRIREME_ERROR_SYSTEM;
}

void count_group(int change) { groups.fetch_add(change); }

std::string error_text(const char* call, int code) {
  char text[MPI_MAX_ERROR_STRING + 1] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(call) + " answered " + std::to_string(code) + ": " + text;
}

}  // namespace trireme::mpi
