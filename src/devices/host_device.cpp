// The host as a device: its work is done when the call returns.
#include <cstring>
#include <new>

#include "devices/device.hpp"
#include "kernels/exact_sum.hpp"
#include "kernels/reduce.hpp"

namespace trireme::devices {
namespace {

class HostBlock final : public Block {
 public:
  explicit HostBlock(std::uint64_t bytes)
      : data_(::operator new (bytes, std::align_val_t{kAlignment})) {}
  ~HostBlock() override { ::operator delete (data_, std::align_val_t{kAlignment}); }
  void* data() const override { return data_; }

 private:
  static constexpr std::size_t kAlignment = 4096;
  void* const data_;
};

class HostEvent final : public Event {
 public:
  Status ask(bool* out_done) override {
    *out_done = true;
    return Status::success();
  }
};

class HostStream final : public Stream {
 public:
  Status copy(void* to, const void* from, std::uint64_t bytes) override {
    kernels::copy(to, from, bytes);
    return Status::success();
  }
  Status fill(void* to, unsigned char value, std::uint64_t bytes) override {
    if (bytes != 0) std::memset(to, value, bytes);
    return Status::success();
  }
  Status reduce(const Reduction& call) override {
    kernels::reduce(call.dtype, call.reduction, call.to, call.sources, call.source_count,
                    call.count, call.divisor, call.scale);
    return Status::success();
  }
  Status update(const Update& call) override {
    kernels::update(call.rule, call.dtype, call.parameters, call.gradients, call.states, call.count,
                    call.step, call.learning_rate, call.gradient_scale, call.random);
    return Status::success();
  }
  Status lamb_direction(const LambDirection& call) override {
    kernels::lamb_direction(call.rule, call.dtype, call.parameters, call.gradients, call.states,
                            call.count, call.step, call.gradient_scale);
    return Status::success();
  }
  Status measure(trireme_dtype dtype, const void* values, std::uint64_t count,
                 std::int64_t* sum) override {
    kernels::ExactSum squares;
    squares.add_squares(dtype, values, count);
    for (const std::int64_t digit : squares.digits) *sum++ += digit;
    *sum += squares.not_finite;
    return Status::success();
  }
  Status cast(Cast cast, trireme_dtype narrow, void* to, const void* from,
              std::uint64_t count) override {
    switch (cast) {
      case Cast::widen: kernels::widen(narrow, static_cast<float*>(to), from, count); break;
      case Cast::narrow: kernels::narrow(narrow, to, static_cast<const float*>(from), count); break;
      case Cast::adopt: kernels::adopt(narrow, static_cast<float*>(to), from, count); break;
    }
    return Status::success();
  }
  Status record(Event&) override { return Status::success(); }
  Status wait(Event&) override { return Status::success(); }
};

class HostDevice final : public Device {
 public:
  Place place() const override { return {}; }
  Status allocate(std::uint64_t bytes, std::unique_ptr<Block>* out) override {
    try {
      *out = std::make_unique<HostBlock>(bytes);
    } catch (const std::bad_alloc&) {
      return Status::failure(TRIREME_ERROR_OUT_OF_MEMORY,
                             "the host has no " + std::to_string(bytes) + " bytes");
    }
    return Status::success();
  }
  Status pin(std::uint64_t bytes, std::unique_ptr<Block>* out) override {
    return allocate(bytes, out);
  }
  Status create_stream(std::unique_ptr<Stream>* out) override {
    *out = std::make_unique<HostStream>();
    return Status::success();
  }
  Status adopt_stream(void* native, std::unique_ptr<Stream>* out) override {
    if (native != nullptr) return invalid_argument("host memory has no streams");
    return create_stream(out);
  }
  Status create_event(std::unique_ptr<Event>* out) override {
    *out = std::make_unique<HostEvent>();
    return Status::success();
  }
};

}  // namespace

std::shared_ptr<Device> host_device() {
  static std::shared_ptr<Device>& host = *new std::shared_ptr<Device>(new HostDevice);
  return host;
}

}  // namespace trireme::devices
