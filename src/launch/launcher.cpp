#include "launch/launcher.hpp"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <sstream>
#include <utility>

#include "launch/agent.hpp"
#include "launch/descendants.hpp"
#include "launch/supervisor.hpp"
#include "launch/last_words.hpp"
#include "launch/launch_state.hpp"
#include "launch/reserved_port.hpp"
#include "launch/worker_environment.hpp"
#include "launch/worker_output.hpp"

namespace trireme::cluster {
namespace {

// How long the end of the job may wait for output that an unkillable descendant holds open. After
// that, a reader of the launcher's own output that does not read may take so long again.
constexpr std::uint64_t kClosingMs = 5000;

std::string signal_name(int number) {
  const char* const name = sigabbrev_np(number);
  return name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(number);
}

// Returns 0 if execvp would find the program, else the exit code that a shell gives.
int check_program(const std::string& program) {
  std::vector<std::string> candidates;
  if (program.find('/') != std::string::npos) {
    candidates.push_back(program);
  } else {
    const char* const path = std::getenv("PATH");
    std::stringstream folders(path != nullptr ? path : "/bin:/usr/bin");
    for (std::string folder; std::getline(folders, folder, ':');) {
      candidates.push_back((folder.empty() ? "." : folder) + "/" + program);
    }
  }
  bool exists = false;
  for (const std::string& candidate : candidates) {
    struct stat file {};
    if (stat(candidate.c_str(), &file) != 0) continue;
    exists = true;
    if (S_ISREG(file.st_mode) && access(candidate.c_str(), X_OK) == 0) return 0;
  }
  std::fprintf(stderr, "trireme: program \"%s\" %s\n", program.c_str(),
               exists ? "is not executable" : "was not found");
  return exists ? 126 : 127;
}

class Launcher;

struct Worker {
  Launcher* launcher = nullptr;
  int local_rank = 0;
  uv_process_t process{};
  uv_pipe_t lifeline{};
  std::string report;  // bytes of a SupervisorReport so far
  bool supervisor_runs = false;
  bool lifeline_open = false;
  bool loss_is_told = false;  // where survivors are kept
  Ending supervisor_ending;   // counts if there was no report
};

class Launcher {
 public:
  // `restarts`: how often the job was restarted before.
  Launcher(const LaunchOptions& options, int restarts);
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;
  int run();
  // The workers have failed by themselves, so another attempt may succeed.
  bool may_restart() const { return failed_by_itself_; }

 private:
  bool keep_master_port();
  bool bind_to_cores(int local_rank) const;
  void begin(const AgentStart& start);
  void start_workers();
  bool start(int local_rank);
  void watch_signals();
  void signal_came(int number);
  AgentStop stop_by_user(int signal) const;
  void note_ending(Worker& worker, Ending ending);
  void words_came(Worker& worker);
  void tell_loss(Worker& worker);
  std::string failure_of(int local_rank) const;
  void after_event();
  void check_gone(Worker& worker);
  void close_down();
  void say(const std::string& text) { output_.say(text); }
  void come_to_verdict();
  void take_verdict(const AgentVerdict& verdict);
  std::string failure() const;
  JobEvents events();
  int rank_of(const Worker& worker) const { return first_rank_ + worker.local_rank; }

  static void on_exit(uv_process_t* process, int64_t status, int signal);
  static void on_lifeline(uv_stream_t* pipe, ssize_t length, const uv_buf_t* buffer);
  static void on_buffer(uv_handle_t* handle, std::size_t, uv_buf_t* buffer);

  const LaunchOptions& options_;
  const int restarts_;
  bool failed_by_itself_ = false;
  bool stopped_by_user_ = false;
  ReservedPort master_port_;
  uv_loop_t* const loop_ = uv_default_loop();
  LaunchState state_;
  WorkerOutput output_;
  WorkerEnvironment environment_;
  std::unique_ptr<Agent> agent_;  // null on one host
  int first_rank_ = 0;
  bool begun_ = false;          // the start of workers was tried
  bool stop_is_known_ = false;  // the agents on other hosts know it
  int early_signal_ = 0;        // another launcher passed it on before it came here; or 0
  bool judged_ = false;         // the workers here need no further event
  std::string start_failure_;
  std::optional<AgentVerdict> verdict_;
  std::vector<std::unique_ptr<Worker>> workers_;
  uv_signal_t signals_[3] = {};
  uv_timer_t timer_{};
  uv_timer_t closing_timer_{};
  cpu_set_t cores_{};  // cores of this host that this process may use
  bool closing_ = false;
  char buffer_[256];  // of a lifeline
};

Launcher::Launcher(const LaunchOptions& options, int restarts)
    : options_(options),
      restarts_(restarts),
      state_(options.workers, static_cast<std::uint64_t>(options.grace.count()),
             options.keep_survivors),
      output_(loop_, options.workers, options.prefix,
              {[this] { after_event(); },
               [this](int local_rank) {
                 words_came(*workers_[static_cast<std::size_t>(local_rank)]);
               }}),
      environment_(options.workers) {
  for (int local_rank = 0; local_rank < options.workers; ++local_rank) {
    auto worker = std::make_unique<Worker>();
    worker->launcher = this;
    worker->local_rank = local_rank;
    workers_.push_back(std::move(worker));
  }
  environment_.set_restarts(restarts, options.restarts);
  environment_.set_gpus(options.gpus);
  if (options.nodes) {
    agent_ = std::make_unique<Agent>(loop_, *options.nodes, options.workers, events());
  }
}

// The events from other hosts.
JobEvents Launcher::events() {
  JobEvents events;
  events.start = [this](const AgentStart& start) { begin(start); };
  events.stop = [this](const AgentStop& stop) {
    stop_is_known_ = true;
    // The signal went to all launchers, as by scancel, so the workers here have it already.
    if (stop.by_user && state_.received_signal() == stop.signal) return;
    if (stop.by_user) early_signal_ = stop.signal;
    stopped_by_user_ = stopped_by_user_ || stop.by_user;
    if (!stop.reason.empty()) say(stop.reason);
    if (stop.by_user) {
      state_.signal_received(stop.signal, uv_hrtime());
    } else {
      state_.stop_wanted(uv_hrtime());
    }
    after_event();
  };
  events.verdict = [this](const AgentVerdict& verdict) { take_verdict(verdict); };
  events.say = [this](const std::string& text) { say(text); };
  events.idle = [this] { after_event(); };
  return events;
}

bool Launcher::keep_master_port() {
  int port = options_.master_port;
  if (options_.free_master_port) {
    if (!master_port_.take("127.0.0.1")) {
      start_failure_ = std::string("no free port for MASTER_PORT: ") + std::strerror(errno);
      return false;
    }
    port = master_port_.number();
  }
  environment_.set_master(options_.master_address, port);
  return true;
}

// Binds this thread, whose children inherit it, to an equal share of the cores that are next to
// each other.
bool Launcher::bind_to_cores(int local_rank) const {
  const int count = CPU_COUNT(&cores_);
  cpu_set_t share;
  CPU_ZERO(&share);
  for (int core = 0, place = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &cores_)) continue;
    if (place * options_.workers / count == local_rank) CPU_SET(core, &share);
    ++place;
  }
  return sched_setaffinity(0, sizeof share, &share) == 0;
}

// Starts the worker behind its supervisor, which is this binary again and inherits the lifeline.
bool Launcher::start(int local_rank) {
  Worker& worker = *workers_[static_cast<std::size_t>(local_rank)];
  std::vector<std::string> arguments = {"trireme", kSupervisorCommand};
  arguments.insert(arguments.end(), options_.program.begin(), options_.program.end());
  std::vector<char*> argument_pointers;
  for (std::string& argument : arguments) argument_pointers.push_back(argument.data());
  argument_pointers.push_back(nullptr);
  std::vector<std::string> environment = environment_.of_local_rank(local_rank);
  std::vector<char*> environment_pointers;
  for (std::string& entry : environment) environment_pointers.push_back(entry.data());
  environment_pointers.push_back(nullptr);

  uv_pipe_init(loop_, &worker.lifeline, 0);
  const WorkerOutput::Pipes pipes = output_.make_pipes(local_rank);
  worker.lifeline.data = worker.process.data = &worker;

  const auto pipe_to = [](uv_pipe_t& pipe, int direction) {
    uv_stdio_container_t place{};
    place.flags = static_cast<uv_stdio_flags>(UV_CREATE_PIPE | direction);
    place.data.stream = reinterpret_cast<uv_stream_t*>(&pipe);
    return place;
  };
  uv_stdio_container_t places[4] = {};
  places[0].flags = UV_IGNORE;  // /dev/null
  places[1] = pipe_to(*pipes.out, UV_WRITABLE_PIPE);
  places[2] = pipe_to(*pipes.error, UV_WRITABLE_PIPE);
  places[kLifeline] = pipe_to(worker.lifeline, UV_READABLE_PIPE | UV_WRITABLE_PIPE);
  uv_process_options_t process{};
  process.file = "/proc/self/exe";
  process.args = argument_pointers.data();
  process.env = environment_pointers.data();
  process.stdio = places;
  process.stdio_count = 4;
  process.flags = UV_PROCESS_DETACHED;  // a session of its own: Ctrl-C reaches only the launcher
  process.exit_cb = on_exit;
  if (options_.bind_cores && !bind_to_cores(local_rank)) {
    start_failure_ = std::string("cannot bind a worker to its cores: ") + std::strerror(errno);
    return false;
  }
  const int refusal = uv_spawn(loop_, &worker.process, &process);
  if (options_.bind_cores) sched_setaffinity(0, sizeof cores_, &cores_);
  if (refusal != 0) {
    start_failure_ =
        "rank " + std::to_string(rank_of(worker)) + " cannot be started: " + uv_strerror(refusal);
    return false;
  }
  worker.supervisor_runs = worker.lifeline_open = true;
  uv_read_start(reinterpret_cast<uv_stream_t*>(&worker.lifeline), on_buffer, on_lifeline);
  output_.begin(local_rank);
  return true;
}

void Launcher::watch_signals() {
  const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
  for (std::size_t i = 0; i < std::size(numbers); ++i) {
    uv_signal_init(loop_, &signals_[i]);
    signals_[i].data = this;
    struct sigaction before {};
    sigaction(numbers[i], nullptr, &before);
    if (before.sa_handler == SIG_IGN) continue;  // nohup, or a shell's background job
    uv_signal_start(
        &signals_[i],
        [](uv_signal_t* handle, int number) {
          static_cast<Launcher*>(handle->data)->signal_came(number);
        },
        numbers[i]);
  }
}

void Launcher::signal_came(int number) {
  stopped_by_user_ = true;
  if (verdict_) return;
  // The signal went to all launchers, and another launcher's message was faster.
  if (std::exchange(early_signal_, 0) == number) return;
  if (begun_) {
    say(signal_name(number) + " is passed on to the workers");
    state_.signal_received(number, uv_hrtime());
    if (stop_is_known_) agent_->stop(stop_by_user(number));
  } else {
    agent_->stop({number, true, signal_name(number) + " has ended the job before it began"});
  }
  after_event();
}

AgentStop Launcher::stop_by_user(int signal) const {
  return {signal, true,
          signal_name(signal) + ", which was sent to " + agent_->host() +
              ", is passed on to the workers"};
}

void Launcher::on_buffer(uv_handle_t* handle, std::size_t, uv_buf_t* buffer) {
  // One read at a time: libuv hands the bytes on before it asks for the next buffer.
  auto& launcher = *static_cast<Launcher*>(handle->loop->data);
  *buffer = uv_buf_init(launcher.buffer_, sizeof launcher.buffer_);
}

void Launcher::on_lifeline(uv_stream_t* pipe, ssize_t length, const uv_buf_t* buffer) {
  auto& worker = *static_cast<Worker*>(pipe->data);
  Launcher& self = *worker.launcher;
  if (length > 0) {
    worker.report.append(buffer->base, static_cast<std::size_t>(length));
    if (worker.report.size() >= sizeof(SupervisorReport)) {
      SupervisorReport report;
      std::memcpy(&report, worker.report.data(), sizeof report);
      const int status = report.wait_status;
      self.note_ending(worker, WIFSIGNALED(status)
                                   ? Ending{true, WTERMSIG(status), report.moment_ns}
                                   : Ending{false, WEXITSTATUS(status), report.moment_ns});
    }
  } else if (length < 0) {
    worker.lifeline_open = false;
    uv_close(reinterpret_cast<uv_handle_t*>(pipe), nullptr);
    self.check_gone(worker);
  }
  self.after_event();
}

void Launcher::on_exit(uv_process_t* process, int64_t status, int signal) {
  auto& worker = *static_cast<Worker*>(process->data);
  Launcher& self = *worker.launcher;
  worker.supervisor_runs = false;
  worker.supervisor_ending = signal != 0 ? Ending{true, signal, uv_hrtime()}
                                         : Ending{false, static_cast<int>(status), uv_hrtime()};
  self.check_gone(worker);
  self.after_event();
}

// A supervisor that ended without a report, by kill -9 for instance, speaks for its program.
void Launcher::check_gone(Worker& worker) {
  if (worker.supervisor_runs || worker.lifeline_open) return;
  if (worker.report.size() < sizeof(SupervisorReport))
    note_ending(worker, worker.supervisor_ending);
}

void Launcher::note_ending(Worker& worker, Ending ending) {
  if (!ending.by_signal && ending.value != 0) ending.cause = Cause::unknown;
  state_.worker_ended(worker.local_rank, ending, uv_hrtime());
  if (!output_.may_say_more(worker.local_rank)) words_came(worker);
}

// For a worker that may still run.
void Launcher::words_came(Worker& worker) {
  const bool is_effect = tells_of_a_lost_peer(output_.last_message(worker.local_rank));
  state_.words_came(worker.local_rank, is_effect ? Cause::peer : Cause::own, uv_hrtime());
  if (options_.keep_survivors && !state_.is_ending()) tell_loss(worker);
}

// A failure that ends no other worker is reported at once.
void Launcher::tell_loss(Worker& worker) {
  const std::optional<Ending>& ending = state_.ending(worker.local_rank);
  if (!ending || !ending->is_failure() || std::exchange(worker.loss_is_told, true)) return;
  say(failure_of(worker.local_rank) + (state_.finished() ? "" : ". The others go on"));
}

// The worker here that failed first, and how; or "".
std::string Launcher::failure() const {
  if (!start_failure_.empty()) return start_failure_;
  if (options_.keep_survivors && state_.has_survivors()) return "";
  const std::optional<int> failed = state_.first_failed();
  return failed ? failure_of(*failed) : "";
}

std::string Launcher::failure_of(int local_rank) const {
  const Ending& ending = *state_.ending(local_rank);
  const std::string& last_message = output_.last_message(local_rank);
  return "rank " + std::to_string(first_rank_ + local_rank) +
         (agent_ ? " on " + agent_->host() : "") + " failed: " +
         (ending.by_signal ? "killed by " + signal_name(ending.value)
                           : "exit code " + std::to_string(ending.value)) +
         (last_message.empty() ? "" : "; its last message: " + last_message);
}

// All about the workers here is known.
void Launcher::come_to_verdict() {
  if (std::exchange(judged_, true)) return;
  for (const auto& worker : workers_) {
    if (!state_.is_running(worker->local_rank)) continue;
    say("rank " + std::to_string(rank_of(*worker)) + " is left behind: it does not die of SIGKILL");
  }
  if (agent_ == nullptr) return take_verdict({state_.exit_code(), failure()});
  AgentEnd end;
  end.code = state_.exit_code();
  end.failure = failure();
  end.not_started = !start_failure_.empty();
  if (const std::optional<int> failed = state_.first_failed()) {
    const Ending& ending = *state_.ending(*failed);
    const std::uint64_t now = uv_hrtime();
    end.by_signal = ending.by_signal;
    end.lost_peer = ending.cause == Cause::peer;
    end.age_ns = now - std::min(now, ending.moment_ns);
  }
  agent_->end(end);
}

void Launcher::take_verdict(const AgentVerdict& verdict) {
  verdict_ = verdict;
  if (!verdict.text.empty()) say(verdict.text);
  if (closing_) uv_timer_again(&closing_timer_);
  after_event();
}

// Carries out the state's decisions, and ends the loop when no work is left.
void Launcher::after_event() {
  if (agent_ != nullptr && state_.is_ending() && !std::exchange(stop_is_known_, true)) {
    AgentStop stop{SIGTERM, false, ""};
    if (const int signal = state_.received_signal(); signal != 0) stop = stop_by_user(signal);
    agent_->stop(stop);
  }
  if (const int signal = state_.take_signal(); signal != 0) {
    for (const auto& worker : workers_) {
      if (!worker->lifeline_open || !state_.is_running(worker->local_rank)) continue;
      // A stopped supervisor reads no signals.
      if (worker->supervisor_runs) uv_process_kill(&worker->process, SIGCONT);
      char byte = static_cast<char>(signal);
      uv_buf_t bytes = uv_buf_init(&byte, 1);
      // A supervisor that does not take one byte is gone; SIGKILL ends its program too.
      const int sent = uv_try_write(reinterpret_cast<uv_stream_t*>(&worker->lifeline), &bytes, 1);
      if (sent != 1 && worker->supervisor_runs) uv_process_kill(&worker->process, SIGKILL);
    }
  }
  if (const auto moment = state_.next_moment_ns()) {
    const std::uint64_t now = uv_hrtime();
    const std::uint64_t wait_ms = *moment <= now ? 0 : (*moment - now) / 1'000'000 + 1;
    uv_timer_start(
        &timer_,
        [](uv_timer_t* timer) {
          auto& self = *static_cast<Launcher*>(timer->data);
          self.state_.time_passed(uv_hrtime());
          self.after_event();
        },
        wait_ms, 0);
  } else {
    uv_timer_stop(&timer_);
  }
  output_.balance();
  if (verdict_ || (begun_ && state_.finished())) close_down();
}

// Writes the last lines of all workers, then the verdict, then ends.
void Launcher::close_down() {
  if (!std::exchange(closing_, true)) {
    // The timer runs once for the lines, and once more from the verdict on, for its readers.
    uv_timer_start(
        &closing_timer_,
        [](uv_timer_t* timer) {
          auto& self = *static_cast<Launcher*>(timer->data);
          if (self.verdict_) return uv_stop(self.loop_);
          self.come_to_verdict();
        },
        kClosingMs, kClosingMs);
  }
  const bool all_ended = std::none_of(workers_.begin(), workers_.end(),
                                      [](const auto& worker) { return worker->supervisor_runs; });
  if (all_ended && output_.received_all() && !verdict_) come_to_verdict();
  if (verdict_ && output_.idle() && (agent_ == nullptr || agent_->idle())) {
    uv_stop(loop_);
  }
}

// The job has begun on all hosts.
void Launcher::begin(const AgentStart& start) {
  first_rank_ = start.first_rank;
  output_.set_first_rank(first_rank_);
  const char* const file = std::getenv("TRIREME_TOKEN_FILE");
  const bool from_file = file != nullptr && *file != 0;
  environment_.take_place(start, from_file ? "" : std::string(agent_->token().secret()));
  start_workers();
}

void Launcher::start_workers() {
  begun_ = true;
  sched_getaffinity(0, sizeof cores_, &cores_);
  if (options_.bind_cores) {
    environment_.set_threads(std::max(1, CPU_COUNT(&cores_) / options_.workers));
  }
  const bool logs = options_.log_folder.empty() ||
                    output_.open_logs(options_.log_folder, restarts_ > 0, &start_failure_);
  if (!logs || (agent_ == nullptr && !keep_master_port())) {
    state_.start_failed(0, uv_hrtime(), 1);
  } else {
    for (int local_rank = 0; local_rank < options_.workers; ++local_rank) {
      if (start(local_rank)) continue;
      state_.start_failed(local_rank, uv_hrtime());
      break;
    }
  }
  after_event();
}

int Launcher::run() {
  adopt_orphans();
  loop_->data = this;
  uv_timer_init(loop_, &timer_);
  uv_timer_init(loop_, &closing_timer_);
  timer_.data = closing_timer_.data = this;
  watch_signals();
  if (agent_ != nullptr) {
    agent_->begin();
  } else if (const int refusal = environment_.make_secrets(); refusal != 0) {
    take_verdict({1, std::string("no random numbers for the token: ") + uv_strerror(refusal)});
  } else {
    start_workers();
  }
  uv_run(loop_, UV_RUN_DEFAULT);

  kill_descendants(std::chrono::seconds(2));
  const int code = verdict_ ? verdict_->code : state_.exit_code();
  // A thread of the pool still writes, or looks up an address.
  if (!output_.idle() || (agent_ != nullptr && agent_->is_looking_up())) {
    _exit(code);
  }
  if (agent_ != nullptr) agent_->release();
  uv_walk(
      loop_,
      [](uv_handle_t* handle, void*) {
        if (!uv_is_closing(handle)) uv_close(handle, nullptr);
      },
      nullptr);
  uv_run(loop_, UV_RUN_DEFAULT);
  uv_loop_close(loop_);
  // On several hosts all launchers have the same verdict, also where all own workers succeeded.
  const bool failed = agent_ != nullptr ? begun_ && verdict_ && !verdict_->is_final
                                        : state_.first_failed().has_value();
  failed_by_itself_ = code != 0 && !stopped_by_user_ && failed;
  return code;
}

// Opens descriptors 0 to 2, so that no pipe gets one of these numbers. Ignores SIGPIPE, so that
// writing to a closed pipe is an error.
void prepare_process() {
  int descriptor;
  do {
    descriptor = open("/dev/null", O_RDWR);
  } while (descriptor >= 0 && descriptor <= STDERR_FILENO);
  if (descriptor >= 0) close(descriptor);
  signal(SIGPIPE, SIG_IGN);
}

}  // namespace

int run_launcher(const LaunchOptions& options) {
  prepare_process();
  if (const int code = check_program(options.program[0]); code != 0) return code;
  for (int restarts = 0;; ++restarts) {
    int code = 0;
    {
      Launcher launcher(options, restarts);
      code = launcher.run();
      if (!launcher.may_restart()) return code;
    }
    if (restarts == options.restarts) return code;
    std::fprintf(stderr, "trireme: the workers are started again (restart %d of at most %d)\n",
                 restarts + 1, options.restarts);
  }
}

}  // namespace trireme::cluster
