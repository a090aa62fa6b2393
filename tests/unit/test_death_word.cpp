// A word of shared memory by which the kernel tells of a death.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <thread>

#include "platform/death_word.hpp"

// Last: its macros take names like `fail`.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
extern "C" {
#include <cmocka.h>
}

namespace {

using trireme::DeathWord;
using Word = std::atomic<std::uint32_t>;

Word* shared_words() {
  void* const memory =
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_true(memory != MAP_FAILED);
  return static_cast<Word*>(memory);
}

void a_process_that_is_killed_is_told_of(void**) {
  Word* const words = shared_words();
  const pid_t child = fork();
  if (child == 0) {
    std::thread([words] {
      DeathWord life;
      life.hold(&words[0]);
      words[1].store(life.held() ? 1 : 2);
      for (;;) pause();
    }).join();
    _exit(1);
  }
  while (words[1].load() == 0) usleep(100);
  assert_int_equal(words[1].load(), 1);
  assert_true(words[0].load() != 0);
  assert_false(DeathWord::tells_death(words[0].load()));
  assert_int_equal(kill(child, SIGKILL), 0);
  assert_int_equal(waitpid(child, nullptr, 0), child);
  assert_true(DeathWord::tells_death(words[0].load()));
  munmap(words, 4096);
}

void who_lets_go_has_not_died(void**) {
  Word* const words = shared_words();
  std::thread([words] {
    DeathWord life;
    assert_false(life.held());
    life.let_go();
    life.hold(&words[0]);
    assert_true(life.held() && words[0].load() != 0);
  }).join();
  assert_int_equal(words[0].load(), 0);
  munmap(words, 4096);
}

// A peer may have written anything there.
void rubbish_in_the_word_harms_nobody(void**) {
  Word* const words = shared_words();
  for (const std::uint32_t rubbish : {0u, 1u, 0x80000000u, 0xffffffffu}) {
    const pid_t child = fork();
    if (child == 0) {
      std::thread([words, rubbish] {
        DeathWord life;
        life.hold(&words[0]);
        words[0].store(rubbish);
      }).join();
      _exit(0);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_false(DeathWord::tells_death(words[0].load()));
  }
  munmap(words, 4096);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(a_process_that_is_killed_is_told_of),
      cmocka_unit_test(who_lets_go_has_not_died),
      cmocka_unit_test(rubbish_in_the_word_harms_nobody),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
