#include "cli/bench/group.hpp"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <utility>

#include "cli/bench/operation.hpp"
#include "cli/bench/sampling.hpp"
#include "cli/bench/transport.hpp"
#include "cli/bench/values.hpp"

namespace trireme::bench {

namespace {

constexpr std::uint64_t kTimeout = 120'000'000'000;
constexpr std::uint64_t kGuard = 64;  // bytes behind what an operation may write
constexpr std::byte kPoison{0xa5};

// A rank's report to the rank that prints. It arrives whole or not at all: the pipe takes this much
// in one piece.
struct Report {
  enum Kind : std::uint32_t { result, end, error } kind;
  std::uint32_t rank;
  std::uint64_t index;
  std::uint64_t wrong;
  std::uint32_t samples;
  std::uint32_t unsupported;
  float microseconds[kMostSamples];
  char words[512];  // error: the reason; end: the name of the backend
};
static_assert(sizeof(Report) <= PIPE_BUF);

bool send(int pipe, const Report& report) {
  ssize_t written = 0;
  do {
    written = write(pipe, &report, sizeof report);
  } while (written < 0 && errno == EINTR);
  return written == static_cast<ssize_t>(sizeof report);
}

// Delivers a rank's report.
using Tell = std::function<void(const Report&)>;

class Area {
 public:
  Area(trireme_communicator* communicator, Memory memory, std::uint64_t bytes) : bytes_(bytes) {
    if (memory == Memory::registered) {
      must(trireme_buffer_alloc(communicator, bytes, &buffer_));
      void* data = nullptr;
      must(trireme_buffer_get_data(buffer_, &data));
      data_ = static_cast<std::byte*>(data);
      return;
    }
    void* const data =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) throw Failure("no memory for " + std::to_string(bytes) + " bytes");
    data_ = static_cast<std::byte*>(data);
  }
  ~Area() {
    if (buffer_ != nullptr)
      trireme_buffer_destroy(buffer_);
    else
      munmap(data_, bytes_);
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

std::string backend_of(const trireme_communicator* communicator) {
  char text[128];
  must(trireme_communicator_get_backend(communicator, text, sizeof text, nullptr));
  return text;
}

class Worker {
 public:
  Worker(const Group& group, const Plan& plan, const std::string& rendezvous, int rank,
         const trireme_transport* transport)
      : group_(group), plan_(plan), rank_(rank) {
    if (group.given != nullptr) {
      communicator_ = group.given->communicator();
      return;
    }
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    options.rendezvous = rendezvous.c_str();
    options.rank = rank;
    options.world_size = group.size;
    options.timeout_ns = kTimeout;
    options.transport = transport;
    options.backend = group.backend.empty() ? nullptr : group.backend.c_str();
    must(trireme_communicator_create(&options, &communicator_));
    own_.reset(communicator_);
  }

  // Returns the name of the backend.
  std::string work(const Tell& tell) {
    std::string backend;
    try {
      must(trireme_communicator_wait_ready(communicator_, kTimeout));
      backend = backend_of(communicator_);
      allocate();
      for (std::size_t i = 0; i < plan_.cases.size(); ++i) tell(run(i));
      must(trireme_barrier(communicator_, nullptr));
    } catch (const std::exception&) {  // the others must not wait for this rank
      static_cast<void>(trireme_communicator_abort(communicator_, "a rank failed") == TRIREME_OK);
      throw;
    }
    return backend;
  }

 private:
  void allocate() {
    std::uint64_t send = 0;
    std::uint64_t receive = 0;
    for (const Case& what : plan_.cases) {
      const Shape shape = shape_of(what, group_.size, rank_);
      const std::uint64_t size = trireme_dtype_bytes(what.dtype);
      const std::uint64_t both = std::max(shape.send, shape.receive);
      if (!what.in_place) send = std::max(send, shape.send * size);
      receive = std::max(receive, (what.in_place ? both : shape.receive) * size);
    }
    send_ = std::make_unique<Area>(communicator_, group_.memory, send + kGuard);
    receive_ = std::make_unique<Area>(communicator_, group_.memory, receive + kGuard);
  }

  const Values& values(const Case& what) {
    const std::pair key(what.dtype, op_reduces(what.op) ? what.reduction : 0);
    auto& entry = values_[key];
    if (entry == nullptr) {
      entry = std::make_unique<Values>(key.first, key.second, group_.size);
    }
    return *entry;
  }

  Report run(std::size_t index) {
    const Case& what = plan_.cases[index];
    const Shape shape = shape_of(what, group_.size, rank_);
    const std::uint64_t size = trireme_dtype_bytes(what.dtype);
    // Broadcast has one buffer, which holds the root's elements.
    const bool one_buffer = what.in_place || what.op == Op::broadcast;
    std::byte* const whole = receive_->data();
    std::byte* const send = one_buffer ? whole + shape.send_at * size : send_->data();
    std::byte* const receive = one_buffer ? whole + shape.receive_at * size : whole;
    const std::uint64_t extent = one_buffer ? std::max(shape.send, shape.receive) : shape.receive;
    const auto once = [&] { call(communicator_, what, shape, group_.size, rank_, send, receive); };
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
        if (!plan_.skips_absent) throw;
        report.unsupported = 1;  // on all ranks alike
        return report;
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
      const auto meet = [&] { must(trireme_barrier(communicator_, nullptr)); };
      const auto agree = [&](double value) {
        must(trireme_broadcast(communicator_, &value, 1, TRIREME_DTYPE_F64, 0, nullptr));
        return value;
      };
      const Effort& effort = plan_.effort;
      const std::vector<double> samples =
          take_samples(effort.warmup, effort.iterations, effort.seconds, meet, agree, once);
      report.samples = static_cast<std::uint32_t>(samples.size());
      std::copy(samples.begin(), samples.end(), report.microseconds);
    }
    return report;
  }

  const Group group_;
  const Plan& plan_;
  const int rank_;
  trireme_communicator* communicator_ = nullptr;
  std::unique_ptr<trireme_communicator, CommunicatorEnd> own_;
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
    Worker worker(group, plan, rendezvous, rank, transport);
    const std::string backend = worker.work([&](const Report& result) {
      if (!bench::send(pipe, result)) throw Failure("nobody listens");
    });
    std::strncpy(report.words, backend.c_str(), sizeof report.words - 1);
  } catch (const std::exception& error) {
    report.kind = Report::error;
    std::strncpy(report.words, error.what(), sizeof report.words - 1);
  }
  bench::send(pipe, report);
}

// Collects the ranks' reports until all have ended.
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
      if (report.kind == Report::end) backend_ = report.words;
    }
  }

  const std::string& backend() const { return backend_; }

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
  std::string backend_;
};

// The group itself carries the ranks' reports to rank 0.
std::vector<Result> run_given(const Group& group, const Plan& plan,
                              const std::function<void(std::size_t, const Result&)>& done) {
  trireme_communicator* const communicator = group.given->communicator();
  std::vector<Result> results(plan.cases.size());
  Worker(group, plan, "", group.given->rank(), nullptr).work([&](const Report& report) {
    std::array<float, kMostSamples> slowest{};
    std::uint64_t wrong = 0;
    must(trireme_reduce(communicator, report.microseconds, slowest.data(), report.samples,
                        TRIREME_DTYPE_F32, TRIREME_REDUCTION_MAX, 0, nullptr));
    must(trireme_reduce(communicator, &report.wrong, &wrong, 1, TRIREME_DTYPE_U64,
                        TRIREME_REDUCTION_SUM, 0, nullptr));
    if (group.given->rank() != 0) return;
    Result& result = results[report.index];
    result.wrong = wrong;
    result.unsupported = report.unsupported != 0;
    result.samples.assign(slowest.begin(), slowest.begin() + report.samples);
    if (done) done(report.index, result);
  });
  return results;
}

// An address of the loopback that no other run of this command uses, and a token if there is none.
std::string loopback_rendezvous(const std::string& name) {
  unsetenv("TRIREME_TOKEN_FD");  // only one rank could read it
  if (std::getenv("TRIREME_TOKEN") == nullptr && std::getenv("TRIREME_TOKEN_FILE") == nullptr) {
    std::random_device random;
    std::string token;
    for (int i = 0; i < 8; ++i) token += std::to_string(random()) + ".";
    setenv("TRIREME_TOKEN", token.c_str(), 1);
  }
  const unsigned number = static_cast<unsigned>(getpid());
  const auto part = [&](int shift) { return std::to_string((number >> shift) & 127); };
  return "tcp://127." + std::to_string(128 + ((number >> 14) & 127)) + "." + part(7) + "." +
         part(0) + ":29500/" + name;
}

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
  Network* const network = group.ranks == Ranks::transport ? new Network(group.size) : nullptr;
  const std::string rendezvous = (network != nullptr ? "transport://" : "local://") + name;
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

Joined::Joined(const std::string& backend) {
  trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
  options.rendezvous = "env://";
  options.backend = backend.empty() ? nullptr : backend.c_str();
  options.timeout_ns = kTimeout;
  must(trireme_communicator_create(&options, &communicator_));
  const CommunicatorEnd end;
  std::unique_ptr<trireme_communicator, CommunicatorEnd> kept(communicator_, end);
  must(trireme_communicator_wait_ready(communicator_, kTimeout));
  must(trireme_communicator_get_rank(communicator_, &rank_));
  must(trireme_communicator_get_world_size(communicator_, &size_));
  backend_ = backend_of(communicator_);
  static_cast<void>(kept.release());
}

Joined::~Joined() { trireme_communicator_destroy(communicator_); }

std::vector<Result> run_group(const Group& group, const Plan& plan,
                              const std::function<void(std::size_t, const Result&)>& done,
                              std::string* backend) {
  if (group.given != nullptr) {
    if (backend != nullptr) *backend = group.given->backend();
    return run_given(group, plan, done);
  }
  static std::atomic<int> number{0};
  const std::string name =
      "trireme-bench-" + std::to_string(getpid()) + "-" + std::to_string(number.fetch_add(1));
  int pipe[2];
  if (::pipe(pipe) != 0) throw Failure(std::string("a pipe: ") + std::strerror(errno));
  std::vector<pid_t> children;
  std::fflush(nullptr);
  if (group.ranks == Ranks::threads || group.ranks == Ranks::transport) {
    in_child(pipe, &children, [&] { run_threads(group, plan, name, pipe[1]); });
  } else {
    const std::string rendezvous =
        group.ranks == Ranks::tcp ? loopback_rendezvous(name) : "host://" + name;
    // If one cannot be made, the ranks that are there wait for it in vain, and report that.
    for (int rank = 0; rank < group.size; ++rank) {
      const auto run = [&] { work(group, plan, rendezvous, rank, pipe[1]); };
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
  if (backend != nullptr) *backend = collector.backend();
  return collector.take();
}

}  // namespace trireme::bench
