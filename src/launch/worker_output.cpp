#include "launch/worker_output.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "launch/last_words.hpp"

namespace trireme::cluster {
namespace {

constexpr std::size_t kMostPending = 4 << 20;     // bytes of output before workers have to wait
constexpr std::size_t kLongestLastMessage = 500;  // bytes of it in the launcher's own line

}  // namespace

WorkerOutput::WorkerOutput(uv_loop_t* loop, int workers, bool prefix, Events events)
    : loop_(loop),
      prefix_(prefix),
      events_(std::move(events)),
      out_(loop, STDOUT_FILENO, events_.moved),
      error_(loop, STDERR_FILENO, events_.moved) {
  for (int local_rank = 0; local_rank < workers; ++local_rank) {
    auto worker = std::make_unique<Worker>();
    for (Stream* const stream : {&worker->out, &worker->error}) {
      stream->owner = this;
      stream->local_rank = local_rank;
    }
    worker->error.is_error = true;
    workers_.push_back(std::move(worker));
  }
}

// A stream may never have begun, or another process may still hold it open.
WorkerOutput::~WorkerOutput() {
  for (const auto& worker : workers_) {
    for (Stream* const stream : {&worker->out, &worker->error}) close_log(*stream);
  }
}

bool WorkerOutput::open_logs(const std::string& folder, bool append, std::string* why) {
  std::error_code refusal;
  std::filesystem::create_directories(folder, refusal);
  for (const auto& worker : workers_) {
    for (Stream* const stream : {&worker->out, &worker->error}) {
      const std::string path = folder + "/rank-" +
                               std::to_string(first_rank_ + stream->local_rank) +
                               (stream->is_error ? ".err" : ".out");
      const int place = append ? O_APPEND : O_TRUNC;
      stream->log = open(path.c_str(), O_WRONLY | O_CREAT | place | O_CLOEXEC, 0644);
      if (stream->log >= 0) continue;
      *why = "cannot write " + path + ": " + std::strerror(errno);
      return false;
    }
  }
  return true;
}

WorkerOutput::Pipes WorkerOutput::make_pipes(int local_rank) {
  Worker& worker = of(local_rank);
  for (Stream* const stream : {&worker.out, &worker.error}) {
    uv_pipe_init(loop_, &stream->pipe, 0);
    stream->pipe.data = stream;
  }
  return {&worker.out.pipe, &worker.error.pipe};
}

void WorkerOutput::begin(int local_rank) {
  for (Stream* const stream : {&of(local_rank).out, &of(local_rank).error}) {
    stream->open = true;
    read(*stream);
  }
}

void WorkerOutput::read(Stream& stream) {
  uv_read_start(reinterpret_cast<uv_stream_t*>(&stream.pipe), on_buffer, on_bytes);
}

void WorkerOutput::on_buffer(uv_handle_t* handle, std::size_t, uv_buf_t* buffer) {
  // One read at a time: libuv hands the bytes on before it asks for the next buffer.
  WorkerOutput& self = *static_cast<Stream*>(handle->data)->owner;
  *buffer = uv_buf_init(self.buffer_, sizeof self.buffer_);
}

void WorkerOutput::on_bytes(uv_stream_t* pipe, ssize_t length, const uv_buf_t* buffer) {
  auto& stream = *static_cast<Stream*>(pipe->data);
  WorkerOutput& self = *stream.owner;
  if (length < 0) {
    self.close(stream);
  } else {
    self.received(stream, {buffer->base, static_cast<std::size_t>(length)});
  }
  self.events_.moved();
}

void WorkerOutput::received(Stream& stream, std::string_view bytes) {
  const auto length = static_cast<ssize_t>(bytes.size());
  if (stream.log >= 0 && write(stream.log, bytes.data(), bytes.size()) < length) {
    say("the log of rank " + std::to_string(first_rank_ + stream.local_rank) +
        " ends here: " + std::strerror(errno));
    close_log(stream);
  }
  stream.lines.add(bytes, [&](std::string_view line) { take_line(stream, line); });
}

void WorkerOutput::take_line(Stream& stream, std::string_view line) {
  if (stream.is_error && !says_nothing(line)) {
    std::string& message = of(stream.local_rank).last_message;
    message = line.substr(0, kLongestLastMessage);
    if (message.back() == '\r') message.pop_back();
  }
  std::string text;
  if (prefix_)
    text.append("[").append(std::to_string(first_rank_ + stream.local_rank)).append("] ");
  text.append(line).push_back('\n');
  (stream.is_error ? error_ : out_).append(text);
}

void WorkerOutput::close(Stream& stream) {
  if (!stream.open) return;
  stream.open = false;
  stream.lines.finish([&](std::string_view line) { take_line(stream, line); });
  uv_close(reinterpret_cast<uv_handle_t*>(&stream.pipe), nullptr);
  close_log(stream);
  if (stream.is_error) events_.last_word(stream.local_rank);
}

void WorkerOutput::close_log(Stream& stream) {
  if (stream.log >= 0) ::close(stream.log);
  stream.log = -1;
}

void WorkerOutput::balance() {
  const std::size_t pending = std::max(out_.pending(), error_.pending());
  const bool reading = pending < (reading_ ? kMostPending : kMostPending / 4);
  if (reading == std::exchange(reading_, reading)) return;
  for (const auto& worker : workers_) {
    for (Stream* const stream : {&worker->out, &worker->error}) {
      if (!stream->open) continue;
      if (reading) {
        read(*stream);
      } else {
        uv_read_stop(reinterpret_cast<uv_stream_t*>(&stream->pipe));
      }
    }
  }
}

bool WorkerOutput::received_all() const {
  return std::none_of(workers_.begin(), workers_.end(),
                      [](const auto& worker) { return worker->out.open || worker->error.open; });
}

}  // namespace trireme::cluster
