#include "devices/cuda/device.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "devices/cuda/devices.hpp"
#include "devices/cuda/session.hpp"
#include "kernels/calls.hpp"
#include "kernels/reduce.hpp"
#include "platform/names.hpp"

namespace trireme::cuda {
namespace {

namespace calls = kernels::device;
static_assert(devices::kMostSources == calls::kMostSources);

// A destructor cannot tell that the driver refuses. The driver itself refuses all later calls then.
void ignore(const Status&) {}

class DeviceBlock final : public devices::Block {
 public:
  DeviceBlock(SharedSession session, const DeviceMemory& memory)
      : session_(std::move(session)), memory_(memory) {}
  ~DeviceBlock() override {
    if (!session_->stands_still()) ignore(session_->call(&Plugin::release, &memory_));
  }
  void* data() const override { return memory_.first; }

 private:
  SharedSession session_;
  const DeviceMemory memory_;
};

class PinnedBlock final : public devices::Block {
 public:
  PinnedBlock(SharedSession session, void* data) : session_(std::move(session)), data_(data) {}
  ~PinnedBlock() override {
    if (!session_->stands_still()) ignore(session_->call(&Plugin::unpin, data_));
  }
  void* data() const override { return data_; }

 private:
  SharedSession session_;
  void* const data_;
};

class CudaEvent final : public devices::Event {
 public:
  CudaEvent(SharedSession session, EventWord word) : session_(std::move(session)), word_(word) {}
  ~CudaEvent() override { ignore(session_->call(&Plugin::destroy_event, word_)); }
  Status ask(bool* out_done) override { return session_->call(&Plugin::query, word_, out_done); }
  EventWord word() const { return word_; }

 private:
  SharedSession session_;
  EventWord word_;
};

EventWord word_of(devices::Event& event) { return static_cast<CudaEvent&>(event).word(); }

class CudaStream final : public devices::Stream {
 public:
  CudaStream(SharedSession session, StreamWord word, bool owned)
      : session_(std::move(session)), word_(word), owned_(owned) {}
  ~CudaStream() override {
    if (owned_) ignore(session_->call(&Plugin::destroy_stream, word_));
  }

  Status copy(void* to, const void* from, std::uint64_t bytes) override {
    if (bytes == 0) return Status::success();
    return session_->call(&Plugin::copy, to, from, bytes, word_);
  }
  Status fill(void* to, unsigned char value, std::uint64_t bytes) override {
    if (bytes == 0) return Status::success();
    return session_->call(&Plugin::fill, to, value, bytes, word_);
  }
  Status reduce(const devices::Reduction& call) override;
  Status update(const devices::Update& call) override;
  Status lamb_direction(const devices::LambDirection& call) override;
  Status measure(trireme_dtype dtype, const void* values, std::uint64_t count,
                 std::int64_t* sum) override;
  Status cast(devices::Cast cast, trireme_dtype narrow, void* to, const void* from,
              std::uint64_t count) override;
  Status record(devices::Event& event) override {
    return session_->call(&Plugin::record, word_of(event), word_);
  }
  Status wait(devices::Event& event) override {
    return session_->call(&Plugin::wait, word_, word_of(event));
  }
  StreamWord word() const { return word_; }

 private:
  template <class T>
  Status update_as(const devices::Update& call, calls::Storage storage);
  template <class T>
  Status find_direction(const devices::LambDirection& call, calls::Storage storage);
  // `count`: of elements; each thread does some.
  template <class Args>
  Status launch(const std::string& kernel, const Args& args, std::uint64_t count);

  SharedSession session_;
  StreamWord word_;
  const bool owned_;
};

template <class Args>
Status CudaStream::launch(const std::string& kernel, const Args& args, std::uint64_t count) {
  if (count == 0) return Status::success();
  const auto* const row = std::find_if(std::begin(calls::kKernels), std::end(calls::kKernels),
                                       [&](const auto& each) { return kernel == each.name; });
  if (row == std::end(calls::kKernels)) return unsupported("there is no kernel " + kernel);
  constexpr std::uint64_t kThreads = 256, kMostBlocks = 1 << 12;
  const std::uint64_t blocks = std::min((count + kThreads - 1) / kThreads, kMostBlocks);
  const Grid grid{static_cast<std::uint32_t>(blocks), std::uint32_t{kThreads}};
  const auto number = static_cast<std::uint32_t>(row - calls::kKernels);
  const void* const first = &args;
  return session_->call(&Plugin::launch, number, first, std::uint64_t{sizeof args}, grid, word_);
}

// The arguments of all dtypes lie alike in memory: addresses, and numbers of the same width.
Status CudaStream::reduce(const devices::Reduction& call) {
  if (call.source_count == 0 || call.source_count > devices::kMostSources) {
    return unsupported("a kernel reduces 1 to 256 sources, not " +
                       std::to_string(call.source_count));
  }
  using Args = calls::Reduce<calls::Plain<std::uint8_t>>::Args;
  static_assert(sizeof(Args) == sizeof(calls::Reduce<calls::Plain<double>>::Args));
  Args args{static_cast<std::uint8_t*>(call.to),
            {},
            call.source_count,
            call.reduction,
            call.count,
            call.reduction == TRIREME_REDUCTION_SCALED_SUM ? call.scale : call.divisor};
  for (std::uint32_t k = 0; k < call.source_count; ++k) {
    args.sources[k] = static_cast<const std::uint8_t*>(call.sources[k]);
  }
  const trireme_dtype dtype =
      call.dtype == TRIREME_DTYPE_BYTES ? trireme_dtype{TRIREME_DTYPE_U8} : call.dtype;
  return launch(std::string("reduce_") + dtype_name(dtype), args, call.count);
}

template <class T>
Status CudaStream::update_as(const devices::Update& call, calls::Storage storage) {
  const kernels::RuleTraits& traits = kernels::rule_traits(call.rule.kind);
  kernels::UpdateFactors factors{call.rule, call.gradient_scale, call.learning_rate};
  traits.prepare(&factors, call.step);
  calls::UpdateArgs<T> args{call.parameters,
                            static_cast<const T*>(call.gradients),
                            {},
                            call.count,
                            calls::Factors<T>(factors),
                            call.rule.weight_decay != 0,
                            storage,
                            call.random == nullptr ? 0 : call.random->key,
                            call.random == nullptr ? 0 : call.random->first};
  const int states = kernels::state_count(call.rule);
  for (int i = 0; i < states; ++i) args.states[i] = static_cast<T*>(call.states[i]);
  const std::string name = std::string("update_") + traits.name + "_" +
                           std::to_string(traits.variant(call.rule, call.step)) +
                           (sizeof(T) == 4 ? "_f32" : "_f64");
  return launch(name, args, call.count);
}

Status CudaStream::update(const devices::Update& call) {
  switch (call.dtype) {
    case TRIREME_DTYPE_F64: return update_as<double>(call, calls::Storage::own);
    case TRIREME_DTYPE_F32: return update_as<float>(call, calls::Storage::own);
    case TRIREME_DTYPE_F16: return update_as<float>(call, calls::Storage::f16);
    default: {
      const auto storage =
          call.random == nullptr ? calls::Storage::bf16 : calls::Storage::bf16_by_chance;
      return update_as<float>(call, storage);
    }
  }
}

template <class T>
Status CudaStream::find_direction(const devices::LambDirection& call, calls::Storage storage) {
  kernels::UpdateFactors factors{call.rule, call.gradient_scale, 1};
  kernels::rule_traits(call.rule.kind).prepare(&factors, call.step);
  const typename calls::Direction<T>::Args args{call.parameters,
                                                static_cast<T*>(call.gradients),
                                                static_cast<T*>(call.states[0]),
                                                static_cast<T*>(call.states[1]),
                                                call.count,
                                                calls::Factors<T>(factors),
                                                call.rule.weight_decay != 0,
                                                storage};
  return launch(sizeof(T) == 4 ? "lamb_direction_f32" : "lamb_direction_f64", args, call.count);
}

Status CudaStream::lamb_direction(const devices::LambDirection& call) {
  switch (call.dtype) {
    case TRIREME_DTYPE_F64: return find_direction<double>(call, calls::Storage::own);
    case TRIREME_DTYPE_F32: return find_direction<float>(call, calls::Storage::own);
    case TRIREME_DTYPE_F16: return find_direction<float>(call, calls::Storage::f16);
    default: return find_direction<float>(call, calls::Storage::bf16);
  }
}

// The arguments of all dtypes lie alike: two addresses and the number of elements.
Status CudaStream::measure(trireme_dtype dtype, const void* values, std::uint64_t count,
                           std::int64_t* sum) {
  if (count > devices::kMostMeasured) {
    return unsupported("a kernel measures up to 2^30 elements, not " + std::to_string(count));
  }
  using Args = calls::Measure<calls::Plain<double>>::Args;
  static_assert(sizeof(Args) == sizeof(calls::Measure<calls::F16>::Args));
  const Args args{static_cast<const double*>(values), count, sum};
  return launch(std::string("measure_") + dtype_name(dtype), args, count);
}

// The arguments of all casts lie alike: two addresses and the number of elements.
Status CudaStream::cast(devices::Cast cast, trireme_dtype narrow, void* to, const void* from,
                        std::uint64_t count) {
  using Args = calls::Widen<calls::F16>::Args;
  static_assert(sizeof(Args) == sizeof(calls::Narrow<calls::Bf16>::Args) &&
                sizeof(Args) == sizeof(calls::Adopt<calls::Bf16>::Args));
  const Args args{static_cast<float*>(to), static_cast<const std::uint16_t*>(from), count};
  constexpr const char* kNames[] = {"widen_", "narrow_", "adopt_"};
  return launch(kNames[static_cast<int>(cast)] + std::string(dtype_name(narrow)), args, count);
}

class CudaDevice final : public devices::Device {
 public:
  explicit CudaDevice(SharedSession session) : session_(std::move(session)) {}

  devices::Place place() const override { return {TRIREME_DEVICE_CUDA, session_->index()}; }
  const SharedSession& session() const { return session_; }
  void abandon() const noexcept override { session_->note_standstill(); }
  bool is_abandoned() const noexcept override { return session_->stands_still(); }
  Status allocate(std::uint64_t bytes, std::unique_ptr<devices::Block>* out) override {
    DeviceMemory memory{};
    TRIREME_RETURN_IF_ERROR(session_->call(&Plugin::allocate, bytes, &memory));
    *out = std::make_unique<DeviceBlock>(session_, memory);
    return Status::success();
  }
  Status pin(std::uint64_t bytes, std::unique_ptr<devices::Block>* out) override {
    void* data = nullptr;
    TRIREME_RETURN_IF_ERROR(session_->call(&Plugin::pin, bytes, &data));
    *out = std::make_unique<PinnedBlock>(session_, data);
    return Status::success();
  }
  Status create_stream(std::unique_ptr<devices::Stream>* out) override {
    StreamWord word = nullptr;
    TRIREME_RETURN_IF_ERROR(session_->call(&Plugin::create_stream, &word));
    *out = std::make_unique<CudaStream>(session_, word, true);
    return Status::success();
  }
  Status adopt_stream(void* native, std::unique_ptr<devices::Stream>* out) override {
    TRIREME_RETURN_IF_ERROR(session_->call(&Plugin::adopt_stream, native));
    *out = std::make_unique<CudaStream>(session_, native, false);
    return Status::success();
  }
  Status create_event(std::unique_ptr<devices::Event>* out) override {
    EventWord word = nullptr;
    TRIREME_RETURN_IF_ERROR(session_->call(&Plugin::create_event, &word));
    *out = std::make_unique<CudaEvent>(session_, word);
    return Status::success();
  }

 private:
  SharedSession session_;
};

}  // namespace

StreamWord stream_word_of(devices::Stream& stream) {
  return static_cast<CudaStream&>(stream).word();
}

const SharedSession& session_of(const devices::Device& device) {
  return static_cast<const CudaDevice&>(device).session();
}

Status open(std::int32_t index, std::shared_ptr<devices::Device>* out) {
  const Plugin* plugin = nullptr;
  TRIREME_RETURN_IF_ERROR(load_plugin(&plugin));
  auto session = std::make_shared<Session>(*plugin, index);
  TRIREME_RETURN_IF_ERROR(session->open());
  *out = std::make_shared<CudaDevice>(std::move(session));
  has_opened.store(true, std::memory_order_relaxed);
  return Status::success();
}

}  // namespace trireme::cuda
