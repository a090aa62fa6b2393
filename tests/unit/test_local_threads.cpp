// The local backend between threads.
#include <atomic>
#include <functional>
#include <thread>

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
  static std::atomic<int> number{0};
  return "local://threads-" + std::to_string(number++);
}

using Body = std::function<void(Backend& backend, std::string* error)>;

// Runs `body` as every rank and returns the first thing that any of them found wrong.
std::string run_ranks(int world_size, const Body& body) {
  const std::string url = fresh_url();
  std::vector<std::string> errors(static_cast<std::size_t>(world_size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      std::unique_ptr<Backend> backend;
      std::string& error = errors[static_cast<std::size_t>(rank)];
      const Status status = join(url, rank, world_size, &backend);
      if (!status.ok()) {
        error = status.message();
      } else {
        body(*backend, &error);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) {
    if (!error.empty()) return error;
  }
  return "";
}

void expect_success(int world_size, const Body& body) {
  const std::string error = run_ranks(world_size, body);
  if (!error.empty()) fail_msg("%s", error.c_str());
}

void every_collective_is_right_for_every_world_size_and_length(void**) {
  for (const int world_size : {1, 2, 3, 4, 5, 8}) {
    for (const Source source : {Source::own, Source::mixed}) {
      expect_success(world_size, [source](Backend& backend, std::string* error) {
        Walk walk(backend);
        check_everything(walk, source, source == Source::own ? 100003 : 5003);
        *error = walk.error;
      });
    }
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(every_collective_is_right_for_every_world_size_and_length),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
