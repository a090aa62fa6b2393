// A NCCL for tests, in the file of the fake driver. Its ranks are threads or processes. They meet
// in a folder, which their id names, and pass their operands by files in it: so a rank may be
// killed.
//
// A group of calls is queued on the device by a later look, as NCCL's own thread would. It is two
// operations of the stream: one takes the operands, and one, which begins when all ranks have done
// the first, writes the results. Sums are made from the last rank down, in the dtype itself: their
// bits are not the library's.
//
// Words of the script FAKE_CUDA:
// - nccl=N. Its version; the default is 22809.
// - fail=NAME:CODE. The function NAME answers CODE.
// - init=hang|never. ncclCommInitRankConfig() does not return, or meets no peer.
// - async=N:CODE. After N groups of calls a communicator has failed with CODE.
// - launch=never. Groups of calls are never queued.
// - lost=N. After N groups of calls no further one comes to its end.
// - abort=hang. ncclCommAbort() does not return. finalize=hang: nor does ncclCommFinalize().
// - only=R. The words above are for rank R alone.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fake_cuda/inside.h"
#include "fake_cuda/world.hpp"
#include "kernels/calls.hpp"

namespace fake {
namespace {

enum { kDone = 0, kSystemError = 2, kInvalidArgument = 4, kInvalidUsage = 5, kBusy = 7 };
enum Kind : std::int32_t { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kSend, kReceive };
constexpr std::size_t kIdBytes = 128;

struct Id {
  char folder[kIdBytes];
};

struct Call {
  std::int32_t kind, type, reduction, peer;
  std::uint64_t count;
  const void* send;
  void* receive;
};

constexpr std::size_t kSizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

bool is_between(const Call& call) { return call.kind == kSend || call.kind == kReceive; }

std::size_t bytes_of(const Call& call) {
  return call.count * kSizes[static_cast<std::size_t>(call.type)];
}

}  // namespace

struct Communicator {
  std::string folder;
  int rank = 0, world = 0, device = 0;
  bool met = false, aborted = false, finalized = false;
  int error = 0;
  std::uint64_t groups = 0;
  // Groups that the next look but one queues.
  std::vector<std::pair<std::vector<Call>, Stream*>> waiting;
  int looks = 0;

  std::size_t send_bytes(const Call& call) const {
    switch (call.kind) {
      case kReduceScatter: return bytes_of(call) * static_cast<std::size_t>(world);
      case kBroadcast: return call.peer == rank ? bytes_of(call) : 0;
      case kReceive: return 0;
      default: return bytes_of(call);
    }
  }
  std::size_t receive_bytes(const Call& call) const {
    switch (call.kind) {
      case kAllGather: return bytes_of(call) * static_cast<std::size_t>(world);
      case kSend: return 0;
      default: return bytes_of(call);
    }
  }
  std::string place(const std::string& what, int of) const {
    return folder + "/" + what + "." + std::to_string(of);
  }
  bool all_have(const std::string& what) const {
    for (int other = 0; other < world; ++other) {
      if (access(place(what, other).c_str(), R_OK) != 0) return false;
    }
    return true;
  }
};

namespace {

thread_local int depth = 0;
thread_local std::vector<std::pair<Communicator*, std::pair<Call, Stream*>>> grouped;
thread_local std::string last_error;
bool all_are_over = false;  // a test finishes: nothing is waited for
int living = 0;             // communicators that were neither destroyed nor aborted
// Work that is left may look at them after their end.
auto& communicators = *new std::vector<std::unique_ptr<Communicator>>;

int told(int code, const std::string& why) {
  last_error = why;
  return code;
}

bool script_says(const char* word) {
  const char* const script = std::getenv("FAKE_CUDA");
  return script != nullptr && std::strstr(script, word) != nullptr;
}

bool is_meant(int rank) {
  const int only = scripted("only=", -1);
  return only < 0 || only == rank;
}

int failure(const char* function, int rank) {
  char key[80];
  std::snprintf(key, sizeof key, "fail=%s:", function);
  return is_meant(rank) ? scripted(key, 0) : 0;
}

[[noreturn]] void hang() {
  for (;;) pause();
}

// The file is there as a whole or not at all.
void write_file(const std::string& path, const std::vector<char>& bytes) {
  const std::string early = path + "~";
  std::ofstream(early, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  std::rename(early.c_str(), path.c_str());
}

std::vector<char> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::vector<char>(std::istreambuf_iterator<char>(file), {});
}

// ---- sums ----

template <class T>
T joined(T a, T b, int reduction) {
  using trireme::kernels::device::one_nan;
  switch (reduction) {
    case 0: return static_cast<T>(a + b);
    case 1: return static_cast<T>(a * b);
    case 2: return a > b ? a : b;  // as NCCL's, it may lose a NaN
    default: return a < b ? a : b;
  }
}

// Type: Plain<T> or a narrow float, whose every partial sum is rounded.
template <class Type>
void add_all(const std::vector<const char*>& sources, std::uint64_t count, int reduction,
             char* to) {
  using Stored = typename Type::Stored;
  for (std::uint64_t i = 0; i < count; ++i) {
    Stored sum;
    std::memcpy(&sum, sources.back() + i * sizeof sum, sizeof sum);
    for (std::size_t k = sources.size() - 1; k-- > 0;) {
      Stored next;
      std::memcpy(&next, sources[k] + i * sizeof next, sizeof next);
      sum = Type::store(joined(Type::load(sum), Type::load(next), reduction));
    }
    std::memcpy(to + i * sizeof sum, &sum, sizeof sum);
  }
}

void reduce(int type, const std::vector<const char*>& sources, std::uint64_t count, int reduction,
            char* to) {
  namespace numbers = trireme::kernels::device;
  switch (type) {
    case 0:  // wraps as u8 does, but compares with a sign
      if (reduction >= 2) {
        add_all<numbers::Plain<std::int8_t>>(sources, count, reduction, to);
      } else {
        add_all<numbers::Plain<std::uint8_t>>(sources, count, reduction, to);
      }
      break;
    case 1: add_all<numbers::Plain<std::uint8_t>>(sources, count, reduction, to); break;
    case 2:
      if (reduction >= 2) {
        add_all<numbers::Plain<std::int32_t>>(sources, count, reduction, to);
      } else {
        add_all<numbers::Plain<std::uint32_t>>(sources, count, reduction, to);
      }
      break;
    case 3: add_all<numbers::Plain<std::uint32_t>>(sources, count, reduction, to); break;
    case 4:
      if (reduction >= 2) {
        add_all<numbers::Plain<std::int64_t>>(sources, count, reduction, to);
      } else {
        add_all<numbers::Plain<std::uint64_t>>(sources, count, reduction, to);
      }
      break;
    case 5: add_all<numbers::Plain<std::uint64_t>>(sources, count, reduction, to); break;
    case 6: add_all<numbers::F16>(sources, count, reduction, to); break;
    case 7: add_all<numbers::Plain<float>>(sources, count, reduction, to); break;
    case 8: add_all<numbers::Plain<double>>(sources, count, reduction, to); break;
    default: add_all<numbers::Bf16>(sources, count, reduction, to); break;
  }
}

// ---- one group of calls ----

// One rank's calls, and their operands one behind the other.
struct Given {
  std::vector<Call> calls;
  std::vector<const char*> operands;
  std::vector<char> bytes;

  Given(const Communicator& of, std::vector<char> file, int rank) : bytes(std::move(file)) {
    Communicator theirs;
    theirs.rank = rank;
    theirs.world = of.world;
    std::uint64_t count = 0;
    std::memcpy(&count, bytes.data(), sizeof count);
    calls.resize(count);
    if (count != 0) std::memcpy(calls.data(), bytes.data() + sizeof count, count * sizeof(Call));
    const char* at = bytes.data() + sizeof count + count * sizeof(Call);
    for (const Call& call : calls) {
      operands.push_back(at);
      at += theirs.send_bytes(call);
    }
  }
  // The call of that number among those to or from all, or -1.
  int common(std::size_t number) const {
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (!is_between(calls[i]) && number-- == 0) return static_cast<int>(i);
    }
    return -1;
  }
  // The send of that number to the rank, or -1.
  int send_to(int rank, std::size_t number) const {
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (calls[i].kind == kSend && calls[i].peer == rank && number-- == 0) {
        return static_cast<int>(i);
      }
    }
    return -1;
  }
};

void take(Communicator& own, const std::vector<Call>& calls, const std::string& name,
          Access& access) {
  const std::uint64_t count = calls.size();
  std::vector<char> file(sizeof count + count * sizeof(Call));
  std::memcpy(file.data(), &count, sizeof count);
  std::memcpy(file.data() + sizeof count, calls.data(), count * sizeof(Call));
  for (const Call& call : calls) {
    const std::size_t bytes = own.send_bytes(call);
    const auto* const at = static_cast<const char*>(access.read(call.send, bytes));
    if (at == nullptr && bytes != 0) return;
    if (bytes != 0) file.insert(file.end(), at, at + bytes);
  }
  write_file(own.place(name, own.rank), file);
}

void complain(const Communicator& own, const std::string& what) {
  World::get().complain("NCCL, rank " + std::to_string(own.rank) + ": " + what);
}

void give_common(const Communicator& own, const std::vector<Given>& all, const Call& call,
                 std::size_t number, char* to) {
  std::vector<const char*> sources;
  for (const Given& given : all) {
    const int found = given.common(number);
    if (found < 0) return complain(own, "a peer has queued fewer collectives");
    const Call& theirs = given.calls[static_cast<std::size_t>(found)];
    if (theirs.kind != call.kind || theirs.type != call.type || theirs.count != call.count ||
        theirs.reduction != call.reduction || theirs.peer != call.peer) {
      return complain(own, "a peer has queued another collective");
    }
    sources.push_back(given.operands[static_cast<std::size_t>(found)]);
  }
  const std::size_t bytes = bytes_of(call);
  switch (call.kind) {
    case kAllGather:
      for (std::size_t k = 0; k < sources.size(); ++k) {
        std::memcpy(to + k * bytes, sources[k], bytes);
      }
      break;
    case kBroadcast: std::memcpy(to, sources[static_cast<std::size_t>(call.peer)], bytes); break;
    default:
      if (call.kind == kReduceScatter) {
        for (const char*& source : sources) source += static_cast<std::size_t>(own.rank) * bytes;
      }
      reduce(call.type, sources, call.count, call.reduction, to);
  }
}

void give(Communicator& own, const std::vector<Call>& calls, const std::string& name,
          Access& access) {
  std::vector<Given> all;
  for (int rank = 0; rank < own.world; ++rank) {
    all.emplace_back(own, read_file(own.place(name, rank)), rank);
  }
  std::size_t commons = 0;
  std::vector<std::size_t> received(static_cast<std::size_t>(own.world));
  for (const Call& call : calls) {
    const std::size_t bytes = own.receive_bytes(call);
    const std::size_t number = is_between(call) ? 0 : commons++;
    if (bytes == 0) continue;
    auto* const to = static_cast<char*>(access.write(call.receive, bytes));
    if (to == nullptr) return;
    if (!is_between(call)) {
      give_common(own, all, call, number, to);
      continue;
    }
    const Given& from = all[static_cast<std::size_t>(call.peer)];
    const int found = from.send_to(own.rank, received[static_cast<std::size_t>(call.peer)]++);
    if (found < 0 || from.calls[static_cast<std::size_t>(found)].count != call.count) {
      return complain(own, "a peer does not send what this rank receives");
    }
    std::memcpy(to, from.operands[static_cast<std::size_t>(found)], bytes);
  }
}

bool overlap(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) {
  const auto* const first = static_cast<const char*>(a);
  const auto* const second = static_cast<const char*>(b);
  return a_bytes != 0 && b_bytes != 0 && first < second + b_bytes && second < first + a_bytes;
}

// The places where NCCL takes an operand inside the result, or the other way around.
bool is_in_place(const Communicator& own, const Call& call) {
  const auto* const send = static_cast<const char*>(call.send);
  const auto* const receive = static_cast<const char*>(call.receive);
  const std::size_t at = static_cast<std::size_t>(own.rank) * bytes_of(call);
  switch (call.kind) {
    case kAllGather: return send == receive + at;
    case kReduceScatter: return receive == send + at;
    default: return send == receive;
  }
}

void check_operands(const Communicator& own, const std::vector<Call>& calls) {
  for (const Call& a : calls) {
    for (const Call& b : calls) {
      if (!overlap(a.send, own.send_bytes(a), b.receive, own.receive_bytes(b))) continue;
      if (&a == &b && is_in_place(own, a)) continue;
      complain(own, "an operand of a group of calls lies in a result of it");
    }
  }
}

void queue_group(Communicator& own, const std::vector<Call>& calls, Stream* stream) {
  World& world = World::get();
  check_operands(own, calls);
  const std::uint64_t number = own.groups++;
  const std::string name = "group" + std::to_string(number);
  if (number >= 2) {  // all have read it, as they have given the one after it
    unlink(own.place("group" + std::to_string(number - 2), own.rank).c_str());
  }
  world.count_submission();
  world.submit(stream, "NCCL takes", true, [&own, calls, name](Access& access) {
    if (!own.aborted) take(own, calls, name, access);
  });
  const bool is_lost =
      is_meant(own.rank) && number >= static_cast<std::uint64_t>(scripted("lost=", 1 << 30));
  world.submit_when(
      stream, "NCCL gives",
      [&own, name, is_lost] {
        return own.aborted || all_are_over || (!is_lost && own.all_have(name));
      },
      [&own, calls, name](Access& access) {
        if (!own.aborted && !all_are_over) give(own, calls, name, access);
      });
}

// Parts of one GPU have one bus.
char bus_of(int device) { return static_cast<char>(scripted("mig=", 0) != 0 ? 0 : device); }

// A GPU has one rank.
int meet(Communicator& own) {
  if (!own.all_have("init")) return kBusy;
  int mine = 0;
  for (int rank = 0; rank < own.world; ++rank) {
    const std::vector<char> told_device = read_file(own.place("init", rank));
    mine += static_cast<int>(told_device.at(0) == bus_of(own.device));
  }
  own.met = true;
  if (mine == 1) return kDone;
  return own.error = told(kInvalidUsage, "Duplicate GPU detected");
}

Stream* stream_of(void* handle) {
  return World::get().stream_of(handle, current_device(), fake_current_context());
}

int add(Communicator* own, const char* function, const Call& call, void* handle) {
  const std::lock_guard lock(World::get().mutex);
  if (const int code = failure(function, own->rank); code != 0) return told(code, function);
  Stream* const stream = stream_of(handle);
  if (stream == nullptr || stream->device != own->device) {
    return told(kInvalidArgument, "the stream is not of the communicator's device");
  }
  if (!own->met || own->error != 0 || own->finalized) {
    return told(kInvalidUsage, "the communicator is not ready");
  }
  grouped.push_back({own, {call, stream}});
  return kDone;
}

}  // namespace

void finish_nccl(bool begins) { all_are_over = begins; }

}  // namespace fake

extern "C" {

#define EXPORTED __attribute__((visibility("default")))
#pragma GCC diagnostic ignored "-Wmissing-declarations"

EXPORTED int ncclGetVersion(int* version) {
  *version = scripted("nccl=", 22809);
  return *version < 0;
}

EXPORTED const char* ncclGetErrorString(int code) {
  return code == fake::kSystemError ? "unhandled system error" : "an error of the fake";
}

EXPORTED const char* ncclGetLastError(void*) { return fake::last_error.c_str(); }

EXPORTED int ncclGetUniqueId(fake::Id* id) {
  const char* const folder = std::getenv("FAKE_NCCL_FOLDER");
  std::snprintf(id->folder, sizeof id->folder, "%s/fake-nccl-XXXXXX",
                folder == nullptr ? "/tmp" : folder);
  if (const int code = fake::failure("ncclGetUniqueId", 0); code != 0) {
    return fake::told(code, "no network");
  }
  return mkdtemp(id->folder) == nullptr ? fake::kSystemError : fake::kDone;
}

EXPORTED int ncclCommInitRankConfig(void** out, int world, fake::Id id, int rank,
                                    const std::int32_t* config) {
  if (config[2] != static_cast<std::int32_t>(0xcafebeef) || config[4] != 0) {
    return fake::told(fake::kInvalidArgument, "the configuration is not one without waits");
  }
  if (fake::is_meant(rank) && fake::script_says("init=hang")) fake::hang();
  const std::lock_guard lock(fake::World::get().mutex);
  auto own = std::make_unique<fake::Communicator>();
  own->folder = id.folder;
  own->rank = rank;
  own->world = world;
  own->device = current_device();
  if (own->device < 0) return fake::told(fake::kInvalidUsage, "no context is current");
  const int code = fake::failure("ncclCommInitRankConfig", rank);
  if (code != 0) return fake::told(code, "init fails by script");
  if (!(fake::is_meant(rank) && fake::script_says("init=never"))) {
    fake::write_file(own->place("init", rank), {fake::bus_of(own->device)});
  }
  *out = own.get();
  fake::communicators.push_back(std::move(own));
  ++fake::living;
  return fake::kBusy;
}

EXPORTED int ncclCommGetAsyncError(fake::Communicator* own, int* state) {
  const std::lock_guard lock(fake::World::get().mutex);
  if (const int code = fake::failure("ncclCommGetAsyncError", own->rank); code != 0) return code;
  if (own->aborted) return fake::kInvalidArgument;
  *state = own->error;
  if (own->error != 0) return fake::kDone;
  if (!own->met) {
    *state = fake::meet(*own);
    return fake::kDone;
  }
  const bool is_meant = fake::is_meant(own->rank);
  const char* const script = std::getenv("FAKE_CUDA");
  const char* const async = script == nullptr ? nullptr : std::strstr(script, "async=");
  if (is_meant && async != nullptr &&
      own->groups >= std::strtoull(async + std::strlen("async="), nullptr, 10)) {
    *state = own->error = std::atoi(std::strchr(async, ':') + 1);
    fake::last_error = "a link is down by script";
    return fake::kDone;
  }
  if (own->waiting.empty()) return fake::kDone;
  *state = fake::kBusy;
  if (is_meant && fake::script_says("launch=never")) return fake::kDone;
  if (++own->looks < 2) return fake::kDone;
  for (const auto& [calls, stream] : own->waiting) fake::queue_group(*own, calls, stream);
  own->waiting.clear();
  *state = fake::kDone;
  return fake::kDone;
}

EXPORTED int ncclGroupStart() {
  ++fake::depth;
  return fake::kDone;
}

EXPORTED int ncclGroupEnd() {
  const std::lock_guard lock(fake::World::get().mutex);
  if (--fake::depth > 0) return fake::kDone;
  const auto all = std::exchange(fake::grouped, {});
  if (all.empty()) return fake::kDone;
  fake::Communicator* const own = all[0].first;
  if (const int code = fake::failure("ncclGroupEnd", own->rank); code != 0) return code;
  std::vector<fake::Call> calls;
  for (const auto& each : all) calls.push_back(each.second.first);
  own->waiting.push_back({calls, all[0].second.second});
  own->looks = 0;
  return fake::kBusy;
}

EXPORTED int ncclAllReduce(const void* send, void* receive, size_t count, int type, int reduction,
                           fake::Communicator* own, void* stream) {
  return fake::add(own, "ncclAllReduce",
                   {fake::kAllReduce, type, reduction, 0, count, send, receive}, stream);
}

EXPORTED int ncclReduceScatter(const void* send, void* receive, size_t count, int type,
                               int reduction, fake::Communicator* own, void* stream) {
  return fake::add(own, "ncclReduceScatter",
                   {fake::kReduceScatter, type, reduction, 0, count, send, receive}, stream);
}

EXPORTED int ncclAllGather(const void* send, void* receive, size_t count, int type,
                           fake::Communicator* own, void* stream) {
  return fake::add(own, "ncclAllGather", {fake::kAllGather, type, 0, 0, count, send, receive},
                   stream);
}

EXPORTED int ncclBroadcast(const void* send, void* receive, size_t count, int type, int root,
                           fake::Communicator* own, void* stream) {
  return fake::add(own, "ncclBroadcast", {fake::kBroadcast, type, 0, root, count, send, receive},
                   stream);
}

EXPORTED int ncclSend(const void* send, size_t count, int type, int peer, fake::Communicator* own,
                      void* stream) {
  return fake::add(own, "ncclSend", {fake::kSend, type, 0, peer, count, send, nullptr}, stream);
}

EXPORTED int ncclRecv(void* receive, size_t count, int type, int peer, fake::Communicator* own,
                      void* stream) {
  return fake::add(own, "ncclRecv", {fake::kReceive, type, 0, peer, count, nullptr, receive},
                   stream);
}

EXPORTED int ncclCommFinalize(fake::Communicator* own) {
  if (fake::is_meant(own->rank) && fake::script_says("finalize=hang")) fake::hang();
  const std::lock_guard lock(fake::World::get().mutex);
  if (const int code = fake::failure("ncclCommFinalize", own->rank); code != 0) return code;
  own->finalized = true;
  return fake::kBusy;
}

EXPORTED int ncclCommDestroy(fake::Communicator* own) {
  const std::lock_guard lock(fake::World::get().mutex);
  if (const int code = fake::failure("ncclCommDestroy", own->rank); code != 0) return code;
  if (!own->finalized) {
    fake::complain(*own, "a communicator is destroyed that was not finalized");
  }
  own->aborted = true;
  --fake::living;
  return fake::kDone;
}

EXPORTED int ncclCommAbort(fake::Communicator* own) {
  if (fake::is_meant(own->rank) && fake::script_says("abort=hang")) fake::hang();
  const std::lock_guard lock(fake::World::get().mutex);
  if (const int code = fake::failure("ncclCommAbort", own->rank); code != 0) return code;
  own->aborted = true;
  --fake::living;
  return fake::kDone;
}

// ---- for tests: see fake_cuda.h ----

EXPORTED int fake_nccl_count(void) {
  const std::lock_guard lock(fake::World::get().mutex);
  return fake::living;
}
}
