// The rounds in which calls reach all ranks: after them each rank has the call of every other one,
// once, from messages whose number grows with the logarithm of the ranks. Messages that are none
// are refused. And the tree along which the call of a root reaches them.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "backends/frames/call_rounds.hpp"
#include "backends/slots/spread_tree.hpp"
#include "schedules/dissemination.hpp"

// Last: its macros take names like `fail`.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
extern "C" {
#include <cmocka.h>
}

namespace {

using namespace trireme;
using host::Call;
using host::CallRounds;

constexpr int kMost = 4096;

int log2_up(int n) {
  int rounds = 0;
  for (int reach = 1; reach < n; reach *= 2) ++rounds;
  return rounds;
}

// Each rank knows a range of ranks that ends with itself; so its length says which.
void each_rank_has_all_after_the_rounds(void**) {
  std::vector<int> worlds;
  for (int n = 1; n <= 300; ++n) worlds.push_back(n);
  for (int n = 512; n <= kMost; n *= 2) {
    for (const int odd : {-1, 0, n / 3}) worlds.push_back(std::min(n + odd, kMost));
  }
  for (const int n : worlds) {
    const int rounds = dissemination_rounds(n);
    assert_int_equal(rounds, log2_up(n));
    std::vector<int> known(static_cast<std::size_t>(n), 1);
    for (int round = 0; round < rounds; ++round) {
      std::vector<int> after = known;
      std::vector<int> messages(static_cast<std::size_t>(n), 0);
      for (int rank = 0; rank < n; ++rank) {
        const DisseminationRound sent = dissemination_round(rank, n, round);
        const int steps = (sent.to - rank + n) % n;
        assert_true(steps > 0 && sent.count >= 1);
        assert_true(sent.count <= known[static_cast<std::size_t>(rank)]);  // it has them
        assert_int_equal(dissemination_round(sent.to, n, round).from, rank);
        assert_int_equal(dissemination_count(rank, sent.to, n), sent.count);
        // They continue the receiver's range, and none is there already.
        assert_int_equal(known[static_cast<std::size_t>(sent.to)], steps);
        assert_true(steps + sent.count <= n);
        after[static_cast<std::size_t>(sent.to)] = steps + sent.count;
        ++messages[static_cast<std::size_t>(sent.to)];
      }
      for (const int count : messages) assert_int_equal(count, 1);
      known = std::move(after);
    }
    for (const int count : known) assert_int_equal(count, n);
    // The curve that the documentation gives.
    if (n >= 64 && (n & (n - 1)) == 0) {
      std::printf("messages of a rank in a call: %d ranks: %d, not %d\n", n, rounds, n - 1);
    }
  }
  assert_int_equal(dissemination_rounds(kMost), 12);
}

void only_ranks_of_the_rounds_send(void**) {
  for (const int n : {9, 16, 23}) {
    for (int from = 0; from < n; ++from) {
      int senders_to = 0;
      for (int to = 0; to < n; ++to) senders_to += dissemination_count(from, to, n) > 0;
      assert_int_equal(senders_to, log2_up(n));
      assert_int_equal(dissemination_count(from, from, n), 0);
    }
  }
}

struct Run {
  std::uint32_t count;
  std::uint32_t reserved;
  Call call;
};

std::vector<std::byte> message(const std::vector<Run>& runs) {
  std::vector<std::byte> out;
  for (const Run& run : runs) {
    const auto* const first = reinterpret_cast<const std::byte*>(&run);
    out.insert(out.end(), first, first + sizeof run);
    for (std::uint32_t i = 0; i < run.count; ++i) {
      out.insert(out.end(), run.call.carried, static_cast<std::byte>(i));
    }
  }
  return out;
}

Run run_of(std::uint32_t count, std::uint32_t carried) {
  Run run{};
  run.count = count;
  run.call.carried = carried;
  return run;
}

// From rank 3 to rank 7 of 12: in the round of four calls.
Status take(const std::vector<std::byte>& bytes, std::vector<int>* ranks, int from = 3,
            int to = 7) {
  ranks->clear();
  // On the heap, exactly as long: sanitizers see each byte that is read behind it.
  const std::vector<std::byte> exact(bytes);
  return CallRounds::take(from, to, 12, exact.data(), exact.size(),
                          [&](int rank, const Call& call, const std::byte* payload) -> Status {
                            std::uint32_t sum = 0;
                            for (std::uint32_t i = 0; i < call.carried; ++i) {
                              sum += static_cast<std::uint32_t>(payload[i]);
                            }
                            static_cast<void>(sum);
                            ranks->push_back(rank);
                            return Status::success();
                          });
}

void messages_are_taken_apart(void**) {
  std::vector<int> ranks;
  assert_true(take(message({run_of(4, 24)}), &ranks).ok());
  assert_true((ranks == std::vector<int>{3, 2, 1, 0}));
  assert_true(take(message({run_of(1, 0), run_of(3, 8)}), &ranks).ok());
  assert_int_equal(ranks.size(), 4);
  assert_true(take(message({run_of(1, 5)}), &ranks, 3, 4).ok());
  assert_true((ranks == std::vector<int>{3}));
  assert_true(take(message({run_of(2, 5)}), &ranks, 0, 2).ok());
  assert_true((ranks == std::vector<int>{0, 11}));
}

void messages_that_are_none_are_refused(void**) {
  std::vector<int> ranks;
  const auto refused = [&](const std::vector<std::byte>& bytes, int from, int to) {
    const Status status = take(bytes, &ranks, from, to);
    assert_int_equal(status.code(), TRIREME_ERROR_CORRUPT);
    assert_int_equal(status.details()->blamed.at(0), from);
  };
  refused({}, 3, 7);
  refused(message({run_of(3, 8)}), 3, 7);                // too few calls
  refused(message({run_of(5, 8)}), 3, 7);                // too many
  refused(message({run_of(4, 8), run_of(1, 0)}), 3, 7);  // more behind them
  refused(message({run_of(0, 8), run_of(4, 8)}), 3, 7);  // none of a kind
  refused(message({run_of(4, 8)}), 3, 8);                // no message goes there
  std::vector<std::byte> bytes = message({run_of(4, 8)});
  Run endless = run_of(4, UINT32_MAX);
  std::memcpy(bytes.data(), &endless, sizeof endless);
  refused(bytes, 3, 7);
  endless = run_of(UINT32_MAX, UINT32_MAX);
  std::memcpy(bytes.data(), &endless, sizeof endless);
  refused(bytes, 3, 7);
  const std::vector<std::byte> whole = message({run_of(1, 40), run_of(3, 16)});
  for (std::size_t length = 0; length < whole.size(); ++length) {
    refused({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length)}, 3, 7);
  }
}

// Whatever the bytes are, no byte behind them is read, and no rank beyond the message is named.
void any_bytes_are_taken_or_refused(void**) {
  std::mt19937 random(7);
  const std::vector<std::byte> whole = message({run_of(1, 40), run_of(3, 16)});
  int taken = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    std::vector<std::byte> bytes = whole;
    bytes.resize(random() % (whole.size() + 8));
    for (unsigned i = random() % 4; i > 0 && !bytes.empty(); --i) {
      const std::size_t at = random() % 3 == 0 ? random() % 8 : random() % bytes.size();
      if (at < bytes.size()) bytes[at] = static_cast<std::byte>(random() % 5);
    }
    std::vector<int> ranks;
    taken += take(bytes, &ranks).ok();
    assert_true(ranks.size() <= 4);
  }
  assert_true(taken < 20000);
}

// From the root on. A rank has no more messages or steps than in a binomial tree.
void the_call_of_a_root_reaches_each_rank_once(void**) {
  for (int n = 2; n <= 130; ++n) {
    for (const int root : {0, 1, n / 2, n - 1}) {
      const local::SpreadTree tree(root, n);
      std::vector<int> steps(static_cast<std::size_t>(n), -1);
      std::vector<int> reached{root};
      steps[static_cast<std::size_t>(root)] = 0;
      for (std::size_t i = 0; i < reached.size(); ++i) {
        const int rank = reached[i];
        int children = 0;
        int ranks_below = 0;
        tree.below(rank, [&](int child) {
          assert_int_equal(steps[static_cast<std::size_t>(child)], -1);
          assert_int_equal(tree.above(child), rank);
          steps[static_cast<std::size_t>(child)] = steps[static_cast<std::size_t>(rank)] + 1;
          reached.push_back(child);
          // Its part lies within this rank's.
          assert_true(tree.place_of(child) > tree.place_of(rank));
          const int end = rank == root ? n : tree.place_of(rank) + tree.size_at(rank);
          assert_true(tree.place_of(child) + tree.size_at(child) <= end);
          ranks_below += tree.size_at(child);
          ++children;
        });
        assert_int_equal(ranks_below, (rank == root ? n : tree.size_at(rank)) - 1);
        assert_true(children <= (rank == root ? 1 : log2_up(n)));
        assert_true(steps[static_cast<std::size_t>(rank)] <= log2_up(n) + 1);
      }
      assert_int_equal(reached.size(), n);
    }
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(the_call_of_a_root_reaches_each_rank_once),
      cmocka_unit_test(each_rank_has_all_after_the_rounds),
      cmocka_unit_test(only_ranks_of_the_rounds_send),
      cmocka_unit_test(messages_are_taken_apart),
      cmocka_unit_test(messages_that_are_none_are_refused),
      cmocka_unit_test(any_bytes_are_taken_or_refused),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
