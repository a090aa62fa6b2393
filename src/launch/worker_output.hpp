// WorkerOutput: carries the output of this host's workers to the launcher's own outputs, line by
// line, and to files, byte by byte. A reader that does not read stops the workers, not the
// launcher.
#pragma once

#include <uv.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "launch/line_splitter.hpp"
#include "launch/output.hpp"

namespace trireme::cluster {

class WorkerOutput {
 public:
  // Called from the loop.
  struct Events {
    std::function<void()> moved;                    // bytes have come, or gone
    std::function<void(int local_rank)> last_word;  // nothing more comes of this one's stderr
  };

  // `prefix`: "[rank] " before each line. The loop must run.
  WorkerOutput(uv_loop_t* loop, int workers, bool prefix, Events events);
  ~WorkerOutput();
  WorkerOutput(const WorkerOutput&) = delete;
  WorkerOutput& operator=(const WorkerOutput&) = delete;

  // The rank of the first worker, known before any line comes.
  void set_first_rank(int rank) { first_rank_ = rank; }
  // A file in the folder for each stream; `append`: after its contents. False, with why.
  bool open_logs(const std::string& folder, bool append, std::string* why);
  // Where a worker's stdout and stderr are to lead.
  struct Pipes {
    uv_pipe_t* out;
    uv_pipe_t* error;
  };
  Pipes make_pipes(int local_rank);
  // The worker runs, and its pipes are read.
  void begin(int local_rank);

  // A line of the launcher's own, among those of the workers' stderr.
  void say(const std::string& text) { error_.append("trireme: " + text + "\n"); }
  // Stops or resumes reading by the bytes that wait for the launcher's reader. After each event.
  void balance();

  // The last line on this worker's stderr that is not blank or part of a trace. A long one is cut.
  const std::string& last_message(int local_rank) const { return of(local_rank).last_message; }
  bool may_say_more(int local_rank) const { return of(local_rank).error.open; }
  // Both streams of all workers have ended.
  bool received_all() const;
  // The launcher's own reader has all.
  bool idle() const { return out_.idle() && error_.idle(); }

 private:
  struct Stream {
    WorkerOutput* owner = nullptr;
    int local_rank = 0;
    bool is_error = false;
    uv_pipe_t pipe{};
    LineSplitter lines;
    int log = -1;
    bool open = false;
  };
  struct Worker {
    Stream out;
    Stream error;
    std::string last_message;
  };

  const Worker& of(int local_rank) const { return *workers_[static_cast<std::size_t>(local_rank)]; }
  Worker& of(int local_rank) { return *workers_[static_cast<std::size_t>(local_rank)]; }
  void read(Stream& stream);
  void received(Stream& stream, std::string_view bytes);
  void take_line(Stream& stream, std::string_view line);
  void close(Stream& stream);
  static void close_log(Stream& stream);
  static void on_buffer(uv_handle_t* handle, std::size_t, uv_buf_t* buffer);
  static void on_bytes(uv_stream_t* pipe, ssize_t length, const uv_buf_t* buffer);

  uv_loop_t* const loop_;
  const bool prefix_;
  const Events events_;
  int first_rank_ = 0;
  Output out_;
  Output error_;
  std::vector<std::unique_ptr<Worker>> workers_;
  bool reading_ = true;
  char buffer_[65536];
};

}  // namespace trireme::cluster
