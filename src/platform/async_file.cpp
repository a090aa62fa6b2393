#include "platform/async_file.hpp"

#include <liburing.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <list>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "platform/descriptors.hpp"
#include "platform/failpoint.hpp"
#include "platform/file.hpp"
#include "platform/limits.hpp"
#include "platform/system.hpp"
#include "platform/thread.hpp"

namespace trireme {
namespace {

// Large enough that a few parts keep the disk busy, small enough that it has several. All parts of
// a large transfer start at once: the caller may not come by for a while to start others.
constexpr std::uint64_t kLeastPart = 1u << 20;
constexpr std::uint64_t kLargestPart = 1u << 30;
constexpr std::uint64_t kParts = 16;
constexpr unsigned kDepth = 64;
constexpr int kMostTries = 100;  // tries without any progress
constexpr std::uint64_t kSliceNs = 50'000'000;
constexpr std::uint64_t kPatienceNs = 10'000'000'000;

struct Part {
  Transfer* transfer = nullptr;
  char* data = nullptr;
  std::uint64_t offset = 0, bytes = 0;
  std::uint64_t asked = 0;  // of this call
  int tries = 0;
};

// Parts move between lists by splice(), which requests no memory, so that no part gets lost.
using Parts = std::list<Part>;

}  // namespace

class AsyncFile::Engine {
 public:
  virtual ~Engine() = default;
  virtual void start(Parts parts) = 0;
  virtual bool done(const Transfer& transfer) = 0;
  virtual void wait_some(const Transfer& transfer) = 0;  // some milliseconds, or until it is done
  virtual bool idle() = 0;
  virtual void close() {}  // no part comes after it

  std::string directory, why_not_ring;
  UnnamedFile file;
  std::shared_ptr<const void> owner;

 protected:
  // Prepares a call on the part; returns an errno to take in place of the call, or 0.
  int prepare(Part* part) const {
    part->asked = part->bytes;
    const int injected =
        failed_with(part->transfer->write ? failpoint("file", "write") : failpoint("file", "read"));
    if (injected == kCutShort) {
      constexpr std::uint64_t kUnit = UnnamedFile::kAlignment;
      part->asked = std::max(kUnit, part->bytes / 2 / kUnit * kUnit);
      return 0;
    }
    // The limit may be lower now than it was when the file was made.
    const bool grows = part->transfer->write && injected == 0;
    return grows && !file_may_have(part->offset + part->asked) ? EFBIG : injected;
  }

  // Takes the result of a call on the part; returns true if the part is done, and false if more of
  // it is left.
  bool finish(Part* part, std::int64_t result) const {
    Transfer& transfer = *part->transfer;
    int error_number = result < 0 ? static_cast<int>(-result) : 0;
    if (result >= 0) {
      std::uint64_t moved = static_cast<std::uint64_t>(result);
      if (moved >= part->bytes) {
        --transfer.parts;
        return true;
      }
      if (file.direct()) moved = moved / UnnamedFile::kAlignment * UnnamedFile::kAlignment;
      part->data += moved;
      part->offset += moved;
      part->bytes -= moved;
      if (moved > 0) part->tries = 0;
    }
    const bool again = error_number == 0 || error_number == EINTR || error_number == EAGAIN ||
                       error_number == ECANCELED;
    if (again && ++part->tries < kMostTries) return false;
    if (transfer.error_number == 0) {
      transfer.error_number = error_number != 0 ? error_number : EIO;
      transfer.error_offset = part->offset;
    }
    --transfer.parts;
    return true;
  }
};

namespace {

class RingEngine : public AsyncFile::Engine {
 public:
  ~RingEngine() override {
    if (!open_) return;
    order_rings();
    const DescriptorChange change;
    forget_descriptor(ring_.ring_fd);
    io_uring_queue_exit(&ring_);
  }

  // Returns 0 or an errno.
  int open() {
    if (const int injected = failed_with(failpoint("file", "ring")); injected > 0) return injected;
    flying_.resize(kDepth);
    free_.reserve(kDepth);
    for (unsigned i = 0; i < kDepth; ++i) free_.push_back(i);
    int refused = 0;
    own_descriptor([&] {
      refused = io_uring_queue_init(kDepth, &ring_, 0);
      return refused == 0 ? ring_.ring_fd : -1;
    });
    open_ = refused == 0;
    if (!open_) return -refused;
    order_rings();
    // A kernel whose rings cannot read and write at an offset has no probe either.
    io_uring_probe* const probe = io_uring_get_probe_ring(&ring_);
    if (probe == nullptr) return ENOSYS;
    const bool knows = io_uring_opcode_supported(probe, IORING_OP_READ) != 0 &&
                       io_uring_opcode_supported(probe, IORING_OP_WRITE) != 0;
    io_uring_free_probe(probe);
    return knows ? 0 : ENOSYS;
  }

  void start(Parts parts) override {
    waiting_.splice(waiting_.end(), parts);
    take();
  }

  bool done(const Transfer& transfer) override {
    take();
    return transfer.parts == 0;
  }

  void wait_some(const Transfer& transfer) override {
    take();
    if (transfer.parts == 0) return;
    __kernel_timespec slice = {0, static_cast<long long>(kSliceNs)};
    io_uring_cqe* answer = nullptr;
    io_uring_wait_cqe_timeout(&ring_, &answer, &slice);
    take();
  }

  bool idle() override {
    take();
    return waiting_.empty() && free_.size() == kDepth;
  }

 private:
  // A ring may lie where a ring of another thread lay before. The kernel orders the end of the one
  // before the beginning of the other; race detectors do not see that order, so the code states it.
  static void order_rings() {
    static std::atomic<unsigned> rings{0};
    rings.fetch_add(1, std::memory_order_acq_rel);
  }

  void push() {
    while (!waiting_.empty() && !free_.empty()) {
      Part& part = waiting_.front();
      if (const int error_number = prepare(&part); error_number != 0) {
        end_part(&waiting_, -error_number);
        continue;
      }
      io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
      if (entry == nullptr) break;
      const unsigned place = free_.back();
      free_.pop_back();
      flying_[place].splice(flying_[place].end(), waiting_, waiting_.begin());
      const auto bytes = static_cast<unsigned>(part.asked);
      if (part.transfer->write) {
        io_uring_prep_write(entry, file.descriptor(), part.data, bytes, part.offset);
      } else {
        io_uring_prep_read(entry, file.descriptor(), part.data, bytes, part.offset);
      }
      io_uring_sqe_set_data64(entry, place);
    }
    // Parts that the kernel does not take now stay in the ring for the next call.
    if (io_uring_sq_ready(&ring_) > 0) io_uring_submit(&ring_);
  }

  void take() {
    io_uring_cqe* answer = nullptr;
    while (io_uring_peek_cqe(&ring_, &answer) == 0) {
      const auto place = static_cast<unsigned>(io_uring_cqe_get_data64(answer));
      const std::int64_t result = answer->res;
      io_uring_cqe_seen(&ring_, answer);
      if (place >= kDepth) continue;  // a timeout of io_uring_wait_cqe_timeout()
      free_.push_back(place);
      end_part(&flying_[place], result);
    }
    push();
  }

  // Ends the first part of the list with this result.
  void end_part(Parts* from, std::int64_t result) {
    if (finish(&from->front(), result)) {
      from->pop_front();
    } else {
      waiting_.splice(waiting_.end(), *from, from->begin());
    }
  }

  io_uring ring_ = {};
  bool open_ = false;
  std::vector<Parts> flying_;  // by place in the ring, one part each
  std::vector<unsigned> free_;
  Parts waiting_;
};

// Moves bytes by threads of its own; all fields are under the mutex.
class ThreadEngine : public AsyncFile::Engine, public std::enable_shared_from_this<ThreadEngine> {
 public:
  Status open() {
    for (unsigned i = 0; i < kThreads; ++i) {
      TRIREME_RETURN_IF_ERROR(start_thread([self = shared_from_this()] { self->work(); }));
    }
    return Status::success();
  }

  void start(Parts parts) override {
    const std::lock_guard lock(mutex_);
    waiting_.splice(waiting_.end(), parts);
    work_.notify_all();
  }

  bool done(const Transfer& transfer) override {
    const std::lock_guard lock(mutex_);
    return transfer.parts == 0;
  }

  void wait_some(const Transfer& transfer) override {
    std::unique_lock lock(mutex_);
    if (transfer.parts > 0) done_.wait_for(lock, std::chrono::nanoseconds(kSliceNs));
  }

  bool idle() override {
    const std::lock_guard lock(mutex_);
    return waiting_.empty() && busy_ == 0;
  }

  void close() override {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    work_.notify_all();
  }

 private:
  static constexpr unsigned kThreads = 2;

  void work() noexcept {
    std::unique_lock lock(mutex_);
    for (;;) {
      work_.wait(lock, [this] { return closed_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      Part part = waiting_.front();
      waiting_.pop_front();
      ++busy_;
      for (bool finished = false; !finished;) {
        lock.unlock();
        const std::int64_t result = call(&part);
        lock.lock();
        finished = finish(&part, result);
      }
      --busy_;
      done_.notify_all();
    }
  }

  std::int64_t call(Part* part) const noexcept {
    if (const int injected = prepare(part); injected != 0) return -injected;
    const auto offset = static_cast<off_t>(part->offset);
    const ssize_t moved =
        part->transfer->write
            ? system_table().write_at(file.descriptor(), part->data, part->asked, offset)
            : system_table().read_at(file.descriptor(), part->data, part->asked, offset);
    return moved < 0 ? -errno : moved;
  }

  std::mutex mutex_;
  std::condition_variable work_, done_;
  Parts waiting_;
  unsigned busy_ = 0;
  bool closed_ = false;
};

// Memory must outlive a read that the disk never answers, so such an engine lives until the process
// ends. The list is never destroyed.
void leave_alone(std::shared_ptr<AsyncFile::Engine> engine) {
  static std::mutex* const mutex = new std::mutex;
  static auto* const left = new std::vector<std::shared_ptr<AsyncFile::Engine>>;
  const std::lock_guard lock(*mutex);
  left->push_back(std::move(engine));
}

}  // namespace

AsyncFile::~AsyncFile() {
  if (engine_ == nullptr) return;
  const Deadline backoff = Deadline::after(kPatienceNs);
  const Transfer never{.parts = 1};
  while (!engine_->idle() && !backoff.passed()) engine_->wait_some(never);
  if (engine_->idle()) {
    engine_->owner.reset();  // here, and not on the engine's thread that ends last
  } else {
    leave_alone(engine_);
  }
  engine_->close();
}

Status AsyncFile::open(const std::string& directory, std::uint64_t bytes) {
  auto ring = std::make_shared<RingEngine>();
  if (const int refused = ring->open(); refused != 0) {
    auto threads = std::make_shared<ThreadEngine>();
    threads->why_not_ring = "io_uring is refused" + Status::system(refused, "").message();
    TRIREME_RETURN_IF_ERROR(threads->file.open(directory, bytes));
    engine_ = threads;
    TRIREME_RETURN_IF_ERROR(threads->open());
  } else {
    TRIREME_RETURN_IF_ERROR(ring->file.open(directory, bytes));
    engine_ = std::move(ring);
  }
  engine_->directory = directory;
  return Status::success();
}

void AsyncFile::set_owner(std::shared_ptr<const void> owner) { engine_->owner = std::move(owner); }

void AsyncFile::start(Transfer* transfer) {
  transfer->error_number = 0;
  transfer->parts = 0;
  Parts parts;
  const std::uint64_t share = transfer->bytes / kParts / UnnamedFile::kAlignment + 1;
  const std::uint64_t at_once =
      std::clamp(share * UnnamedFile::kAlignment, kLeastPart, kLargestPart);
  try {
    for (std::uint64_t done = 0; done < transfer->bytes; done += at_once) {
      Part part;
      part.transfer = transfer;
      part.data = transfer->data + done;
      part.offset = transfer->offset + done;
      part.bytes = std::min(at_once, transfer->bytes - done);
      parts.push_back(part);
    }
  } catch (const std::bad_alloc&) {
    transfer->error_number = ENOMEM;  // and no part is under way
    transfer->error_offset = transfer->offset;
    return;
  }
  transfer->parts = static_cast<std::uint32_t>(parts.size());
  engine_->start(std::move(parts));
}

bool AsyncFile::done(const Transfer& transfer) { return engine_->done(transfer); }

Status AsyncFile::wait(const Transfer& transfer, Deadline deadline,
                       const std::function<Status()>& stop) {
  while (!engine_->done(transfer)) {
    if (deadline.passed()) {
      return Status::failure(TRIREME_ERROR_TIMEOUT,
                             "the file in \"" + directory() + "\" did not answer in time");
    }
    TRIREME_RETURN_IF_ERROR(stop());
    engine_->wait_some(transfer);
  }
  return Status::success();
}

const std::string& AsyncFile::directory() const { return engine_->directory; }
const std::string& AsyncFile::why_not_direct() const { return engine_->file.why_not_direct(); }
const std::string& AsyncFile::why_not_ring() const { return engine_->why_not_ring; }

}  // namespace trireme
