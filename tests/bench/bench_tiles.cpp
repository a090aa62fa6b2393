// An MLP block, forward and backward, on two ranks that a transport of 1 GB/s joins. How much of
// the exchange is beyond the products, for several sizes of tiles, with one call for both gradients
// and with two: bench_tiles [ROWS]. The fastest
// step of each counts. Ranks are threads with one OpenBLAS thread each. With a second argument,
// products only take their time, at 100 GFlop/s, as if another processor made them: the threads of
// the exchange then have the cores for themselves. The link carries frames in
// order and takes no processor time but for the copy.
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

// A step that is measured, and its name.
struct Row {
  std::string name;
  std::function<void()> step;
  double best = 1e30;  // milliseconds of the fastest step
};

// An MLP block, with all arrays of its rank.
class Block {
 public:
  Block(trireme_tensor* tensor, std::uint64_t hidden, const Case& sizes) {
    trireme_mlp_options options = TRIREME_MLP_OPTIONS_INIT;
    options.name = "mlp";
    options.dtype = TRIREME_DTYPE_F32;
    options.activation = TRIREME_ACTIVATION_KIND_RELU;
    options.input = options.output = sizes.width;
    options.hidden = hidden;
    options.rows = sizes.rows;
    require(trireme_mlp_create(tensor, &options, &mlp_));
    trireme_mlp_info info = TRIREME_MLP_INFO_INIT;
    require(trireme_mlp_get_info(mlp_, &info));
    const std::uint64_t weight = info.count * sizes.width, array = sizes.rows * sizes.width;
    w1_ = numbers(weight, 1);
    w2_ = numbers(weight, 2);
    x_ = numbers(array, 5);
    dy_ = numbers(array, 6);
    y_.resize(array);
    dx_.resize(array);
    dw1_.resize(weight);
    dw2_.resize(weight);
    kept_.resize(info.kept_bytes);
    weights_.fc1_weight = w1_.data();
    weights_.fc2_weight = w2_.data();
    gradients_.fc1_weight = dw1_.data();
    gradients_.fc2_weight = dw2_.data();
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() { trireme_mlp_destroy(mlp_); }

  std::uint64_t tile_rows() const {
    trireme_mlp_info info = TRIREME_MLP_INFO_INIT;
    require(trireme_mlp_get_info(mlp_, &info));
    return info.tile_rows;
  }

  void step(bool together) {
    require(trireme_mlp_forward(mlp_, x_.data(), &weights_, y_.data(), kept_.data(), nullptr));
    if (together) {
      require(trireme_mlp_backward(mlp_, x_.data(), dy_.data(), &weights_, dx_.data(), kept_.data(),
                                   &gradients_, nullptr));
      return;
    }
    require(
        trireme_mlp_backward_input(mlp_, dy_.data(), &weights_, dx_.data(), kept_.data(), nullptr));
    require(trireme_mlp_backward_weight(mlp_, x_.data(), dy_.data(), kept_.data(), &gradients_,
                                        nullptr));
  }

 private:
  trireme_mlp* mlp_ = nullptr;
  trireme_mlp_weights weights_ = TRIREME_MLP_WEIGHTS_INIT;
  trireme_mlp_gradients gradients_ = TRIREME_MLP_GRADIENTS_INIT;
  std::vector<float> w1_, w2_, x_, dy_, y_, dx_, dw1_, dw2_;
  std::vector<unsigned char> kept_;
};

bool sleeps = false;

std::int32_t TRIREME_CALLCONV sleep_through(const trireme_product* product, void*) {
  constexpr double kFlopsPerNs = 100;
  const double flops = 2.0 * static_cast<double>(product->rows) *
                       static_cast<double>(product->columns) * static_cast<double>(product->depth);
  std::this_thread::sleep_for(
      std::chrono::nanoseconds(static_cast<std::int64_t>(flops / kFlopsPerNs)));
  return 0;
}

trireme_tensor* make_tensor(trireme_communicator* communicator, std::uint32_t row_tile) {
  trireme_gemm_options gemm = TRIREME_GEMM_OPTIONS_INIT;
  gemm.kind = sleeps ? TRIREME_GEMM_KIND_CALLER : TRIREME_GEMM_KIND_LOADED;
  if (sleeps) gemm.callback = sleep_through;
  trireme_tensor_options options = TRIREME_TENSOR_OPTIONS_INIT;
  options.gemm = &gemm;
  options.row_tile = row_tile;
  trireme_tensor* tensor = nullptr;
  require(trireme_tensor_create(communicator, &options, &tensor));
  return tensor;
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

constexpr std::uint32_t kAll = UINT32_MAX;
constexpr std::uint32_t kTiles[] = {kAll, 512, 384, 256, 128, 0};  // 0: automatic
constexpr int kRounds = 12;

// Both ranks take the same rows in turn, so that a busy moment of the machine meets all of them.
void run_rank(int rank, Wire* wire, const Case& sizes) {
  trireme_communicator* const both = join(rank, 2, wire);
  trireme_communicator* const self = join(0, 1, nullptr);
  std::vector<trireme_tensor*> tensors = {make_tensor(self, 0), make_tensor(both, kAll)};
  std::deque<Block> blocks;
  std::vector<Row> rows;
  Block& alone = blocks.emplace_back(tensors[0], 2 * sizes.width, sizes);
  rows.push_back({"products alone", [&alone] { alone.step(false); }});

  trireme_region_options options = TRIREME_REGION_OPTIONS_INIT;
  options.name = "sum";
  options.kind = TRIREME_REGION_KIND_REDUCE;
  options.rows = sizes.rows;
  options.columns = sizes.width;
  options.dtype = TRIREME_DTYPE_F32;
  trireme_region* region = nullptr;
  require(trireme_region_create(tensors[1], &options, &region));
  const std::vector<float> summand = numbers(sizes.rows * sizes.width, 1);
  std::vector<float> sum(summand.size());
  const void* const parts[] = {summand.data()};
  rows.push_back({"its two sums alone", [&] {
                    require(trireme_region_forward(region, parts, 1, sum.data(), nullptr));
                    require(trireme_region_forward(region, parts, 1, sum.data(), nullptr));
                  }});
  for (const std::uint32_t tile : kTiles) {
    if (tile != kAll && tile >= sizes.rows) continue;
    tensors.push_back(make_tensor(both, tile));
    Block& block = blocks.emplace_back(tensors.back(), 4 * sizes.width, sizes);
    const std::string name = tile == kAll ? "all rows"
                             : tile == 0  ? "automatic " + std::to_string(block.tile_rows())
                                          : std::to_string(tile);
    rows.push_back({name + ", two calls", [&block] { block.step(false); }});
    rows.push_back({name + ", one call", [&block] { block.step(true); }});
  }
  for (int round = 0; round < kRounds; ++round) {
    for (Row& row : rows) {
      require(trireme_barrier(both, nullptr));
      const auto begin = Clock::now();
      row.step();
      const std::chrono::duration<double, std::milli> time = Clock::now() - begin;
      row.best = std::min(row.best, time.count());
    }
  }
  for (const Row& row : rows) {
    if (rank != 0) break;
    std::printf("h=%llu, %llu rows, %-24s %7.1f ms", static_cast<unsigned long long>(sizes.width),
                static_cast<unsigned long long>(sizes.rows), row.name.c_str(), row.best);
    const double beyond = row.best - rows[0].best;
    if (&row > &rows[1]) {
      std::printf(", %.1f ms or %.0f %% of the sums beyond the products", beyond,
                  100 * beyond / rows[1].best);
    }
    std::printf("\n");
  }
  blocks.clear();
  trireme_region_destroy(region);
  for (trireme_tensor* const tensor : tensors) trireme_tensor_destroy(tensor);
  trireme_communicator_destroy(self);
  trireme_communicator_destroy(both);
}

}  // namespace

int main(int argc, char** argv) {
  Case sizes = {1024, 512};
  if (argc > 1) sizes.rows = std::strtoull(argv[1], nullptr, 10);
  sleeps = argc > 2;
  static Link links[2];
  static Wire wires[2] = {{&links[0], &links[1], 1}, {&links[1], &links[0], 0}};
  std::thread other([&] { run_rank(1, &wires[1], sizes); });
  run_rank(0, &wires[0], sizes);
  other.join();
  return 0;
}
