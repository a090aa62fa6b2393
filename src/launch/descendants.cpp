#include "launch/descendants.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace trireme::cluster {
namespace {

// The parent of a process, or -1. The name in "PID (NAME) STATE PARENT" may hold any bytes.
pid_t parent_of(const char* process) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%.20s/stat", process);
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return -1;
  char text[512];
  const ssize_t length = read(file, text, sizeof text - 1);
  close(file);
  if (length <= 0) return -1;
  text[length] = 0;
  const char* const name_end = std::strrchr(text, ')');
  int parent = -1;
  if (name_end == nullptr || std::sscanf(name_end + 1, " %*c %d", &parent) != 1) return -1;
  return parent;
}

void kill_children() {
  DIR* const processes = opendir("/proc");
  if (processes == nullptr) return;
  const pid_t self = getpid();
  while (const dirent* const entry = readdir(processes)) {
    if (entry->d_name[0] < '1' || entry->d_name[0] > '9') continue;
    // A child keeps its number until it is reaped, and only this thread reaps children.
    if (parent_of(entry->d_name) == self) kill(std::atoi(entry->d_name), SIGKILL);
  }
  closedir(processes);
}

}  // namespace

void adopt_orphans() { prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); }

bool kill_descendants(std::chrono::milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  for (;;) {
    pid_t reaped;
    do {
      reaped = waitpid(-1, nullptr, WNOHANG | __WALL);
    } while (reaped > 0);
    if (reaped < 0 && errno == ECHILD) return true;
    if (std::chrono::steady_clock::now() >= end) return false;
    kill_children();
    const timespec pause{0, 1'000'000};
    nanosleep(&pause, nullptr);
  }
}

}  // namespace trireme::cluster
