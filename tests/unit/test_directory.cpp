// The directory where ranks meet, over sockets that take few bytes at a time: every rank gets all
// addresses, a refusal arrives whole, and a rank that goes is told after the addresses. A visit
// that finds no memory leaves nothing behind.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "backends/tcp/directory.hpp"
#include "backends/tcp/address.hpp"
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

constexpr std::uint64_t kHangNs = 60'000'000'000;
constexpr std::size_t kMostBytes = 200;  // handshakes are shorter
const Token kToken("the secret of whoever belongs here");

ssize_t (*send_honestly)(int, const msghdr*, int);

// As a socket whose buffer is nearly full: every second call with more bytes finds no room.
ssize_t send_a_little(int socket, const msghdr* message, int flags) {
  thread_local bool is_full = false;
  if (message->msg_iov[0].iov_len <= kMostBytes) return send_honestly(socket, message, flags);
  is_full = !is_full;
  if (is_full) {
    errno = EAGAIN;
    return -1;
  }
  iovec part = message->msg_iov[0];
  part.iov_len = std::min(part.iov_len, kMostBytes);
  msghdr less{};
  less.msg_iov = &part;
  less.msg_iovlen = 1;
  return send_honestly(socket, &less, flags);
}

ssize_t (*receive_honestly)(int, msghdr*, int);
thread_local bool has_memory = true;

// As a failure whose text finds no memory.
ssize_t receive_in_memory(int socket, msghdr* message, int flags) {
  if (!has_memory) throw std::bad_alloc();
  return receive_honestly(socket, message, flags);
}

struct Guest {
  int rank;
  int world_size;
  Status status = Status::success();
  bool refused = false;
  std::vector<tcp::Entry> all;
  tcp::Socket seat;
};

// The guests come at once. Those who still wait after a long time give up.
void visit_together(const tcp::Endpoint& endpoint, std::vector<Guest>& guests) {
  std::atomic<bool> stop{false};
  std::atomic<std::size_t> done{0};
  std::vector<std::thread> threads;
  for (Guest& guest : guests) {
    threads.emplace_back([&] {
      tcp::Visit own{"group", guest.rank, guest.world_size, {}};
      std::snprintf(own.own.endpoint, sizeof own.own.endpoint, "10.0.0.%d:%d", guest.rank,
                    100 + guest.rank);
      guest.status =
          tcp::visit(endpoint, kToken, own, {}, stop, &guest.all, &guest.refused, &guest.seat);
      ++done;
    });
  }
  const Deadline patient = Deadline::after(kHangNs);
  while (done < guests.size() && !patient.passed()) ::usleep(1000);
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

struct Place {
  Place() {
    tcp::Endpoint any;
    assert_true(tcp::parse_endpoint("127.0.0.1:1", &any).ok());
    assert_true(tcp::Directory::open(any, kToken, &endpoint, &directory).ok());
  }
  tcp::Endpoint endpoint;
  std::shared_ptr<tcp::Directory> directory;
};

std::vector<Guest> guests_of(int world_size) {
  std::vector<Guest> guests(static_cast<std::size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank) {
    guests[static_cast<std::size_t>(rank)].rank = rank;
    guests[static_cast<std::size_t>(rank)].world_size = world_size;
  }
  return guests;
}

void expect_all_addresses(const Guest& guest) {
  if (!guest.status.ok()) fail_msg("rank %d: %s", guest.rank, guest.status.message().c_str());
  assert_int_equal(guest.all.size(), guest.world_size);
  for (std::size_t i = 0; i < guest.all.size(); ++i) {
    const std::string expected = "10.0.0." + std::to_string(i) + ":" + std::to_string(100 + i);
    assert_string_equal(guest.all[i].endpoint, expected.c_str());
  }
}

void every_rank_gets_all_addresses(void**) {
  const Place place;
  for (const int world_size : {1, 2, 5, 24}) {
    std::vector<Guest> guests = guests_of(world_size);
    visit_together(place.endpoint, guests);
    for (const Guest& guest : guests) expect_all_addresses(guest);
  }
}

void who_goes_is_told_after_the_addresses(void**) {
  const Place place;
  std::vector<Guest> guests = guests_of(5);
  visit_together(place.endpoint, guests);
  for (const Guest& guest : guests) expect_all_addresses(guest);
  guests[3].seat.reset();
  const Deadline patient = Deadline::after(kHangNs);
  for (Guest& guest : guests) {
    std::vector<int> gone;
    while (guest.rank != 3 && gone.empty() && !patient.passed()) {
      assert_true(tcp::receive_gone(guest.seat, &gone));
      ::usleep(1000);
    }
    if (guest.rank == 3) continue;
    assert_int_equal(gone.size(), 1);
    assert_int_equal(gone[0], 3);
  }
}

void a_refusal_arrives_whole(void**) {
  const Place place;
  std::vector<Guest> guests = guests_of(2);
  guests[1].world_size = 3;
  visit_together(place.endpoint, guests);
  for (const Guest& guest : guests) {
    assert_true(guest.refused);
    assert_int_equal(guest.status.code(), TRIREME_ERROR_MISMATCH);
    const std::string& text = guest.status.message();
    for (const char* const word : {"names world size", "10.0.0.0:100", "10.0.0.1:101"}) {
      if (text.find(word) == std::string::npos) fail_msg("\"%s\" lacks %s", text.c_str(), word);
    }
  }
}

void no_seat_outlives_a_visit_that_finds_no_memory(void**) {
  const Place place;
  const std::atomic<bool> stop{false};
  const tcp::Socket* seat = nullptr;
  int seats = 0;
  tcp::Wait wait;
  wait.sit = [&](const tcp::Socket* now) {
    has_memory = now == nullptr;
    seats += now != nullptr ? 1 : 0;
    seat = now;
  };
  const tcp::Visit own{"group", 0, 2, {}};
  std::vector<tcp::Entry> all;
  bool refused = false;
  tcp::Socket kept;
  bool threw = false;
  try {
    static_cast<void>(
        tcp::visit(place.endpoint, kToken, own, wait, stop, &all, &refused, &kept).ok());
  } catch (const std::bad_alloc&) {
    threw = true;
  }
  has_memory = true;
  assert_true(threw);
  assert_int_equal(seats, 1);
  assert_null(seat);
}

}  // namespace

int main() {
  send_honestly = system_table().send_message;
  system_table().send_message = send_a_little;
  receive_honestly = system_table().receive_message;
  system_table().receive_message = receive_in_memory;
  const CMUnitTest tests[] = {
      cmocka_unit_test(every_rank_gets_all_addresses),
      cmocka_unit_test(who_goes_is_told_after_the_addresses),
      cmocka_unit_test(a_refusal_arrives_whole),
      cmocka_unit_test(no_seat_outlives_a_visit_that_finds_no_memory),
  };
  return cmocka_run_group_tests_name("directory", tests, nullptr, nullptr);
}
