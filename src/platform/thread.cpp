#include "platform/thread.hpp"

#include <pthread.h>
#include <signal.h>

#include <cstddef>
#include <memory>

namespace trireme {
namespace {

// By default a thread's stack has the limit of the first thread's, which may be too small.
// Callbacks of the program run here, too. Pages that are never touched cost no memory.
constexpr std::size_t kStackBytes = 2u << 20;

void* thread_main(void* argument) noexcept {
  const std::unique_ptr<std::function<void()>> body(static_cast<std::function<void()>*>(argument));
  (*body)();
  return nullptr;
}

}  // namespace

Status start_thread(std::function<void()> body) {
  auto owned = std::make_unique<std::function<void()>>(std::move(body));
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  // Callbacks of the caller run on threads of the library, and may enter a runtime. A runtime turns
  // its own faults into exceptions. Mono stops every thread that ever ran its code by a real-time
  // signal: if it were blocked, the next garbage collection would wait for ever.
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) {
    sigdelset(&all, fault);
  }
  for (int number = SIGRTMIN; number <= SIGRTMAX; ++number) sigdelset(&all, number);
  pthread_attr_t attributes;
  int error_number = pthread_attr_init(&attributes);
  if (error_number != 0) return Status::system(error_number, "a thread of the library");
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  // The new thread inherits the mask, so no signal can reach it even at its first instruction.
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  error_number = pthread_create(&thread, &attributes, thread_main, owned.get());
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  if (error_number != 0) return Status::system(error_number, "a thread of the library");
  static_cast<void>(owned.release());
  return Status::success();
}

}  // namespace trireme
