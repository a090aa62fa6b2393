#include "launch/supervisor.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "launch/descendants.hpp"
#include "platform/clock.hpp"

namespace trireme::cluster {
namespace {

// In the child: sets up the state that a program expects from its parent, then runs the program.
[[noreturn]] void become(char** program, pid_t supervisor) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  if (getppid() != supervisor) _exit(128 + SIGKILL);
  for (int number = 1; number < NSIG; ++number) signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execvp(program[0], program);
  const int error_number = errno;
  dprintf(STDERR_FILENO, "trireme: cannot run %s: %s\n", program[0], std::strerror(error_number));
  _exit(error_number == ENOENT ? 127 : 126);
}

// Signals the program's group, and the program itself if it has moved to another group.
void send_signal(pid_t program, int number) {
  kill(-program, number);
  if (getpgid(program) != program) kill(program, number);
}

// Passes on the launcher's signals. Returns false when the launcher is gone.
bool hear_launcher(pid_t program) {
  unsigned char signals[16];
  const ssize_t length = read(kLifeline, signals, sizeof signals);
  if (length < 0) return errno == EINTR || errno == EAGAIN;
  for (ssize_t i = 0; i < length; ++i) send_signal(program, signals[i]);
  return length > 0;
}

// Whether the program has ended; it stays a zombie, so that its number and its group's number are
// not reused. Reaps orphans that have fallen to the supervisor.
bool has_ended(pid_t program) {
  for (;;) {
    siginfo_t info{};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return false;
    if (info.si_pid == program) return true;
    waitpid(info.si_pid, nullptr, 0);
  }
}

}  // namespace

int run_supervisor(char** program) {
  struct stat lifeline {};
  if (program[0] == nullptr || fstat(kLifeline, &lifeline) != 0 || !S_ISSOCK(lifeline.st_mode)) {
    std::fprintf(stderr, "trireme: %s is only for trireme run\n", kSupervisorCommand);
    return 2;
  }
  fcntl(kLifeline, F_SETFD, FD_CLOEXEC);
  adopt_orphans();
  // The supervisor may be stopped when the launcher dies, so the kernel must wake it.
  prctl(PR_SET_PDEATHSIG, SIGCONT, 0, 0, 0);

  // Signals come as data; nothing but SIGKILL can end the supervisor before its program.
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  sigset_t child_signal;
  sigemptyset(&child_signal);
  sigaddset(&child_signal, SIGCHLD);
  const int children = signalfd(-1, &child_signal, SFD_CLOEXEC | SFD_NONBLOCK);
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  const pid_t self = getpid();
  const pid_t worker = children < 0 || null < 0 ? -1 : fork();
  if (worker == 0) become(program, self);
  if (worker < 0) {
    std::fprintf(stderr, "trireme: cannot start %s: %s\n", program[0], std::strerror(errno));
    return 126;
  }
  setpgid(worker, worker);  // here too, so that no signal comes before the group exists
  // Only the program and its children hold the output open now.
  for (const int descriptor : {STDOUT_FILENO, STDERR_FILENO}) dup2(null, descriptor);

  bool has_launcher = true;
  while (!has_ended(worker)) {
    pollfd sources[] = {{children, POLLIN, 0}, {has_launcher ? kLifeline : -1, POLLIN, 0}};
    if (poll(sources, 2, -1) < 0) continue;
    if (sources[0].revents != 0) {
      signalfd_siginfo ignored;
      while (read(children, &ignored, sizeof ignored) > 0) {
      }
    }
    if (sources[1].revents != 0 && !hear_launcher(worker)) {
      has_launcher = false;
      send_signal(worker, SIGKILL);
    }
  }
  SupervisorReport report{now_ns(), 0, 0};
  kill(-worker, SIGKILL);
  waitpid(worker, &report.wait_status, 0);
  send(kLifeline, &report, sizeof report, MSG_NOSIGNAL);
  kill_descendants(std::chrono::seconds(2));
  return 0;
}

}  // namespace trireme::cluster
