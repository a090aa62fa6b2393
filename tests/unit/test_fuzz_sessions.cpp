// Sessions with the listeners: the directory and a mesh, by unauthenticated peers without the token
// and by liars that have it. Valid sessions are changed, from a seed. Honest ranks get through
// meanwhile, the delivered bytes are those that were sent, and unauthenticated peers cost a bounded
// amount of memory and descriptors.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "backends/tcp/directory.hpp"
#include "backends/tcp/mesh.hpp"
#include "fuzz.hpp"
#include "net/sha256.hpp"
#include "net/tcp_call.hpp"
#include "own_process.h"

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
using fuzz::Random;

constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr std::uint64_t kLong = 60 * kSecond;
const Token kToken("the secret of whoever belongs here");
const std::atomic<bool> kGoOn{false};

// Of this process alone.
std::string own_place() {
  const auto id = static_cast<unsigned>(getpid());
  return "127." + std::to_string(224 + id / 16'384 % 30) + "." + std::to_string(id / 128 % 128) +
         "." + std::to_string(1 + id % 128) + ":29500";
}

struct Meeting {
  Meeting() {
    assert_true(tcp::parse_endpoint(own_place(), &endpoint).ok());
    // The one of a test before may still be going.
    const Deadline deadline = Deadline::after(kLong);
    while (directory == nullptr && !deadline.passed()) {
      assert_true(tcp::Directory::serve(endpoint, kToken, &directory).ok());
      if (directory == nullptr) ::poll(nullptr, 0, 2);
    }
    assert_non_null(directory.get());
  }
  tcp::Endpoint endpoint;
  std::shared_ptr<tcp::Directory> directory;
};

HandshakeTerms directory_terms(int rank) {
  HandshakeTerms terms;
  terms.purpose = Purpose::store;
  terms.rank = rank;
  terms.job = sha256("directory of groups");
  return terms;
}

tcp::Socket connected(const tcp::Endpoint& endpoint) {
  tcp::Socket out;
  const Status status = tcp::connect_to(endpoint, Deadline::after(kLong), kGoOn, &out);
  if (!status.ok()) fail_msg("%s", status.message().c_str());
  return out;
}

// As far as the other end listens.
void say(const tcp::Socket& socket, Random& random, const std::string& words) {
  for (std::size_t at = 0; at < words.size();) {
    const std::size_t part = std::min(words.size() - at, std::size_t{1} + random.below(200));
    std::size_t moved = 0;
    if (socket.send(words.data() + at, part, &moved) != tcp::Moved::some) return;
    at += moved;
  }
}

// Three who meet as always.
void meet_honestly(const tcp::Endpoint& endpoint, const std::string& name) {
  std::vector<std::thread> threads;
  std::vector<std::string> wrong(3);
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      tcp::Visit own{name, rank, 3, {}};
      std::snprintf(own.own.endpoint, sizeof own.own.endpoint, "10.0.0.%d:%d", rank, 100 + rank);
      std::vector<tcp::Entry> all;
      tcp::Seat seat;
      bool refused = false;
      Status status = Status::failure(TRIREME_ERROR_TIMEOUT, "");
      // Strangers may push one out before it has proved itself; it comes again, as a rank does.
      for (int attempt = 0; attempt < 50 && !status.ok() && !refused; ++attempt) {
        status = tcp::visit(endpoint, kToken, own, {}, kGoOn, &all, &refused, &seat);
      }
      std::string& text = wrong[static_cast<std::size_t>(rank)];
      if (!status.ok()) text = status.message();
      for (std::size_t i = 0; i < all.size(); ++i) {
        const std::string expected = "10.0.0." + std::to_string(i) + ":" + std::to_string(100 + i);
        if (expected != all[i].endpoint) text = "another address";
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : wrong) {
    if (!text.empty()) fail_msg("%s", text.c_str());
  }
}

// A rank's request to the directory: name, rank, world size, its address.
std::string request(Random& random) {
  std::string out = "liars-" + std::to_string(random.below(4));
  out.resize(64);
  const std::uint32_t numbers[] = {static_cast<std::uint32_t>(random.below(4)),
                                   static_cast<std::uint32_t>(2 + random.below(3))};
  for (const std::uint32_t number : numbers) {
    for (int shift = 0; shift < 32; shift += 8) out += static_cast<char>(number >> shift);
  }
  return out + fuzz::noise(random, 0) + std::string(sizeof(tcp::Entry), 'x');
}

void the_directory_serves_the_honest_among_all_others(void**) {
  Meeting meeting;
  Random random{fuzz::seed()};
  std::deque<tcp::Socket> held;
  const std::int64_t before = count_descriptors();
  constexpr std::size_t kHeld = 60;
  const std::uint64_t trials = fuzz::trials(600);
  for (std::uint64_t trial = 0; trial < trials; ++trial) {
    tcp::Socket socket;
    if (random.one_in(2)) {
      socket = connected(meeting.endpoint);
      Handshake handshake(kToken, Handshake::Side::caller, directory_terms(0), "it");
      std::string hello;
      assert_true(handshake.start(&hello).ok());
      say(socket, random, fuzz::changed(random, hello + fuzz::noise(random, 40)));
    } else {
      const Status status =
          tcp::call(meeting.endpoint, "it", kToken, directory_terms(static_cast<int>(trial % 5)),
                    Deadline::after(kLong), kGoOn, &socket);
      // Pushed out by the others that are held.
      if (!status.ok()) continue;
      std::string words = request(random);
      if (!random.one_in(3)) words = fuzz::changed(random, words);
      // The honest ones' names begin otherwise, whatever became of this one's.
      if (words.rfind("honest", 0) == 0) words[0] = 'H';
      say(socket, random, words);
    }
    if (random.one_in(2)) held.push_back(std::move(socket));
    if (held.size() > kHeld) held.pop_front();
    if (trial % 20 == 0) meet_honestly(meeting.endpoint, "honest-" + std::to_string(trial));
  }
  // Of each that is held there are two ends here; the others have gone, or will by themselves.
  assert_true(count_descriptors() <=
              before + 2 * static_cast<int>(kHeld) + static_cast<int>(tcp::kMostUnauthenticated));
}

void strangers_cost_no_more_than_was_said(void**) {
  Meeting meeting;
  const std::int64_t before = count_descriptors();
  constexpr int kIdle = 300;
  std::vector<tcp::Socket> idle;
  for (int i = 0; i < kIdle; ++i) idle.push_back(connected(meeting.endpoint));
  // They have been let in before this one has.
  meet_honestly(meeting.endpoint, "honest");
  assert_true(count_descriptors() <=
              before + kIdle + static_cast<int>(tcp::kMostUnauthenticated) + 3);
}

void a_flood_of_strangers_takes_no_memory(void**) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  skip();  // a sanitizer keeps freed memory
#endif
  Meeting meeting;
  Random random{fuzz::seed() + 1};
  meet_honestly(meeting.endpoint, "honest-before");
  const std::int64_t before = resident_bytes();
  const std::uint64_t count = fuzz::trials(10'000);
  for (std::uint64_t i = 0; i < count; ++i) {
    const tcp::Socket socket = connected(meeting.endpoint);
    say(socket, random,
        std::string(i % 3 == 0 ? "GET / HTTP/1.1\r\n" : "trireme\n") + fuzz::noise(random, 120));
  }
  meet_honestly(meeting.endpoint, "honest-after");
  const std::int64_t more = std::max<std::int64_t>(resident_bytes() - before, 0);
  std::printf("network: %llu newcomers took %llu KiB\n", static_cast<unsigned long long>(count),
              static_cast<unsigned long long>(more >> 10));
  assert_true(more <= (16u << 20));
}

// ---- a mesh ----

// Rank 1 of two, which has the token, and whose other half is written here.
struct Liar {
  explicit Liar(const tcp::Endpoint& meeting, const std::string& name) {
    tcp::Visit own{name, 1, 2, {}};
    std::strcpy(own.own.endpoint, "127.0.0.1:1");
    std::vector<tcp::Entry> all;
    bool refused = false;
    assert_true(tcp::visit(meeting, kToken, own, {}, kGoOn, &all, &refused, &seat).ok());
    tcp::Endpoint there;
    assert_true(tcp::parse_endpoint(all[0].endpoint, &there).ok());
    HandshakeTerms terms;
    terms.rank = 1;
    terms.peer = 0;
    terms.job = sha256(
        name + '\n' +
        std::string(reinterpret_cast<const char*>(all[0].nonce.data()), all[0].nonce.size()));
    // While the mesh still lets peers in: it stops once rank 1 is there.
    newcomer = connected(there);
    for (const Purpose purpose : {Purpose::control, Purpose::data}) {
      terms.purpose = purpose;
      tcp::Socket& socket = purpose == Purpose::data ? data : life;
      const Status status =
          tcp::call(there, "rank 0", kToken, terms, Deadline::after(kLong), kGoOn, &socket, &keys);
      if (!status.ok()) fail_msg("%s", status.message().c_str());
    }
  }
  tcp::Seat seat;
  tcp::Socket newcomer, life, data;
  SessionKeys keys;
};

void a_mesh_delivers_what_was_sent_or_an_error(void**) {
  Meeting meeting;
  Random random{fuzz::seed() + 2};
  std::uint64_t delivered = 0, corrupt = 0;
  const std::uint64_t trials = fuzz::trials(150);
  for (std::uint64_t trial = 0; trial < trials; ++trial) {
    const std::string name = "mesh-" + std::to_string(trial);
    tcp::Mesh::Options options;
    options.world_size = 2;
    options.name = "job";
    assert_true(tcp::parse_place(own_place() + "/" + name, &options.place).ok());
    options.place.interfaces = {own_place().substr(0, own_place().find(':'))};
    assert_true(Token::from_environment(&options.token).ok());
    std::shared_ptr<tcp::Mesh> mesh;
    assert_true(tcp::Mesh::open(options, &mesh).ok());
    Liar liar(meeting.endpoint, name);

    std::vector<std::string> frames(1 + random.below(6));
    std::string words;
    tcp::Seal seal(liar.keys.send);
    for (std::string& frame : frames) {
      frame = fuzz::noise(random, random.one_in(4) ? 9000 : 60) + "!";
      const auto head = seal.make(frame.data(), static_cast<std::uint32_t>(frame.size()));
      words.append(reinterpret_cast<const char*>(&head), sizeof head);
      words += frame;
      seal.advance();
    }
    const std::string honest = words;
    if (!random.one_in(4)) words = fuzz::changed(random, words);
    // Connections that no rank waits for do no harm.
    if (random.one_in(4)) liar.life.reset();
    if (random.one_in(4)) say(liar.newcomer, random, fuzz::noise(random, 150));
    say(liar.data, random, words);
    liar.data.reset();  // its end is what ends the loop

    const trireme_transport transport = mesh->transport();
    std::vector<char> got(transport.maximum_frame_bytes);
    std::size_t next = 0;
    const Deadline deadline = Deadline::after(kLong);
    while (true) {
      assert_false(deadline.passed());
      std::int32_t from = -1;
      std::uint64_t bytes = 0;
      const std::int32_t answer =
          transport.receive(transport.user_data, &from, got.data(), got.size(), &bytes, kSecond);
      if (answer == TRIREME_ERROR_TIMEOUT) continue;
      assert_int_equal(from, 1);
      if (answer == TRIREME_ERROR_PEER_LOST) break;
      assert_int_equal(answer, TRIREME_OK);
      assert_true(next < frames.size());
      assert_true(frames[next] == std::string(got.data(), bytes));
      ++next;
      ++delivered;
    }
    const Status why = mesh->loss(1);
    assert_true(why.details() != nullptr && why.details()->blamed == std::vector<std::int32_t>{1});
    corrupt += why.code() == TRIREME_ERROR_CORRUPT ? 1 : 0;
    if (words == honest)
      assert_true(next == frames.size() && why.code() == TRIREME_ERROR_PEER_LOST);
    transport.released(transport.user_data);
  }
  std::printf("network: %llu frames delivered, %llu of %llu talks found corrupt\n",
              static_cast<unsigned long long>(delivered), static_cast<unsigned long long>(corrupt),
              static_cast<unsigned long long>(trials));
  assert_true(delivered > 0 && corrupt > 0);
}

}  // namespace

int main() {
  setenv("TRIREME_TOKEN", std::string(kToken.secret()).c_str(), 1);
  unsetenv("TRIREME_TOKEN_FILE");
  const CMUnitTest tests[] = {
      cmocka_unit_test(the_directory_serves_the_honest_among_all_others),
      cmocka_unit_test(strangers_cost_no_more_than_was_said),
      cmocka_unit_test(a_flood_of_strangers_takes_no_memory),
      cmocka_unit_test(a_mesh_delivers_what_was_sent_or_an_error),
  };
  return cmocka_run_group_tests_name("fuzz_sessions", tests, nullptr, nullptr);
}
