#include "backends/frames/callers_transport.hpp"

#include <algorithm>

#include "platform/status.hpp"

namespace trireme::host {
namespace {

constexpr std::uint64_t kDefaultFrameBytes = 65'536;
constexpr std::uint64_t kMostFrameBytes = 1u << 20;

}  // namespace

std::uint64_t CallersTransport::frame_bytes() const {
  const std::uint64_t most = transport_.maximum_frame_bytes;
  return most == 0 ? kDefaultFrameBytes : std::min(most, kMostFrameBytes);
}

std::int32_t CallersTransport::send(int rank, const std::vector<std::byte>& frame,
                                    std::uint64_t timeout_ns) noexcept {
  try {
    return transport_.send(transport_.user_data, rank, frame.data(), frame.size(), timeout_ns);
  } catch (...) {
    return TRIREME_ERROR_CALLBACK;
  }
}

std::int32_t CallersTransport::receive(std::int32_t* from, std::vector<std::byte>* frame,
                                       std::uint64_t* bytes, std::uint64_t timeout_ns) noexcept {
  try {
    return transport_.receive(transport_.user_data, from, frame->data(), frame->size(), bytes,
                              timeout_ns);
  } catch (...) {
    return TRIREME_ERROR_CALLBACK;
  }
}

void CallersTransport::release() noexcept {
  if (transport_.released == nullptr) return;
  try {
    transport_.released(transport_.user_data);
  } catch (...) {  // no thread is left to tell
  }
}

}  // namespace trireme::host
