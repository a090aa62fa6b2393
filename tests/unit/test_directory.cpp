// The directory where ranks meet, over sockets that take few bytes at a time: every rank gets all
// addresses, a refusal arrives whole, and a rank that goes is told after the addresses. A visit
// that finds no memory leaves nothing behind. All addresses lie in memory once, and may arrive
// slowly. Ranks that call at once have room.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "backends/tcp/directory.hpp"
#include "backends/tcp/address.hpp"
#include "net/sha256.hpp"
#include "net/tcp_call.hpp"
#include "own_process.h"
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
constexpr int kHangMs = 60'000;
constexpr std::uint64_t kSecondNs = 1'000'000'000;
constexpr std::size_t kMostBytes = 200;     // handshakes are shorter
constexpr std::size_t kManyBytes = 10'000;  // more than all that is no addresses of a large group
const std::atomic<bool> kGoOn{false};
const Token kToken("the secret of whoever belongs here");

std::uint64_t (*read_clock)();
std::atomic<std::uint64_t> moment_ns{0};  // 0: the clock goes

std::uint64_t read_clock_of_the_test() {
  const std::uint64_t moment = moment_ns;
  return moment != 0 ? moment : read_clock();
}

// While it lives, the time is the test's.
struct StoppedClock {
  StoppedClock() { moment_ns = read_clock(); }
  ~StoppedClock() { moment_ns = 0; }
};

ssize_t (*send_honestly)(int, const msghdr*, int);
std::atomic<bool> is_blocked{false};  // sockets have no room for many bytes
std::atomic<int> blocked{0};          // how often

// As a socket whose buffer is nearly full: every second call with more bytes finds no room.
ssize_t send_a_little(int socket, const msghdr* message, int flags) {
  thread_local bool is_full = false;
  if (message->msg_iov[0].iov_len <= kMostBytes) return send_honestly(socket, message, flags);
  const bool blocks = is_blocked && message->msg_iov[0].iov_len >= kManyBytes;
  if (blocks) ++blocked;
  is_full = !is_full;
  if (is_full || blocks) {
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
thread_local bool is_test = false;
std::atomic<bool> is_held{false};  // threads of directories wait where they receive
std::atomic<bool> has_held{false};
std::atomic<std::size_t> received{0};  // bytes

// As a failure whose text finds no memory.
ssize_t receive_in_memory(int socket, msghdr* message, int flags) {
  if (!has_memory) throw std::bad_alloc();
  while (is_held && !is_test) {
    has_held = true;
    ::usleep(1000);
  }
  const ssize_t got = receive_honestly(socket, message, flags);
  if (got > 0) received += static_cast<std::size_t>(got);
  return got;
}

// As processes have: no two are the same.
tcp::Entry new_entry(int rank) {
  static std::atomic<std::uint32_t> number{0};
  tcp::Entry out{};
  std::snprintf(out.endpoint, sizeof out.endpoint, "10.0.0.%d:%d", rank, 100 + rank);
  const std::uint32_t nonce = ++number;
  std::memcpy(out.nonce.data(), &nonce, sizeof nonce);
  return out;
}

struct Guest {
  int rank;
  int world_size;
  Status status = Status::success();
  bool refused = false;
  std::vector<tcp::Entry> all;
  tcp::Seat seat;
};

// The guests come at once. Those who still wait after a long time give up.
void visit_together(const tcp::Endpoint& endpoint, std::vector<Guest>& guests) {
  std::atomic<bool> stop{false};
  std::atomic<std::size_t> done{0};
  std::vector<std::thread> threads;
  for (Guest& guest : guests) {
    threads.emplace_back([&] {
      const tcp::Visit own{"group", guest.rank, guest.world_size, new_entry(guest.rank)};
      guest.status =
          tcp::visit(endpoint, kToken, own, {}, stop, &guest.all, &guest.refused, &guest.seat);
      ++done;
    });
  }
  for (int ms = 0; done < guests.size() && ms < kHangMs; ++ms) ::usleep(1000);
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
      assert_true(guest.seat.receive_gone(&gone));
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
  tcp::Seat kept;
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

// ---- what goes over the wire, as directory.cpp has it ----

struct Request {
  char name[64];
  std::int32_t rank;
  std::int32_t world_size;
  tcp::Entry entry;
};
struct Reply {
  std::int32_t code;
  std::int32_t count;
  char text[256];
};
constexpr std::int32_t kNews = 1;

HandshakeTerms terms_of(int rank) {
  HandshakeTerms terms;
  terms.purpose = Purpose::store;
  terms.rank = rank;
  terms.job = sha256("directory of groups");
  return terms;
}

void send_all(const tcp::Socket& socket, const void* data, std::size_t bytes) {
  const Status status = socket.send_all(data, bytes, Deadline::after(kHangNs), kGoOn);
  if (!status.ok()) fail_msg("%s", status.message().c_str());
}

void receive_all(const tcp::Socket& socket, void* data, std::size_t bytes) {
  const Status status = socket.receive_all(data, bytes, Deadline::after(kHangNs), kGoOn);
  if (!status.ok()) fail_msg("%s", status.message().c_str());
}

Request request_of(int rank, int world_size) {
  return {"a large group", rank, world_size, new_entry(rank)};
}

// A guest that has sent so much of its request, and reads no answer by itself.
tcp::Socket guest_with(const tcp::Endpoint& endpoint, const Request& request,
                       std::size_t bytes = sizeof(Request)) {
  const int rank = request.rank;
  tcp::Socket out;
  const Status status =
      tcp::call(endpoint, "it", kToken, terms_of(rank), Deadline::after(kHangNs), kGoOn, &out);
  if (!status.ok()) fail_msg("%s", status.message().c_str());
  send_all(out, &request, bytes);
  return out;
}

tcp::Socket guest_at(const tcp::Endpoint& endpoint, int rank, int world_size) {
  return guest_with(endpoint, request_of(rank, world_size));
}

// ---- guests that go ----

// The others count it as lost by then.
void who_lost_the_meeting_after_it_does_not_wait_for_another(void**) {
  const Place place;
  const Request first = request_of(0, 2);
  const Request second = request_of(1, 2);
  tcp::Socket a = guest_with(place.endpoint, first);
  tcp::Socket b = guest_with(place.endpoint, second);
  Reply reply;
  receive_all(a, &reply, sizeof reply);
  assert_int_equal(reply.code, TRIREME_OK);
  b.reset();
  std::uint16_t gone = 7;
  tcp::Entry entries[2];
  receive_all(a, entries, sizeof entries);
  receive_all(a, &gone, sizeof gone);
  assert_int_equal(gone, 1);
  b = guest_with(place.endpoint, second);
  receive_all(b, &reply, sizeof reply);
  assert_int_equal(reply.code, TRIREME_ERROR_PEER_LOST);
  assert_non_null(std::strstr(reply.text, "lost rank 1"));
  // Another process of that rank may come.
  a = guest_at(place.endpoint, 0, 2);
  b = guest_at(place.endpoint, 1, 2);
  receive_all(a, &reply, sizeof reply);
  assert_int_equal(reply.code, TRIREME_OK);
}

// A rank of a group that gave up and left, while another one waited; then that one goes, too, and
// the group comes again with fewer ranks.
void who_left_a_larger_group_counts_in_no_smaller_one(void**) {
  constexpr std::uint16_t kAsk[2] = {1, 0};
  constexpr std::uint16_t kGiveUp[2] = {2, 0};
  const Place place;
  tcp::Socket left = guest_at(place.endpoint, 1, 5);
  tcp::Socket waits = guest_at(place.endpoint, 2, 5);
  Reply reply;
  char marks[5] = {};
  for (const tcp::Socket* const each : {&left, &waits}) {
    send_all(*each, kAsk, sizeof kAsk);
    receive_all(*each, &reply, sizeof reply);
    receive_all(*each, marks, sizeof marks);
  }
  send_all(left, kGiveUp, sizeof kGiveUp);
  receive_all(left, &reply, sizeof reply);
  receive_all(left, marks, sizeof marks);
  left.reset();
  const auto ask = [&] {
    send_all(waits, kAsk, sizeof kAsk);
    receive_all(waits, &reply, sizeof reply);
    receive_all(waits, marks, sizeof marks);
  };
  do ask();
  while ((marks[1] & 4) == 0);
  const Request smaller = request_of(0, 2);
  const std::size_t all_but_one = sizeof smaller - 1;
  const tcp::Socket next = guest_with(place.endpoint, smaller, all_but_one);
  ask();
  ask();  // it has read those bytes
  // The directory sees both of the next events in one turn.
  is_held = true;
  send_all(waits, kAsk, sizeof kAsk);
  while (!has_held) ::usleep(1000);
  send_all(next, reinterpret_cast<const char*>(&smaller) + all_but_one, 1);
  waits.reset();
  is_held = false;
  send_all(next, kAsk, sizeof kAsk);
  receive_all(next, &reply, sizeof reply);
  if (reply.code != kNews) fail_msg("%s", reply.text);
  assert_int_equal(reply.count, 2);
  receive_all(next, marks, 2);
  assert_int_equal(marks[0], 1);
  assert_int_equal(marks[1], 0);
}

void addresses_that_wait_for_room_lie_in_memory_once(void**) {
  constexpr int kRanks = 200;
  const Place place;
  std::vector<tcp::Socket> sockets;
  for (int rank = 0; rank + 1 < kRanks; ++rank) {
    sockets.push_back(guest_at(place.endpoint, rank, kRanks));
  }
  const std::int64_t before = resident_bytes();
  blocked = 0;
  is_blocked = true;
  sockets.push_back(guest_at(place.endpoint, kRanks - 1, kRanks));
  // All but rank 0, which gets them last.
  for (int ms = 0; blocked < kRanks - 1 && ms < kHangMs; ++ms) ::usleep(1000);
  const std::int64_t grown = std::max<std::int64_t>(resident_bytes() - before, 0);
  const bool were_blocked = blocked >= kRanks - 1;
  is_blocked = false;
  assert_true(were_blocked);
  for (int rank = kRanks - 1; rank >= 0; --rank) {
    const tcp::Socket& socket = sockets[static_cast<std::size_t>(rank)];
    Guest guest{rank, kRanks, Status::success(), false, std::vector<tcp::Entry>(kRanks), {}};
    Reply reply;
    receive_all(socket, &reply, sizeof reply);
    assert_int_equal(reply.code, TRIREME_OK);
    assert_int_equal(reply.count, kRanks);
    receive_all(socket, guest.all.data(), kRanks * sizeof(tcp::Entry));
    expect_all_addresses(guest);
  }
  std::printf("directory: addresses for %d ranks took %lld KiB\n", kRanks,
              static_cast<long long>(grown >> 10));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  assert_true(grown <= (2 << 20));  // one copy has 30 kB, 200 have 6 MB
#endif
}

// A guest of the largest group, and a directory whose bytes are the test's.
struct SlowDirectory {
  static constexpr int kRanks = static_cast<int>(tcp::kMostRanks);

  SlowDirectory() {
    tcp::Endpoint any;
    assert_true(tcp::parse_endpoint("127.0.0.1:1", &any).ok());
    any.set_port(0);
    assert_true(tcp::listen_at(any, &listener, &endpoint).ok());
    thread = std::thread([this] {
      const tcp::Visit own{"group", guest.rank, guest.world_size, {}};
      guest.status =
          tcp::visit(endpoint, kToken, own, {}, stop, &guest.all, &guest.refused, &guest.seat);
      done = true;
    });
    greet();
    before = received;
    const Reply reply{TRIREME_OK, kRanks, {}};
    say(&reply, sizeof reply);
  }
  ~SlowDirectory() {
    if (thread.joinable()) join();
  }

  void greet() {
    assert_true(tcp::wait_for(listener.get(), POLLIN, Deadline::after(kHangNs), kGoOn));
    socket = tcp::Socket(
        system_table().accept(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    assert_true(bool(socket));
    Handshake handshake(kToken, Handshake::Side::called, terms_of(-1), "a guest");
    std::string answer;
    assert_true(handshake.start(&answer).ok());
    for (const std::size_t bytes : {104, 32}) {  // hello, proof
      char words[104];
      receive_all(socket, words, bytes);
      std::size_t used = 0;
      answer.clear();
      assert_true(handshake.take({words, bytes}, &used, &answer).ok());
      send_all(socket, answer.data(), answer.size());
    }
    assert_true(handshake.done());
    Request request;
    receive_all(socket, &request, sizeof request);
  }
  // Returns when the guest has read the bytes, or has gone.
  void say(const void* data, std::size_t bytes) {
    if (!socket.send_all(data, bytes, Deadline::after(kHangNs), kGoOn).ok()) return;
    sent += bytes;
    for (int i = 0; i < 10 * kHangMs && !done && received - before < sent; ++i) ::usleep(100);
  }
  void join() {
    for (int ms = 0; !done && ms < kHangMs; ++ms) ::usleep(1000);
    stop = true;
    thread.join();
  }

  tcp::Endpoint endpoint;
  tcp::Socket listener, socket;
  Guest guest{0, kRanks, Status::success(), false, {}, {}};
  std::atomic<bool> stop{false};
  std::atomic<bool> done{false};
  std::thread thread;
  std::size_t before = 0;
  std::size_t sent = 0;
};

void addresses_may_come_slowly(void**) {
  const StoppedClock clock;
  SlowDirectory directory;
  std::vector<tcp::Entry> all(tcp::kMostRanks);
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::snprintf(all[i].endpoint, sizeof all[i].endpoint, "10.0.0.%zu:%zu", i, 100 + i);
  }
  // Each part comes in time, and all of them take 48 s.
  const std::size_t part = all.size() / 8;
  for (std::size_t at = 0; at < all.size(); at += part) {
    moment_ns += 6 * kSecondNs;
    directory.say(&all[at], part * sizeof(tcp::Entry));
  }
  directory.join();
  expect_all_addresses(directory.guest);
}

void addresses_that_come_byte_by_byte_are_not_awaited_for_ever(void**) {
  const StoppedClock clock;
  SlowDirectory directory;
  for (int i = 0; i < 100 && !directory.done; ++i) {
    directory.say("x", 1);
    moment_ns += kSecondNs;
  }
  directory.join();
  assert_int_equal(directory.guest.status.code(), TRIREME_ERROR_TIMEOUT);
  assert_false(directory.guest.refused);
  assert_false(bool(directory.guest.seat));
}

void ranks_of_a_large_group_have_room_beside_strangers(void**) {
  constexpr int kRanks = 300;
  constexpr int kIdle = 200;  // more than have room without a group
  const StoppedClock clock;   // so age drops no caller
  const Place place;
  const tcp::Socket first = guest_at(place.endpoint, 0, kRanks);
  tcp::ask(first, false);
  Reply reply;
  receive_all(first, &reply, sizeof reply);
  assert_int_equal(reply.code, kNews);
  std::vector<tcp::Socket> idle(kIdle);
  for (tcp::Socket& each : idle) {
    assert_true(tcp::connect_to(place.endpoint, Deadline::after(kHangNs), kGoOn, &each).ok());
  }
  std::vector<Guest> guests = guests_of(2);
  visit_together(place.endpoint, guests);
  for (const Guest& guest : guests) expect_all_addresses(guest);
  for (const tcp::Socket& each : idle) {
    char byte = 0;
    std::size_t moved = 0;
    assert_true(each.receive(&byte, 1, &moved) == tcp::Moved::nothing);
  }
}

// The system's control of congestion may pace, as bbr does.
void nothing_paces_within_a_host(void**) {
  const Place place;
  tcp::Socket socket;
  assert_true(tcp::connect_to(place.endpoint, Deadline::after(kHangNs), kGoOn, &socket).ok());
  for (const char* const before : {"cubic", "bbr"}) {
    setsockopt(socket.get(), IPPROTO_TCP, TCP_CONGESTION, before, std::strlen(before));
    socket.tune(0);
    char after[16] = "";
    socklen_t length = sizeof after;
    assert_int_equal(getsockopt(socket.get(), IPPROTO_TCP, TCP_CONGESTION, after, &length), 0);
    assert_string_equal(after, "reno");
  }
}

}  // namespace

int main() {
  is_test = true;
  read_clock = system_table().now_ns;
  system_table().now_ns = read_clock_of_the_test;
  send_honestly = system_table().send_message;
  system_table().send_message = send_a_little;
  receive_honestly = system_table().receive_message;
  system_table().receive_message = receive_in_memory;
  const CMUnitTest tests[] = {
      cmocka_unit_test(every_rank_gets_all_addresses),
      cmocka_unit_test(who_goes_is_told_after_the_addresses),
      cmocka_unit_test(a_refusal_arrives_whole),
      cmocka_unit_test(who_lost_the_meeting_after_it_does_not_wait_for_another),
      cmocka_unit_test(who_left_a_larger_group_counts_in_no_smaller_one),
      cmocka_unit_test(no_seat_outlives_a_visit_that_finds_no_memory),
      cmocka_unit_test(addresses_that_wait_for_room_lie_in_memory_once),
      cmocka_unit_test(addresses_may_come_slowly),
      cmocka_unit_test(addresses_that_come_byte_by_byte_are_not_awaited_for_ever),
      cmocka_unit_test(ranks_of_a_large_group_have_room_beside_strangers),
      cmocka_unit_test(nothing_paces_within_a_host),
  };
  return cmocka_run_group_tests_name("directory", tests, nullptr, nullptr);
}
