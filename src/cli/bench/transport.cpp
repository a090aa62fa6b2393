#include "cli/bench/transport.hpp"

#include <chrono>
#include <cstring>
#include <utility>

namespace trireme::bench {

Network::Network(int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    End& end = ends_.emplace_back();
    end.network = this;
    end.rank = rank;
  }
}

trireme_transport Network::transport(int rank) {
  trireme_transport transport = TRIREME_TRANSPORT_INIT;
  transport.user_data = &ends_[static_cast<std::size_t>(rank)];
  transport.send = send;
  transport.receive = receive;
  return transport;
}

std::int32_t Network::send(void* end, std::int32_t to, const void* data, std::uint64_t bytes,
                           std::uint64_t) {
  const End& own = *static_cast<End*>(end);
  const auto* const begin = static_cast<const std::byte*>(data);
  Frame frame{own.rank, {begin, begin + bytes}};
  End& other = own.network->ends_[static_cast<std::size_t>(to)];
  const std::lock_guard lock(other.mutex);
  other.frames.push_back(std::move(frame));
  other.arrived.notify_one();
  return TRIREME_OK;
}

std::int32_t Network::receive(void* end, std::int32_t* from, void* data, std::uint64_t capacity,
                              std::uint64_t* bytes, std::uint64_t timeout_ns) {
  End& own = *static_cast<End*>(end);
  std::unique_lock lock(own.mutex);
  const auto patience = std::chrono::nanoseconds(timeout_ns);
  if (!own.arrived.wait_for(lock, patience, [&] { return !own.frames.empty(); })) {
    return TRIREME_ERROR_TIMEOUT;
  }
  const Frame& frame = own.frames.front();
  if (frame.bytes.size() > capacity) return TRIREME_ERROR_CORRUPT;
  std::memcpy(data, frame.bytes.data(), frame.bytes.size());
  *bytes = frame.bytes.size();
  *from = frame.from;
  own.frames.pop_front();
  return TRIREME_OK;
}

}  // namespace trireme::bench
