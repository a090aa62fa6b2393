// The local backend between processes. The workers are forked before anybody here has used the library.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>

#include "local_ranks.hpp"
#include "platform/failpoint.hpp"

// Last: its macros take names like `fail`.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
extern "C" {
#include <cmocka.h>
}

namespace {

using namespace local_ranks;

std::string fresh_url() {
  static int number = 0;
  return "host://test-" + std::to_string(getpid()) + "-" + std::to_string(number++);
}

// What a worker process does; what it returns is the first thing that it found wrong.
using Worker = std::function<std::string()>;

struct Process {
  pid_t pid = -1;
  int report = -1;
};

Process start(const Worker& worker) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return {};
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    close(ends[0]);
    const std::string error = worker();
    std::size_t written = 0;
    while (written < error.size()) {
      const ssize_t now = write(ends[1], error.data() + written, error.size() - written);
      if (now < 0 && errno != EINTR) break;
      if (now > 0) written += static_cast<std::size_t>(now);
    }
    _exit(0);
  }
  close(ends[1]);
  return {pid, ends[0]};
}

// Its report; a death is one, too.
std::string finish(const Process& process) {
  std::string report;
  char text[512];
  ssize_t got = 0;
  while ((got = read(process.report, text, sizeof text)) > 0 || (got < 0 && errno == EINTR)) {
    if (got > 0) report.append(text, static_cast<std::size_t>(got));
  }
  close(process.report);
  int status = 0;
  while (waitpid(process.pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status)) report += "killed by signal " + std::to_string(WTERMSIG(status));
  if (WIFEXITED(status) && WEXITSTATUS(status) != 0) {
    report += "exit status " + std::to_string(WEXITSTATUS(status));
  }
  return report;
}

using Body = std::function<std::string(Backend& backend)>;

Worker rank_worker(const std::string& url, int rank, int world_size, const Body& body) {
  return [=]() -> std::string {
    std::unique_ptr<Backend> backend;
    Status status = join(url, rank, world_size, &backend);
    if (status.ok()) status = wait_for_all(*backend);
    return status.ok() ? body(*backend) : status.message();
  };
}

std::vector<std::string> run_ranks(int world_size, const Body& body) {
  const std::string url = fresh_url();
  std::vector<Process> processes;
  for (int rank = 0; rank < world_size; ++rank) {
    processes.push_back(start(rank_worker(url, rank, world_size, body)));
  }
  std::vector<std::string> reports;
  for (const Process& process : processes) reports.push_back(finish(process));
  return reports;
}

void expect_success(int world_size, const Body& body) {
  for (const std::string& report : run_ranks(world_size, body)) {
    if (!report.empty()) fail_msg("%s", report.c_str());
  }
}

void every_collective_is_right_for_every_world_size_and_length(void**) {
  for (const int world_size : {1, 2, 3, 4, 5, 8}) {
    expect_success(world_size, [](Backend& backend) {
      Walk walk(backend);
      check_everything(walk, Source::own, 100003);
      check_everything(walk, Source::allocated, 100003);
      check_everything(walk, Source::mixed, 5003);
      return walk.error;
    });
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(every_collective_is_right_for_every_world_size_and_length),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
