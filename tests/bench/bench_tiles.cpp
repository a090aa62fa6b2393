// An MLP block, forward and backward, on two ranks that a transport of 1 GB/s joins. How much of
// the exchange is beyond the products, for several sizes of tiles. Ranks are threads with one
// OpenBLAS thread each. The link carries frames in order and takes no processor time but for the
// copy.
#include <trireme/trireme.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kBytesPerNs = 1.0;  // 1 GB/s
constexpr std::uint64_t kFrameBytes = 256 * 1024;
constexpr std::uint64_t kMostUnderWay = 4 << 20;  // bytes that a link takes before they arrive

void require(trireme_status status) {
  if (status == TRIREME_OK) return;
  std::fprintf(stderr, "%s\n", trireme_last_error());
  std::exit(1);
}

// Frames to one rank.
class Link {
 public:
  trireme_status send(const void* data, std::uint64_t bytes, std::uint64_t timeout_ns) {
    const auto* const from = static_cast<const unsigned char*>(data);
    Frame frame;
    frame.bytes.assign(from, from + bytes);
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns),
                           [&] { return under_way_ < kMostUnderWay; })) {
      return TRIREME_ERROR_TIMEOUT;
    }
    const auto takes = std::chrono::nanoseconds(
        static_cast<std::int64_t>(static_cast<double>(bytes) / kBytesPerNs));
    free_at_ = std::max(free_at_, Clock::now()) + takes;
    frame.arrives = free_at_;
    under_way_ += bytes;
    frames_.push_back(std::move(frame));
    changed_.notify_all();
    return TRIREME_OK;
  }

  trireme_status receive(void* data, std::uint64_t* out_bytes, std::uint64_t timeout_ns) {
    const auto end = Clock::now() + std::chrono::nanoseconds(timeout_ns);
    std::unique_lock lock(mutex_);
    while (frames_.empty() || frames_.front().arrives > Clock::now()) {
      if (Clock::now() >= end) return TRIREME_ERROR_TIMEOUT;
      changed_.wait_until(lock, frames_.empty() ? end : std::min(end, frames_.front().arrives));
    }
    const Frame frame = std::move(frames_.front());
    frames_.pop_front();
    under_way_ -= frame.bytes.size();
    changed_.notify_all();
    lock.unlock();
    std::memcpy(data, frame.bytes.data(), frame.bytes.size());
    *out_bytes = frame.bytes.size();
    return TRIREME_OK;
  }

 private:
  struct Frame {
    std::vector<unsigned char> bytes;
    Clock::time_point arrives;
  };
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Frame> frames_;
  std::uint64_t under_way_ = 0;
  Clock::time_point free_at_{};
};

// Of one rank; lives until the program ends.
struct Wire {
  Link* in;
  Link* out;
  int peer;
};

trireme_status TRIREME_CALLCONV send_frame(void* user_data, std::int32_t, const void* data,
                                           std::uint64_t bytes, std::uint64_t timeout_ns) {
  return static_cast<Wire*>(user_data)->out->send(data, bytes, timeout_ns);
}

trireme_status TRIREME_CALLCONV receive_frame(void* user_data, std::int32_t* out_from, void* data,
                                              std::uint64_t, std::uint64_t* out_bytes,
                                              std::uint64_t timeout_ns) {
  Wire& wire = *static_cast<Wire*>(user_data);
  *out_from = wire.peer;
  return wire.in->receive(data, out_bytes, timeout_ns);
}

std::vector<float> numbers(std::uint64_t count, std::uint64_t salt) {
  std::vector<float> made(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    made[i] = static_cast<float>(((i + salt) * 2654435761u >> 8) % 2001) / 1000.0f - 1.0f;
  }
  return made;
}

struct Case {
  std::uint64_t width, rows;
};

// The median of several steps, in milliseconds.
double median_of(trireme_communicator* communicator, const std::function<void()>& step) {
  std::vector<double> times;
  for (int i = 0; i < 9; ++i) {
    require(trireme_barrier(communicator, nullptr));
    const auto begin = Clock::now();
    step();
    const std::chrono::duration<double, std::milli> time = Clock::now() - begin;
    if (i >= 2) times.push_back(time.count());
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

trireme_tensor* make_tensor(trireme_communicator* communicator, std::uint32_t row_tile) {
  trireme_gemm_options gemm = TRIREME_GEMM_OPTIONS_INIT;
  gemm.kind = TRIREME_GEMM_KIND_LOADED;
  trireme_tensor_options options = TRIREME_TENSOR_OPTIONS_INIT;
  options.gemm = &gemm;
  options.row_tile = row_tile;
  trireme_tensor* tensor = nullptr;
  require(trireme_tensor_create(communicator, &options, &tensor));
  return tensor;
}

// `hidden` units of all ranks of the communicator.
double time_block(trireme_communicator* communicator, std::uint64_t hidden, std::uint32_t row_tile,
                  const Case& sizes) {
  trireme_tensor* const tensor = make_tensor(communicator, row_tile);
  trireme_mlp_options options = TRIREME_MLP_OPTIONS_INIT;
  options.name = "mlp";
  options.dtype = TRIREME_DTYPE_F32;
  options.activation = TRIREME_ACTIVATION_KIND_RELU;
  options.input = options.output = sizes.width;
  options.hidden = hidden;
  options.rows = sizes.rows;
  trireme_mlp* mlp = nullptr;
  require(trireme_mlp_create(tensor, &options, &mlp));
  trireme_mlp_info info = TRIREME_MLP_INFO_INIT;
  require(trireme_mlp_get_info(mlp, &info));
  const std::uint64_t weight = info.count * sizes.width, array = sizes.rows * sizes.width;
  std::vector<float> w1 = numbers(weight, 1), w2 = numbers(weight, 2), x = numbers(array, 5);
  std::vector<float> dy = numbers(array, 6), y(array), dx(array), dw1(weight), dw2(weight);
  std::vector<unsigned char> kept(info.kept_bytes);
  trireme_mlp_weights weights = TRIREME_MLP_WEIGHTS_INIT;
  weights.fc1_weight = w1.data();
  weights.fc2_weight = w2.data();
  trireme_mlp_gradients gradients = TRIREME_MLP_GRADIENTS_INIT;
  gradients.fc1_weight = dw1.data();
  gradients.fc2_weight = dw2.data();
  const double time = median_of(communicator, [&] {
    require(trireme_mlp_forward(mlp, x.data(), &weights, y.data(), kept.data(), nullptr));
    require(trireme_mlp_backward_input(mlp, dy.data(), &weights, dx.data(), kept.data(), nullptr));
    require(
        trireme_mlp_backward_weight(mlp, x.data(), dy.data(), kept.data(), &gradients, nullptr));
  });
  trireme_mlp_destroy(mlp);
  trireme_tensor_destroy(tensor);
  return time;
}

// The two sums of a block by themselves.
double time_sums(trireme_communicator* communicator, const Case& sizes) {
  trireme_tensor* const tensor = make_tensor(communicator, 0);
  trireme_region_options options = TRIREME_REGION_OPTIONS_INIT;
  options.name = "sum";
  options.kind = TRIREME_REGION_KIND_REDUCE;
  options.rows = sizes.rows;
  options.columns = sizes.width;
  options.dtype = TRIREME_DTYPE_F32;
  trireme_region* region = nullptr;
  require(trireme_region_create(tensor, &options, &region));
  const std::vector<float> summand = numbers(sizes.rows * sizes.width, 1);
  std::vector<float> sum(summand.size());
  const void* const parts[] = {summand.data()};
  const double time = median_of(communicator, [&] {
    require(trireme_region_forward(region, parts, 1, sum.data(), nullptr));
    require(trireme_region_forward(region, parts, 1, sum.data(), nullptr));
  });
  trireme_region_destroy(region);
  trireme_tensor_destroy(tensor);
  return time;
}

trireme_communicator* join(int rank, int ranks, Wire* wire) {
  static std::atomic<int> alone{0};
  const std::string own = "local://bench_tiles_" + std::to_string(alone++);
  trireme_transport transport = TRIREME_TRANSPORT_INIT;
  transport.user_data = wire;
  transport.maximum_frame_bytes = kFrameBytes;
  transport.send = send_frame;
  transport.receive = receive_frame;
  trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
  options.rank = rank;
  options.world_size = ranks;
  options.rendezvous = ranks == 1 ? own.c_str() : "transport://bench_tiles";
  if (ranks > 1) options.transport = &transport;
  trireme_communicator* communicator = nullptr;
  require(trireme_communicator_create(&options, &communicator));
  return communicator;
}

void run_rank(int rank, Wire* wire) {
  trireme_communicator* const both = join(rank, 2, wire);
  trireme_communicator* const self = join(0, 1, nullptr);
  for (const Case& sizes : {Case{1024, 512}, Case{1024, 2048}}) {
    require(trireme_barrier(both, nullptr));
    const double products = time_block(self, 2 * sizes.width, 0, sizes);
    require(trireme_barrier(both, nullptr));
    const double sums = time_sums(both, sizes);
    if (rank == 0) {
      std::printf("h=%llu, %llu rows: products alone %.1f ms, sums alone %.2f ms\n",
                  static_cast<unsigned long long>(sizes.width),
                  static_cast<unsigned long long>(sizes.rows), products, sums);
    }
    for (const std::uint32_t tile : {UINT32_MAX, 1024u, 512u, 256u, 128u, 64u}) {
      if (tile != UINT32_MAX && tile >= sizes.rows) continue;
      require(trireme_barrier(both, nullptr));
      const double time = time_block(both, 4 * sizes.width, tile, sizes);
      if (rank != 0) continue;
      std::printf("  %s rows a tile: %.1f ms, %.2f ms or %.0f %% of the sums beyond the products\n",
                  tile == UINT32_MAX ? "all" : std::to_string(tile).c_str(), time, time - products,
                  100 * (time - products) / sums);
    }
  }
  trireme_communicator_destroy(self);
  trireme_communicator_destroy(both);
}

}  // namespace

int main() {
  static Link links[2];
  static Wire wires[2] = {{&links[0], &links[1], 1}, {&links[1], &links[0], 0}};
  std::thread other([] { run_rank(1, &wires[1]); });
  run_rank(0, &wires[0]);
  other.join();
  return 0;
}
