// tcp:// groups over a network that is not well: below the library's sockets a bit flips, packets
// are short, late, or never arrive, a connection breaks. Slow is no error; everything else is one,
// with the rank named, and never a wrong number.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "backends/gloo/engine.hpp"
#include "collectives/communicator.hpp"
#include "fuzz.hpp"
#include "platform/system.hpp"

// cmocka's names are macros that the standard library must not see.
extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
// cmocka.h comes after those it needs.
#include <cmocka.h>
}

namespace {

using namespace trireme;

constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr std::uint64_t kLong = 60 * kSecond;

// ---- the network ----

enum class Fault { none, flip, slow, swallow_all, swallow_frames, broken };

struct Network {
  std::atomic<Fault> fault{Fault::none};
  std::atomic<int> victim{-1};         // the rank whose sends suffer; -1: all ranks
  std::atomic<std::int64_t> after{0};  // how many of them are well first
  std::atomic<std::int64_t> count{1};  // how many suffer
  std::atomic<std::uint64_t> draws{0};
  std::atomic<int> struck{0};
  std::atomic<int> struck_rank{-1};
  std::atomic<int> struck_bytes{0};
};
Network network;
std::string rank_zero;  // the address at which rank 0 is reached: who sends from there is rank 0
System honest;

// Of the two ranks; -1 if this is no connection between them.
int sender_of(int descriptor) {
  sockaddr_in own{}, other{};
  socklen_t length = sizeof own;
  if (getsockname(descriptor, reinterpret_cast<sockaddr*>(&own), &length) != 0 ||
      own.sin_family != AF_INET) {
    return -1;
  }
  length = sizeof other;
  if (getpeername(descriptor, reinterpret_cast<sockaddr*>(&other), &length) != 0) return -1;
  char text[INET_ADDRSTRLEN];
  if (rank_zero == inet_ntop(AF_INET, &own.sin_addr, text, sizeof text)) return 0;
  return rank_zero == inet_ntop(AF_INET, &other.sin_addr, text, sizeof text) ? 1 : -1;
}

ssize_t faulty_send(int descriptor, const msghdr* message, int flags) {
  const Fault fault = network.fault.load();
  if (fault == Fault::none) return honest.send_message(descriptor, message, flags);
  std::string bytes;
  for (std::size_t i = 0; i < message->msg_iovlen; ++i) {
    bytes.append(static_cast<const char*>(message->msg_iov[i].iov_base),
                 message->msg_iov[i].iov_len);
  }
  const int sender = sender_of(descriptor);
  const int victim = network.victim.load();
  const bool is_life = bytes.size() == 1;
  if (sender < 0 || (victim >= 0 && sender != victim) || (is_life && fault != Fault::swallow_all) ||
      network.after.fetch_sub(1) > 0 || network.count.fetch_sub(1) <= 0) {
    return honest.send_message(descriptor, message, flags);
  }
  fuzz::Random random{fuzz::seed() + network.draws.fetch_add(1)};
  const auto send_changed = [&] {
    iovec part{bytes.data(), bytes.size()};
    msghdr other{};
    other.msg_iov = &part;
    other.msg_iovlen = 1;
    return honest.send_message(descriptor, &other, flags);
  };
  network.struck_rank = sender;
  network.struck_bytes = static_cast<int>(bytes.size());
  ++network.struck;
  switch (fault) {
    case Fault::flip: {
      const std::size_t at = random.below(bytes.size());
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.below(8)));
      // Bytes that the system does not take are sent once more, and are whole then.
      const ssize_t sent = send_changed();
      if (sent <= static_cast<ssize_t>(at)) {
        --network.struck;
        ++network.count;
      }
      return sent;
    }
    case Fault::slow:
      if (random.one_in(4)) {
        errno = EAGAIN;
        return -1;
      }
      if (random.one_in(8)) ::poll(nullptr, 0, static_cast<int>(random.below(5)));
      bytes.resize(1 + random.below(bytes.size()));
      return send_changed();
    case Fault::broken:
      ::shutdown(descriptor, SHUT_RDWR);
      errno = EPIPE;
      return -1;
    default: return static_cast<ssize_t>(bytes.size());  // is said to be on its way
  }
}

// ---- two ranks ----

struct Outcome {
  Status status = Status::success();
  int rounds = 0;
  bool wrong = false;
  std::uint64_t took_ns = 0;  // the call that failed
};

struct Trial {
  Fault fault = Fault::none;
  int victim = -1;
  std::int64_t after = 0;
  std::int64_t count = INT64_MAX;
  int rounds = 24;
  std::uint64_t timeout_ns = kLong;
  int silence_ms = 20'000;         // a busy machine is no fault
  const char* backend = "frames";  // gloo: all-reduces go by an engine with its own connections
  bool small = false;              // only what fits into a call
};

// All-reduces and messages of many sizes until one fails, or `rounds` of them.
void work(Communicator& group, const Trial& trial, Outcome* out) {
  const int me = group.rank();
  const std::uint64_t timeout_ns = trial.timeout_ns;
  for (int round = 0; round < trial.rounds; ++round) {
    constexpr std::size_t kCounts[] = {1, 100, 5000, 200'001};
    const std::size_t count = trial.small ? 1 : kCounts[round % 4];
    std::vector<std::int32_t> give(count), get(count, -1);
    for (std::size_t i = 0; i < count; ++i) give[i] = static_cast<std::int32_t>(i) * 3 + round + me;
    const bool messages = round % 3 == 2 && !trial.small;
    const std::uint64_t begin = now_ns();
    if (messages) {
      MessageArguments send, receive;
      send.data = give.data();
      receive.data = get.data();
      receive.kind = OperationKind::receive;
      send.count = receive.count = count;
      send.dtype = receive.dtype = TRIREME_DTYPE_I32;
      send.peer = receive.peer = 1 - me;
      out->status = group.run_messages(send, receive, timeout_ns);
    } else {
      Operation operation;
      operation.kind = OperationKind::all_reduce;
      operation.dtype = TRIREME_DTYPE_I32;
      operation.reduction = TRIREME_REDUCTION_SUM;
      operation.count = count;
      operation.send = give.data();
      operation.receive = get.data();
      out->status = group.run(std::move(operation), Deadline::after(timeout_ns));
    }
    out->took_ns = now_ns() - begin;
    if (!out->status.ok()) return;
    ++out->rounds;
    for (std::size_t i = 0; i < count; ++i) {
      const auto base = static_cast<std::int32_t>(i) * 3 + round;
      out->wrong |= get[i] != (messages ? base + 1 - me : 2 * base + 1);
    }
    if (out->wrong) return;
  }
}

// The network is well until both are there, and again once both have seen the fault.
std::vector<Outcome> run(const Trial& trial) {
  static std::atomic<unsigned> number{0};
  const auto id = static_cast<unsigned>(getpid());
  const std::string base =
      "127." + std::to_string(192 + id / 16'384 % 32) + "." + std::to_string(id / 128 % 128) + ".";
  const unsigned last = 1 + id % 120;
  // Once: threads of a trial before may still read it.
  if (rank_zero.empty()) rank_zero = base + std::to_string(last);
  const std::string url = "tcp://" + rank_zero + ":29500/" + std::to_string(number++) +
                          "?silence_ms=" + std::to_string(trial.silence_ms) + "&interface=" + base;
  std::vector<Outcome> outcomes(2);
  std::vector<std::thread> threads;
  bool ready = false;
  std::barrier both(2, [&]() noexcept {
    network.victim = trial.victim;
    network.after = trial.after;
    network.count = trial.count;
    if (!ready) network.struck = 0;
    network.fault = ready ? Fault::none : trial.fault;
    ready = true;
  });
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Outcome& mine = outcomes[static_cast<std::size_t>(rank)];
      GroupOptions options;
      options.rank = rank;
      options.world_size = 2;
      options.name = "job";
      options.backend = trial.backend;
      options.rendezvous = url + std::to_string(last + (rank == 1 ? 120 : 0));
      std::shared_ptr<Communicator> group;
      mine.status = Communicator::create(options, kLong, &group);
      if (mine.status.ok()) mine.status = group->wait_ready(Deadline::after(kLong), nullptr);
      both.arrive_and_wait();
      if (mine.status.ok()) work(*group, trial, &mine);
      both.arrive_and_wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Outcome& each : outcomes) assert_false(each.wrong);
  return outcomes;
}

bool blames(const Outcome& outcome, int rank) {
  const FailureDetails* const details = outcome.status.details();
  return details != nullptr && details->blamed == std::vector<std::int32_t>{rank};
}

void expect_ok(const std::vector<Outcome>& outcomes, int rounds) {
  for (const Outcome& each : outcomes) {
    if (!each.status.ok()) fail_msg("%s", each.status.message().c_str());
    assert_int_equal(each.rounds, rounds);
  }
}

void expect_failure(const std::vector<Outcome>& outcomes, int rank, trireme_status code,
                    int blamed) {
  const Outcome& each = outcomes[static_cast<std::size_t>(rank)];
  if (each.status.code() != code || !blames(each, blamed)) {
    fail_msg("rank %d after %d rounds: %d, \"%s\"", rank, each.rounds, each.status.code(),
             each.status.message().c_str());
  }
}

// ---- tests ----

void a_well_network_is_no_fault(void**) { expect_ok(run({}), 24); }

// One bit of one packet, anywhere: in the length of a frame, in its code, in its head, in numbers.
void expect_flips_noticed(const char* backend, std::uint64_t trials) {
  fuzz::Random random{fuzz::seed()};
  std::uint64_t flips = 0;
  for (std::uint64_t trial = 0; trial < trials; ++trial) {
    Trial each{Fault::flip};
    each.backend = backend;
    each.victim = static_cast<int>(trial % 2);
    each.after = static_cast<std::int64_t>(random.below(60));
    each.count = 1;
    const std::vector<Outcome> outcomes = run(each);
    if (network.struck == 0) continue;
    // It may have been in a rank's last message, for which no rank waits.
    if (outcomes[0].status.ok() && outcomes[1].status.ok()) continue;
    ++flips;
    for (int rank = 0; rank < 2; ++rank) {
      if (outcomes[static_cast<std::size_t>(rank)].status.ok()) continue;
      expect_failure(outcomes, rank, TRIREME_ERROR_CORRUPT, each.victim);
    }
  }
  std::printf("network: %llu bits flipped, all noticed\n", static_cast<unsigned long long>(flips));
  assert_true(flips * 2 >= trials);
}

void a_flipped_bit_is_noticed_by_who_gets_it(void**) {
  expect_flips_noticed("frames", fuzz::trials(150));
}

// Not where Gloo is missing.
bool has_engine() {
  if (gloo::available().ok()) return true;
  std::printf("skipped: what Gloo moves over a network that is not well: no plugin\n");
  return false;
}

void a_flipped_bit_of_an_engine_is_noticed_too(void**) {
  if (!has_engine()) skip();
  expect_flips_noticed("gloo", fuzz::trials(60));
}

void an_engine_takes_what_is_short_and_late(void**) {
  if (!has_engine()) skip();
  Trial slow{Fault::slow};
  slow.backend = "gloo";
  slow.rounds = 12;
  expect_ok(run(slow), slow.rounds);
  assert_true(network.struck > 12);
}

void packets_that_are_short_and_late_are_no_error(void**) {
  Trial slow{Fault::slow};
  slow.rounds = 12;
  expect_ok(run(slow), slow.rounds);
  assert_true(network.struck > 12);
}

// The rank whose packets no longer arrive is named, by the agreed time.
void a_rank_whose_packets_are_swallowed_is_named(void**) {
  for (const int victim : {0, 1}) {
    Trial cut{Fault::swallow_all, victim};
    cut.after = 20;
    cut.rounds = INT32_MAX;
    cut.silence_ms = 2'000;
    const std::vector<Outcome> outcomes = run(cut);
    expect_failure(outcomes, 1 - victim, TRIREME_ERROR_PEER_LOST, victim);
    assert_non_null(
        std::strstr(outcomes[static_cast<std::size_t>(1 - victim)].status.message().c_str(),
                    "no sign of life for 2000 ms"));
    // It is told by the survivor: that way the packets still go.
    expect_failure(outcomes, victim, TRIREME_ERROR_PEER_LOST, victim);
  }
}

// Signs of life come, but nothing else: the deadline of the call is what ends it.
void a_rank_of_which_nothing_but_life_comes_is_a_timeout(void**) {
  Trial half{Fault::swallow_frames, 1};
  half.after = 10;
  half.rounds = INT32_MAX;
  half.timeout_ns = 4 * kSecond;
  const std::vector<Outcome> outcomes = run(half);
  expect_failure(outcomes, 0, TRIREME_ERROR_TIMEOUT, 1);
  assert_true(outcomes[0].took_ns >= half.timeout_ns);
}

// A part of a rank's bytes is missing in the middle, and the rest comes.
void what_is_left_out_is_noticed(void**) {
  for (int trial = 0; trial < 4; ++trial) {
    Trial gap{Fault::swallow_frames, trial % 2};
    gap.after = 7 + 5 * trial;
    gap.count = 1;
    gap.rounds = INT32_MAX;
    gap.timeout_ns = 3 * kSecond;
    const std::vector<Outcome> outcomes = run(gap);
    // If no byte follows it, because both wait for the missing ones, it is a timeout.
    const Outcome& other = outcomes[static_cast<std::size_t>(1 - gap.victim)];
    if (other.status.code() == TRIREME_ERROR_TIMEOUT) continue;
    expect_failure(outcomes, 1 - gap.victim, TRIREME_ERROR_CORRUPT, gap.victim);
  }
}

void a_connection_that_breaks_is_named_at_both_ends(void**) {
  for (const int victim : {0, 1}) {
    Trial broken{Fault::broken, victim};
    broken.after = 15;
    broken.count = 1;
    broken.rounds = INT32_MAX;
    const std::vector<Outcome> outcomes = run(broken);
    // Where the wire alone breaks, the first rank that sees it tells the other one by a frame.
    const int named = blames(outcomes[0], 0) ? 0 : blames(outcomes[1], 1) ? 1 : -1;
    for (int rank = 0; rank < 2; ++rank) {
      expect_failure(outcomes, rank, TRIREME_ERROR_PEER_LOST, named < 0 ? 1 - rank : named);
    }
  }
}

// No algorithm looks for its pieces there: the ranks must notice it by themselves.
void a_wire_that_breaks_under_calls_is_named(void**) {
  for (const int victim : {0, 1}) {
    Trial broken{Fault::broken, victim};
    broken.after = 15;
    broken.count = 1;
    broken.rounds = INT32_MAX;
    broken.small = true;
    const std::vector<Outcome> outcomes = run(broken);
    const int named = blames(outcomes[0], 0) ? 0 : blames(outcomes[1], 1) ? 1 : -1;
    for (int rank = 0; rank < 2; ++rank) {
      expect_failure(outcomes, rank, TRIREME_ERROR_PEER_LOST, named < 0 ? 1 - rank : named);
    }
  }
}

}  // namespace

int main() {
  setenv("TRIREME_TOKEN", "the token of a network that is not well", 1);
  unsetenv("TRIREME_TOKEN_FILE");
  honest = system_table();
  system_table().send_message = faulty_send;
  const CMUnitTest tests[] = {
      cmocka_unit_test(a_well_network_is_no_fault),
      cmocka_unit_test(a_flipped_bit_is_noticed_by_who_gets_it),
      cmocka_unit_test(a_flipped_bit_of_an_engine_is_noticed_too),
      cmocka_unit_test(an_engine_takes_what_is_short_and_late),
      cmocka_unit_test(packets_that_are_short_and_late_are_no_error),
      cmocka_unit_test(a_rank_whose_packets_are_swallowed_is_named),
      cmocka_unit_test(a_rank_of_which_nothing_but_life_comes_is_a_timeout),
      cmocka_unit_test(what_is_left_out_is_noticed),
      cmocka_unit_test(a_connection_that_breaks_is_named_at_both_ends),
      cmocka_unit_test(a_wire_that_breaks_under_calls_is_named),
  };
  return cmocka_run_group_tests_name("faulty_network", tests, nullptr, nullptr);
}
