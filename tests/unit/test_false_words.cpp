// Peers that send impossible words. Perhaps only one rank refuses them: the others believe that all
// is well and go on. They must get the failure at once, in their next call.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "collectives/communicator.hpp"
#include "collectives/subgroup.hpp"
#include "exchange/agreement.hpp"
#include "exchange/storage.hpp"
#include "net/sha256.hpp"

// Last: its macros take names like `fail`.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
extern "C" {
#include <cmocka.h>
}

namespace {

using namespace trireme;

constexpr std::uint64_t kLong = 100'000'000'000;
constexpr int kRanks = 3;
constexpr int kLiar = 2;  // rank 0 refuses its words, rank 1 goes on

struct Outcome {
  Status told = Status::success();  // what the call answered
  Status next = Status::success();  // what the next one answered
};

using Body = std::function<Status(const std::shared_ptr<Communicator>&)>;

// Rank 0 and the liar run their bodies; the liar and rank 1 then wait for a barrier.
void run_ranks(const Body& honest, const Body& liar, Outcome (&outcomes)[kRanks]) {
  static std::atomic<int> number{0};
  const std::string url = "local://false-words-" + std::to_string(number++);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      GroupOptions options;
      options.rank = rank;
      options.world_size = kRanks;
      options.rendezvous = url;
      options.name = "job";
      std::shared_ptr<Communicator> group;
      Outcome& outcome = outcomes[rank];
      outcome.told = Communicator::create(options, kLong, &group);
      if (outcome.told.ok()) outcome.told = group->wait_ready(Deadline::after(kLong), nullptr);
      if (!outcome.told.ok()) return;
      outcome.told = rank == kLiar ? liar(group) : honest(group);
      Operation barrier;
      barrier.kind = OperationKind::barrier;
      outcome.next = group->run(std::move(barrier), Deadline::after(kLong));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

bool says(const Status& status, const char* words) {
  return status.message().find(words) != std::string::npos;
}

void expect_told(const Outcome (&outcomes)[kRanks], const char* words) {
  for (int rank = 0; rank < kRanks; ++rank) {
    const Outcome& outcome = outcomes[rank];
    if (rank != kLiar) {
      assert_int_equal(outcome.told.code(), TRIREME_ERROR_CORRUPT);
      // The slower one may hear of it from the quicker one before it has looked.
      assert_true(says(outcome.told, words));
    }
    assert_int_equal(outcome.next.code(), TRIREME_ERROR_CORRUPT);
    assert_true(says(outcome.next, words));
    assert_true(says(outcome.next, "rank 0: ") || says(outcome.next, "rank 1: "));
  }
}

// ---- agreement on a model ----

struct Summary {
  std::uint64_t hash;
  std::uint64_t length;
  std::int64_t status;
};

std::uint32_t channels_of(Communicator& group) {
  std::uint32_t first = 0;
  assert_true(group.take_channels(group.next_model(), Deadline::after(kLong), &first).ok());
  return first;
}

Status tell_summary(const std::shared_ptr<Communicator>& group, const Summary& own) {
  Summary all[kRanks] = {};
  Operation operation;
  operation.channel = channels_of(*group);
  operation.kind = OperationKind::all_gather;
  operation.dtype = TRIREME_DTYPE_U64;
  operation.send = &own;
  operation.receive = all;
  operation.count = sizeof own / sizeof(std::uint64_t);
  return group->run(std::move(operation), Deadline::after(kLong));
}

Status agree_honestly(const std::shared_ptr<Communicator>& group) {
  strategies::Link link;
  link.communicator = group;
  link.timeout_ns = kLong;
  link.gathers = channels_of(*group);
  link.reductions = link.gathers + 1;
  return strategies::agree(link, "seal", {{"leaves", "3"}}, Status::success());
}

void a_status_that_is_none_fails_the_group(void**) {
  for (const std::int64_t status : {1, -1000, 1 << 30}) {
    Outcome outcomes[kRanks];
    run_ranks(
        agree_honestly,
        [&](const auto& group) {
          return tell_summary(group, {0, 0, status});
        },
        outcomes);
    expect_told(outcomes, "rank 2 answered a status that is none");
  }
}

void lengths_that_no_memory_holds_fail_the_group(void**) {
  Outcome outcomes[kRanks];
  run_ranks(
      agree_honestly,
      [](const auto& group) {
        return tell_summary(group, {0, UINT64_MAX, TRIREME_OK});
      },
      outcomes);
  expect_told(outcomes, "rank 2 tells more than memory can hold");
}

// ---- making groups ----

template <std::size_t Bytes>
Status report(Communicator& group, const std::string& text, const void* own) {
  std::vector<char> all(Bytes * kRanks);
  const auto digest = sha256(text);
  Operation operation;
  operation.kind = OperationKind::all_gather;
  operation.dtype = TRIREME_DTYPE_BYTES;
  operation.send = own;
  operation.receive = all.data();
  operation.count = Bytes;
  std::memcpy(&operation.agreement, digest.data(), sizeof operation.agreement);
  operation.agreement_name = "groups";
  return group.run(std::move(operation), Deadline::after(kLong));
}

// Each honest rank wants a group of its own; the liar wants none, and then says what no rank says.
void a_report_that_is_no_status_fails_the_parent(void**) {
  for (const std::int32_t code : {7, -1000}) {
    Outcome outcomes[kRanks];
    run_ranks(
        [](const auto& group) {
          std::shared_ptr<Communicator> child;
          const Status status = split(*group, group->rank(), 0, {"", kLong}, &child);
          return child == nullptr ? status : Status::success();
        },
        [&](const auto& group) {
          const std::int32_t wish[6] = {1, 2, 3, 4, -1, 0};
          std::int32_t answer[48] = {code};
          std::memcpy(answer + 2, "\x1b[31mred", 8);
          const Status wished = report<sizeof wish>(*group, "split", wish);
          return wished.ok() ? report<sizeof answer>(*group, "split; joined", answer) : wished;
        },
        outcomes);
    for (const Outcome& outcome : outcomes) assert_false(says(outcome.told, "\x1b"));
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank != kLiar) assert_int_equal(outcomes[rank].told.code(), TRIREME_ERROR_CORRUPT);
      assert_int_equal(outcomes[rank].next.code(), TRIREME_ERROR_CORRUPT);
      assert_true(says(outcomes[rank].next, "rank 2 told a status that is none"));
    }
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(a_status_that_is_none_fails_the_group),
      cmocka_unit_test(lengths_that_no_memory_holds_fail_the_group),
      cmocka_unit_test(a_report_that_is_no_status_fails_the_parent),
  };
  return cmocka_run_group_tests_name("false words", tests, nullptr, nullptr);
}
