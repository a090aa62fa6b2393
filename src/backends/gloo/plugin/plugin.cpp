// Gloo's algorithms over a transport of the library: Gloo gets no device, opens no socket and has
// no thread. Its exceptions end here.
#include "backends/gloo/plugin.hpp"

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/context.h>
#include <gloo/reduce.h>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/unbound_buffer.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <deque>
#include <memory>
#include <new>
#include <stdexcept>

namespace trireme::gloo {
namespace {

using std::chrono::milliseconds;

// The library keeps the deadlines.
constexpr milliseconds kNever{std::chrono::hours{24 * 365}};

// Leaves Gloo when a service refuses; the library knows why.
struct Stopped {};

struct Place {
  const Services* services = nullptr;
  Run* run = nullptr;  // the one under way
};

// Memory that Gloo has named, with its transfers under way. Pieces are waited for in the order in
// which they began: Gloo does not say which transfer it waits for, so the order must not matter.
class Buffer final : public ::gloo::transport::UnboundBuffer {
 public:
  Buffer(const Place& place, void* data, std::size_t bytes)
      : UnboundBuffer(data, bytes), place_(place) {}
  ~Buffer() override {
    for (auto* const under_way : {&sends_, &receives_}) {
      for (const UnderWay& each : *under_way) place_.services->drop(place_.run, each.transfer);
    }
  }

  void send(int member, std::uint64_t slot, std::size_t offset, std::size_t bytes) override {
    const std::size_t length = length_of(offset, bytes);
    keep(&sends_, member,
         place_.services->send(place_.run, member, slot, static_cast<const char*>(ptr) + offset,
                               length));
  }
  void recv(int member, std::uint64_t slot, std::size_t offset, std::size_t bytes) override {
    const std::size_t length = length_of(offset, bytes);
    keep(&receives_, member,
         place_.services->receive(place_.run, member, slot, static_cast<char*>(ptr) + offset,
                                  length));
  }
  void recv(std::vector<int> members, std::uint64_t slot, std::size_t offset,
            std::size_t bytes) override {
    if (members.size() != 1) throw std::logic_error("Gloo receives from any of several ranks");
    recv(members[0], slot, offset, bytes);
  }
  bool waitSend(int* member, milliseconds) override { return wait(&sends_, member); }
  bool waitRecv(int* member, milliseconds) override { return wait(&receives_, member); }
  // The library's services end a collective instead.
  void abortWaitRecv() override {}
  void abortWaitSend() override {}

 private:
  struct UnderWay {
    Transfer* transfer;
    int member;
  };

  std::size_t length_of(std::size_t offset, std::size_t bytes) const {
    if (offset > size) throw std::logic_error("Gloo leaves a buffer");
    if (bytes == kUnspecifiedByteCount) return size - offset;
    if (bytes > size - offset) throw std::logic_error("Gloo leaves a buffer");
    return bytes;
  }
  void keep(std::deque<UnderWay>* where, int member, Transfer* transfer) {
    if (transfer == nullptr) throw Stopped{};
    try {
      where->push_back({transfer, member});
    } catch (...) {
      place_.services->drop(place_.run, transfer);
      throw;
    }
  }
  bool wait(std::deque<UnderWay>* where, int* member) {
    if (where->empty()) throw std::logic_error("Gloo waits for nothing");
    const UnderWay first = where->front();
    if (!place_.services->wait(place_.run, first.transfer)) throw Stopped{};
    where->pop_front();
    place_.services->drop(place_.run, first.transfer);
    if (member != nullptr) *member = first.member;
    return true;
  }

  const Place& place_;
  std::deque<UnderWay> sends_;
  std::deque<UnderWay> receives_;
};

// Gloo checks that each peer has one. Its algorithms use only buffers.
class Pair final : public ::gloo::transport::Pair {
 public:
  const ::gloo::transport::Address& address() const override { unused(); }
  void connect(const std::vector<char>&) override { unused(); }
  void close() override {}
  void setSync(bool, bool) override { unused(); }
  std::unique_ptr<::gloo::transport::Buffer> createSendBuffer(int, void*, std::size_t) override {
    unused();
  }
  std::unique_ptr<::gloo::transport::Buffer> createRecvBuffer(int, void*, std::size_t) override {
    unused();
  }
  void send(::gloo::transport::UnboundBuffer*, std::uint64_t, std::size_t, std::size_t) override {
    unused();
  }
  void recv(::gloo::transport::UnboundBuffer*, std::uint64_t, std::size_t, std::size_t) override {
    unused();
  }

 private:
  [[noreturn]] static void unused() { throw std::logic_error("Gloo uses a pair"); }
};

class Transport final : public ::gloo::transport::Context {
 public:
  Transport(int member, int members, const Place& place) : Context(member, members), place_(place) {
    pairs_.resize(static_cast<std::size_t>(members));
    for (auto& pair : pairs_) pair = std::make_unique<Pair>();
  }
  std::unique_ptr<::gloo::transport::Pair>& createPair(int) override {
    throw std::logic_error("Gloo asks for a pair");
  }
  std::unique_ptr<::gloo::transport::UnboundBuffer> createUnboundBuffer(
      void* data, std::size_t bytes) override {
    return std::make_unique<Buffer>(place_, data, bytes);
  }

 private:
  const Place& place_;
};

// The context of one channel.
class Context final : public ::gloo::Context {
 public:
  Context(int member, int members, const Services* services) : ::gloo::Context(member, members) {
    place.services = services;
    transportContext_ = std::make_shared<Transport>(member, members, place);
    setTimeout(kNever);
  }
  Place place;
};

template <class Element, class Options>
void give_elements(Options* options, const Call& call, Run* run, const Services* services) {
  const auto count = static_cast<std::size_t>(call.count);
  if (call.send != nullptr) {
    options->setInput(static_cast<Element*>(const_cast<void*>(call.send)), count);
  }
  options->setOutput(static_cast<Element*>(call.receive), count);
  options->setReduceFunction(
      [run, services](void* out, const void* one, const void* other, std::size_t elements) {
        services->combine(run, out, one, other, elements);
      });
}

// Gloo wants a type, but only its size matters.
template <class Options>
void fill_options(Options* options, const Call& call, Run* run, const Services* services) {
  switch (call.element_bytes) {
    case 1: return give_elements<std::uint8_t>(options, call, run, services);
    case 2: return give_elements<std::uint16_t>(options, call, run, services);
    case 4: return give_elements<std::uint32_t>(options, call, run, services);
    case 8: return give_elements<std::uint64_t>(options, call, run, services);
    default: throw std::logic_error("an element of no size that is known");
  }
}

void move(const std::shared_ptr<Context>& context, const Call& call, Run* run) {
  const Services* const services = context->place.services;
  const auto bytes = static_cast<std::size_t>(call.count);
  const auto size = static_cast<std::size_t>(context->size);
  auto* const send = static_cast<char*>(const_cast<void*>(call.send));
  auto* const receive = static_cast<char*>(call.receive);
  switch (call.kind) {
    case OperationKind::all_reduce: {
      ::gloo::AllreduceOptions options(context);
      fill_options(&options, call, run, services);
      return ::gloo::allreduce(options);
    }
    case OperationKind::reduce: {
      ::gloo::ReduceOptions options(context);
      fill_options(&options, call, run, services);
      options.setRoot(call.root);
      return ::gloo::reduce(options);
    }
    case OperationKind::all_gather: {
      ::gloo::AllgatherOptions options(context);
      if (send != nullptr) options.setInput(send, bytes);
      options.setOutput(receive, bytes * size);
      return ::gloo::allgather(options);
    }
    case OperationKind::all_to_all: {
      ::gloo::AlltoallOptions options(context);
      options.setInput(send, bytes * size);
      options.setOutput(receive, bytes * size);
      return ::gloo::alltoall(options);
    }
    case OperationKind::broadcast: {
      ::gloo::BroadcastOptions options(context);
      options.setOutput(receive, bytes);
      options.setRoot(call.root);
      return ::gloo::broadcast(options);
    }
    case OperationKind::barrier: {
      ::gloo::BarrierOptions options(context);
      return ::gloo::barrier(options);
    }
    default: throw std::logic_error("Gloo has no such collective");
  }
}

}  // namespace

struct Group {
  const int member;
  const int size;
  const Services* const services;
  // The first call in a channel makes its context; there is one call at a time.
  std::array<std::shared_ptr<Context>, kChannels> contexts;
};

namespace {

Group* open(int member, int size, const Services* services) noexcept {
  try {
    return new Group{member, size, services, {}};
  } catch (...) {
    return nullptr;
  }
}

State run(Group* group, const Call& call, Run* run, char* error) noexcept {
  std::shared_ptr<Context>& context = group->contexts[call.channel];
  try {
    if (context == nullptr) {
      context = std::make_shared<Context>(group->member, group->size, group->services);
    }
    context->place.run = run;
    move(context, call, run);
    return State::done;
  } catch (const Stopped&) {
    return State::stopped;
  } catch (const std::bad_alloc&) {
    return State::no_memory;
  } catch (const std::exception& failure) {
    std::snprintf(error, kErrorBytes, "%s", failure.what());
  } catch (...) {
    std::snprintf(error, kErrorBytes, "something unknown was thrown");
  }
  return State::failed;
}

void close(Group* group) noexcept { delete group; }

constexpr Plugin kPlugin{{kPluginVersion, TRIREME_VERSION, sizeof(Plugin)}, open, run, close};

}  // namespace
}  // namespace trireme::gloo

extern "C" __attribute__((visibility("default"))) const trireme::PluginHead* trireme_gloo_plugin() {
  return &trireme::gloo::kPlugin.head;
}
