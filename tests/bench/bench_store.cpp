// The job's store over loopback: authenticated operations a second, and how long many ranks take
// to join: connect, count themselves, wait for the last one. Everything runs on this machine.
#include <sys/resource.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "store/store.hpp"

namespace {

using namespace trireme;
using namespace trireme::cluster;

const Token kToken("a token for measurements");
constexpr std::uint64_t kPatienceNs = 60'000'000'000;

void check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "bench_store: %s\n", status.message().c_str());
  std::exit(1);
}

std::unique_ptr<Store> serve() {
  std::unique_ptr<Store> store;
  check(serve_store("tcp://127.0.0.1:0", kToken, Deadline::after(kPatienceNs), &store));
  return store;
}

std::int64_t ask(Store& store, StoreRequest request) {
  StoreReply reply;
  check(store.ask(std::move(request), Deadline::after(kPatienceNs), &reply));
  return reply.number;
}

StoreRequest make(StoreOperation operation, std::string key, std::string value = "") {
  StoreRequest request;
  request.operation = operation;
  request.key = std::move(key);
  request.value = std::move(value);
  request.amount = 1;
  return request;
}

void operations(int clients, int each, std::size_t bytes) {
  const auto server = serve();
  std::atomic<int> ready{0};
  std::atomic<bool> go{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < clients; ++i) {
    threads.emplace_back([&, i] {
      std::unique_ptr<Store> store;
      check(connect_store(server->url(), kToken, Deadline::after(kPatienceNs), &store));
      const std::string key = "client " + std::to_string(i), value(bytes, 'v');
      ++ready;
      while (!go) std::this_thread::yield();
      for (int j = 0; j < each; j += 4) {
        ask(*store, make(StoreOperation::set, key, value));
        ask(*store, make(StoreOperation::get, key));
        ask(*store, make(StoreOperation::add, "all"));
        ask(*store, make(StoreOperation::get, key));
      }
    });
  }
  while (ready < clients) std::this_thread::yield();
  const std::uint64_t begin = now_ns();
  go = true;
  for (std::thread& each_thread : threads) each_thread.join();
  const double seconds = static_cast<double>(now_ns() - begin) / 1e9;
  std::printf("%8d %10zu %14.0f\n", clients, bytes, clients * each / seconds);
}

void join(int ranks) {
  const auto server = serve();
  const std::uint64_t begin = now_ns();
  std::vector<std::thread> threads;
  for (int i = 0; i < ranks; ++i) {
    threads.emplace_back([&] {
      std::unique_ptr<Store> store;
      check(connect_store(server->url(), kToken, Deadline::after(kPatienceNs), &store));
      if (ask(*store, make(StoreOperation::add, "ranks")) == ranks) {
        ask(*store, make(StoreOperation::set, "all are here"));
      }
      StoreRequest wait = make(StoreOperation::wait, "");
      wait.keys = {"all are here"};
      ask(*store, wait);
    });
  }
  for (std::thread& each : threads) each.join();
  std::printf("%8d %14.3f\n", ranks, static_cast<double>(now_ns() - begin) / 1e9);
}

}  // namespace

int main() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  std::printf("# store over loopback, every frame authenticated\n");
  std::printf("# clients      bytes   operations/s\n");
  for (const int clients : {1, 4, 16}) operations(clients, 40'000 / clients, 32);
  operations(4, 5'000, 4096);
  for (const int clients : {1, 4}) operations(clients, 1600 / clients, 1 << 20);
  std::printf("#  ranks   seconds until all have joined\n");
  for (const int ranks : {256, 1024}) join(ranks);
  return 0;
}
