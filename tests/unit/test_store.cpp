// The store over TCP and in a file: the promises of every operation, to many threads at once, over
// connections that break, and after the server's end.
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <atomic>
#include <random>
#include <set>
#include <thread>

#include "net/tcp_socket.hpp"
#include "store_job.hpp"

extern "C" {
#include <cmocka.h>
}

using namespace trireme;
using namespace trireme::cluster;
using namespace trireme::cluster::test;

namespace {

constexpr bool kKinds[] = {false, true};  // over TCP, in a file

void operations_do_what_they_say(void**) {
  for (const bool file : kKinds) {
    const Job job(file);
    assert_true(job.status.ok());
    Store& one = *job.store;
    std::unique_ptr<Store> other_end;
    assert_int_equal(connect(job.url, &other_end).code(), TRIREME_OK);
    Store& two = *other_end;

    assert_false(get(one, "k").reply.value.has_value());
    const std::string binary("a\0b\n\xff", 5);
    assert_int_equal(set(one, "k", binary).code(), TRIREME_OK);
    assert_true(get(two, "k").reply.value == binary);
    assert_int_equal(set(two, "k", "").code(), TRIREME_OK);
    assert_true(get(one, "k").reply.value == std::string());

    const std::string large(kMaxStoreValue, 'x'), name(kMaxStoreKey, 'n');
    assert_int_equal(set(one, name, large).code(), TRIREME_OK);
    assert_true(get(two, name).reply.value == large);
    assert_int_equal(exchange(two, name, large, "small").reply.number, 1);

    assert_int_equal(add(one, "n", 5).reply.number, 5);
    assert_int_equal(add(two, "n", -7).reply.number, -2);
    assert_true(get(one, "n").reply.value == "-2");

    assert_int_equal(exchange(one, "c", std::nullopt, "1").reply.number, 1);
    const Result lost = exchange(two, "c", std::nullopt, "2");
    assert_int_equal(lost.code(), TRIREME_OK);
    assert_int_equal(lost.reply.number, 0);
    assert_int_equal(exchange(two, "c", "1", "2").reply.number, 1);
    assert_int_equal(exchange(two, "absent", "1", "2").reply.number, 0);
    assert_true(get(one, "c").reply.value == "2");

    assert_int_equal(remove(one, "c").reply.number, 1);
    assert_int_equal(remove(two, "c").reply.number, 0);
    assert_int_equal(wait(one, {}).code(), TRIREME_OK);
    assert_int_equal(wait(one, {"k", "n", "k"}).code(), TRIREME_OK);
  }
}

void failures_name_their_cause_and_change_nothing(void**) {
  for (const bool file : kKinds) {
    const Job job(file);
    Store& store = *job.store;
    set(store, "text", "no number");
    const Result sum = add(store, "text", 1);
    assert_int_equal(sum.code(), TRIREME_ERROR_INVALID_STATE);
    assert_non_null(strstr(sum.message().c_str(), "key \"text\" is no number"));
    assert_non_null(strstr(sum.message().c_str(), job.url.c_str()));
    assert_int_equal(set(store, "", "v").code(), TRIREME_ERROR_INVALID_ARGUMENT);
    assert_int_equal(set(store, std::string(kMaxStoreKey + 1, 'k'), "v").code(),
                     TRIREME_ERROR_INVALID_ARGUMENT);
    assert_int_equal(set(store, "k", std::string(kMaxStoreValue + 1, 'v')).code(),
                     TRIREME_ERROR_INVALID_ARGUMENT);
    for (const std::uint64_t timeout : {std::uint64_t{0}, kSecondNs / 20}) {
      const Result late = wait(store, {"text", "nothing"}, timeout);
      assert_int_equal(late.code(), TRIREME_ERROR_TIMEOUT);
      assert_non_null(strstr(late.message().c_str(), "key \"nothing\" is not there; 1 of 2"));
    }
    assert_true(get(store, "text").reply.value == "no number");
    assert_false(get(store, "k").reply.value.has_value());
  }
}

void many_threads_add_and_exchange_without_losing_one(void**) {
  for (const bool file : kKinds) {
    const Job job(file);
    constexpr int kThreads = 8;
    const int turns = file ? 40 : 150;
    std::vector<std::set<std::int64_t>> sums(kThreads);
    std::atomic<int> failures{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        // Half of them share a store, as threads of a program do.
        std::unique_ptr<Store> own;
        if (i % 2 == 0 && !connect(job.url, &own).status.ok()) ++failures;
        Store& store = own != nullptr ? *own : *job.store;
        for (int turn = 0; turn < turns; ++turn) {
          const Result sum = add(store, "sum", 1);
          if (!sum.status.ok() ||
              !sums[static_cast<std::size_t>(i)].insert(sum.reply.number).second) {
            ++failures;
          }
          while (true) {
            const auto now = get(store, "exchanged").reply.value;
            const std::string next = std::to_string((now ? std::stoi(*now) : 0) + 1);
            const Result done = exchange(store, "exchanged", now, next);
            if (!done.status.ok()) ++failures;
            if (!done.status.ok() || done.reply.number == 1) break;
          }
        }
      });
    }
    for (std::thread& each : threads) each.join();
    assert_int_equal(failures.load(), 0);
    std::set<std::int64_t> all;
    for (const auto& each : sums) all.insert(each.begin(), each.end());
    assert_int_equal(all.size(), kThreads * turns);  // each sum was given to one of them
    assert_int_equal(*all.begin(), 1);
    assert_int_equal(*all.rbegin(), kThreads * turns);
    assert_int_equal(std::stoi(*get(*job.store, "exchanged").reply.value), kThreads * turns);
  }
}

void waits_end_when_the_last_key_is_there(void**) {
  for (const bool file : kKinds) {
    const Job job(file);
    constexpr int kThreads = 12;
    std::atomic<int> failures{0}, ended{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        const Result result = wait(*job.store, {"a", "b", "key " + std::to_string(i % 3)});
        if (!result.status.ok() || !get(*job.store, "b").reply.value) ++failures;
        ++ended;
      });
    }
    set(*job.store, "key 1", "");
    set(*job.store, "a", "");
    set(*job.store, "key 0", "");
    set(*job.store, "key 2", "");
    assert_int_equal(ended.load(), 0);
    set(*job.store, "b", "");
    for (std::thread& each : threads) each.join();
    assert_int_equal(failures.load(), 0);
  }
}

void a_store_that_is_let_go_ends_the_calls_in_it(void**) {
  for (const bool file : kKinds) {
    const Job job(file);
    std::unique_ptr<Store> store;
    assert_int_equal(connect(job.url, &store).code(), TRIREME_OK);
    Result result;
    std::thread waiter([&] { result = wait(*store, {"never"}); });
    usleep(20'000);
    store->stop();
    waiter.join();
    assert_int_equal(result.code(), TRIREME_ERROR_CANCELLED);
  }
}

void who_may_not_come_in_is_told_why(void**) {
  const Job tcp(false), file(true);
  set(*file.store, "k", "v");
  const Token other("another token of another job");
  std::unique_ptr<Store> store;
  for (const Job* const job : {&tcp, &file}) {
    assert_int_equal(connect(job->url, &store, kPatienceNs, other).code(),
                     TRIREME_ERROR_AUTHENTICATION);
  }
  // The file is as it was for those it belongs to.
  assert_int_equal(connect(file.url, &store).code(), TRIREME_OK);
  assert_true(get(*store, "k").reply.value == "v");

  assert_int_equal(chmod(file.path.c_str(), 0644), 0);
  assert_int_equal(connect(file.url, &store).code(), TRIREME_ERROR_AUTHENTICATION);
  assert_int_equal(connect("file:///tmp", &store).code(), TRIREME_ERROR_SYSTEM);
  assert_int_equal(connect("file:///no/such/folder/file", &store).code(), TRIREME_ERROR_SYSTEM);
  const std::string link = file.path + ".link";
  assert_int_equal(symlink(file.path.c_str(), link.c_str()), 0);
  assert_int_equal(connect("file://" + link, &store).code(), TRIREME_ERROR_SYSTEM);
  unlink(link.c_str());

  for (const char* const url : {"", "tcp://", "tcp://host", "tcp://127.0.0.1:0", "tcp://[::1:5",
                                "tcp://127.0.0.1:70000", "file://relative", "http://a:1"}) {
    assert_int_equal(connect(url, &store).code(), TRIREME_ERROR_INVALID_ARGUMENT);
  }
  for (const char* const url :
       {"tcp://0.0.0.0:0", "tcp://[::]:0", "file:///tmp/a", "tcp://no.such.host.invalid:0"}) {
    assert_int_equal(serve(url, &store).code(), TRIREME_ERROR_INVALID_ARGUMENT);
  }
  // 192.0.2.0/24 has no hosts; a served address is taken.
  assert_int_equal(serve("tcp://192.0.2.1:0", &store).code(), TRIREME_ERROR_SYSTEM);
  assert_int_equal(serve(tcp.url, &store).code(), TRIREME_ERROR_SYSTEM);
}

void the_environment_names_the_store(void**) {
  const Job job(false);
  std::unique_ptr<Store> store;
  unsetenv("MASTER_ADDR");
  assert_int_equal(connect("env://", &store).code(), TRIREME_ERROR_INVALID_ARGUMENT);
  setenv("TRIREME_STORE", "env://", 1);
  assert_int_equal(connect("env://", &store).code(), TRIREME_ERROR_INVALID_ARGUMENT);
  setenv("TRIREME_STORE", job.url.c_str(), 1);
  assert_int_equal(connect("env://", &store).code(), TRIREME_OK);
  unsetenv("TRIREME_STORE");
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", job.url.substr(job.url.rfind(':') + 1).c_str(), 1);
  assert_int_equal(connect("env://", &store).code(), TRIREME_OK);
  assert_true(store->url() == job.url);
}

// A port without a listener, for a moment at least.
std::string free_url() {
  const Job job(false);
  return job.url;
}

void a_store_may_come_late_or_not_at_all(void**) {
  const std::string url = free_url();
  std::unique_ptr<Store> server, client;
  const Result nobody = connect(url, &client, kSecondNs / 10);
  assert_int_equal(nobody.code(), TRIREME_ERROR_TIMEOUT);
  assert_non_null(strstr(nobody.message().c_str(), url.c_str()));
  assert_non_null(strstr(nobody.message().c_str(), "Connection refused"));
  std::thread late([&] {
    usleep(50'000);
    serve(url, &server);
  });
  const Result result = connect(url, &client);
  late.join();
  assert_int_equal(result.code(), TRIREME_OK);
}

void a_store_that_ends_or_is_started_anew_is_an_error(void**) {
  std::unique_ptr<Store> server, client;
  assert_int_equal(serve("tcp://127.0.0.1:0", &server).code(), TRIREME_OK);
  const std::string url = server->url();
  assert_int_equal(connect(url, &client).code(), TRIREME_OK);
  assert_int_equal(add(*client, "n", 1).reply.number, 1);
  Result result;
  std::thread waiter([&] { result = wait(*client, {"never"}); });
  usleep(20'000);
  server.reset();
  waiter.join();
  assert_int_equal(result.code(), TRIREME_ERROR_PEER_LOST);
  assert_non_null(strstr(result.message().c_str(), url.c_str()));
  assert_int_equal(add(*client, "n", 1).code(), TRIREME_ERROR_PEER_LOST);

  assert_int_equal(serve(url, &server).code(), TRIREME_OK);
  result = add(*client, "n", 1);
  assert_int_equal(result.code(), TRIREME_ERROR_PEER_LOST);
  assert_non_null(strstr(result.message().c_str(), "started anew"));
  assert_false(get(*server, "n").reply.value.has_value());
  assert_int_equal(connect(url, &client).code(), TRIREME_OK);
  assert_int_equal(add(*client, "n", 1).reply.number, 1);
}

// Stands between clients and a store, and cuts every connection after a number of bytes that is
// drawn anew each time.
class Cutter {
 public:
  Cutter(const std::string& url, unsigned seed) : random_(seed) {
    std::string why;
    tcp::Endpoint here;
    assert_true(tcp::look_up_number("127.0.0.1", 0, &here, &why));
    tcp::Endpoint bound;
    assert_true(tcp::listen_at(here, &listener_, &bound).ok());
    url_ = "tcp://" + bound.text();
    std::uint16_t port = 0;
    std::string host;
    assert_true(tcp::split_endpoint(url.substr(6), 1, &host, &port, &why));
    assert_true(tcp::look_up_number(host, port, &there_, &why));
    thread_ = std::thread([this] { run(); });
  }
  ~Cutter() {
    stop_ = true;
    thread_.join();
  }
  const std::string& url() const { return url_; }
  int cuts() const { return cuts_; }
  std::atomic<bool> cutting{true};

 private:
  void run() {
    const std::atomic<bool> never{false};
    std::vector<std::thread> pairs;
    while (!stop_) {
      if (!tcp::wait_for(listener_.get(), POLLIN, Deadline::after(kSecondNs / 50), never)) continue;
      const int caller = accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (caller < 0) continue;
      const std::size_t budget = 300 + random_() % 1500;
      pairs.emplace_back([this, caller, budget] { carry(tcp::Socket(caller), budget); });
    }
    for (std::thread& each : pairs) each.join();
  }
  void carry(tcp::Socket caller, std::size_t budget) {
    const std::atomic<bool> never{false};
    tcp::Socket called;
    if (!tcp::connect_to(there_, Deadline::after(kSecondNs), never, &called).ok()) return;
    while (!stop_) {
      pollfd entries[] = {{caller.get(), POLLIN, 0}, {called.get(), POLLIN, 0}};
      poll(entries, 2, 20);
      for (int i = 0; i < 2; ++i) {
        if (entries[i].revents == 0) continue;
        const tcp::Socket& from = i == 0 ? caller : called;
        const tcp::Socket& to = i == 0 ? called : caller;
        char bytes[512];
        std::size_t moved = 0, sent = 0;
        const std::size_t most = cutting ? std::min(budget, sizeof bytes) : sizeof bytes;
        if (from.receive(bytes, most, &moved) == tcp::Moved::ended) return;
        if (to.send(bytes, moved, &sent) == tcp::Moved::ended) return;
        budget -= std::min(budget, moved);
        if (cutting && budget == 0) {
          ++cuts_;
          return;
        }
      }
    }
  }

  std::mt19937 random_;
  tcp::Socket listener_;
  tcp::Endpoint there_;
  std::string url_;
  std::atomic<bool> stop_{false};
  std::atomic<int> cuts_{0};
  std::thread thread_;
};

void what_is_repeated_over_broken_connections_is_done_once(void**) {
  const Job job(false);
  Cutter cutter(job.url, 7);
  constexpr int kThreads = 4, kTurns = 60;
  std::vector<std::set<std::int64_t>> sums(kThreads);
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      std::unique_ptr<Store> store;
      if (!connect(cutter.url(), &store).status.ok()) ++failures;
      for (int turn = 0; turn < kTurns && store != nullptr; ++turn) {
        const Result sum = add(*store, "sum", 1);
        if (!sum.status.ok()) ++failures;
        sums[static_cast<std::size_t>(i)].insert(sum.reply.number);
        const std::string key = std::to_string(i) + "/" + std::to_string(turn);
        if (exchange(*store, key, std::nullopt, "mine").reply.number != 1) ++failures;
        if (remove(*store, key).reply.number != 1) ++failures;
      }
    });
  }
  for (std::thread& each : threads) each.join();
  assert_int_equal(failures.load(), 0);
  assert_true(cutter.cuts() > kThreads);
  std::set<std::int64_t> all;
  for (const auto& each : sums) all.insert(each.begin(), each.end());
  assert_int_equal(all.size(), kThreads * kTurns);
  assert_true(get(*job.store, "sum").reply.value == std::to_string(kThreads * kTurns));
}

void a_file_that_was_changed_by_others_is_refused(void**) {
  const Job job(true);
  for (int i = 0; i < 4; ++i) set(*job.store, "k" + std::to_string(i), "a value");
  FILE* file = fopen(job.path.c_str(), "r+");
  fseek(file, 0, SEEK_END);
  const long size = ftell(file);
  std::unique_ptr<Store> store;
  for (long at = 0; at < size; at += 7) {
    fseek(file, at, SEEK_SET);
    const int byte = fgetc(file);
    fseek(file, at, SEEK_SET);
    fputc(byte ^ 0x10, file);
    fflush(file);
    const trireme_status code = connect(job.url, &store).code();
    // A length that reaches past the end looks like a writer that died; its bytes do not count.
    if (code == TRIREME_OK) assert_false(get(*store, "k3").reply.value.has_value());
    if (code != TRIREME_OK && code != TRIREME_ERROR_AUTHENTICATION) {
      assert_int_equal(code, TRIREME_ERROR_CORRUPT);
    }
    fseek(file, at, SEEK_SET);
    fputc(byte, file);
    fflush(file);
  }
  fclose(file);
  assert_int_equal(connect(job.url, &store).code(), TRIREME_OK);
  assert_true(get(*store, "k3").reply.value == "a value");
}

void a_writer_that_died_leaves_nothing_half_done(void**) {
  const Job job(true);
  set(*job.store, "k", "first");
  struct stat before {
  }, after{};
  stat(job.path.c_str(), &before);
  set(*job.store, "k", "second");
  stat(job.path.c_str(), &after);
  for (off_t size = before.st_size; size < after.st_size; ++size) {
    assert_int_equal(truncate(job.path.c_str(), size), 0);
    std::unique_ptr<Store> store;
    assert_int_equal(connect(job.url, &store).code(), TRIREME_OK);
    assert_true(get(*store, "k").reply.value == "first");
    assert_int_equal(set(*store, "k", "second").code(), TRIREME_OK);
    assert_true(get(*store, "k").reply.value == "second");
  }
}

void processes_that_are_killed_lose_no_request_that_was_answered(void**) {
  const Job job(true);
  std::int64_t answered = 0;
  for (int trial = 0; trial < 20; ++trial) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
      std::unique_ptr<Store> store;
      if (!connect(job.url, &store).status.ok()) _exit(1);
      while (add(*store, "n", 1).status.ok()) {
        if (write(ends[1], "+", 1) != 1) _exit(1);
      }
      _exit(1);
    }
    close(ends[1]);
    char byte;
    assert_int_equal(read(ends[0], &byte, 1), 1);
    ++answered;
    usleep(static_cast<useconds_t>(trial * 300));
    kill(child, SIGKILL);
    while (read(ends[0], &byte, 1) == 1) ++answered;
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    assert_true(WIFSIGNALED(status));
    // One may have been done and not yet answered.
    const std::int64_t sum = add(*job.store, "n", 0).reply.number;
    assert_in_range(sum - answered, 0, 1);
    answered = sum;
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      // The first one forks, while there are no threads yet.
      cmocka_unit_test(processes_that_are_killed_lose_no_request_that_was_answered),
      cmocka_unit_test(operations_do_what_they_say),
      cmocka_unit_test(failures_name_their_cause_and_change_nothing),
      cmocka_unit_test(many_threads_add_and_exchange_without_losing_one),
      cmocka_unit_test(waits_end_when_the_last_key_is_there),
      cmocka_unit_test(a_store_that_is_let_go_ends_the_calls_in_it),
      cmocka_unit_test(who_may_not_come_in_is_told_why),
      cmocka_unit_test(the_environment_names_the_store),
      cmocka_unit_test(a_store_may_come_late_or_not_at_all),
      cmocka_unit_test(a_store_that_ends_or_is_started_anew_is_an_error),
      cmocka_unit_test(what_is_repeated_over_broken_connections_is_done_once),
      cmocka_unit_test(a_file_that_was_changed_by_others_is_refused),
      cmocka_unit_test(a_writer_that_died_leaves_nothing_half_done),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
