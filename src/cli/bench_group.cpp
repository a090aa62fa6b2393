#include "cli/bench_group.hpp"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "cli/bench_operation.hpp"
#include "cli/bench_sampling.hpp"
#include "cli/bench_transport.hpp"
#include "cli/bench_values.hpp"

namespace trireme::bench {

namespace {

constexpr std::uint64_t kTimeout = 120'000'000'000;
constexpr std::uint64_t kGuard = 64;  // bytes behind what an operation may write
constexpr std::byte kPoison{0xa5};

// What a rank tells the one who prints. Whole or not at all: the pipe takes this much in one piece.
struct Report {
  enum Kind : std::uint32_t { result, end, error } kind;
  std::uint32_t rank;
  std::uint64_t index;
  std::uint64_t wrong;
  std::uint32_t samples;
  std::uint32_t unsupported;
  float microseconds[kMostSamples];
  char words[512];
};
static_assert(sizeof(Report) <= PIPE_BUF);

bool send(int pipe, const Report& report) {
  ssize_t written = 0;
  do {
    written = write(pipe, &report, sizeof report);
  } while (written < 0 && errno == EINTR);
  return written == static_cast<ssize_t>(sizeof report);
}

class Area {
 public:
  Area(trireme_communicator* communicator, Memory memory, std::uint64_t bytes) : bytes_(bytes) {
    if (memory == Memory::registered) {
      must(trireme_buffer_alloc(communicator, bytes, &buffer_));
      void* data = nullptr;
      must(trireme_buffer_data(buffer_, &data));
      data_ = static_cast<std::byte*>(data);
      return;
    }
    void* const data =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) throw Failure("no memory for " + std::to_string(bytes) + " bytes");
    data_ = static_cast<std::byte*>(data);
  }
  ~Area() {
    if (buffer_ != nullptr) trireme_buffer_destroy(buffer_);
    else munmap(data_, bytes_);
  }
  Area(const Area&) = delete;
  Area& operator=(const Area&) = delete;
  std::byte* data() const { return data_; }

 private:
  trireme_buffer* buffer_ = nullptr;
  std::byte* data_ = nullptr;
  const std::uint64_t bytes_;
};

struct CommunicatorEnd {
  void operator()(trireme_communicator* communicator) const {
    trireme_communicator_destroy(communicator);
  }
};

class Worker {
 public:
  Worker(const Group& group, const Plan& plan, const std::string& rendezvous, int rank,
         const trireme_transport* transport)
      : group_(group), plan_(plan), rank_(rank) {
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    options.rendezvous = rendezvous.c_str();
    options.rank = rank;
    options.world_size = group.size;
    options.timeout_ns = kTimeout;
    options.transport = transport;
    trireme_communicator* communicator = nullptr;
    must(trireme_communicator_create(&options, &communicator));
    communicator_.reset(communicator);
  }

  void work(int pipe) {
    try {
      must(trireme_communicator_wait_ready(communicator_.get(), kTimeout));
      allocate();
      for (std::size_t i = 0; i < plan_.cases.size(); ++i) run(pipe, i);
      must(trireme_barrier(communicator_.get(), nullptr));
    } catch (const std::exception&) {  // the others shall not wait for this rank
      static_cast<void>(trireme_communicator_abort(communicator_.get(), "a rank failed") ==
                        TRIREME_OK);
      throw;
    }
  }

 private:
  void allocate() {
    std::uint64_t send = 0;
    std::uint64_t receive = 0;
    for (const Case& what : plan_.cases) {
      const Shape shape = shape_of(what, group_.size, rank_);
      const std::uint64_t size = trireme_dtype_size(what.dtype);
      const std::uint64_t both = std::max(shape.send, shape.receive);
      if (!what.in_place) send = std::max(send, shape.send * size);
      receive = std::max(receive, (what.in_place ? both : shape.receive) * size);
    }
    send_ = std::make_unique<Area>(communicator_.get(), group_.memory, send + kGuard);
    receive_ = std::make_unique<Area>(communicator_.get(), group_.memory, receive + kGuard);
  }

  const Values& values(const Case& what) {
    const std::pair key(what.dtype, op_reduces(what.op) ? what.reduction : 0);
    auto& entry = values_[key];
    if (entry == nullptr) {
      entry = std::make_unique<Values>(key.first, key.second, group_.size);
    }
    return *entry;
  }

  void run(int pipe, std::size_t index) {
    const Case& what = plan_.cases[index];
    const Shape shape = shape_of(what, group_.size, rank_);
    const std::uint64_t size = trireme_dtype_size(what.dtype);
    // Broadcast has one buffer, which the root's elements are in.
    const bool one_buffer = what.in_place || what.op == Op::broadcast;
    std::byte* const whole = receive_->data();
    std::byte* const send = one_buffer ? whole + shape.send_at * size : send_->data();
    std::byte* const receive = one_buffer ? whole + shape.receive_at * size : whole;
    const std::uint64_t extent = one_buffer ? std::max(shape.send, shape.receive) : shape.receive;
    const auto once = [&] {
      call(communicator_.get(), what, shape, group_.size, rank_, send, receive);
    };
    const Values& known = values(what);
    std::memset(whole, static_cast<int>(kPoison), extent * size + kGuard);
    known.fill(send, rank_, 0, shape.send);

    Report report{};
    report.kind = Report::result;
    report.rank = static_cast<std::uint32_t>(rank_);
    report.index = index;
    if (plan_.checked) {
      try {
        once();
      } catch (const Unsupported&) {
        if (plan_.timed) throw;
        report.unsupported = 1;  // on all ranks alike
        if (!bench::send(pipe, report)) throw Failure("nobody listens");
        return;
      }
      const std::byte* at = receive;
      for (const Run& run : shape.expected) {
        report.wrong += known.wrong(at, run.source, run.first, run.count);
        at += run.count * size;
      }
      if (!one_buffer) report.wrong += known.wrong(send, rank_, 0, shape.send);
      report.wrong += static_cast<std::uint64_t>(
          std::count_if(whole + extent * size, whole + extent * size + kGuard,
                        [](std::byte byte) { return byte != kPoison; }));
    }
    if (plan_.timed) {
      const auto meet = [&] { must(trireme_barrier(communicator_.get(), nullptr)); };
      const auto agree = [&](double value) {
        must(trireme_broadcast(communicator_.get(), &value, 1, TRIREME_DTYPE_F64, 0, nullptr));
        return value;
      };
      const Effort& effort = plan_.effort;
      const std::vector<double> samples =
          take_samples(effort.warmup, effort.iterations, effort.seconds, meet, agree, once);
      report.samples = static_cast<std::uint32_t>(samples.size());
      std::copy(samples.begin(), samples.end(), report.microseconds);
    }
    if (!bench::send(pipe, report)) throw Failure("nobody listens");
  }

  const Group group_;
  const Plan& plan_;
  const int rank_;
  std::unique_ptr<trireme_communicator, CommunicatorEnd> communicator_;
  std::unique_ptr<Area> send_;
  std::unique_ptr<Area> receive_;
  std::map<std::pair<trireme_dtype, trireme_reduction>, std::unique_ptr<Values>> values_;
};

void work(const Group& group, const Plan& plan, const std::string& rendezvous, int rank, int pipe,
          const trireme_transport* transport = nullptr) {
  Report report{};
  report.kind = Report::end;
  report.rank = static_cast<std::uint32_t>(rank);
  try {
    Worker(group, plan, rendezvous, rank, transport).work(pipe);
  } catch (const std::exception& error) {
    report.kind = Report::error;
    std::strncpy(report.words, error.what(), sizeof report.words - 1);
  }
  bench::send(pipe, report);
}

// Adds up what the ranks report until all have ended.
class Collector {
 public:
  Collector(const Group& group, const Plan& plan,
            const std::function<void(std::size_t, const Result&)>& done)
      : ranks_(static_cast<std::uint32_t>(group.size)),
        done_(done),
        results_(plan.cases.size()),
        reported_(plan.cases.size()) {}

  void listen(int pipe) {
    for (std::uint32_t ended = 0; ended < ranks_;) {
      Report report;
      std::size_t have = 0;
      while (have < sizeof report) {
        char* const rest = reinterpret_cast<char*>(&report) + have;
        const ssize_t got = read(pipe, rest, sizeof report - have);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return;  // all processes are gone
        have += static_cast<std::size_t>(got);
      }
      if (report.kind == Report::result) {
        add(report);
        continue;
      }
      ++ended;
      if (report.kind == Report::error && words_.empty()) words_ = report.words;
    }
  }

  std::vector<Result> take() {
    if (!words_.empty()) throw Failure(words_);
    for (const std::uint32_t count : reported_) {
      if (count != ranks_) throw Failure("a rank ended without a word");
    }
    return std::move(results_);
  }

 private:
  void add(const Report& report) {
    Result& result = results_[report.index];
    result.wrong += report.wrong;
    result.unsupported = report.unsupported != 0;
    result.samples.resize(report.samples);
    for (std::uint32_t i = 0; i < report.samples; ++i) {
      result.samples[i] = std::max(result.samples[i], double{report.microseconds[i]});
    }
    if (++reported_[report.index] == ranks_ && done_) done_(report.index, result);
  }

  const std::uint32_t ranks_;
  const std::function<void(std::size_t, const Result&)>& done_;
  std::vector<Result> results_;
  std::vector<std::uint32_t> reported_;  // ranks that have reported, by case
  std::string words_;
};

// Runs `body` in a child. This process itself joins no group: its handles would mean nothing in
// later children.
template <class Body>
bool in_child(int pipe[2], std::vector<pid_t>* children, Body body) {
  const pid_t child = fork();
  if (child == 0) {
    close(pipe[0]);
    body();
    _exit(0);
  }
  if (child > 0) children->push_back(child);
  return child > 0;
}

void run_threads(const Group& group, const Plan& plan, const std::string& name, int pipe) {
  // The library may use the network until the process ends.
  Network* const network = group.ranks == Ranks::host ? new Network(group.size) : nullptr;
  const std::string rendezvous = (network != nullptr ? "host-transport://" : "local://") + name;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < group.size; ++rank) {
    threads.emplace_back([&, rank] {
      if (network == nullptr) return work(group, plan, rendezvous, rank, pipe);
      const trireme_transport transport = network->transport(rank);
      work(group, plan, rendezvous, rank, pipe, &transport);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

std::vector<Result> run_group(const Group& group, const Plan& plan,
                              const std::function<void(std::size_t, const Result&)>& done) {
  static std::atomic<int> number{0};
  const std::string name = "trireme-bench-" + std::to_string(getpid()) + "-" +
                           std::to_string(number.fetch_add(1));
  int pipe[2];
  if (::pipe(pipe) != 0) throw Failure(std::string("a pipe: ") + std::strerror(errno));
  std::vector<pid_t> children;
  std::fflush(nullptr);
  if (group.ranks != Ranks::processes) {
    in_child(pipe, &children, [&] { run_threads(group, plan, name, pipe[1]); });
  } else {
    // If one cannot be made, those that are there wait for it in vain, and say so.
    for (int rank = 0; rank < group.size; ++rank) {
      const auto run = [&] { work(group, plan, "host://" + name, rank, pipe[1]); };
      if (!in_child(pipe, &children, run)) break;
    }
  }
  close(pipe[1]);
  Collector collector(group, plan, done);
  collector.listen(pipe[0]);
  close(pipe[0]);
  for (const pid_t child : children) {
    while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  return collector.take();
}

}  // namespace trireme::bench
