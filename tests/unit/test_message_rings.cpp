// The rings that carry messages between ranks which share memory.
#include <atomic>
#include <thread>

#include "backends/slots/ring.hpp"
#include "local_ranks.hpp"

// Last: its macros take names like `fail`.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
extern "C" {
#include <cmocka.h>
}

namespace {

using namespace local_ranks;

const std::uint64_t kCapacity = local::ring_capacity(local::Layout(2, false));

using Bytes = std::vector<std::uint8_t>;

struct OfBytes : Message {
  OfBytes(OperationKind kind_in, int peer_in, Bytes& bytes) {
    kind = kind_in;
    peer = peer_in;
    data = bytes.data();
    count = bytes.size();
  }
};

// Moves messages until this one is done; `looked` is called after each look.
template <class Looked>
Status finish(Backend& backend, Message& one, Looked looked) {
  const Deadline deadline = Deadline::after(kLong);
  while (!one.done.load()) {
    backend.progress();
    looked();
    if (deadline.passed()) return Status::failure(TRIREME_ERROR_TIMEOUT, "no message came");
    std::this_thread::yield();
  }
  return one.status;
}

// Runs rank 0 and rank 1 as threads; the first failure or difference, or "".
template <class Body>
std::string run_pair(const char* url, Body body) {
  std::string errors[2];
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      std::unique_ptr<Backend> backend;
      Status status = join(url, rank, 2, &backend);
      if (status.ok()) status = wait_for_all(*backend);
      errors[rank] = status.ok() ? body(*backend) : status.message();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors[0].empty() ? errors[1] : errors[0];
}

// Every eight bytes of the payload are the stamp of a message that would begin there one lap later.
// The receiver looks for the next message before it is sent, so it must not take them for one.
void bytes_of_an_older_message_are_no_stamp(void**) {
  constexpr int kMessages = 3000;
  std::atomic<int> looked{-1};
  const std::string error = run_pair("local://rings-stamps", [&](Backend& backend) -> std::string {
    std::uint64_t position = 0;
    for (int i = 0; i < kMessages; ++i) {
      // Whole words behind the header of 40 bytes, which begin in another cell in each lap.
      Bytes payload(static_cast<std::size_t>(24 + i % 7 * 64 + i % 3 * 8));
      const std::uint64_t begin = position + 40;
      for (std::uint64_t at = 0; at + 8 <= payload.size(); at += 8) {
        const std::uint64_t stamp = local::stamp_of(begin + at + kCapacity);
        std::memcpy(payload.data() + at, &stamp, sizeof stamp);
      }
      position = local::next_cell(begin + payload.size());
      if (backend.rank() == 0) {
        while (looked.load() < i) std::this_thread::yield();
        OfBytes send(OperationKind::send, 1, payload);
        backend.post(send);
        const Status status = finish(backend, send, [] {});
        if (!status.ok()) return status.message();
        continue;
      }
      Bytes got(payload.size());
      OfBytes receive(OperationKind::receive, 0, got);
      backend.post(receive);
      const Status status = finish(backend, receive, [&] { looked.store(i); });
      if (!status.ok()) return std::to_string(i) + ": " + status.message();
      if (got != payload) return "message " + std::to_string(i) + " came with other bytes";
    }
    return "";
  });
  assert_string_equal(error.c_str(), "");
}

// Sizes round the header, a cell, a piece and the whole ring, in both directions at once.
void messages_of_all_sizes_arrive_whole(void**) {
  const std::uint64_t piece = kCapacity / 4;
  const std::uint64_t sizes[] = {0,         1,         23,        24,        25,
                                 63,        64,        65,        piece - 1, piece,
                                 piece + 1, 2 * piece, kCapacity, 1,         3 * kCapacity + 7,
                                 0};
  const std::string error = run_pair("local://rings-sizes", [&](Backend& backend) -> std::string {
    const int peer = 1 - backend.rank();
    const auto byte = [](int from, std::uint64_t lap, std::uint64_t i) {
      return static_cast<std::uint8_t>(i * 131 + lap * 17 + static_cast<std::uint64_t>(from) * 7);
    };
    for (std::uint64_t lap = 0; lap < 40; ++lap) {
      const std::uint64_t bytes = sizes[lap * 7 % std::size(sizes)];
      Bytes payload(bytes);
      Bytes got(bytes, 0xee);
      for (std::uint64_t i = 0; i < bytes; ++i) payload[i] = byte(backend.rank(), lap, i);
      OfBytes send(OperationKind::send, peer, payload);
      OfBytes receive(OperationKind::receive, peer, got);
      backend.post(receive);
      backend.post(send);
      for (Message* const each : {&receive, &send}) {
        const Status status = finish(backend, *each, [] {});
        if (!status.ok()) return status.message();
      }
      for (std::uint64_t i = 0; i < bytes; ++i) {
        if (got[i] != byte(peer, lap, i)) {
          return "byte " + std::to_string(i) + " of " + std::to_string(bytes) + " is wrong";
        }
      }
    }
    return "";
  });
  assert_string_equal(error.c_str(), "");
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(bytes_of_an_older_message_are_no_stamp),
      cmocka_unit_test(messages_of_all_sizes_arrive_whole),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
