// The fake driver's devices: memory, streams, events, and the order of all uses of memory.
//
// An operation waits in its stream until the mode runs it. Vector clocks know which operations are
// in order, whatever the mode runs first. The first mistake of a caller becomes the complaint of
// the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace fake {

// Number of operations of each stream that came before.
using Clock = std::map<int, std::uint64_t>;

struct Op;
struct Stream;

// One use of memory by an operation that has run.
struct Use {
  std::size_t from, to;
  bool writes;
  int stream;
  std::uint64_t number;
  Clock clock;
  std::string name;
};

struct Area {
  std::uintptr_t first = 0;
  std::size_t bytes = 0;
  char* alias = nullptr;  // where kernels find it
  int device = 0;
  bool pinned = false;  // the host reads and writes it, too
  bool accessible = false, live = false;
  std::vector<Use> uses;
};

// An operation's way to memory while it runs.
class Access {
 public:
  explicit Access(const Op& op) : op_(op) {}
  // Both return where the memory lies for the host, or null after a complaint.
  void* read(const void* address, std::size_t bytes) { return use(address, bytes, false); }
  void* write(const void* address, std::size_t bytes) { return use(address, bytes, true); }
  // As above, and puts that place in the arguments of a kernel. False after a complaint.
  template <class T>
  bool reads(T*& address, std::size_t bytes) {
    return replace(address, bytes, false);
  }
  template <class T>
  bool writes(T*& address, std::size_t bytes) {
    return replace(address, bytes, true);
  }

 private:
  template <class T>
  bool replace(T*& address, std::size_t bytes, bool writing) {
    if (bytes == 0) return true;
    void* const alias = use(address, bytes, writing);
    address = static_cast<T*>(alias);
    return alias != nullptr;
  }
  void* use(const void* address, std::size_t bytes, bool writes);

  const Op& op_;
};

struct Op {
  std::string name;
  std::function<void(Access&)> body;
  const Stream* queue = nullptr;
  int stream = 0, device = 0;
  bool is_kernel = false;  // reaches memory of its own device and pinned memory alone
  std::uint64_t number = 0;
  Clock clock;
  std::shared_ptr<Op> before;                  // in the same stream
  std::vector<std::shared_ptr<Op>> waits_for;  // of other streams
  std::function<bool()> ready;                 // null, or whether it may begin
  bool done = false;
  int asked = 0;
};

struct Stream {
  int id = 0, device = 0;
  void* context = nullptr;
  bool destroyed = false, ended = false, capturing = false, held = false;
  std::shared_ptr<Op> last;
  Clock clock;
};

struct Event {
  int device = 0;
  bool destroyed = false;
  std::shared_ptr<Op> op;  // null before the first record
};

// All of it, under one lock.
class World {
 public:
  static World& get();

  std::recursive_mutex mutex;

  Stream* add_stream(int device, void* context);
  // The stream of a handle; null is the default stream of the device. Complains about a stale one.
  Stream* stream_of(void* handle, int device, void* context);
  Event* add_event(int device);
  Event* event_of(void* handle);
  void destroy(Stream* stream);
  // Of a caller: from then on no handle is its.
  void end(void* handle);
  void destroy(Event* event);

  void submit(Stream* stream, std::string name, bool is_kernel, std::function<void(Access&)> body,
              std::vector<std::shared_ptr<Op>> waits_for = {});
  // The same, but it does not begin before `ready`, which is not asked again once it is true.
  void submit_when(Stream* stream, std::string name, std::function<bool()> ready,
                   std::function<void(Access&)> body);
  void record(Event* event, Stream* stream);
  void wait(Stream* stream, Event* event);
  void hold(Stream* stream, bool on);
  void release_all();
  // Whether the host now knows that the event is done.
  bool query(Event* event);
  // Runs all that was submitted to a stream, and the host knows it. All streams for null.
  void synchronize(Stream* stream);

  // Memory of a device at a place that is reserved, or pinned memory at a place of its own.
  Area* add_area(std::uintptr_t first, std::size_t bytes, char* alias, int device, bool pinned);
  Area* area_of(std::uintptr_t address);
  // The host frees it: nothing may be using it.
  void free_area(Area* area, const char* function);
  void complain(const std::string& text);
  const std::string& complaint() const { return complaint_; }
  // Code that every call answers from now on, or 0.
  int sticky() const { return sticky_; }
  void count_submission();
  int live_streams = 0, live_events = 0, live_handles = 0, live_reservations = 0, live_pinned = 0;

 private:
  friend class Access;
  World();
  void run(const std::shared_ptr<Op>& op);
  void run_some();
  // Whether a held stream, or one that is not ready, keeps the operation from its begin.
  bool is_held(const Op& op) const;
  void note(Area* area, const Use& use);
  bool is_before(const Use& earlier, const Clock& clock) const;
  std::uint64_t random();

  enum class Mode { eager, lazy, seeded } mode_ = Mode::eager;
  bool stalls_ = false;
  std::uint64_t random_ = 0;
  std::uint64_t submissions_ = 0;
  int sticky_ = 0;
  std::string complaint_;
  Clock host_;
  int next_stream_ = 1, held_streams_ = 0, unready_ = 0;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<std::unique_ptr<Event>> events_;
  std::map<std::uintptr_t, std::unique_ptr<Area>> areas_;
  std::set<Area*> used_;  // those that have uses
  std::deque<std::shared_ptr<Op>> pending_;
};

// While a test finishes, ranks of NCCL wait for no other.
void finish_nccl(bool begins);

// The kernel of that name, or -1.
int find_kernel(const std::string& name);
std::size_t kernel_args(int kernel);
const char* kernel_name(int kernel);
// Runs a kernel over copies of its arguments, whose addresses it looks up.
void run_kernel(int kernel, std::vector<std::byte> args, std::uint32_t blocks,
                std::uint32_t threads, Access& access);

}  // namespace fake
