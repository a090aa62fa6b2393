// The ranks that share a host, and the bytes between hosts: sums of a ring of members, whose bytes
// a relay may change on the way. Whole groups are tested from outside.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "backends/hierarchical/hosts.hpp"
#include "backends/tcp/exchange.hpp"
#include "backends/wire/ring.hpp"

// Last: its macros take names like `fail`.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
extern "C" {
#include <cmocka.h>
}

namespace {

using namespace trireme;
using hierarchical::Hosts;
using wire::Ring;

constexpr std::uint64_t kLong = 100'000'000'000;

Hosts hosts_of(const std::string& letters) {
  std::vector<Digest> identities;
  for (const char letter : letters) {
    identities.emplace_back();
    identities.back().fill(static_cast<std::uint8_t>(letter));
  }
  return Hosts(identities);
}

void ranks_are_put_on_their_hosts(void**) {
  const Hosts even = hosts_of("babcac");
  assert_int_equal(even.count(), 3);
  assert_true(even.equal);
  assert_int_equal(even.shards, 2);
  assert_true((even.ranks == std::vector<std::vector<int>>{{0, 2}, {1, 4}, {3, 5}}));
  assert_true((even.host == std::vector<int>{0, 1, 0, 2, 1, 2}));
  assert_true((even.place == std::vector<int>{0, 0, 1, 0, 1, 1}));
  assert_true((even.column(1) == std::vector<int>{2, 4, 5}));
  assert_string_equal(even.text().c_str(), "3 hosts x 2");
  const Hosts uneven = hosts_of("aabab");
  assert_false(uneven.equal);
  assert_int_equal(uneven.shards, 2);
  assert_true((uneven.column(1) == std::vector<int>{1, 4}));
  assert_string_equal(uneven.text().c_str(), "2 hosts x 2 to 3");
}

// Passes bytes from one end of a line to the other, and changes one of them.
class Relay {
 public:
  // change: which of the bytes that come from `from`; UINT64_MAX: none.
  Relay(int from, int to, std::uint64_t change)
      : thread_([this, from, to, change] {
          char bytes[4096];
          std::uint64_t passed = 0;
          while (!stop_) {
            pollfd entry{from, POLLIN, 0};
            if (::poll(&entry, 1, 10) <= 0) continue;
            const ssize_t got = ::recv(from, bytes, sizeof bytes, 0);
            if (got <= 0) return;
            const auto count = static_cast<std::uint64_t>(got);
            if (change >= passed && change < passed + count) bytes[change - passed] ^= 16;
            passed += count;
            for (std::uint64_t sent = 0; sent < count;) {
              const ssize_t more =
                  ::send(to, bytes + sent, count - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
              if (more < 0 && errno == EAGAIN && !stop_) {  // a member that failed reads no more
                std::this_thread::yield();
                continue;
              }
              if (more <= 0) return;
              sent += static_cast<std::uint64_t>(more);
            }
          }
        }) {}
  ~Relay() {
    stop_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

tcp::Socket pair_with(int* other) {
  int ends[2];
  assert_int_equal(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  *other = ends[1];
  return tcp::Socket(ends[0]);
}

// Two members, ranks 4 and 7 of a group, add up; the bytes from 4 to 7 pass a relay.
void add_up(std::uint64_t change, trireme_status expected) {
  constexpr std::uint64_t kCount = 150'001;  // so many that both go in steps
  int relay_ends[2];
  const auto lines_of_4 = std::make_shared<tcp::Lines>(8);
  const auto lines_of_7 = std::make_shared<tcp::Lines>(8);
  assert_true(lines_of_4->add(7, pair_with(&relay_ends[0]), SessionKeys()));
  assert_true(lines_of_7->add(4, pair_with(&relay_ends[1]), SessionKeys()));
  const tcp::Socket owners[] = {tcp::Socket(relay_ends[0]), tcp::Socket(relay_ends[1])};
  {
    const Relay there(relay_ends[0], relay_ends[1], change);
    const Relay back(relay_ends[1], relay_ends[0], UINT64_MAX);
    const Members members_of[] = {{{4, 7}, 0}, {{4, 7}, 1}};
    std::vector<int> ranks(8);
    std::iota(ranks.begin(), ranks.end(), 0);
    const auto wire_of_4 = std::make_shared<tcp::Exchange>(Members{ranks, 4}, lines_of_4);
    const auto wire_of_7 = std::make_shared<tcp::Exchange>(Members{ranks, 7}, lines_of_7);
    assert_true(wire_of_4->open().ok());
    assert_true(wire_of_7->open().ok());
    Ring rings[] = {{members_of[0], *wire_of_4}, {members_of[1], *wire_of_7}};
    std::vector<std::int32_t> data[2];
    Status statuses[] = {Status::success(), Status::success()};
    std::vector<std::thread> members;
    for (std::size_t i = 0; i < 2; ++i) {
      for (std::uint64_t k = 0; k < kCount; ++k) {
        data[i].push_back(static_cast<std::int32_t>(k * (i + 1)));
      }
      members.emplace_back([&, i] {
        Operation sum;
        sum.kind = OperationKind::all_reduce;
        sum.dtype = TRIREME_DTYPE_I32;
        sum.reduction = TRIREME_REDUCTION_SUM;
        sum.count = kCount;
        sum.send = sum.receive = data[i].data();
        statuses[i] = rings[i].run(sum, 5, Deadline::after(kLong));
        // As the group does when a rank fails.
        if (!statuses[i].ok()) (i == 0 ? wire_of_7 : wire_of_4)->abort();
      });
    }
    for (std::thread& member : members) member.join();
    assert_int_equal(statuses[1].code(), expected);
    if (expected != TRIREME_OK) {
      assert_true(statuses[1].details()->blamed == std::vector<std::int32_t>{4});
      assert_false(statuses[0].ok());
    }
    for (std::uint64_t k = 0; expected == TRIREME_OK && k < kCount; ++k) {
      assert_int_equal(data[0][k], 3 * k);
      assert_int_equal(data[1][k], 3 * k);
    }
  }
}

void what_changes_on_the_way_is_no_number(void**) {
  add_up(UINT64_MAX, TRIREME_OK);
  for (const std::uint64_t change : {100u, 5000u, 250'000u}) add_up(change, TRIREME_ERROR_CORRUPT);
}

constexpr int kMembers = 3;

void connect(std::shared_ptr<tcp::Exchange> (&wires)[kMembers]) {
  std::shared_ptr<tcp::Lines> lines[kMembers];
  for (auto& each : lines) each = std::make_shared<tcp::Lines>(kMembers);
  for (int i = 0; i < kMembers; ++i) {
    for (int j = 0; j < i; ++j) {
      int other = -1;
      assert_true(lines[i]->add(j, pair_with(&other), SessionKeys()));
      assert_true(lines[j]->add(i, tcp::Socket(other), SessionKeys()));
    }
  }
  for (int i = 0; i < kMembers; ++i) {
    wires[i] = std::make_shared<tcp::Exchange>(Members{{0, 1, 2}, i}, lines[i]);
    wires[i]->take_calls_by([](int, const std::byte*, std::uint64_t) {});
    assert_true(wires[i]->open().ok());
    assert_true(wires[i]->publish("", 1).ok());  // opens its ends
  }
}

// The bytes of many operations go from member 0 along a chain whose last member comes late. The
// members before it stop then, as each member asks for the bytes that it gets.
void go_along_a_chain(OperationKind kind) {
  constexpr std::uint64_t kCount = 16'384;  // of pieces that are short
  constexpr int kOperations = 1200;
  std::shared_ptr<tcp::Exchange> wires[kMembers];
  connect(wires);
  std::atomic<int> wrong{0};
  std::vector<std::thread> members;
  for (int me = 0; me < kMembers; ++me) {
    members.emplace_back([&, me] {
      const Members all{{0, 1, 2}, me};
      Ring ring(all, *wires[me]);
      std::vector<std::int32_t> data(kCount);
      for (int number = 0; number < kOperations; ++number) {
        if (me == 2 && number == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
        std::fill(data.begin(), data.end(), me == 0 ? number : -1);
        Operation operation;
        operation.kind = kind;
        operation.dtype = TRIREME_DTYPE_I32;
        operation.send = operation.receive = data.data();
        if (kind == OperationKind::broadcast) {
          operation.count = kCount;
        } else if (kind == OperationKind::reduce) {
          operation.count = kCount;
          operation.root = 2;
          operation.reduction = TRIREME_REDUCTION_MAX;
        } else {
          operation.counts = {kCount, 0, 0};
        }
        const auto ticket = static_cast<std::uint64_t>(number);
        const Status status = ring.run(operation, ticket, Deadline::after(kLong));
        // The members of the chain of `reduce` have the largest so far, too.
        if (!status.ok() || data.front() != number || data.back() != number) {
          ++wrong;
          for (const auto& wire : wires) wire->abort();
          return;
        }
      }
    });
  }
  for (std::thread& member : members) member.join();
  assert_int_equal(wrong.load(), 0);
}

void a_slow_member_of_a_chain_stops_those_before_it(void**) {
  go_along_a_chain(OperationKind::broadcast);
  go_along_a_chain(OperationKind::all_gather_v);
  go_along_a_chain(OperationKind::reduce);
}

// Each member is the root in turn; of no elements, of one, and of several links of the chain.
void the_root_of_a_ring_gets_the_sum(void**) {
  std::shared_ptr<tcp::Exchange> wires[kMembers];
  connect(wires);
  std::string wrong[kMembers];
  std::vector<std::thread> members;
  for (int me = 0; me < kMembers; ++me) {
    members.emplace_back([&, me] {
      const Members all{{0, 1, 2}, me};
      Ring ring(all, *wires[me]);
      std::uint64_t ticket = 0;
      for (const std::uint64_t count : {0u, 1u, 7u, 65'536u, 65'537u, 300'001u}) {
        for (int root = 0; root < kMembers; ++root) {
          for (const bool in_place : {true, false}) {
            const auto value = [&](int member, std::uint64_t i) {
              return static_cast<std::int32_t>(i % 1009) * (member + 1) + root;
            };
            std::vector<std::int32_t> send(count + 1);
            for (std::uint64_t i = 0; i < count; ++i) send[i] = value(me, i);
            std::vector<std::int32_t> receive(count + 1, -7);
            Operation operation;
            operation.kind = OperationKind::reduce;
            operation.dtype = TRIREME_DTYPE_I32;
            operation.reduction = TRIREME_REDUCTION_SUM;
            operation.count = count;
            operation.root = root;
            operation.send = send.data();
            operation.receive = in_place ? send.data() : receive.data();
            const Status status = ring.run(operation, ++ticket, Deadline::after(kLong));
            const std::vector<std::int32_t>& got = in_place ? send : receive;
            bool right = status.ok() && receive[count] == -7 && send[count] == 0;
            for (std::uint64_t i = 0; right && me == root && i < count; ++i) {
              right = got[i] == value(0, i) + value(1, i) + value(2, i);
            }
            for (std::uint64_t i = 0; right && !in_place && i < count; ++i) {
              right = send[i] == value(me, i);
            }
            if (right) continue;
            wrong[me] = std::to_string(count) + " elements, root " + std::to_string(root) + " " +
                        status.message();
            for (const auto& wire : wires) wire->abort();
            return;
          }
        }
      }
    });
  }
  for (std::thread& member : members) member.join();
  for (const std::string& each : wrong) assert_string_equal(each.c_str(), "");
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(ranks_are_put_on_their_hosts),
      cmocka_unit_test(what_changes_on_the_way_is_no_number),
      cmocka_unit_test(a_slow_member_of_a_chain_stops_those_before_it),
      cmocka_unit_test(the_root_of_a_ring_gets_the_sum),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
