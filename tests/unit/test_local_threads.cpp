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
      Status status = join(url, rank, world_size, &backend);
      if (status.ok()) status = wait_for_all(*backend);
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

void channels_do_not_wait_for_each_other(void**) {
  expect_success(3, [](Backend& backend, std::string* error) {
    std::string errors[3];
    std::vector<std::thread> threads;
    for (std::uint32_t channel = 0; channel < 3; ++channel) {
      threads.emplace_back([&, channel] {
        Walk walk(backend, channel);
        check_everything(walk, Source::mixed, 3001);
        errors[channel] = walk.error;
      });
    }
    for (std::thread& thread : threads) thread.join();
    *error = errors[0] + errors[1] + errors[2];
  });
}

void a_disagreement_is_a_mismatch_on_every_rank_and_moves_nothing(void**) {
  for (const Disagreement& disagreement : kDisagreements) {
    expect_success(3, [&](Backend& backend, std::string* error) {
      *error = check_disagreement(backend, disagreement);
    });
  }
}

void ranks_out_of_step_are_a_mismatch(void**) {
  expect_success(2, [](Backend& backend, std::string* error) {
    *error = failure_is(backend.run(operation(OperationKind::barrier, 0),
                                    backend.rank() == 0 ? 4 : 5, Deadline::after(kLong)),
                        TRIREME_ERROR_MISMATCH, {0, 1}, "they are at sequences 4 and 5");
  });
}

// Operations of two models side by side look alike; they must never meet.
void calls_of_two_models_in_one_channel_are_a_mismatch(void**) {
  expect_success(2, [](Backend& backend, std::string* error) {
    float send = 1;
    float receive = 7;
    Operation sum = operation(OperationKind::all_reduce, 1);
    sum.channel = kModelChannel + 1;
    sum.model = backend.rank() == 0 ? 3 : 67;
    sum.send = &send;
    sum.receive = &receive;
    *error = failure_is(backend.run(sum, 1, Deadline::after(kLong)), TRIREME_ERROR_MISMATCH, {0, 1},
                        "of model 67");
    if (error->empty() && receive != 7) *error = "something moved";
  });
}

void a_deadline_names_exactly_the_ranks_that_did_not_arrive(void**) {
  // The visits of this failpoint tell when ranks 1 and 3 have arrived.
  assert_int_equal(set_failpoints("barrier.after_publish=off").code(), TRIREME_OK);
  std::atomic<int> done{0};
  expect_success(4, [&](Backend& backend, std::string* error) {
    const Operation barrier = operation(OperationKind::barrier, 0);
    if (backend.rank() == 2) {
      while (done.load() < 3) pause_briefly();
    } else if (backend.rank() == 0) {
      std::uint64_t hits = 0;
      while (hits < 2 && failpoint_hits("barrier.after_publish", &hits).ok()) pause_briefly();
    }
    const std::uint64_t wait = backend.rank() == 0 ? kSecond / 20 : kLong;
    *error = failure_is(
        backend.run(barrier, 1, Deadline::after(wait)), TRIREME_ERROR_TIMEOUT, {2},
        std::string("rank 2 did not arrive before the deadline (rank 2 has called nothing)") +
            (backend.rank() == 2 ? " (rank 2 is this rank)" : "") +
            " during barrier, sequence 1 of \"job\"");
    ++done;
  });
  assert_int_equal(set_failpoints("").code(), TRIREME_OK);
}

void waiting_for_ranks_that_have_not_joined_names_them_and_may_be_repeated(void**) {
  const std::string url = fresh_url();
  std::unique_ptr<Backend> first;
  std::unique_ptr<Backend> second;
  assert_int_equal(join(url, 1, 3, &first).code(), TRIREME_OK);
  for (int time = 0; time < 2; ++time) {
    assert_string_equal(failure_is(first->wait_ready(Deadline::after(kSecond / 50)),
                                   TRIREME_ERROR_TIMEOUT, {0, 2}, "ranks 0 and 2 have not joined")
                            .c_str(),
                        "");
    assert_true(first->failure().ok());
  }
  assert_int_equal(join(url, 0, 3, &second).code(), TRIREME_OK);
  const Operation barrier = operation(OperationKind::barrier, 0);
  for (Backend* backend : {first.get(), second.get(), first.get()}) {  // now the group has failed
    assert_string_equal(failure_is(backend->run(barrier, 1, Deadline::after(kSecond / 50)),
                                   TRIREME_ERROR_TIMEOUT, {2}, "rank 2 has not joined")
                            .c_str(),
                        "");
    assert_false(second->failure().ok());
  }
}

// A rank that leaves after a wait in vain tells the others which ranks it missed.
void who_has_joined_since_a_wait_is_not_missed(void**) {
  const std::string url = fresh_url();
  std::unique_ptr<Backend> first;
  std::unique_ptr<Backend> second;
  assert_int_equal(join(url, 0, 3, &first).code(), TRIREME_OK);
  assert_string_equal(failure_is(first->wait_ready(Deadline::after(kSecond / 50)),
                                 TRIREME_ERROR_TIMEOUT, {1, 2}, "ranks 1 and 2 have not joined")
                          .c_str(),
                      "");
  assert_int_equal(join(url, 1, 3, &second).code(), TRIREME_OK);
  first = nullptr;
  assert_string_equal(failure_is(second->wait_ready(Deadline::after(kLong)), TRIREME_ERROR_TIMEOUT,
                                 {2}, "rank 2 has not joined")
                          .c_str(),
                      "");
}

void who_only_asked_and_leaves_blames_nobody(void**) {
  const std::string url = fresh_url();
  std::unique_ptr<Backend> first;
  std::unique_ptr<Backend> second;
  assert_int_equal(join(url, 0, 3, &first).code(), TRIREME_OK);
  assert_int_equal(join(url, 1, 3, &second).code(), TRIREME_OK);
  assert_string_equal(failure_is(first->wait_ready(Deadline::after(0)), TRIREME_ERROR_TIMEOUT, {2},
                                 "rank 2 has not joined")
                          .c_str(),
                      "");
  first = nullptr;
  assert_string_equal(failure_is(second->wait_ready(Deadline::after(kLong)),
                                 TRIREME_ERROR_PEER_LOST, {0}, "rank 0 left")
                          .c_str(),
                      "");
}

// Another group hears how a long wait in this one ends.
Waiting end_of_wait(std::uint64_t timeout_ns, bool aborts) {
  const std::string url = fresh_url();
  std::unique_ptr<Backend> backends[2];
  for (int rank = 0; rank < 2; ++rank) {
    assert_int_equal(join(url, rank, 2, &backends[rank]).code(), TRIREME_OK);
  }
  std::atomic<bool> waits{false};
  std::atomic<Waiting> last{Waiting::begins};
  backends[0]->on_wait(
      std::make_shared<const WaitListener>([&](const RankSet&, Waiting what) noexcept {
        last = what;
        waits = true;
      }));
  std::thread waiter([&] {
    const Status status =
        backends[0]->run(operation(OperationKind::barrier, 0), 1, Deadline::after(timeout_ns));
    if (status.code() != (aborts ? TRIREME_ERROR_ABORTED : TRIREME_ERROR_TIMEOUT)) {
      last = Waiting::begins;
    }
  });
  while (!waits.load()) pause_briefly();
  if (aborts) fail_group(*backends[1], Status::failure(TRIREME_ERROR_ABORTED, "enough"));
  waiter.join();
  return last.load();
}

void only_a_deadline_makes_a_wait_vain(void**) {
  assert_int_equal(end_of_wait(kLong, true), Waiting::over);
  assert_int_equal(end_of_wait(kSecond / 20, false), Waiting::failed);
}

void a_rank_that_left_is_named(void**) {
  const std::string url = fresh_url();
  std::unique_ptr<Backend> backends[2];
  for (int rank = 0; rank < 2; ++rank) {
    assert_int_equal(join(url, rank, 2, &backends[rank]).code(), TRIREME_OK);
  }
  backends[1] = nullptr;
  for (std::uint64_t sequence = 1; sequence <= 2; ++sequence) {
    const Status status =
        backends[0]->run(operation(OperationKind::barrier, 0), sequence, Deadline::after(kLong));
    assert_string_equal(
        failure_is(status, TRIREME_ERROR_PEER_LOST, {1},
                   "rank 1 left (rank 1 has called nothing) during barrier, sequence "
                   "1 of \"job\"")
            .c_str(),
        "");
    assert_int_equal(status.details()->sequence, 1);
    assert_string_equal(status.details()->operation.c_str(), "barrier");
    assert_string_equal(status.details()->communicator.c_str(), "job");
  }
}

void a_rank_that_leaves_after_its_last_collective_disturbs_nobody(void**) {
  for (int round = 0; round < 60; ++round) {
    expect_success(4, [&](Backend& backend, std::string* error) {
      Walk walk(backend);
      check_all_reduce(walk, round % 2 == 0 ? 10 : 3000, false, true);
      *error = walk.error;
    });
  }
}

void a_name_can_be_used_again_as_soon_as_a_rank_has_left(void**) {
  const std::string url = fresh_url();
  std::vector<std::thread> threads;
  std::string errors[3];
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      for (int round = 0; round < 30; ++round) {
        std::unique_ptr<Backend> backend;
        const Status status = join(url, rank, 3, &backend);
        if (!status.ok()) {
          errors[rank] = status.message();
          return;
        }
        Walk walk(*backend);
        check_all_reduce(walk, 3, false, true);
        if (!walk.error.empty()) errors[rank] = walk.error;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) assert_string_equal(error.c_str(), "");
}

void a_failure_told_by_one_rank_wakes_all_and_stays(void**) {
  expect_success(3, [](Backend& backend, std::string* error) {
    if (backend.rank() == 1) {
      FailureDetails details;
      details.blamed = {1};
      fail_group(backend, Status::failure(TRIREME_ERROR_ABORTED, "aborted by rank 1: enough")
                              .with_details(std::move(details)));
      fail_group(backend, Status::failure(TRIREME_ERROR_CALLBACK, "too late"));
    }
    for (std::uint64_t sequence = 1; sequence <= 2 && error->empty(); ++sequence) {
      *error = failure_is(
          backend.run(operation(OperationKind::barrier, 0), sequence, Deadline::after(kLong)),
          TRIREME_ERROR_ABORTED, {1}, "aborted by rank 1: enough");
    }
    if (error->empty()) {
      *error = failure_is(backend.failure(), TRIREME_ERROR_ABORTED, {1}, "aborted by rank 1");
    }
  });
}

void a_step_that_fails_on_one_rank_fails_on_all(void**) {
  for (const OperationKind kind : kKinds) {
    for (const char* const point : kPoints) {
      const std::string name = std::string(failpoint_name(kind)) + "." + point;
      assert_int_equal(set_failpoints((name + "=fail@1").c_str()).code(), TRIREME_OK);
      expect_success(3, [&](Backend& backend, std::string* error) {
        const Status status = run_until_failure(backend, kind, false);
        if (status.code() != TRIREME_ERROR_SYSTEM ||
            status.message().find("failpoint " + name) == std::string::npos) {
          *error = name + ": " + std::to_string(status.code()) + " " + status.message();
        }
      });
    }
  }
  assert_int_equal(set_failpoints("").code(), TRIREME_OK);
}

// A rank that got a failure may free its memory at once: no peer may be reading it. The address
// sanitizer and the thread sanitizer see it if one does.
void memory_may_go_as_soon_as_a_failure_is_returned(void**) {
  for (int round = 0; round < 40; ++round) {
    std::atomic<bool> started{false};
    expect_success(3, [&](Backend& backend, std::string* error) {
      constexpr std::uint64_t kCount = 200000;
      std::thread aborter;
      if (backend.rank() == 2) {
        aborter = std::thread([&] {
          while (!started.load()) std::this_thread::yield();
          std::this_thread::sleep_for(std::chrono::microseconds(round * 20));
          fail_group(backend, Status::failure(TRIREME_ERROR_ABORTED, "enough"));
        });
      }
      Status status = Status::success();
      for (std::uint64_t sequence = 1; status.ok(); ++sequence) {
        auto send = std::make_unique<std::vector<float>>(kCount, 1.0f);
        auto receive = std::make_unique<std::vector<float>>(kCount * 3);
        Operation gather = operation(OperationKind::all_gather, kCount);
        gather.send = send->data();
        gather.receive = receive->data();
        started = true;
        status = backend.run(gather, sequence, Deadline::after(kLong));
        std::fill(send->begin(), send->end(), 2.0f);
        if (status.ok() &&
            std::any_of(receive->begin(), receive->end(), [](float f) { return f != 1.0f; })) {
          *error = "a gather that went well has wrong elements";
        }
      }
      if (aborter.joinable()) aborter.join();
      if (status.code() != TRIREME_ERROR_ABORTED) *error = status.message();
    });
  }
}

void a_place_is_given_once_and_world_sizes_must_agree(void**) {
  const std::string url = fresh_url();
  std::unique_ptr<Backend> first;
  std::unique_ptr<Backend> other;
  assert_int_equal(join(url, 1, 2, &first).code(), TRIREME_OK);
  Status status = join(url, 1, 2, &other);
  assert_int_equal(status.code(), TRIREME_ERROR_INVALID_ARGUMENT);
  assert_non_null(strstr(status.message().c_str(), ("rank 1 of " + url + " is taken").c_str()));
  status = join(url, 0, 3, &other);
  assert_int_equal(status.code(), TRIREME_ERROR_MISMATCH);
  assert_non_null(strstr(status.message().c_str(), "world size 3, earlier ones 2"));
  assert_null(other.get());
  assert_int_equal(join(url, 0, 2, &other).code(), TRIREME_OK);
  assert_int_equal(first->wait_ready(Deadline::after(kLong)).code(), TRIREME_OK);
}

void options_out_of_range_are_refused(void**) {
  std::unique_ptr<Backend> backend;
  assert_int_equal(join("local://x", 0, 0, &backend).code(), TRIREME_ERROR_INVALID_ARGUMENT);
  assert_int_equal(join("local://x", 2, 2, &backend).code(), TRIREME_ERROR_INVALID_ARGUMENT);
  assert_int_equal(join("local://x", -1, 2, &backend).code(), TRIREME_ERROR_INVALID_ARGUMENT);
  assert_int_equal(join("local://", 0, 1, &backend).code(), TRIREME_ERROR_INVALID_ARGUMENT);
  assert_int_equal(join("udp://x:1", 0, 1, &backend).code(), TRIREME_ERROR_UNSUPPORTED);
  assert_int_equal(join("local://x", 0, 100000, &backend).code(), TRIREME_ERROR_UNSUPPORTED);
  assert_null(backend.get());
}

void memory_that_is_not_there_is_refused_and_the_group_goes_on(void**) {
  expect_success(2, [](Backend& backend, std::string* error) {
    for (const std::uint64_t bytes : {std::uint64_t{1} << 60, UINT64_MAX}) {
      std::shared_ptr<Memory> memory;
      const Status status = backend.allocate(bytes, &memory);
      if (status.code() != TRIREME_ERROR_OUT_OF_MEMORY || memory != nullptr) {
        *error = "absurd size: " + status.message();
      }
    }
    std::shared_ptr<Memory> memory;
    if (!backend.allocate(0, &memory).ok() || memory->bytes() != 0) *error = "no bytes";
    if (!backend.allocate(5001, &memory).ok() || memory->bytes() != 5001 ||
        reinterpret_cast<std::uintptr_t>(memory->data()) % 4096 != 0 ||
        static_cast<char*>(memory->data())[5000] != 0) {
      *error = "5001 bytes";
    }
    Walk walk(backend);
    check_all_reduce(walk, 3000, true, false);
    if (error->empty()) *error = walk.error;
  });
}

void traffic_is_what_peers_read(void**) {
  expect_success(4, [](Backend& backend, std::string* error) {
    Walk walk(backend);
    check_all_gather(walk, Blocks(4, backend.rank(), 2000, {}), false, false);
    const TrafficCounters gather = backend.traffic();
    check_reduce_scatter(walk, Blocks(4, backend.rank(), 2000, {}), false, false);
    const TrafficCounters scatter = backend.traffic();
    *error = walk.error;
    if (gather.sent_bytes != 3 * 8000 || gather.received_bytes != 3 * 8000) *error = "all_gather";
    if (scatter.sent_bytes != 6 * 8000 || scatter.received_bytes != 6 * 8000) {
      *error = "reduce_scatter";
    }
  });
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(every_collective_is_right_for_every_world_size_and_length),
      cmocka_unit_test(channels_do_not_wait_for_each_other),
      cmocka_unit_test(a_disagreement_is_a_mismatch_on_every_rank_and_moves_nothing),
      cmocka_unit_test(ranks_out_of_step_are_a_mismatch),
      cmocka_unit_test(calls_of_two_models_in_one_channel_are_a_mismatch),
      cmocka_unit_test(a_deadline_names_exactly_the_ranks_that_did_not_arrive),
      cmocka_unit_test(waiting_for_ranks_that_have_not_joined_names_them_and_may_be_repeated),
      cmocka_unit_test(who_has_joined_since_a_wait_is_not_missed),
      cmocka_unit_test(who_only_asked_and_leaves_blames_nobody),
      cmocka_unit_test(only_a_deadline_makes_a_wait_vain),
      cmocka_unit_test(a_rank_that_left_is_named),
      cmocka_unit_test(a_rank_that_leaves_after_its_last_collective_disturbs_nobody),
      cmocka_unit_test(a_name_can_be_used_again_as_soon_as_a_rank_has_left),
      cmocka_unit_test(a_failure_told_by_one_rank_wakes_all_and_stays),
      cmocka_unit_test(a_step_that_fails_on_one_rank_fails_on_all),
      cmocka_unit_test(memory_may_go_as_soon_as_a_failure_is_returned),
      cmocka_unit_test(a_place_is_given_once_and_world_sizes_must_agree),
      cmocka_unit_test(options_out_of_range_are_refused),
      cmocka_unit_test(memory_that_is_not_there_is_refused_and_the_group_goes_on),
      cmocka_unit_test(traffic_is_what_peers_read),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
