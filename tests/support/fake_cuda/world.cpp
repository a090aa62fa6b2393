#include "fake_cuda/world.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace fake {
namespace {

constexpr int kLaunchFailed = 719;
constexpr int kMostQuestions = 6;

const char* word_of_script(const char* key) {
  const char* const script = std::getenv("FAKE_CUDA");
  const char* const found = script == nullptr ? nullptr : std::strstr(script, key);
  return found == nullptr ? nullptr : found + std::strlen(key);
}

void join(Clock* to, const Clock& from) {
  for (const auto& [stream, number] : from) {
    std::uint64_t& mine = (*to)[stream];
    mine = std::max(mine, number);
  }
}

std::string place_of(const Area& area, std::size_t from, std::size_t to) {
  return "bytes " + std::to_string(from) + " to " + std::to_string(to) + " of " +
         (area.pinned ? "pinned" : "device") + " memory of " + std::to_string(area.bytes);
}

std::string name_of(const std::string& name, int stream) {
  return name + " in stream " + std::to_string(stream);
}

}  // namespace

World& World::get() {
  static World* const world = new World;  // it outlives exit handlers
  return *world;
}

World::World() {
  const char* const mode = word_of_script("mode=");
  if (mode == nullptr || std::strncmp(mode, "eager", 5) == 0) return;
  if (std::strncmp(mode, "seeded:", 7) == 0) {
    mode_ = Mode::seeded;
    random_ = std::strtoull(mode + 7, nullptr, 10) * 2 + 1;
  } else {
    mode_ = Mode::lazy;
  }
}

std::uint64_t World::random() {
  random_ = random_ * 6364136223846793005u + 1442695040888963407u;
  return random_ >> 33;
}

void World::complain(const std::string& text) {
  if (!complaint_.empty()) return;
  complaint_ = text;
  sticky_ = kLaunchFailed;
  if (word_of_script("quiet=1") == nullptr) std::fprintf(stderr, "fake CUDA: %s\n", text.c_str());
}

void World::count_submission() {
  const char* const word = word_of_script("sticky=");
  ++submissions_;
  if (word == nullptr || sticky_ != 0) return;
  char* end = nullptr;
  const std::uint64_t least = std::strtoull(word, &end, 10);
  if (submissions_ > least && *end == ':') sticky_ = std::atoi(end + 1);
}

Stream* World::add_stream(int device, void* context) {
  auto stream = std::make_unique<Stream>();
  stream->id = next_stream_++;
  stream->device = device;
  stream->context = context;
  ++live_streams;
  streams_.push_back(std::move(stream));
  return streams_.back().get();
}

Stream* World::stream_of(void* handle, int device, void* context) {
  if (reinterpret_cast<std::uintptr_t>(handle) <= 2) {  // null, legacy, per thread: one each
    for (const auto& stream : streams_) {
      if (stream->id == -1 - device) return stream.get();
    }
    Stream* const stream = add_stream(device, context);
    stream->id = -1 - device;
    --live_streams;
    return stream;
  }
  for (const auto& stream : streams_) {
    if (stream.get() != handle) continue;
    if (stream->ended) return nullptr;
    if (stream->destroyed) complain("a stream is used after its end");
    return stream.get();
  }
  return nullptr;
}

Event* World::add_event(int device) {
  events_.push_back(std::make_unique<Event>());
  events_.back()->device = device;
  ++live_events;
  return events_.back().get();
}

Event* World::event_of(void* handle) {
  for (const auto& event : events_) {
    if (event.get() != handle) continue;
    if (event->destroyed) complain("an event is used after its end");
    return event.get();
  }
  return nullptr;
}

void World::end(void* handle) {
  for (const auto& stream : streams_) {
    if (stream.get() != handle) continue;
    if (stream->last != nullptr) run(stream->last);
    stream->ended = true;
    --live_streams;
  }
}

void World::destroy(Stream* stream) {
  stream->destroyed = true;
  --live_streams;
}

void World::destroy(Event* event) {
  event->destroyed = true;
  --live_events;
}

// ---- order ----

void World::submit(Stream* stream, std::string name, bool is_kernel,
                   std::function<void(Access&)> body, std::vector<std::shared_ptr<Op>> waits_for) {
  if (pending_.empty()) {  // all operations to come follow those that the host has seen done
    for (Area* const area : used_) {
      std::erase_if(area->uses, [this](const Use& use) { return is_before(use, host_); });
    }
    std::erase_if(used_, [](const Area* area) { return area->uses.empty(); });
  }
  auto op = std::make_shared<Op>();
  op->name = std::move(name);
  op->body = std::move(body);
  op->queue = stream;
  op->stream = stream->id;
  op->device = stream->device;
  op->is_kernel = is_kernel;
  join(&stream->clock, host_);
  op->number = ++stream->clock[stream->id];
  op->clock = stream->clock;
  op->before = stream->last;
  op->waits_for = std::move(waits_for);
  stream->last = op;
  pending_.push_back(op);
  if (mode_ == Mode::eager && word_of_script("stall=1") == nullptr) run(op);
  if (mode_ == Mode::seeded) run_some();
}

void World::submit_when(Stream* stream, std::string name, std::function<bool()> ready,
                        std::function<void(Access&)> body) {
  // Nothing runs it while it is being submitted: it is made ready only below.
  const Mode mode = std::exchange(mode_, Mode::lazy);
  submit(stream, std::move(name), true, std::move(body));
  mode_ = mode;
  stream->last->ready = std::move(ready);
  ++unready_;
}

void World::record(Event* event, Stream* stream) {
  submit(stream, "record", false, [](Access&) {});
  event->op = stream->last;
}

void World::wait(Stream* stream, Event* event) {
  if (event->op == nullptr) return;  // never recorded: done
  join(&stream->clock, event->op->clock);
  // In the order of submission an event's operation comes first, so nothing waits in a circle.
  submit(stream, "wait", false, [](Access&) {}, {event->op});
}

void World::hold(Stream* stream, bool on) {
  held_streams_ += static_cast<int>(on) - static_cast<int>(stream->held);
  stream->held = on;
}

void World::release_all() {
  for (const auto& stream : streams_) hold(stream.get(), false);
}

bool World::is_held(const Op& op) const {
  if ((held_streams_ == 0 && unready_ == 0) || op.done) return false;
  return op.queue->held || (op.ready != nullptr && !op.ready()) ||
         (op.before != nullptr && is_held(*op.before)) ||
         std::any_of(op.waits_for.begin(), op.waits_for.end(),
                     [this](const auto& other) { return is_held(*other); });
}

void World::run(const std::shared_ptr<Op>& op) {
  if (op->done) return;
  if (is_held(*op)) {  // what comes before it may make it ready
    if (op->before != nullptr) run(op->before);
    for (const auto& other : std::vector(op->waits_for)) run(other);
    if (is_held(*op)) return;
  }
  if (op->ready != nullptr) --unready_;
  op->ready = nullptr;
  op->done = true;
  if (op->before != nullptr) run(op->before);
  for (const auto& other : op->waits_for) run(other);
  Access access(*op);
  if (sticky_ == 0) op->body(access);
  op->body = nullptr;
  op->before = nullptr;
  op->waits_for.clear();
  pending_.erase(std::find(pending_.begin(), pending_.end(), op));
}

void World::run_some() {
  if (word_of_script("stall=1") != nullptr) return;
  for (std::uint64_t left = random() % 3; left > 0 && !pending_.empty(); --left) {
    const std::shared_ptr<Op> op = pending_[random() % pending_.size()];
    run(op);
  }
}

bool World::query(Event* event) {
  if (event->op == nullptr) return true;
  const std::shared_ptr<Op> op = event->op;
  if (word_of_script("stall=1") != nullptr) return op->done;
  const bool patient = op->asked++ < kMostQuestions;
  if (mode_ == Mode::lazy && op->asked < 3) return false;
  if (mode_ == Mode::seeded && patient) run_some();
  if (mode_ != Mode::seeded || !patient) run(op);
  if (op->done) join(&host_, op->clock);
  return op->done;
}

void World::synchronize(Stream* stream) {
  for (const auto& each : streams_) {
    if ((stream != nullptr && each.get() != stream) || each->last == nullptr) continue;
    run(each->last);
    if (!each->last->done) complain("the host waits for a stream that a test holds");
    join(&host_, each->last->clock);
  }
}

// ---- memory ----

Area* World::add_area(std::uintptr_t first, std::size_t bytes, char* alias, int device,
                      bool pinned) {
  auto area = std::make_unique<Area>();
  area->first = first;
  area->bytes = bytes;
  area->alias = alias;
  area->device = device;
  area->pinned = pinned;
  area->accessible = pinned;
  area->live = true;
  std::memset(alias, 0xff, bytes);  // NaN in every format
  std::unique_ptr<Area>& slot = areas_[first];
  slot = std::move(area);
  return slot.get();
}

Area* World::area_of(std::uintptr_t address) {
  auto found = areas_.upper_bound(address);
  if (found == areas_.begin()) return nullptr;
  Area* const area = std::prev(found)->second.get();
  return address - area->first < area->bytes ? area : nullptr;
}

bool World::is_before(const Use& earlier, const Clock& clock) const {
  const auto found = clock.find(earlier.stream);
  return found != clock.end() && found->second >= earlier.number;
}

void World::note(Area* area, const Use& use) {
  for (const Use& other : area->uses) {
    if (other.to <= use.from || use.to <= other.from || !(other.writes || use.writes)) continue;
    if (is_before(other, use.clock) || is_before(use, other.clock)) continue;
    complain("a race: " + name_of(use.name, use.stream) + (use.writes ? " writes" : " reads") +
             " what " + name_of(other.name, other.stream) + (other.writes ? " writes" : " reads") +
             ": " + place_of(*area, use.from, use.to));
    return;
  }
  if (use.writes) {
    std::erase_if(area->uses, [&](const Use& other) {
      return use.from <= other.from && other.to <= use.to && is_before(other, use.clock);
    });
  }
  if (area->uses.empty()) used_.insert(area);
  area->uses.push_back(use);
}

void* Access::use(const void* address, std::size_t bytes, bool writes) {
  if (bytes == 0) return const_cast<void*>(address);
  World& world = World::get();
  const auto first = reinterpret_cast<std::uintptr_t>(address);
  Area* const area = world.area_of(first);
  const std::string who = name_of(op_.name, op_.stream) + (writes ? " writes " : " reads ");
  if (area == nullptr || !area->accessible) {
    world.complain(who + "what is no memory that a device reaches");
    return nullptr;
  }
  const std::size_t from = first - area->first;
  if (!area->live) {
    world.complain(who + "freed memory: " + place_of(*area, from, from + bytes));
    return nullptr;
  }
  if (bytes > area->bytes - from) {
    world.complain(who + "beyond the end: " + place_of(*area, from, from + bytes));
    return nullptr;
  }
  if (op_.is_kernel && !area->pinned && area->device != op_.device) {
    world.complain(who + "memory of another device: " + place_of(*area, from, from + bytes));
    return nullptr;
  }
  world.note(area, {from, from + bytes, writes, op_.stream, op_.number, op_.clock, op_.name});
  return area->alias + from;
}

void World::free_area(Area* area, const char* function) {
  for (const auto& op : pending_) {
    if (op->device != area->device || !is_held(*op)) continue;
    complain(std::string(function) + " waits for " + name_of(op->name, op->stream) +
             ", which stands still");
    break;
  }
  for (const Use& use : area->uses) {
    if (is_before(use, host_)) continue;
    complain("a race: " + std::string(function) + " frees what " + name_of(use.name, use.stream) +
             " may still use: " + place_of(*area, use.from, use.to));
  }
  area->live = false;
  std::memset(area->alias, 0xff, area->bytes);
  // Quarantine: no other memory comes here, and the host dies if it follows the address.
  if (area->pinned) {
    mprotect(area->alias, area->bytes, PROT_NONE);
  } else {
    munmap(area->alias, area->bytes);
  }
  area->alias = nullptr;
  area->uses.clear();
  used_.erase(area);
}

}  // namespace fake
