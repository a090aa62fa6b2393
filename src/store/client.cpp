#include "store/client.hpp"

#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "net/tcp_call.hpp"
#include "platform/failpoint.hpp"
#include "platform/system.hpp"

namespace trireme::cluster {
namespace {

using tcp::Moved;

constexpr std::uint64_t kSilenceNs = 5'000'000'000;
// A connection that broke is made anew for so long, unless the store's port refuses callers.
constexpr std::uint64_t kReconnectNs = 2'000'000'000;
// Retries of many clients are spread: each pause is drawn below a bound that doubles.
constexpr std::uint64_t kFirstPauseNs = 5'000'000;
constexpr std::uint64_t kLongestPauseNs = 500'000'000;
// At a deadline the store answers which keys of a wait are missing; the client waits so much longer
// for that answer.
constexpr std::uint64_t kVerdictNs = 1'000'000'000;
constexpr std::size_t kMostIdle = 64;
constexpr std::uint64_t kMostPollNs = 3'600'000'000'000;

Status stopped() {
  return Status::failure(TRIREME_ERROR_CANCELLED, "the store's handle was destroyed meanwhile");
}

// Waiting does not mend these failures.
bool final(const Status& status) {
  return status.code() == TRIREME_ERROR_AUTHENTICATION || status.code() == TRIREME_ERROR_MISMATCH ||
         status.code() == TRIREME_ERROR_CANCELLED;
}

bool nobody_listens(const Status& status) {
  return status.details() != nullptr && status.details()->system_error == ECONNREFUSED;
}

}  // namespace

std::string StoreClient::where() const { return "the store at " + url(); }

std::string StoreClient::url() const {
  return "tcp://" + tcp::endpoint_text(host_, std::to_string(port_));
}

Status StoreClient::open(Deadline deadline) {
  TRIREME_RETURN_IF_ERROR(stopped_.open());
  std::unique_ptr<Line> line;
  TRIREME_RETURN_IF_ERROR(fresh_line(&line));
  TRIREME_RETURN_IF_ERROR(connect_patiently(*line, deadline));
  keep(std::move(line));
  return Status::success();
}

void StoreClient::stop() noexcept {
  stop_.store(true, std::memory_order_release);
  stopped_.wake();
  if (server_ != nullptr) server_->stop();
}

std::unique_ptr<StoreClient::Line> StoreClient::idle_line() {
  const std::lock_guard lock(mutex_);
  if (idle_.empty()) return nullptr;
  auto line = std::move(idle_.back());
  idle_.pop_back();
  return line;
}

Status StoreClient::fresh_line(std::unique_ptr<Line>* out) const {
  auto line = std::make_unique<Line>();
  if (!system_table().random_bytes(line->lane.data(), line->lane.size())) {
    return Status::failure(TRIREME_ERROR_SYSTEM, "the system gives no random numbers");
  }
  *out = std::move(line);
  return Status::success();
}

void StoreClient::keep(std::unique_ptr<Line> line) {
  const std::lock_guard lock(mutex_);
  if (idle_.size() < kMostIdle) idle_.push_back(std::move(line));
}

Status StoreClient::connect(Line& line, Deadline deadline) const {
  std::string why;
  tcp::Endpoint endpoint;
  if (!tcp::look_up(host_, port_, &endpoint, &why)) {
    return Status::failure(TRIREME_ERROR_SYSTEM,
                           "the host \"" + host_ + "\" is not known here: " + why);
  }
  SessionKeys keys;
  tcp::Socket socket;
  Status status =
      tcp::call(endpoint, where(), token_, store_terms(), deadline, stop_, &socket, &keys);
  if (status.code() == TRIREME_ERROR_CANCELLED) return stopped();
  TRIREME_RETURN_IF_ERROR(std::move(status));
  socket.tune(kSilenceNs);
  socket.keep_alive();
  line.socket = std::move(socket);
  line.reader.emplace(keys.receive, kMaxStoreReplyBytes);
  line.writer.emplace(keys.send);
  return Status::success();
}

void StoreClient::pause(std::uint64_t* longest_ns, Deadline deadline) const {
  std::uint64_t drawn = 0;
  static_cast<void>(system_table().random_bytes(&drawn, sizeof drawn));
  const std::uint64_t ns = std::min(drawn % *longest_ns, deadline.remaining_ns());
  pollfd entry{stopped_.get(), POLLIN, 0};
  const timespec time{static_cast<time_t>(ns / 1'000'000'000),
                      static_cast<long>(ns % 1'000'000'000)};
  static_cast<void>(::ppoll(&entry, 1, &time, nullptr));
  *longest_ns = std::min(*longest_ns * 2, kLongestPauseNs);
}

Status StoreClient::connect_patiently(Line& line, Deadline deadline) const {
  std::uint64_t longest_pause = kFirstPauseNs;
  while (true) {
    const Status status = connect(line, deadline);
    if (status.ok() || final(status)) return status;
    pause(&longest_pause, deadline);
    if (stop_.load(std::memory_order_acquire)) return stopped();
    if (deadline.passed()) {
      return Status::failure(TRIREME_ERROR_TIMEOUT,
                             "no store answered at " + url() + "; at last: " + status.message());
    }
  }
}

Status StoreClient::ask(StoreRequest request, Deadline deadline, StoreReply* reply) {
  TRIREME_RETURN_IF_ERROR(check_store_request(request));
  std::unique_ptr<Line> line = idle_line();
  if (line == nullptr) TRIREME_RETURN_IF_ERROR(fresh_line(&line));
  request.lane = line->lane;
  request.number = ++line->number;
  const bool waits = request.operation == StoreOperation::wait;
  const std::uint64_t last = deadline.moment_ns();
  const Deadline whole =
      waits ? Deadline::at(last > UINT64_MAX - kVerdictNs ? UINT64_MAX : last + kVerdictNs)
            : deadline;
  Deadline mended = whole;  // by then a connection that broke must work again
  std::uint64_t longest_pause = kFirstPauseNs;
  bool broke = false;
  while (true) {
    Status status = line->socket ? Status::success() : connect(*line, mended);
    if (status.ok()) {
      if (waits) request.timeout_ns = deadline.remaining_ns();
      status = exchange(*line, request, whole, reply);
      if (status.ok()) break;
      line->socket.reset();  // a late answer must not be taken for the next request's
    }
    if (whole.passed() || final(status) || status.code() == TRIREME_ERROR_CORRUPT) {
      keep(std::move(line));
      return status;
    }
    if (!broke) {
      broke = true;
      mended = Deadline::at(std::min(whole.moment_ns(), now_ns() + kReconnectNs));
    }
    if (nobody_listens(status) || mended.passed()) {
      keep(std::move(line));
      return Status::failure(TRIREME_ERROR_PEER_LOST,
                             where() + " is not there any more: " + status.message());
    }
    pause(&longest_pause, mended);
  }
  keep(std::move(line));
  if (reply->code == TRIREME_OK) return Status::success();
  return Status::failure(reply->code, where() + ": " + reply->message);
}

Status StoreClient::wait_for(const Line& line, short events, Deadline deadline) const {
  while (true) {
    const std::uint64_t rest = deadline.remaining_ns();
    if (rest == 0) {
      return Status::failure(TRIREME_ERROR_TIMEOUT, where() + " does not answer");
    }
    pollfd entries[] = {{line.socket.get(), events, 0}, {stopped_.get(), POLLIN, 0}};
    const std::uint64_t ms = std::min(rest, kMostPollNs) / 1'000'000 + 1;
    const int ready = ::poll(entries, 2, static_cast<int>(ms));
    if (stop_.load(std::memory_order_acquire)) return stopped();
    if (ready > 0) return Status::success();
  }
}

Status StoreClient::exchange(Line& line, const StoreRequest& request, Deadline deadline,
                             StoreReply* reply) {
  TRIREME_FAILPOINT("store", "before_ask");
  std::string frame;
  line.writer->write(encode(request, instance_.load()), &frame);
  const auto ended = [&](int error_number) {
    if (error_number != 0) return Status::system(error_number, "the connection");
    return Status::failure(TRIREME_ERROR_PEER_LOST, "the connection was closed there");
  };
  for (std::size_t at = 0; at < frame.size();) {
    std::size_t moved = 0;
    if (line.socket.send(frame.data() + at, frame.size() - at, &moved) == Moved::ended) {
      return ended(errno);
    }
    at += moved;
    if (at < frame.size()) TRIREME_RETURN_IF_ERROR(wait_for(line, POLLOUT, deadline));
  }
  TRIREME_FAILPOINT("store", "after_ask");
  char buffer[16'384];
  while (!line.reader->whole()) {
    TRIREME_RETURN_IF_ERROR(wait_for(line, POLLIN, deadline));
    std::size_t moved = 0;
    if (line.socket.receive(buffer, sizeof buffer, &moved) == Moved::ended) return ended(errno);
    std::size_t used = 0;
    TRIREME_RETURN_IF_ERROR(line.reader->take({buffer, moved}, &used));
    if (used != moved) {
      return Status::failure(TRIREME_ERROR_CORRUPT, where() + " says more than it was asked");
    }
  }
  StoreInstance instance = 0;
  const bool good = decode(line.reader->body(), reply, &instance);
  std::size_t none = 0;
  TRIREME_RETURN_IF_ERROR(line.reader->take({}, &none));  // ready for the next one
  if (!good) return Status::failure(TRIREME_ERROR_CORRUPT, where() + " makes no sense");
  StoreInstance unknown = 0;
  instance_.compare_exchange_strong(unknown, instance);
  return Status::success();
}

}  // namespace trireme::cluster
