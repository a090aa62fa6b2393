// CallersTransport: the transport that the caller gave. An exception of its functions becomes a
// result. Any thread, as far as these functions allow.
#pragma once

#include <trireme/transport.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trireme::host {

class CallersTransport {
 public:
  explicit CallersTransport(const trireme_transport& transport) : transport_(transport) {}

  // The longest frame, in both directions.
  std::uint64_t frame_bytes() const;
  // Returns the transport's result, or CALLBACK if it throws.
  std::int32_t send(int rank, const std::vector<std::byte>& frame,
                    std::uint64_t timeout_ns) noexcept;
  std::int32_t receive(std::int32_t* from, std::vector<std::byte>* frame, std::uint64_t* bytes,
                       std::uint64_t timeout_ns) noexcept;
  // No further call follows.
  void release() noexcept;

 private:
  const trireme_transport transport_;
};

}  // namespace trireme::host
