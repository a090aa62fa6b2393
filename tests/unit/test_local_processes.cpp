// The local backend between processes. The workers are forked before this process has used the
// library.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "backends/local/process_mesh.hpp"
#include "local_ranks.hpp"
#include "own_process.h"
#include "platform/failpoint.hpp"
#include "platform/system.hpp"

// Last: its macros take names like `fail`.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
extern "C" {
#include <cmocka.h>
}

namespace {

using namespace local_ranks;

std::string fresh_url() {
  static int number = 0;
  return "host://test-" + std::to_string(getpid()) + "-" + std::to_string(number++);
}

// The body of a worker process; it returns the first fault that it found.
using Worker = std::function<std::string()>;

struct Process {
  pid_t pid = -1;
  int report = -1;
};

Process start(const Worker& worker) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return {};
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    close(ends[0]);
    const std::string error = worker();
    std::size_t written = 0;
    while (written < error.size()) {
      const ssize_t now = write(ends[1], error.data() + written, error.size() - written);
      if (now < 0 && errno != EINTR) break;
      if (now > 0) written += static_cast<std::size_t>(now);
    }
    _exit(0);
  }
  close(ends[1]);
  return {pid, ends[0]};
}

// Its report; a death is one, too.
std::string finish(const Process& process) {
  std::string report;
  char text[512];
  ssize_t got = 0;
  while ((got = read(process.report, text, sizeof text)) > 0 || (got < 0 && errno == EINTR)) {
    if (got > 0) report.append(text, static_cast<std::size_t>(got));
  }
  close(process.report);
  int status = 0;
  while (waitpid(process.pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status)) report += "killed by signal " + std::to_string(WTERMSIG(status));
  if (WIFEXITED(status) && WEXITSTATUS(status) != 0) {
    report += "exit status " + std::to_string(WEXITSTATUS(status));
  }
  return report;
}

using Body = std::function<std::string(Backend& backend)>;

// Returns when every rank has met every other one, so that a body may leave or die at once. A
// failure of one that went on already is the body's to see.
Status meet(Backend& backend) {
  Operation barrier = operation(OperationKind::barrier, 0);
  barrier.channel = kChannels - 1;
  const Status status = backend.run(barrier, 1, Deadline::after(kLong));
  return backend.failure().ok() ? status : Status::success();
}

Worker rank_worker(const std::string& url, int rank, int world_size, const Body& body) {
  return [=]() -> std::string {
    std::unique_ptr<Backend> backend;
    Status status = join(url, rank, world_size, &backend);
    if (status.ok()) status = meet(*backend);
    return status.ok() ? body(*backend) : status.message();
  };
}

std::vector<std::string> run_ranks(int world_size, const Body& body) {
  const std::string url = fresh_url();
  std::vector<Process> processes;
  for (int rank = 0; rank < world_size; ++rank) {
    processes.push_back(start(rank_worker(url, rank, world_size, body)));
  }
  std::vector<std::string> reports;
  for (const Process& process : processes) reports.push_back(finish(process));
  return reports;
}

void expect_success(int world_size, const Body& body) {
  for (const std::string& report : run_ranks(world_size, body)) {
    if (!report.empty()) fail_msg("%s", report.c_str());
  }
}

// Sanitizers see as much of fewer and smaller groups.
bool is_quick() { return std::getenv("TRIREME_TEST_QUICK") != nullptr; }

void every_collective_is_right_for_every_world_size_and_length(void**) {
  for (const int world_size : {1, 2, 3, 4, 5, 8}) {
    if (is_quick() && (world_size == 4 || world_size == 8)) continue;
    expect_success(world_size, [](Backend& backend) {
      Walk walk(backend);
      check_everything(walk, Source::own, 100003);
      check_everything(walk, Source::allocated, 100003);
      check_everything(walk, Source::mixed, 5003);
      return walk.error;
    });
  }
}

void expect_reports(const std::vector<std::string>& reports,
                    const std::vector<std::string>& expected, const std::string& what) {
  for (std::size_t rank = 0; rank < expected.size(); ++rank) {
    if (reports[rank] == expected[rank]) continue;
    fail_msg("%s, rank %zu: \"%s\", not \"%s\"", what.c_str(), rank, reports[rank].c_str(),
             expected[rank].c_str());
  }
}

void a_disagreement_is_a_mismatch_on_every_rank_and_moves_nothing(void**) {
  for (const Disagreement& disagreement : kDisagreements) {
    expect_success(3, [&](Backend& backend) { return check_disagreement(backend, disagreement); });
  }
}

void channels_carry_shared_memory_at_the_same_time(void**) {
  expect_success(3, [](Backend& backend) {
    std::string errors[3];
    std::vector<std::thread> threads;
    for (std::uint32_t channel = 0; channel < 3; ++channel) {
      threads.emplace_back([&, channel] {
        Walk walk(backend, channel);
        check_everything(walk, channel == 0 ? Source::mixed : Source::allocated, 3001);
        errors[channel] = walk.error;
      });
    }
    for (std::thread& thread : threads) thread.join();
    return errors[0] + errors[1] + errors[2];
  });
}

void a_model_channel_refuses_memory_it_cannot_share(void**) {
  expect_success(2, [](Backend& backend) -> std::string {
    Elements data(backend, 5000, backend.rank() == 0);
    Operation all_reduce = all_reduce_of(data.data(), data.data(), 5000);
    all_reduce.channel = kModelChannel;
    const Status status = backend.run(all_reduce, 1, Deadline::after(kLong));
    return status.code() == TRIREME_ERROR_INTERNAL ? "" : "status: " + status.message();
  });
}

// Wherever a rank is killed, each survivor names exactly it.
void a_killed_rank_is_named_by_every_survivor(void**) {
  bool turn = false;  // a sanitizer sees the points of each operation with the one memory or the
                      // other, in turn
  for (const OperationKind kind : kKinds) {
    turn = !turn;
    for (const char* const point : kPoints) {
      turn = !turn;
      for (const bool allocated : {false, true}) {
        if (is_quick() && allocated != turn) continue;
        const std::string name = std::string(failpoint_name(kind)) + "." + point;
        const std::vector<std::string> reports = run_ranks(3, [=](Backend& backend) -> std::string {
          if (backend.rank() == 1 && !set_failpoints((name + "=kill").c_str()).ok()) return "set";
          const Status status = run_until_failure(backend, kind, allocated);
          return failure_is(status, TRIREME_ERROR_PEER_LOST, {1},
                            "rank 1 was lost (rank 1 last called");
        });
        expect_reports(reports, {"", "killed by signal 9", ""}, name);
      }
    }
  }
}

void the_loss_of_a_rank_tells_what_it_had_called(void**) {
  const std::vector<std::string> reports = run_ranks(2, [](Backend& backend) -> std::string {
    Walk walk(backend);
    check_all_reduce(walk, 10, false, true);
    if (backend.rank() == 0) raise(SIGKILL);
    return failure_is(backend.run(operation(OperationKind::barrier, 0), 2, Deadline::after(kLong)),
                      TRIREME_ERROR_PEER_LOST, {0},
                      "rank 0 was lost (rank 0 last called all_reduce, sequence 1) during ");
  });
  expect_reports(reports, {"killed by signal 9", ""}, "loss");
}

void a_rank_whose_child_lives_on_is_lost_all_the_same(void**) {
  const std::vector<std::string> reports = run_ranks(2, [](Backend& backend) -> std::string {
    if (backend.rank() == 0) {
      const pid_t child = fork();  // has copies of all sockets
      if (child == 0) {
        // Ends when the pipe of its grandparent's report is all that is left to hold; never waits
        // long.
        for (int i = 0; i < 200 && getppid() != 1; ++i) usleep(10'000);
        usleep(500'000);
        _exit(0);
      }
      raise(SIGKILL);
    }
    return failure_is(backend.run(operation(OperationKind::barrier, 0), 1, Deadline::after(kLong)),
                      TRIREME_ERROR_PEER_LOST, {0}, "rank 0 was lost");
  });
  expect_reports(reports, {"killed by signal 9", ""}, "loss");
}

void a_rank_that_left_is_named(void**) {
  expect_success(3, [](Backend& backend) -> std::string {
    if (backend.rank() == 2) return "";
    return failure_is(backend.run(operation(OperationKind::barrier, 0), 1, Deadline::after(kLong)),
                      TRIREME_ERROR_PEER_LOST, {2}, "rank 2 left (rank 2 last called");
  });
}

void a_rank_that_leaves_after_its_last_collective_disturbs_nobody(void**) {
  for (int round = 0; round < 20; ++round) {
    expect_success(4, [=](Backend& backend) {
      Walk walk(backend);
      check_all_reduce(walk, round % 2 == 0 ? 10 : 3000, round % 4 == 1, true);
      return walk.error;
    });
  }
}

void a_name_can_be_used_again_as_soon_as_a_rank_has_left(void**) {
  const std::string url = fresh_url();
  std::vector<Process> processes;
  for (int rank = 0; rank < 3; ++rank) {
    processes.push_back(start([=]() -> std::string {
      for (int round = 0; round < 20; ++round) {
        std::unique_ptr<Backend> backend;
        const Status status = join(url, rank, 3, &backend);
        if (!status.ok()) return status.message();
        Walk walk(*backend);
        check_all_reduce(walk, round % 2 == 0 ? 3 : 3000, true, true);
        if (!walk.error.empty()) return walk.error;
      }
      return "";
    }));
  }
  for (const Process& process : processes) assert_string_equal(finish(process).c_str(), "");
}

void a_deadline_names_the_rank_that_did_not_arrive(void**) {
  expect_success(2, [](Backend& backend) -> std::string {
    const Operation barrier = operation(OperationKind::barrier, 0);
    while (backend.rank() == 1 && backend.failure().ok()) pause_briefly();
    const std::uint64_t wait = backend.rank() == 0 ? kSecond / 20 : kLong;
    return failure_is(backend.run(barrier, 1, Deadline::after(wait)), TRIREME_ERROR_TIMEOUT, {1},
                      "rank 1 did not arrive before the deadline (rank 1 last called barrier");
  });
}

void waiting_for_ranks_that_have_not_joined_names_them(void**) {
  const std::string url = fresh_url();
  const Process only = start([=]() -> std::string {
    std::unique_ptr<Backend> backend;
    const Status status = join(url, 1, 3, &backend);
    if (!status.ok()) return status.message();
    std::string error;
    for (int time = 0; time < 2 && error.empty(); ++time) {
      error = failure_is(backend->wait_ready(Deadline::after(kSecond / 20)), TRIREME_ERROR_TIMEOUT,
                         {0, 2}, "ranks 0 and 2 have not joined");
      if (!backend->failure().ok()) error = "the group has failed";
    }
    return error;
  });
  assert_string_equal(finish(only).c_str(), "");
}

void a_place_is_given_once_and_world_sizes_must_agree(void**) {
  expect_success(1, [](Backend&) -> std::string {
    const std::string url = fresh_url();
    std::unique_ptr<Backend> first;
    std::unique_ptr<Backend> second;
    if (!join(url, 0, 2, &first).ok()) return "first";
    Status status = join(url, 0, 2, &second);
    if (status.code() != TRIREME_ERROR_INVALID_ARGUMENT) return "taken: " + status.message();
    if (!join(url, 1, 3, &second).ok()) return "second";
    for (Backend* const backend : {first.get(), second.get()}) {
      status = backend->wait_ready(Deadline::after(kLong));
      if (status.code() != TRIREME_ERROR_MISMATCH) return status.message();
      if (status.message().find("world size 3") == std::string::npos &&
          status.message().find("world size 2") == std::string::npos) {
        return status.message();
      }
    }
    return "";
  });
}

// Ranks of another world size that come when all have met: they fail, and no other rank does. Once
// a rank has left, they may be of the next group of that name and wait for it.
void a_late_stranger_hears_at_once_why_it_does_not_fit(void**) {
  expect_success(1, [](Backend&) -> std::string {
    const std::string url = fresh_url();
    std::unique_ptr<Backend> ranks[2];
    for (int rank = 0; rank < 2; ++rank) {
      if (!join(url, rank, 2, &ranks[rank]).ok()) return "join";
    }
    for (const auto& rank : ranks) {
      if (!rank->wait_ready(Deadline::after(kLong)).ok()) return "wait_ready";
    }
    for (const int world_size : {3, 5}) {
      std::unique_ptr<Backend> late;
      if (!join(url, 2, world_size, &late).ok()) return "join late";
      const Status status = late->wait_ready(Deadline::after(kLong));
      const std::string text = " has world size 2, rank 2 has " + std::to_string(world_size);
      if (status.code() != TRIREME_ERROR_MISMATCH) return "late: " + status.message();
      if (status.message().find(text) == std::string::npos) return "late: " + status.message();
    }
    std::string errors[2];
    const auto reduce = [&](int rank) {
      Walk walk(*ranks[rank]);
      check_all_reduce(walk, 3000, true, true);
      errors[rank] = walk.error;
    };
    std::thread other(reduce, 1);
    reduce(0);
    other.join();
    if (!errors[0].empty() || !errors[1].empty()) return errors[0] + errors[1];

    ranks[1].reset();
    std::unique_ptr<Backend> next[3];
    if (!join(url, 2, 3, &next[2]).ok()) return "join again";
    // Long enough to be sent away several times.
    const std::string waits = failure_is(next[2]->wait_ready(Deadline::after(kSecond / 10)),
                                         TRIREME_ERROR_TIMEOUT, {0, 1}, "or used another");
    if (!waits.empty()) return waits;
    ranks[0].reset();
    for (int rank = 0; rank < 2; ++rank) {
      if (!join(url, rank, 3, &next[rank]).ok()) return "join anew";
    }
    for (const auto& rank : next) {
      const Status status = rank->wait_ready(Deadline::after(kLong));
      if (!status.ok()) return "anew: " + status.message();
    }
    return "";
  });
}

int connect_stranger(const std::string& url) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name =
      "trireme/" + std::to_string(geteuid()) + "/" + url.substr(strlen("host://")) + "/0";
  memcpy(address.sun_path + 1, name.data(), name.size());
  const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (connect(socket, reinterpret_cast<const sockaddr*>(&address), length) == 0) return socket;
  close(socket);
  return -1;
}

// Whether the other end hangs up on us without a word.
bool is_hung_up_on(int socket) {
  char byte;
  const ssize_t got = recv(socket, &byte, 1, 0);
  return got == 0 || (got < 0 && errno == ECONNRESET);
}

void strangers_are_sent_away_and_harm_nobody(void**) {
  expect_success(1, [](Backend&) -> std::string {
    const std::string url = fresh_url();
    std::unique_ptr<Backend> first;
    std::unique_ptr<Backend> second;
    if (!join(url, 0, 2, &first).ok()) return "first";
    const int silent = connect_stranger(url);
    if (silent < 0) return "the place of rank 0 is not where it should be";
    std::vector<char> garbage(100'000, 'x');
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{100}, garbage.size()}) {
      const int socket = connect_stranger(url);
      if (send(socket, garbage.data(), bytes, MSG_NOSIGNAL) < 0) return "send";
      if (!is_hung_up_on(socket)) return "garbage was answered";
      close(socket);
    }
    // The right size, and the wrong everything else.
    for (const std::uint32_t type : {0u, 1u, 2u, 99u}) {
      local::Packet packet;
      packet.type = type;
      packet.world_size = 2;
      packet.rank = type == local::Packet::hello ? 7 : 1;
      const int socket = connect_stranger(url);
      if (send(socket, &packet, sizeof packet, MSG_NOSIGNAL) < 0) return "send";
      if (!is_hung_up_on(socket)) return "a wrong packet was answered";
      close(socket);
    }
    if (!join(url, 1, 2, &second).ok()) return "second";
    std::thread other([&] {
      Walk walk(*second);
      check_all_reduce(walk, 3000, true, true);
    });
    Walk walk(*first);
    check_all_reduce(walk, 3000, true, true);
    other.join();
    close(silent);
    return walk.error;
  });
}

void nothing_is_left_open_after_leaving(void**) {
  const std::string url = fresh_url();
  std::vector<Process> processes;
  for (int rank = 0; rank < 3; ++rank) {
    processes.push_back(start([=]() -> std::string {
      const std::int64_t before = count_descriptors();
      {
        std::unique_ptr<Backend> backend;
        const Status status = join(url, rank, 3, &backend);
        if (!status.ok()) return status.message();
        Walk walk(*backend);
        check_everything(walk, Source::allocated, 3001);
        if (!walk.error.empty()) return walk.error;
      }
      const std::int64_t after = count_descriptors();
      return after == before ? "" : std::to_string(after - before) + " descriptors are left";
    }));
  }
  for (const Process& process : processes) assert_string_equal(finish(process).c_str(), "");
}

// A peer that writes nonsense into shared memory crashes no rank.
void a_location_outside_of_a_buffer_is_refused(void**) {
  expect_success(1, [](Backend&) -> std::string {
    local::Group group(0, 2, "job", true);
    const auto buffers = std::make_shared<local::Buffers>(group);
    const int file = system_table().memory_file("test", 8192);
    if (!buffers->add_peer_buffer(1, 5, 8192, file).ok()) return "add";
    std::byte* data = nullptr;
    std::shared_ptr<void> keep;
    const auto resolve = [&](std::uint64_t id, std::uint64_t offset, std::uint64_t bytes) {
      const local::Location location{local::Place::shared, 0, id, offset};
      return buffers->resolve(1, location, bytes, {"test", 0}, Deadline::after(0), &data, &keep)
          .code();
    };
    if (resolve(5, 0, 8192) != TRIREME_OK || resolve(5, 8192, 0) != TRIREME_OK) return "whole";
    if (resolve(5, 1, 8192) != TRIREME_ERROR_CORRUPT) return "one past the end";
    if (resolve(5, UINT64_MAX, 2) != TRIREME_ERROR_CORRUPT) return "wraps around";
    if (resolve(5, 2, UINT64_MAX) != TRIREME_ERROR_CORRUPT) return "wraps around, too";
    if (resolve(6, 0, 1) != TRIREME_ERROR_TIMEOUT) return "no such buffer";
    const int unsealed = memfd_create("test", MFD_CLOEXEC);
    if (unsealed < 0 || ftruncate(unsealed, 4096) != 0) return "memfd";
    if (buffers->add_peer_buffer(1, 7, 4096, unsealed).code() != TRIREME_ERROR_CORRUPT) {
      return "a file that can shrink was mapped";
    }
    const int small = system_table().memory_file("test", 4096);
    if (buffers->add_peer_buffer(1, 8, 8192, small).code() != TRIREME_ERROR_CORRUPT) {
      return "a file that is too small was mapped";
    }
    buffers->drop_peer_buffer(1, 5);
    return resolve(5, 0, 1) == TRIREME_ERROR_TIMEOUT ? "" : "a dropped buffer was found";
  });
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(every_collective_is_right_for_every_world_size_and_length),
      cmocka_unit_test(channels_carry_shared_memory_at_the_same_time),
      cmocka_unit_test(a_model_channel_refuses_memory_it_cannot_share),
      cmocka_unit_test(a_disagreement_is_a_mismatch_on_every_rank_and_moves_nothing),
      cmocka_unit_test(a_killed_rank_is_named_by_every_survivor),
      cmocka_unit_test(the_loss_of_a_rank_tells_what_it_had_called),
      cmocka_unit_test(a_rank_whose_child_lives_on_is_lost_all_the_same),
      cmocka_unit_test(a_rank_that_left_is_named),
      cmocka_unit_test(a_rank_that_leaves_after_its_last_collective_disturbs_nobody),
      cmocka_unit_test(a_name_can_be_used_again_as_soon_as_a_rank_has_left),
      cmocka_unit_test(a_deadline_names_the_rank_that_did_not_arrive),
      cmocka_unit_test(waiting_for_ranks_that_have_not_joined_names_them),
      cmocka_unit_test(a_place_is_given_once_and_world_sizes_must_agree),
      cmocka_unit_test(a_late_stranger_hears_at_once_why_it_does_not_fit),
      cmocka_unit_test(strangers_are_sent_away_and_harm_nobody),
      cmocka_unit_test(nothing_is_left_open_after_leaving),
      cmocka_unit_test(a_location_outside_of_a_buffer_is_refused),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
