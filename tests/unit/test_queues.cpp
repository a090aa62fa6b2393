// Queues of one rank over a backend of this test's own. A failed request is done only when the
// peers know the failure, and no lock is held while they are told. A late message does not wait for
// ranks to join.
#include <condition_variable>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "collectives/channel.hpp"
#include "collectives/message_queue.hpp"
#include "platform/thread.hpp"

// cmocka's names are macros that the standard library must not see.
extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
// cmocka.h comes after those it needs.
#include <cmocka.h>
}
#undef fail  // Backend has a method of that name

namespace {

using namespace trireme;

// Long enough for the slowest machine: no test waits for it unless something is broken.
constexpr std::uint64_t kLongNs = 100'000'000'000;

Status aborted() { return Status::failure(TRIREME_ERROR_ABORTED, "enough"); }

// Collectives run until end_runs(), messages until the group fails.
class Scene final : public Backend {
 public:
  Scene() : Backend(0, 2) {}

  std::function<void()> on_spread;  // set before the group fails
  bool has_waited = false;          // for peers to join
  int spread_count() const {
    const std::lock_guard lock(mutex_);
    return spread_;
  }
  void end_runs() {
    const std::lock_guard lock(mutex_);
    runs_end_ = true;
    changed_.notify_all();
  }

  std::string description() const override { return "scene"; }
  Status wait_ready_unless(Deadline, const std::function<Status()>&) override {
    has_waited = true;
    return Status::success();
  }
  bool has_joined(int) const override { return false; }
  Status run(const Operation&, std::uint64_t, Deadline) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return runs_end_; });
    return failure_;
  }
  bool has_native(const Operation&) const override { return true; }
  Status agree(const Operation&, std::uint64_t, Deadline, std::vector<bool>*) override {
    return Status::success();
  }
  void post(Message& message) override { posted_.push_back(&message); }
  void progress() override {
    const Status status = failure();
    if (status.ok()) return;
    for (Message* const message : posted_) {
      message->status = status;
      message->done = true;
    }
    posted_.clear();
  }
  bool withdraw(Message& message) override { return std::erase(posted_, &message) > 0; }
  std::atomic<std::uint32_t>* begin_rest(std::uint32_t* out_seen) noexcept override {
    const std::lock_guard lock(mutex_);
    *out_seen = activity_;
    ++resting_;
    return &resting_;
  }
  Backoff backoff() const override { return Backoff(0, 1); }
  void wait_activity(std::uint32_t seen, Deadline deadline) override {
    std::unique_lock lock(mutex_);
    static_cast<void>(
        wait_until(changed_, lock, deadline, [&] { return activity_ != seen || !failure_.ok(); }));
  }
  void wake_waiters() override {
    const std::lock_guard lock(mutex_);
    ++activity_;
    changed_.notify_all();
  }
  Status allocate(std::uint64_t, std::shared_ptr<Memory>*) override { return aborted(); }
  void fail(const Status& status) noexcept override {
    const std::lock_guard lock(mutex_);
    if (failure_.ok()) failure_ = status;
    changed_.notify_all();
  }
  Status failure() const override {
    const std::lock_guard lock(mutex_);
    return failure_;
  }
  void spread_failure() noexcept override {
    on_spread();
    const std::lock_guard lock(mutex_);
    ++spread_;
  }
  void on_end(std::shared_ptr<const EndListener>) override {}
  TrafficCounters traffic() const override { return {}; }
  std::vector<LastCalls> last_calls() const override { return std::vector<LastCalls>(2); }

 private:
  std::vector<Message*> posted_;

  mutable std::mutex mutex_;  // guards the following
  std::condition_variable changed_;
  Status failure_ = Status::success();
  bool runs_end_ = false;
  std::uint32_t activity_ = 0;
  std::atomic<std::uint32_t> resting_{0};
  int spread_ = 0;
};

struct Job {
  Records records;
  MessageQueue messages{records};
  Timekeeper timekeeper{[this] { return channel.expire(); }};
  Channel channel{0, records, timekeeper, messages};
};

MessageArguments receive_of(int* number) {
  MessageArguments receive;
  receive.kind = OperationKind::receive;
  receive.data = number;
  receive.count = 1;
  receive.dtype = TRIREME_DTYPE_I32;
  receive.peer = 1;
  return receive;
}

struct Fixture {
  Fixture() {
    job->messages.open(scene);
    job->channel.open(scene);
    scene->on_spread = [this] {
      was_done = request->done();
      // Another thread gets both locks.
      std::thread([this] {
        job->messages.open(scene);
        job->channel.open(scene);
      }).join();
    };
  }
  ~Fixture() {
    job->timekeeper.stop();
    scene->end_runs();
    static_cast<void>(job->messages.stop());
    static_cast<void>(job->channel.stop());
  }
  void start_barrier(std::uint64_t timeout_ns, std::shared_ptr<Request>* out) {
    Operation barrier;
    barrier.kind = OperationKind::barrier;
    const Status status = job->channel.start(job, this, barrier, Deadline::after(timeout_ns), out);
    assert_int_equal(status.code(), TRIREME_OK);
  }
  void expect(trireme_status code) {
    assert_int_equal(request->wait(Deadline::after(kLongNs)).code(), code);
    assert_int_equal(scene->spread_count(), 1);
    assert_false(was_done);
  }

  const std::shared_ptr<Scene> scene = std::make_shared<Scene>();
  const std::shared_ptr<Job> job = std::make_shared<Job>();  // its threads keep it
  std::shared_ptr<Request> request;
  bool was_done = false;  // when the peers were told
};

void a_started_message_fails_when_the_peers_know(void**) {
  Fixture all;
  int number = 0;
  const Status started = all.job->messages.start(all.job, &all, receive_of(&number),
                                                 Deadline::after(kLongNs), &all.request);
  assert_int_equal(started.code(), TRIREME_OK);
  all.scene->fail(aborted());
  all.expect(TRIREME_ERROR_ABORTED);
}

void a_started_collective_fails_when_the_peers_know(void**) {
  Fixture all;
  all.start_barrier(kLongNs, &all.request);
  all.scene->fail(aborted());
  all.scene->end_runs();
  all.expect(TRIREME_ERROR_ABORTED);
}

// Its deadline passes behind a collective that has more time.
void a_queued_collective_is_late_when_the_peers_know(void**) {
  Fixture all;
  std::shared_ptr<Request> first;
  all.start_barrier(2 * kLongNs, &first);
  all.start_barrier(1'000'000, &all.request);
  all.expect(TRIREME_ERROR_TIMEOUT);
  all.scene->end_runs();
  assert_int_equal(first->wait(Deadline::after(kLongNs)).code(), TRIREME_ERROR_TIMEOUT);
}

void a_late_message_waits_for_no_rank_to_join(void**) {
  Fixture all;
  int number = 0;
  const MessageArguments receive = receive_of(&number);
  const Status late = all.job->messages.run(&receive, 1, 1, nullptr);
  assert_int_equal(late.code(), TRIREME_ERROR_TIMEOUT);
  assert_non_null(strstr(late.message().c_str(), "rank 1 has not joined"));
  assert_false(all.scene->has_waited);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(a_started_message_fails_when_the_peers_know),
      cmocka_unit_test(a_started_collective_fails_when_the_peers_know),
      cmocka_unit_test(a_queued_collective_is_late_when_the_peers_know),
      cmocka_unit_test(a_late_message_waits_for_no_rank_to_join),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
