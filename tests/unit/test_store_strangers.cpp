// The store among unauthenticated peers who talk nonsense, half of something, or nothing, and among
// members of the job who lie: it serves the honest ones, its memory stays bounded, and so do
// descriptors. The same for a client whose store is none.
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <random>
#include <thread>

#include "net/acceptor.hpp"
#include "net/tcp_call.hpp"
#include "own_process.h"
#include "store/wire.hpp"
#include "store_job.hpp"

extern "C" {
#include <cmocka.h>
}

using namespace trireme;
using namespace trireme::cluster;
using namespace trireme::cluster::test;

namespace {

const std::atomic<bool> kNever{false};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // sanitizers keep freed memory
#else
constexpr bool kSanitized = false;
#endif

tcp::Endpoint endpoint_of(const std::string& url) {
  std::string host, why;
  std::uint16_t port = 0;
  tcp::Endpoint endpoint;
  assert_true(tcp::split_endpoint(url.substr(strlen("tcp://")), 1, &host, &port, &why));
  assert_true(tcp::look_up_number(host, port, &endpoint, &why));
  return endpoint;
}

tcp::Socket connect_raw(const tcp::Endpoint& endpoint) {
  tcp::Socket socket;
  static_cast<void>(
      tcp::connect_to(endpoint, Deadline::after(20 * kSecondNs), kNever, &socket).ok());
  return socket;
}

// A member of the job, by its own hand.
struct Member {
  explicit Member(const tcp::Endpoint& endpoint) {
    SessionKeys keys;
    const Status status = tcp::call(endpoint, "the store", kToken, store_terms(),
                                    Deadline::after(20 * kSecondNs), kNever, &socket, &keys);
    assert_true(status.ok());
    writer.emplace(keys.send);
    reader.emplace(keys.receive, kMaxStoreReplyBytes);
  }
  void say(const std::string& bytes) {
    static_cast<void>(
        socket.send_all(bytes.data(), bytes.size(), Deadline::after(20 * kSecondNs), kNever).ok());
  }
  std::string frame(const std::string& body) {
    std::string out;
    writer->write(body, &out);
    return out;
  }
  // Whether a whole answer came before the connection ended.
  bool answered() {
    char bytes[4096];
    while (!reader->whole()) {
      std::size_t moved = 0, used = 0;
      const tcp::Moved result = socket.receive(bytes, sizeof bytes, &moved);
      if (result == tcp::Moved::ended) return false;
      assert_true(reader->take({bytes, moved}, &used).ok());
      if (result == tcp::Moved::nothing &&
          !tcp::wait_for(socket.get(), POLLIN, Deadline::after(20 * kSecondNs), kNever)) {
        fail_msg("neither an answer nor an end");
      }
    }
    return true;
  }

  tcp::Socket socket;
  std::optional<FrameWriter> writer;
  std::optional<FrameReader> reader;
};

std::string random_bytes(std::mt19937& random, std::size_t size) {
  std::string bytes(size, '\0');
  for (char& each : bytes) each = static_cast<char>(random());
  return bytes;
}

// A caller's first bytes.
std::string hello_of(const Token& token) {
  Handshake handshake(token, Handshake::Side::caller, store_terms(), "the store");
  std::string said;
  assert_true(handshake.start(&said).ok());
  return said;
}

void a_flood_of_strangers_costs_little_and_keeps_nobody_out(void**) {
  const Job job(false);
  const tcp::Endpoint endpoint = endpoint_of(job.url);
  set(*job.store, "k", "v");
  const std::int64_t before = resident_bytes(), opened = count_descriptors();
  constexpr int kThreads = 4;
  const int callers = kSanitized ? 80 : 250;  // of each thread
  std::atomic<bool> over{false};
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      std::mt19937 random(static_cast<unsigned>(i));
      std::vector<tcp::Socket> kept;
      for (int j = 0; j < callers; ++j) {
        tcp::Socket socket = connect_raw(endpoint);
        std::string said;
        switch (random() % 6) {
          case 0: break;  // says nothing
          case 1: said = "GET / HTTP/1.0\r\n\r\n"; break;
          case 2: said = random_bytes(random, 1 + random() % 2000); break;
          case 3: said = hello_of(kToken).substr(0, random() % 104); break;
          case 4: said = hello_of(kToken) + random_bytes(random, 32); break;
          case 5: said = hello_of(Token("a token that is not the job's")); break;
        }
        std::size_t moved = 0;
        if (socket) socket.send(said.data(), said.size(), &moved);
        if (random() % 2 == 0) kept.push_back(std::move(socket));
      }
      while (!over) usleep(1000);
    });
  }
  // One who is inside stays served, and another gets in.
  for (int i = 0; i < 200; ++i) {
    if (get(*job.store, "k").reply.value != "v") ++failures;
  }
  std::unique_ptr<Store> late;
  assert_int_equal(connect(job.url, &late).code(), TRIREME_OK);
  assert_true(get(*late, "k").reply.value == "v");
  const std::int64_t during = resident_bytes();
  over = true;
  for (std::thread& each : threads) each.join();
  late.reset();
  assert_int_equal(failures.load(), 0);
  const std::int64_t grown = std::max<std::int64_t>(during - before, 0);
  printf("newcomers: %d at a store, memory grown by %lld KiB\n", kThreads * callers,
         static_cast<long long>(grown >> 10));
  assert_true(grown < (kSanitized ? 512u << 20 : 8u << 20));
  // All descriptors are given back: the server's own by its backoff of two seconds at the latest.
  for (int i = 0; i < 2000 && count_descriptors() > opened; ++i) usleep(10'000);
  assert_int_equal(count_descriptors(), opened);
}

void who_says_nothing_is_turned_away(void**) {
  const Job job(false);
  const tcp::Socket silent = connect_raw(endpoint_of(job.url));
  assert_true(tcp::wait_for(silent.get(), POLLIN, Deadline::after(20 * kSecondNs), kNever));
  char byte = 0;
  std::size_t moved = 0;
  assert_true(silent.receive(&byte, 1, &moved) == tcp::Moved::ended);
}

void strangers_who_stay_are_no_more_than_there_is_room_for(void**) {
  const Job job(false);
  const tcp::Endpoint endpoint = endpoint_of(job.url);
  const std::int64_t before = count_descriptors();
  constexpr int kIdle = 400;
  std::vector<tcp::Socket> idle;
  for (int i = 0; i < kIdle; ++i) idle.push_back(connect_raw(endpoint));
  // They were let in before this one was, and this process has both ends of it.
  std::unique_ptr<Store> late;
  assert_int_equal(connect(job.url, &late).code(), TRIREME_OK);
  assert_true(count_descriptors() <=
              before + kIdle + static_cast<std::int64_t>(tcp::kMostUnauthenticated) + 2);
}

void a_member_who_lies_is_cut_off_and_others_are_served(void**) {
  const Job job(false);
  const tcp::Endpoint endpoint = endpoint_of(job.url);
  const std::string honest = encode(make(StoreOperation::get, "k"), 0);
  set(*job.store, "k", "v");
  const std::int64_t before = resident_bytes();
  const std::function<void(Member&)> lies[] = {
      [](Member& member) { member.say(std::string("\xff\xff\xff\xff", 4)); },  // 4 GiB to come
      [](Member& member) {
        const auto size = static_cast<std::uint32_t>(kMaxStoreRequestBytes + 1);
        member.say(std::string(reinterpret_cast<const char*>(&size), 4));
      },
      [&](Member& member) {  // a code that is wrong
        std::string frame = member.frame(honest);
        frame.back() = static_cast<char>(frame.back() ^ 1);
        member.say(frame);
      },
      [&](Member& member) {  // a frame that comes again
        const std::string frame = member.frame(honest);
        member.say(frame);
        assert_true(member.answered());
        std::size_t used = 0;
        assert_true(member.reader->take({}, &used).ok());
        member.say(frame);
      },
      [&](Member& member) { member.say(member.frame("")); },
      [&](Member& member) { member.say(member.frame("no request")); },
      [&](Member& member) { member.say(member.frame(honest + "!")); },
      [&](Member& member) { member.say(member.frame(honest) + member.frame(honest)); },
      [&](Member& member) {  // more while a wait has no answer
        StoreRequest wait = make(StoreOperation::wait, "");
        wait.keys = {"never"};
        wait.timeout_ns = kPatienceNs;
        member.say(member.frame(encode(wait, 0)));
        usleep(1000);
        member.say(member.frame(honest));
      },
  };
  for (const auto& lie : lies) {
    Member member(endpoint);
    lie(member);
    assert_false(member.answered());
    assert_true(get(*job.store, "k").reply.value == "v");
  }
  assert_true(resident_bytes() < before + (kSanitized ? 512u << 20 : 8u << 20));

  // A member that stops in the middle of a frame, or dies there, delays no other.
  Member stops(endpoint);
  stops.say(stops.frame(honest).substr(0, 20));
  {
    Member dies(endpoint);
    dies.say(dies.frame(honest).substr(0, 20));
  }
  assert_true(get(*job.store, "k").reply.value == "v");
}

void requests_that_were_changed_are_answered_or_cut_off(void**) {
  const Job job(false);
  const tcp::Endpoint endpoint = endpoint_of(job.url);
  std::mt19937 random(11);
  std::vector<std::string> bodies;
  for (const StoreOperation operation :
       {StoreOperation::set, StoreOperation::get, StoreOperation::add, StoreOperation::remove,
        StoreOperation::compare_exchange}) {
    StoreRequest request = make(operation, "a key", "a value");
    if (operation == StoreOperation::compare_exchange) request.expected = "another";
    bodies.push_back(encode(request, 0));
  }
  StoreRequest wait = make(StoreOperation::wait, "");
  wait.keys = {"a key", "b"};
  bodies.push_back(encode(wait, 0));
  int answered = 0;
  const int trials = kSanitized ? 150 : 1500;
  for (int i = 0; i < trials; ++i) {
    std::string body = bodies[random() % bodies.size()];
    for (unsigned j = random() % 4; j > 0; --j) {
      // Not of its first byte, or a wait might be asked for that lasts long.
      body[1 + random() % (body.size() - 1)] = static_cast<char>(random());
    }
    if (random() % 4 == 0) body.resize(random() % (body.size() + 1));
    if (body.size() > 40 && body[0] == static_cast<char>(StoreOperation::wait)) {
      std::fill_n(body.begin() + 33, 8, '\0');  // its time
    }
    Member member(endpoint);
    member.say(member.frame(body));
    answered += member.answered();
  }
  assert_in_range(answered, trials / 20, trials - trials / 20);
  assert_int_equal(set(*job.store, "k", "v").code(), TRIREME_OK);
  assert_true(get(*job.store, "k").reply.value == "v");
}

void who_does_not_read_keeps_nobody_waiting(void**) {
  const Job job(false);
  const tcp::Endpoint endpoint = endpoint_of(job.url);
  set(*job.store, "large", std::string(kMaxStoreValue, 'x'));
  const std::int64_t before = resident_bytes();
  std::vector<std::unique_ptr<Member>> members;
  constexpr std::size_t kMembers = 16;
  for (std::size_t i = 0; i < kMembers; ++i) {
    members.push_back(std::make_unique<Member>(endpoint));
    const int small = 64 << 10;
    setsockopt(members.back()->socket.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    members.back()->say(members.back()->frame(encode(make(StoreOperation::get, "large"), 0)));
  }
  for (int i = 0; i < 100; ++i) {
    assert_int_equal(add(*job.store, "n", 1).reply.number, i + 1);
  }
  // One answer each is all that is kept for them, and a copy or two of it while it is made.
  const std::int64_t most = kMembers * 2 * kMaxStoreValue + (16u << 20);
  assert_true(resident_bytes() < before + (kSanitized ? 512u << 20 : most));
  // A member that reads late gets the whole answer.
  assert_true(members.front()->answered());
  StoreReply reply;
  StoreInstance instance = 0;
  assert_true(decode(members.front()->reader->body(), &reply, &instance));
  assert_int_equal(reply.value->size(), kMaxStoreValue);
}

void what_was_cut_or_lengthened_is_no_request(void**) {
  StoreRequest wait = make(StoreOperation::wait, "");
  wait.keys = {"a", "bc"};
  StoreRequest exchange_request = make(StoreOperation::compare_exchange, "key", "value");
  exchange_request.expected = "old";
  StoreReply reply;
  reply.value = "value";
  reply.message = "message";
  for (const std::string& whole :
       {encode(wait, 7), encode(exchange_request, 7), encode(make(StoreOperation::add, "k"), 7)}) {
    StoreRequest request;
    StoreInstance instance = 0;
    assert_true(decode(whole, &request, &instance));
    assert_int_equal(instance, 7);
    assert_true(encode(request, 7) == whole);
    for (std::size_t size = 0; size < whole.size(); ++size) {
      StoreRequest cut;
      assert_false(decode(std::string_view(whole).substr(0, size), &cut, &instance));
    }
    StoreRequest longer;
    assert_false(decode(whole + "!", &longer, &instance));
  }
  const std::string whole = encode(reply, 7);
  StoreInstance instance = 0;
  assert_true(decode(whole, &reply, &instance));
  assert_true(reply.value == "value" && reply.message == "message");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    assert_false(decode(std::string_view(whole).substr(0, size), &reply, &instance));
  }
}

// Listens, and does this with the first who calls.
class Impostor {
 public:
  explicit Impostor(std::function<void(tcp::Socket&)> act) {
    std::string why;
    tcp::Endpoint here, bound;
    assert_true(tcp::look_up_number("127.0.0.1", 0, &here, &why));
    assert_true(tcp::listen_at(here, &listener_, &bound).ok());
    url_ = "tcp://" + bound.text();
    thread_ = std::thread([this, act] {
      tcp::wait_for(listener_.get(), POLLIN, Deadline::after(20 * kSecondNs), kNever);
      tcp::Socket socket(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      act(socket);
      while (!over_) usleep(1000);
    });
  }
  ~Impostor() {
    over_ = true;
    thread_.join();
  }
  const std::string& url() const { return url_; }

 private:
  tcp::Socket listener_;
  std::string url_;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

void a_client_believes_nobody_who_is_no_store(void**) {
  std::unique_ptr<Store> store;
  {
    const Impostor silent([](tcp::Socket&) {});
    assert_int_equal(connect(silent.url(), &store, kSecondNs / 10).code(), TRIREME_ERROR_TIMEOUT);
  }
  {
    const Impostor web([](tcp::Socket& socket) {
      std::size_t moved = 0;
      const std::string page = "HTTP/1.0 400 Bad Request\r\n\r\n" + std::string(200, ' ');
      socket.send(page.data(), page.size(), &moved);
    });
    assert_int_equal(connect(web.url(), &store).code(), TRIREME_ERROR_AUTHENTICATION);
  }
  // One who has the token, but answers with a code that is wrong, too much, or no answer.
  for (int lie = 0; lie < 3; ++lie) {
    const Impostor liar([lie](tcp::Socket& socket) {
      Handshake handshake(kToken, Handshake::Side::called, store_terms(), "a caller");
      std::string said;
      assert_true(handshake.start(&said).ok());
      char bytes[4096];
      std::size_t moved = 0, used = 0;
      while (!handshake.done()) {
        tcp::wait_for(socket.get(), POLLIN, Deadline::after(20 * kSecondNs), kNever);
        socket.receive(bytes, sizeof bytes, &moved);
        static_cast<void>(handshake.take({bytes, moved}, &used, &said).ok());
        socket.send(said.data(), said.size(), &moved);
        said.clear();
      }
      tcp::wait_for(socket.get(), POLLIN, Deadline::after(20 * kSecondNs), kNever);
      FrameWriter writer(handshake.keys().send);
      std::string frame;
      writer.write(lie == 2 ? "no answer" : encode(StoreReply{}, 1), &frame);
      if (lie == 0) frame.back() = static_cast<char>(frame.back() ^ 1);
      if (lie == 1) frame += "more";
      socket.send(frame.data(), frame.size(), &moved);
    });
    assert_int_equal(connect(liar.url(), &store).code(), TRIREME_OK);
    assert_int_equal(add(*store, "n", 1).code(), TRIREME_ERROR_CORRUPT);
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(a_flood_of_strangers_costs_little_and_keeps_nobody_out),
      cmocka_unit_test(who_says_nothing_is_turned_away),
      cmocka_unit_test(strangers_who_stay_are_no_more_than_there_is_room_for),
      cmocka_unit_test(a_member_who_lies_is_cut_off_and_others_are_served),
      cmocka_unit_test(requests_that_were_changed_are_answered_or_cut_off),
      cmocka_unit_test(who_does_not_read_keeps_nobody_waiting),
      cmocka_unit_test(what_was_cut_or_lengthened_is_no_request),
      cmocka_unit_test(a_client_believes_nobody_who_is_no_store),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
