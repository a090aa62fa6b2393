// One group over MPI: frames and slots are its messages, bulk data its messages or collectives. The
// frames and each channel have their own communicator. So messages of the program, of other groups
// and of other channels never mix.
#include "backends/mpi/plugin.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "backends/mpi/plugin/runtime.hpp"
#include "backends/mpi/plugin/slots.hpp"

namespace trireme::mpi {
namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;
using std::chrono::steady_clock;

// Frames that may be on their way to one rank at a time.
constexpr std::size_t kFlights = 8;
// A receiver without frames tests again at once for this long, then sleeps, longer each time.
constexpr microseconds kSpin{50};
constexpr microseconds kShortestSleep{20};
constexpr microseconds kLongestSleep{500};
// The time for the last frames of a rank that has left.
constexpr std::chrono::milliseconds kLastWords{1000};

std::atomic<std::uint32_t> joins{0};

void say(char* error, const std::string& text) {
  std::snprintf(error, kErrorBytes, "%s", text.c_str());
}

struct Flight {
  MPI_Request request = MPI_REQUEST_NULL;
  std::vector<std::byte> frame;
};

}  // namespace

struct Request {
  MPI_Request request = MPI_REQUEST_NULL;
  bool receives = false;  // a message
};

struct Group {
  // Communicators come into being one after the other, while ranks arrive: see advance().
  MPI_Request duplicating = MPI_REQUEST_NULL;
  std::array<MPI_Comm, 1 + kOwnChannels> communicators;  // frames, then by channel
  std::atomic<std::size_t> ready{0};                     // how many of them exist
  std::atomic<int> failed{MPI_SUCCESS};
  std::atomic<int> abandoned{0};
  // How many messages of post() this rank has sent, less how many it has received.
  std::atomic<std::int64_t> unmatched{0};
  std::array<std::atomic<std::int64_t>, kOwnChannels> started{};  // collectives, by channel
  std::uint32_t number = 0;
  int tag = 0;  // differs from earlier groups', whose messages may remain queued

  std::vector<std::array<Flight, kFlights>> flights;  // by rank; the sending thread's alone
  // Only the receiving thread uses these.
  MPI_Request receiving = MPI_REQUEST_NULL;
  std::vector<std::byte> frame;
  int from = 0;
  int bytes = 0;

  std::vector<Slots> slots;  // by channel

  // All ranks exchange these counts when they leave.
  std::array<MPI_Request, 2> leaving{MPI_REQUEST_NULL, MPI_REQUEST_NULL};
  std::int64_t own_unmatched = 0;
  std::int64_t all_unmatched = 0;
  // Of each channel how many collectives were started, then the negative of that: the largest.
  std::array<std::int64_t, std::size_t{2} * kOwnChannels> own_started{};
  std::array<std::int64_t, std::size_t{2} * kOwnChannels> all_started{};
  Group* next = nullptr;  // among the kept ones

  std::mutex sleep_mutex;
  std::condition_variable stirred;
  std::atomic<std::uint32_t> stirs{0};

  void stir() {
    stirs.fetch_add(1);
    const std::lock_guard lock(sleep_mutex);
    stirred.notify_all();
  }
};

namespace {

// Groups that still wait for communicators, in the order in which all ranks joined them. MPI makes
// one communicator at a time: the known MPIs fail with several at once.
std::deque<Group*>& unfinished() {
  static std::deque<Group*>* const groups = new std::deque<Group*>;
  return *groups;
}

// Makes the group's communicators, as far as MPI has come.
State make_communicators(Group& group) {
  while (true) {
    const std::size_t ready = group.ready.load(std::memory_order_relaxed);
    if (ready >= group.communicators.size()) return State::done;
    MPI_Comm& made = group.communicators[ready];
    int code = MPI_SUCCESS;
    if (group.duplicating == MPI_REQUEST_NULL) {
      const MPI_Comm from = ready == 0 ? MPI_COMM_WORLD : group.communicators[0];
      code = MPI_Comm_idup(from, &made, &group.duplicating);
    }
    int done = 0;
    if (code == MPI_SUCCESS) code = MPI_Test(&group.duplicating, &done, MPI_STATUS_IGNORE);
    if (code == MPI_SUCCESS && done == 0) return State::pending;
    if (code == MPI_SUCCESS) code = MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN);
    if (code != MPI_SUCCESS) {
      group.failed.store(code);
      return State::failed;
    }
    group.ready.store(ready + 1, std::memory_order_release);
  }
}

// Whether the first `count` communicators exist, after a look at MPI's progress.
State advance(Group& group, std::size_t count) {
  if (group.ready.load(std::memory_order_acquire) >= count) return State::done;
  std::deque<Group*>& groups = unfinished();
  while (!groups.empty() && make_communicators(*groups.front()) != State::pending) {
    groups.pop_front();
  }
  if (group.ready.load(std::memory_order_relaxed) >= count) return State::done;
  return group.failed.load() == MPI_SUCCESS ? State::pending : State::failed;
}

bool forget_groups();

std::int32_t begin(std::int32_t* rank, std::int32_t* world_size, char* error) {
  std::string why;
  const std::int32_t status = begin_mpi(rank, world_size, forget_groups, &why);
  if (status != TRIREME_OK) say(error, why);
  return status;
}

Group* join(char* error) {
  const Inside inside;
  if (!inside) return say(error, "MPI has been finalised"), nullptr;
  int rank = 0;
  int world_size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world_size);
  auto group = std::make_unique<Group>();
  group->communicators.fill(MPI_COMM_NULL);
  group->number = joins.fetch_add(1);
  group->tag = static_cast<int>(group->number % kTags);
  for (std::uint32_t i = 0; i < kOwnChannels; ++i)
    group->slots.emplace_back(rank, world_size, group->number);
  group->flights.resize(static_cast<std::size_t>(world_size));
  group->frame.resize(kFrameBytes);
  forget_groups();
  unfinished().push_back(group.get());
  count_group(1);
  advance(*group, 1);
  return group.release();
}

std::uint64_t number(const Group* group) { return group->number; }

Flight* free_flight(std::array<Flight, kFlights>& flights, int* code) {
  for (Flight& flight : flights) {
    int done = 1;
    if (flight.request != MPI_REQUEST_NULL) {
      *code = MPI_Test(&flight.request, &done, MPI_STATUS_IGNORE);
      if (*code != MPI_SUCCESS) return nullptr;
    }
    if (done != 0) return &flight;
  }
  return nullptr;
}

std::int32_t send(void* user_data, std::int32_t to, const void* data, std::uint64_t bytes,
                  std::uint64_t timeout_ns) {
  Group& group = *static_cast<Group*>(user_data);
  const auto end = steady_clock::now() + nanoseconds(timeout_ns);
  while (true) {
    {
      const Inside inside;
      if (!inside) return TRIREME_ERROR_CALLBACK;
      const State there = advance(group, 1);
      if (there == State::failed) return TRIREME_ERROR_CALLBACK;
      if (there == State::pending) return TRIREME_ERROR_TIMEOUT;
      int code = MPI_SUCCESS;
      Flight* const flight = free_flight(group.flights[static_cast<std::size_t>(to)], &code);
      if (code != MPI_SUCCESS) return TRIREME_ERROR_CALLBACK;
      if (flight != nullptr) {
        const auto* const first = static_cast<const std::byte*>(data);
        flight->frame.assign(first, first + bytes);
        code = MPI_Isend(flight->frame.data(), static_cast<int>(bytes), MPI_BYTE, to, group.tag,
                         group.communicators[0], &flight->request);
        if (code != MPI_SUCCESS) return TRIREME_ERROR_CALLBACK;
        group.stir();  // an answer may come soon
        return TRIREME_OK;
      }
    }
    if (steady_clock::now() >= end) return TRIREME_ERROR_TIMEOUT;
    std::this_thread::yield();
  }
}

// Takes a frame that has arrived whole. `receiving` stays where only the beginning of one has.
State look(Group& group) {
  if (advance(group, 1) != State::done) {
    return group.failed.load() == MPI_SUCCESS ? State::pending : State::failed;
  }
  advance(group, group.communicators.size());
  if (group.receiving == MPI_REQUEST_NULL) {
    int flag = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    if (MPI_Improbe(MPI_ANY_SOURCE, group.tag, group.communicators[0], &flag, &message, &status) !=
        MPI_SUCCESS) {
      return State::failed;
    }
    if (flag == 0) return State::pending;
    MPI_Get_count(&status, MPI_BYTE, &group.bytes);
    group.from = status.MPI_SOURCE;
    if (group.bytes < 0 || static_cast<std::size_t>(group.bytes) > group.frame.size() ||
        MPI_Imrecv(group.frame.data(), group.bytes, MPI_BYTE, &message, &group.receiving) !=
            MPI_SUCCESS) {
      return State::failed;
    }
  }
  int done = 0;
  if (MPI_Test(&group.receiving, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return State::failed;
  return done != 0 ? State::done : State::pending;
}

std::int32_t receive(void* user_data, std::int32_t* from, void* data, std::uint64_t capacity,
                     std::uint64_t* bytes, std::uint64_t timeout_ns) {
  Group& group = *static_cast<Group*>(user_data);
  auto active = steady_clock::now();
  const auto end = active + nanoseconds(timeout_ns);
  std::uint32_t seen = group.stirs.load();
  microseconds nap = kShortestSleep;
  while (true) {
    {
      const Inside inside;
      if (!inside) return TRIREME_ERROR_CALLBACK;
      const State state = look(group);
      if (state == State::failed) return TRIREME_ERROR_CALLBACK;
      if (state == State::done) {
        if (static_cast<std::uint64_t>(group.bytes) > capacity) return TRIREME_ERROR_CALLBACK;
        *from = group.from;
        *bytes = static_cast<std::uint64_t>(group.bytes);
        std::memcpy(data, group.frame.data(), *bytes);
        return TRIREME_OK;
      }
    }
    const auto now = steady_clock::now();
    if (now >= end) return TRIREME_ERROR_TIMEOUT;
    const std::uint32_t stirs = group.stirs.load();
    if (stirs != seen) {
      seen = stirs;
      active = now;
      nap = kShortestSleep;
    }
    if (now - active < kSpin) {
      std::this_thread::yield();
      continue;
    }
    std::unique_lock lock(group.sleep_mutex);
    group.stirred.wait_until(lock, std::min(now + nap, end),
                             [&] { return group.stirs.load() != seen; });
    nap = std::min(nap * 2, kLongestSleep);
  }
}

// Whether no request of the group is under way any more.
bool is_quiet(Group& group) {
  if (group.receiving != MPI_REQUEST_NULL || group.abandoned.load() > 0) return false;
  for (auto& flights : group.flights) {
    for (Flight& flight : flights) {
      int done = 1;
      if (flight.request != MPI_REQUEST_NULL) {
        if (MPI_Test(&flight.request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return false;
      }
      if (done == 0) return false;
    }
  }
  return std::all_of(group.slots.begin(), group.slots.end(),
                     [](Slots& each) { return each.end(); });
}

// Groups that this rank has left. They stay until all ranks have left them and no message is on its
// way.
std::deque<Group*>& left_groups() {
  static std::deque<Group*>* const groups = new std::deque<Group*>;
  return *groups;
}

bool is_over(Group& group) {
  while (look(group) == State::done) {  // drops the frame
  }
  int all = 0;
  if (group.receiving != MPI_REQUEST_NULL ||
      MPI_Testall(2, group.leaving.data(), &all, MPI_STATUSES_IGNORE) != MPI_SUCCESS || all == 0) {
    return false;
  }
  while (look(group) == State::done) {
  }
  return group.receiving == MPI_REQUEST_NULL;
}

// Groups whose communicators stay for good. The first one leads to the others.
Group*& kept_groups() {
  static Group* first = nullptr;
  return first;
}

// Whether all messages were received, and each collective was started by all ranks.
bool is_complete(const Group& group) {
  bool complete = group.all_unmatched == 0;
  for (std::size_t channel = 0; channel < kOwnChannels; ++channel) {
    complete =
        complete && group.all_started[channel] + group.all_started[kOwnChannels + channel] == 0;
  }
  return complete;
}

bool begin_leaving(Group& group) {
  group.own_unmatched = group.unmatched.load();
  for (std::size_t channel = 0; channel < kOwnChannels; ++channel) {
    group.own_started[channel] = group.started[channel].load();
    group.own_started[kOwnChannels + channel] = -group.own_started[channel];
  }
  const MPI_Comm comm = group.communicators[0];
  return MPI_Iallreduce(&group.own_unmatched, &group.all_unmatched, 1, MPI_INT64_T, MPI_SUM, comm,
                        group.leaving.data()) == MPI_SUCCESS &&
         MPI_Iallreduce(group.own_started.data(), group.all_started.data(),
                        static_cast<int>(group.own_started.size()), MPI_INT64_T, MPI_MAX, comm,
                        &group.leaving[1]) == MPI_SUCCESS;
}

// False: some are left. MPI may keep a message that no rank has received. It may be one of a
// collective that this rank never started. MPI may give it to a later communicator with the same
// number. So the communicators of such a group stay.
bool forget_groups() {
  std::deque<Group*>& groups = left_groups();
  std::erase_if(groups, [](Group* group) {
    if (!is_over(*group)) return false;
    if (!is_complete(*group)) {
      group->next = std::exchange(kept_groups(), group);
      return true;
    }
    for (MPI_Comm& communicator : group->communicators) MPI_Comm_free(&communicator);
    delete group;
    return true;
  });
  return groups.empty();
}

// Memory that MPI may still touch stays for good, and so do its communicators.
void leave(void* user_data) {
  Group* const group = static_cast<Group*>(user_data);
  const auto end = steady_clock::now() + kLastWords;
  while (true) {
    {
      const Inside inside;
      if (!inside) break;
      if (advance(*group, group->communicators.size()) == State::done && is_quiet(*group)) {
        if (begin_leaving(*group)) left_groups().push_back(group);
        forget_groups();
        break;
      }
    }
    if (steady_clock::now() >= end) break;
    std::this_thread::sleep_for(microseconds(100));
  }
  count_group(-1);
}

MPI_Op op_of(trireme_reduction reduction) {
  switch (reduction) {
    case TRIREME_REDUCTION_PRODUCT: return MPI_PROD;
    case TRIREME_REDUCTION_BAND: return MPI_BAND;
    case TRIREME_REDUCTION_BOR: return MPI_BOR;
    case TRIREME_REDUCTION_BXOR: return MPI_BXOR;
    default: return MPI_SUM;  // an average and a scaled sum begin as sums
  }
}

MPI_Datatype type_of(trireme_dtype dtype) {
  switch (dtype) {
    case TRIREME_DTYPE_I8: return MPI_INT8_T;
    case TRIREME_DTYPE_U8: return MPI_UINT8_T;
    case TRIREME_DTYPE_I16: return MPI_INT16_T;
    case TRIREME_DTYPE_U16: return MPI_UINT16_T;
    case TRIREME_DTYPE_I32: return MPI_INT32_T;
    case TRIREME_DTYPE_U32: return MPI_UINT32_T;
    case TRIREME_DTYPE_I64: return MPI_INT64_T;
    case TRIREME_DTYPE_U64: return MPI_UINT64_T;
    case TRIREME_DTYPE_F32: return MPI_FLOAT;
    case TRIREME_DTYPE_F64: return MPI_DOUBLE;
    default: return MPI_BYTE;
  }
}

int start_collective(const Call& call, MPI_Comm comm, MPI_Request* request) {
  const MPI_Datatype type = type_of(call.dtype);
  const MPI_Op op = op_of(call.reduction);
  const int n = call.count;
  switch (call.kind) {
    case OperationKind::reduce:
      return MPI_Ireduce(call.send, call.receive, n, type, op, call.root, comm, request);
    case OperationKind::reduce_scatter:
      return MPI_Ireduce_scatter_block(call.send, call.receive, n, type, op, comm, request);
    case OperationKind::all_gather:
      return MPI_Iallgather(call.send, n, type, call.receive, n, type, comm, request);
    case OperationKind::all_to_all:
      return MPI_Ialltoall(call.send, n, type, call.receive, n, type, comm, request);
    case OperationKind::broadcast:
      return MPI_Ibcast(call.receive, n, type, call.root, comm, request);
    case OperationKind::barrier: return MPI_Ibarrier(comm, request);
    default: return MPI_ERR_UNSUPPORTED_OPERATION;
  }
}

// Whether all communicators of the group exist.
State look_for_communicators(Group& group, char* error) {
  const State there = advance(group, group.communicators.size());
  if (there == State::failed) say(error, error_text("MPI_Comm_idup", group.failed.load()));
  return there;
}

// Begins a request in a channel by start(communicator, request), once the communicator exists.
template <class Start>
State prepare(Group& group, std::uint32_t channel, const char* what, Start start, Request** out,
              char* error) {
  const Inside inside;
  if (!inside) return say(error, "MPI has been finalised"), State::failed;
  const State there = look_for_communicators(group, error);
  if (there != State::done) return there;
  auto request = std::make_unique<Request>();
  const int code = start(group.communicators[1 + channel], &request->request);
  if (code != MPI_SUCCESS) return say(error, error_text(what, code)), State::failed;
  *out = request.release();
  return State::done;
}

State start(Group* group, const Call& call, Request** out, char* error) {
  const State state = prepare(
      *group, call.channel, "starting a collective",
      [&](MPI_Comm comm, MPI_Request* request) { return start_collective(call, comm, request); },
      out, error);
  if (state == State::done) group->started[call.channel].fetch_add(1);
  return state;
}

State post(Group* group, const PeerMessage& message, Request** out, char* error) {
  const State state = prepare(
      *group, message.channel, "a message",
      [&](MPI_Comm comm, MPI_Request* request) {
        const auto [unused, peer, tag, bytes, data, sends, announced] = message;
        if (!sends) return MPI_Irecv(data, bytes, MPI_BYTE, peer, tag, comm, request);
        return announced ? MPI_Issend(data, bytes, MPI_BYTE, peer, tag, comm, request)
                         : MPI_Isend(data, bytes, MPI_BYTE, peer, tag, comm, request);
      },
      out, error);
  if (state != State::done) return state;
  (*out)->receives = !message.sends;
  if (message.sends) group->unmatched.fetch_add(1);
  return state;
}

State test(Group* group, Request* request, char* error) {
  int code = MPI_SUCCESS;
  {
    const Inside inside;
    if (!inside) {
      say(error, "MPI has been finalised");
      return State::failed;
    }
    int done = 0;
    code = MPI_Test(&request->request, &done, MPI_STATUS_IGNORE);
    if (code == MPI_SUCCESS && done == 0) return State::pending;
  }
  if (code == MPI_SUCCESS && request->receives) group->unmatched.fetch_sub(1);
  delete request;
  if (code == MPI_SUCCESS) return State::done;
  return say(error, error_text("MPI_Test", code)), State::failed;
}

State publish(Group* group, std::uint32_t channel, const void* data, std::uint64_t bytes,
              char* error) {
  const Inside inside;
  if (!inside) return say(error, "MPI has been finalised"), State::failed;
  if (bytes > kSlotBytes) return say(error, "a message that is too long"), State::failed;
  group->slots[channel].publish(data, bytes);
  const State there = look_for_communicators(*group, error);
  if (there != State::done) return there == State::failed ? there : State::done;
  const int code = group->slots[channel].send(group->communicators[1 + channel]);
  if (code == MPI_SUCCESS) return State::done;
  return say(error, error_text("a short message", code)), State::failed;
}

State fetch(Group* group, std::uint32_t channel, Take take, void* context, char* error) {
  const Inside inside;
  if (!inside) return say(error, "MPI has been finalised"), State::failed;
  const State there = look_for_communicators(*group, error);
  if (there != State::done) return there;
  bool any = false;
  const int code =
      group->slots[channel].advance(group->communicators[1 + channel], take, context, &any);
  if (code != MPI_SUCCESS) return say(error, error_text("a short message", code)), State::failed;
  return any ? State::done : State::pending;
}

void abandon(Group* group, Request*) { group->abandoned.fetch_add(1); }

constexpr Plugin kPlugin{{kPluginVersion, TRIREME_VERSION, sizeof(Plugin)},
                         TRIREME_MPI_NAME,
                         begin,
                         join,
                         number,
                         send,
                         receive,
                         leave,
                         publish,
                         fetch,
                         start,
                         post,
                         test,
                         abandon};

}  // namespace
}  // namespace trireme::mpi

extern "C" __attribute__((visibility("default"))) const trireme::PluginHead* trireme_mpi_plugin() {
  return &trireme::mpi::kPlugin.head;
}
