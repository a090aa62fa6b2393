#include "parallel/tensor/linear.hpp"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "kernels/columns.hpp"
#include "kernels/reduce.hpp"
#include "parallel/tensor/layer_arrays.hpp"
#include "platform/names.hpp"
#include "platform/utf8.hpp"

namespace trireme::parallel {
namespace {

using sharding::Range;
using Part = Workspace::Use::Part;

constexpr std::uint64_t kMostLinearBytes = 1ull << 56;  // no processor of today can address more
constexpr std::size_t kLongestLayerName = 40;

template <class Pointer>
auto* linear_at(Pointer* data, std::uint64_t offset) {
  using Byte = std::conditional_t<std::is_const_v<Pointer>, const std::byte, std::byte>;
  // The offset of an empty array's first element from NULL.
  return data == nullptr ? nullptr : static_cast<Byte*>(data) + offset;
}

Status check_linear_size(const char* what, std::uint64_t rows, std::uint64_t columns,
                         trireme_dtype dtype) {
  std::uint64_t bytes = 0;
  if (!__builtin_mul_overflow(rows, columns, &bytes) &&
      !__builtin_mul_overflow(bytes, dtype_size(gradient_dtype(dtype)), &bytes) &&
      bytes <= kMostLinearBytes) {
    return Status::success();
  }
  return invalid_argument(std::string(what) + " of " + std::to_string(rows) + " by " +
                          std::to_string(columns) +
                          " elements has more bytes than memory can hold");
}

Status check_linear(const LinearOptions& options, const Tensor& tensor) {
  if (options.kind != TRIREME_LINEAR_KIND_COLUMN && options.kind != TRIREME_LINEAR_KIND_ROW) {
    return invalid_argument("options.kind is " + std::to_string(options.kind) +
                            ", not one of TRIREME_LINEAR_KIND_*");
  }
  const bool column = options.kind == TRIREME_LINEAR_KIND_COLUMN;
  if (column && options.input_split) {
    return invalid_argument("INPUT_SPLIT is for layers of kind ROW");
  }
  if (!column && options.gathered_output) {
    return invalid_argument("GATHERED_OUTPUT is for layers of kind COLUMN");
  }
  if (!column && !options.input_split && tensor.sequence()) {
    return invalid_argument("with SEQUENCE a layer of kind ROW needs INPUT_SPLIT");
  }
  if (!column && options.stretches != 1) {
    return invalid_argument("options.stretches is " + std::to_string(options.stretches) +
                            ", but a layer of kind ROW has one");
  }
  if (options.output % options.stretches != 0) {
    return invalid_argument("options.stretches is " + std::to_string(options.stretches) +
                            ", which does not divide the " + std::to_string(options.output) +
                            " outputs");
  }
  if (tensor.gemm() == nullptr) {
    return invalid_state("the tensor object has no provider of products; set gemm of its options");
  }
  TRIREME_RETURN_IF_ERROR(tensor.gemm()->check_dtype(options.dtype));
  TRIREME_RETURN_IF_ERROR(
      check_linear_size("the weight", options.output, options.input, options.dtype));
  TRIREME_RETURN_IF_ERROR(
      check_linear_size("the input", options.rows, options.input, options.dtype));
  return check_linear_size("the output", options.rows, options.output, options.dtype);
}

Status check_linear_call(const LinearOptions& options, std::initializer_list<LayerArray> arrays,
                         const void* bias, const char* bias_name) {
  if (!options.bias && bias != nullptr) {
    return invalid_argument(std::string(bias_name) + " is given, but layer \"" + options.name +
                            "\" has no BIAS");
  }
  return check_arrays(arrays);
}

}  // namespace

Status check_layer_name(const std::string& name) {
  if (name.size() > kLongestLayerName) {
    return invalid_argument("options.name has " + std::to_string(name.size()) +
                            " bytes, more than " + std::to_string(kLongestLayerName));
  }
  if (name.empty()) return invalid_argument("options.name is empty");
  if (!is_utf8(name)) return invalid_argument("options.name is not UTF-8");
  const std::string clean = clean_text(name);
  if (clean == name) return Status::success();
  return invalid_argument("options.name, \"" + clean + "\", has a control character in it");
}

Status run_layer(Tensor& tensor, const std::string& name, const char* what,
                 const std::function<Status(Workspace::Use& use)>& work) {
  Workspace::Use use;
  TRIREME_RETURN_IF_ERROR(tensor.workspace().begin(&use));
  try {
    const Status status = work(use);
    if (status.ok()) return status;
    const std::string told =
        std::string(what) + " of layer \"" + name + "\": " + std::string(status.message());
    // Peers may wait for this rank in a pass of the layer. A pass that failed has let them know,
    // and this changes nothing. A pass that was refused fails nothing.
    if (status.code() != TRIREME_ERROR_INVALID_STATE || use.has_running_pass()) {
      tensor.communicator().fail(status.code(), told);
    }
    Status result = Status::failure(status.code(), told);
    if (status.details() == nullptr) return result;
    return std::move(result).with_details(*status.details());
  } catch (...) {
    tensor.communicator().fail(TRIREME_ERROR_OUT_OF_MEMORY, "no memory left for a layer");
    throw;
  }
}

// --- creation ----------------------------------------------------------------------------------

Status Linear::create(std::shared_ptr<Tensor> tensor, LinearOptions options,
                      std::shared_ptr<Linear>* out) {
  options.stretches = std::max<std::uint32_t>(options.stretches, 1);
  TRIREME_RETURN_IF_ERROR(check_linear(options, *tensor));
  std::shared_ptr<Linear> linear(new Linear(std::move(tensor), std::move(options)));
  TRIREME_RETURN_IF_ERROR(linear->make_regions());
  TRIREME_RETURN_IF_ERROR(linear->reserve_memory());
  *out = std::move(linear);
  return Status::success();
}

Linear::Linear(std::shared_ptr<Tensor> tensor, LinearOptions options)
    : tensor_(std::move(tensor)),
      options_(std::move(options)),
      full_(is_column() ? options_.input : options_.output),
      extent_(is_column() ? options_.output / options_.stretches : options_.input),
      blocks_(tensor_->own_blocks()),
      own_(tensor_->range(extent_, tensor_->rank())),
      own_rows_(tensor_->sequence() ? tensor_->range(options_.rows, tensor_->rank())
                                    : Range{0, options_.rows}),
      wide_(gradient_dtype(options_.dtype)),
      tiles_(tensor_->tiles_of(options_.rows)),
      may_start_(tensor_->may_use_transport()) {}

Status Linear::make_region(const char* what, trireme_region_kind kind,
                           trireme_region_dimension dimension, std::uint64_t rows,
                           std::uint64_t columns, trireme_dtype dtype,
                           std::shared_ptr<Region>* out) {
  RegionOptions region;
  region.name = options_.name + "." + what;
  region.kind = kind;
  region.dimension = dimension;
  region.rows = rows;
  region.columns = columns;
  region.dtype = dtype;
  for (const std::uint64_t number :
       {std::uint64_t{static_cast<std::uint32_t>(options_.kind)}, options_.input, options_.output,
        std::uint64_t{options_.stretches},
        std::uint64_t{static_cast<std::uint32_t>(options_.dtype)}, std::uint64_t{options_.bias},
        std::uint64_t{options_.gathered_output}, std::uint64_t{options_.input_split},
        std::uint64_t{tensor_->keep_gathered()}, tiles_.count(), tiles_.most(), options_.also}) {
    region.also = (region.also ^ number) * 0x9e3779b97f4a7c15u;
    region.also ^= region.also >> 29;
  }
  return Region::create(tensor_, std::move(region), out);
}

Status Linear::make_regions() {
  const bool sequence = tensor_->sequence();
  TRIREME_RETURN_IF_ERROR(
      make_region("sum", sequence ? TRIREME_REGION_KIND_REDUCE_SCATTER : TRIREME_REGION_KIND_REDUCE,
                  sequence ? TRIREME_REGION_DIMENSION_ROWS : TRIREME_REGION_DIMENSION_NONE,
                  options_.rows, full_, wide_, &sum_));
  // All tiles but the last one are alike, unless rows are split.
  sum_bytes_ = sum_->plan(Direction::forward).bytes;
  if (!sequence) {
    const std::uint64_t last = tiles_.count() - 1;
    sum_bytes_ = sum_->tile_bytes(tiles_.range(last));
    if (last > 0) sum_bytes_ += last * sum_->tile_bytes(tiles_.range(0));
  }
  if (sequence) {
    TRIREME_RETURN_IF_ERROR(make_region("rows", TRIREME_REGION_KIND_GATHER,
                                        TRIREME_REGION_DIMENSION_ROWS, options_.rows, full_,
                                        options_.dtype, &rows_));
  }
  const bool gathers = is_column() ? options_.gathered_output : !options_.input_split;
  if (!gathers) return Status::success();
  // Each stretch is a row of its own there, so that ranks' columns of a stretch lie side by side.
  return make_region("columns", TRIREME_REGION_KIND_GATHER, TRIREME_REGION_DIMENSION_COLUMNS,
                     options_.rows * options_.stretches, extent_, options_.dtype, &columns_);
}

void Linear::drop_names() noexcept {
  for (const auto& region : {rows_, sum_, columns_}) {
    if (region != nullptr) region->drop_name();
  }
}

bool Linear::keeps_in_forward() const { return is_column() && tensor_->keep_gathered(); }
bool Linear::keeps_in_backward() const { return !is_column() && tensor_->sequence(); }

// The takes of the calls, the largest of them. One call may gather the input once more beside a
// sum.
Status Linear::reserve_memory() {
  using Wide = unsigned __int128;
  const auto rounded = [](Wide bytes) { return (bytes + 63) / 64 * 64; };
  const Wide size = dtype_size(options_.dtype), wide = dtype_size(wide_);
  const bool narrow = wide_ != options_.dtype;
  const Wide full = Wide{options_.rows} * full_, split = Wide{options_.rows} * split_columns();
  const bool keeps = keeps_in_forward() || keeps_in_backward();
  const Wide gathered = rows_ != nullptr && !keeps ? rounded(full * size) : 0;
  Wide spread = gathered;
  if (columns_ != nullptr) spread += rounded(split * size);
  if (narrow) spread += rounded(split * wide) + rounded(Wide{split_columns()} * wide);
  Wide merged = gathered + Wide{sets_of_summands(may_start_)} * blocks_.count *
                               rounded(Wide{tiles_.most()} * full_ * wide);
  if (narrow) merged += rounded(Wide{own_rows_.count} * full_ * wide) + rounded(Wide{full_} * wide);
  const Wide most = std::max(spread, merged);
  if (most > kMostLinearBytes) {
    return invalid_argument("the summands of " + std::to_string(blocks_.count) +
                            " blocks are more bytes than memory can hold");
  }
  memory_ = static_cast<std::uint64_t>(most);
  return tensor_->workspace().reserve(memory_);
}

trireme_linear_info Linear::info() const {
  const auto bytes = [](const std::shared_ptr<Region>& region) {
    return region == nullptr ? 0 : region->plan(Direction::forward).bytes;
  };
  const bool column = is_column();
  const std::uint64_t split = columns_ != nullptr ? options_.stretches * extent_ : split_columns();
  trireme_linear_info now = TRIREME_LINEAR_INFO_INIT;
  now.gradient_dtype = wide_;
  now.first = own_.first;
  now.count = own_.count;
  now.weight_rows = column ? split_columns() : full_;
  now.weight_columns = column ? full_ : own_.count;
  now.bias_count = options_.bias ? now.weight_rows : 0;
  now.input_rows = column ? own_rows_.count : options_.rows;
  now.input_columns = column ? full_ : split;
  now.output_rows = column ? options_.rows : own_rows_.count;
  now.output_columns = column ? split : full_;
  now.kept_bytes = keeps_in_forward() || keeps_in_backward()
                       ? options_.rows * full_ * dtype_size(options_.dtype)
                       : 0;
  now.workspace_bytes = memory_;
  now.tile_rows = tiles_.most();
  now.forward_bytes = column ? bytes(rows_) + bytes(columns_) : sum_bytes_;
  now.backward_input_bytes = column ? sum_bytes_ : bytes(rows_) + bytes(columns_);
  now.backward_weight_bytes = column && !keeps_in_forward() ? bytes(rows_) : 0;
  now.forward_passes = forward_passes_;
  now.backward_input_passes = backward_input_passes_;
  now.backward_weight_passes = backward_weight_passes_;
  return now;
}

// --- calls -------------------------------------------------------------------------------------

Status Linear::check_pass(const char* what, std::uint64_t passes) const {
  if (passes < forward_passes_) return Status::success();
  return invalid_state(std::string(what) + " pass " + std::to_string(passes + 1) + " of layer \"" +
                       options_.name + "\" needs as many forward passes, but there were " +
                       std::to_string(forward_passes_));
}

Status Linear::forward(const Forward& call, Deadline deadline) {
  const trireme_linear_info now = info();
  const std::uint64_t size = dtype_size(options_.dtype);
  TRIREME_RETURN_IF_ERROR(check_linear_call(
      options_,
      {{"input", call.input, now.input_rows * now.input_columns * size, false},
       {"weight", call.weight, now.weight_rows * now.weight_columns * size, false},
       {"bias", call.bias, now.bias_count * size, false},
       {"output", call.output, now.output_rows * now.output_columns * size, true},
       {"kept", call.kept, keeps_in_forward() ? now.kept_bytes : 0, true}},
      call.bias, "bias"));
  return run_layer(*tensor_, options_.name, "forward",
                   [&](Workspace::Use& use) { return forward_in(use, call, deadline); });
}

Status Linear::forward_in(Workspace::Use& use, const Forward& call, Deadline deadline) {
  const Part part(use);
  const Pass pass{use, deadline};
  if (is_column()) {
    TRIREME_RETURN_IF_ERROR(spread(pass, call.input, keeps_in_forward() ? call.kept : nullptr,
                                   call.weight, call.bias, call.output));
  } else {
    TRIREME_RETURN_IF_ERROR(
        merge(pass, split_array(call.input), call.weight, call.bias, call.output));
  }
  ++forward_passes_;
  return Status::success();
}

Status Linear::backward_input(const BackwardInput& call, Deadline deadline) {
  const trireme_linear_info now = info();
  const std::uint64_t size = dtype_size(options_.dtype);
  TRIREME_RETURN_IF_ERROR(check_linear_call(
      options_,
      {{"output_gradient", call.output_gradient, now.output_rows * now.output_columns * size,
        false},
       {"weight", call.weight, now.weight_rows * now.weight_columns * size, false},
       {"input_gradient", call.input_gradient, now.input_rows * now.input_columns * size, true},
       {"kept", call.kept, keeps_in_backward() ? now.kept_bytes : 0, true}},
      nullptr, ""));
  TRIREME_RETURN_IF_ERROR(check_pass("backward input", backward_input_passes_));
  return run_layer(*tensor_, options_.name, "backward input",
                   [&](Workspace::Use& use) { return backward_input_in(use, call, deadline); });
}

Status Linear::backward_input_in(Workspace::Use& use, const BackwardInput& call,
                                 Deadline deadline) {
  const Part part(use);
  TRIREME_RETURN_IF_ERROR(find_input_gradient({use, deadline}, call));
  ++backward_input_passes_;
  return Status::success();
}

Status Linear::backward_weight(const BackwardWeight& call, Deadline deadline) {
  const trireme_linear_info now = info();
  const std::uint64_t size = dtype_size(options_.dtype), wide = dtype_size(wide_);
  const std::uint64_t input = now.input_rows * now.input_columns * size;
  const std::uint64_t output = now.output_rows * now.output_columns * size;
  TRIREME_RETURN_IF_ERROR(check_linear_call(
      options_,
      {{"input", call.input, keeps_in_forward() ? 0 : input, false},
       {"output_gradient", call.output_gradient, keeps_in_backward() ? 0 : output, false},
       {"kept", call.kept, now.kept_bytes, false},
       {"weight_gradient", call.weight_gradient, now.weight_rows * now.weight_columns * wide, true},
       {"bias_gradient", call.bias_gradient, now.bias_count * wide, true}},
      call.bias_gradient, "bias_gradient"));
  TRIREME_RETURN_IF_ERROR(check_pass("backward weight", backward_weight_passes_));
  if (keeps_in_backward() && backward_weight_passes_ >= backward_input_passes_) {
    return invalid_state("the backward weight pass of layer \"" + options_.name +
                         "\" reads what its backward input pass keeps, which comes first");
  }
  return run_layer(*tensor_, options_.name, "backward weight", [&](Workspace::Use& use) {
    return backward_weight_in(use, call, nullptr, deadline);
  });
}

Status Linear::backward_weight_in(Workspace::Use& use, const BackwardWeight& call,
                                  const Meanwhile& meanwhile, Deadline deadline) {
  const Part part(use);
  const void* full = nullptr;
  // Without the region, the other one stands in and gets no pass.
  TilePasses gather(use, rows_ == nullptr ? *sum_ : *rows_, "weight",
                    starts_passes(meanwhile != nullptr), deadline);
  TRIREME_RETURN_IF_ERROR(begin_full(use, call, &gather, &full));
  if (meanwhile != nullptr) TRIREME_RETURN_IF_ERROR(meanwhile());
  TRIREME_RETURN_IF_ERROR(gather.end_all());
  TRIREME_RETURN_IF_ERROR(
      weigh(full, split_array(is_column() ? call.output_gradient : call.input), call));
  ++backward_weight_passes_;
  return Status::success();
}

Status Linear::backward(const BackwardInput& input, const BackwardWeight& weight,
                        Deadline deadline) {
  const trireme_linear_info now = info();
  const std::uint64_t size = dtype_size(options_.dtype), wide = dtype_size(wide_);
  const std::uint64_t read = now.input_rows * now.input_columns * size;
  TRIREME_RETURN_IF_ERROR(check_linear_call(
      options_,
      {{"input", weight.input, keeps_in_forward() ? 0 : read, false},
       {"output_gradient", input.output_gradient, now.output_rows * now.output_columns * size,
        false},
       {"weight", input.weight, now.weight_rows * now.weight_columns * size, false},
       {"input_gradient", input.input_gradient, read, true},
       {"kept", input.kept, now.kept_bytes, keeps_in_backward()},
       {"weight_gradient", weight.weight_gradient, now.weight_rows * now.weight_columns * wide,
        true},
       {"bias_gradient", weight.bias_gradient, now.bias_count * wide, true}},
      weight.bias_gradient, "bias_gradient"));
  TRIREME_RETURN_IF_ERROR(check_pass("backward input", backward_input_passes_));
  TRIREME_RETURN_IF_ERROR(check_pass("backward weight", backward_weight_passes_));
  return run_layer(*tensor_, options_.name, "backward", [&](Workspace::Use& use) {
    return backward_in(use, input, weight, nullptr, deadline);
  });
}

// The gather begins before the first product. The sums begin behind it, in the order of all ranks.
Status Linear::backward_in(Workspace::Use& use, const BackwardInput& input,
                           const BackwardWeight& weight, const Meanwhile& meanwhile,
                           Deadline deadline) {
  const Part part(use);
  const void* full = nullptr;
  TilePasses gather(use, rows_ == nullptr ? *sum_ : *rows_, "backward", starts_passes(true),
                    deadline);
  TRIREME_RETURN_IF_ERROR(begin_full(use, weight, &gather, &full));
  const auto find_weight_gradient = [&]() -> Status {
    if (meanwhile != nullptr) TRIREME_RETURN_IF_ERROR(meanwhile());
    TRIREME_RETURN_IF_ERROR(gather.end_all());
    return weigh(full, split_array(is_column() ? weight.output_gradient : weight.input), weight);
  };
  TRIREME_RETURN_IF_ERROR(
      find_input_gradient({use, deadline, "backward", find_weight_gradient}, input));
  ++backward_input_passes_;
  ++backward_weight_passes_;
  return Status::success();
}

// --- work --------------------------------------------------------------------------------------

Linear::SplitArray Linear::split_array(const void* data) const {
  if (columns_ == nullptr) return {data, split_columns(), own_.count, 0};
  return {data, options_.stretches * extent_, extent_, own_.first};
}

// This rank's elements of a block: from the rank's first one of the same stretch.
Range Linear::block(std::uint64_t number) const {
  const Range range = sharding::block_range(extent_, tensor_->blocks(),
                                            static_cast<std::uint32_t>(blocks_.first + number));
  return {range.first - own_.first, range.count};
}

const void* Linear::block_of(const SplitArray& split, std::uint32_t stretch,
                             const Range& range) const {
  return linear_at(split.data, (stretch * split.stretch + split.first + range.first) *
                                   dtype_size(options_.dtype));
}

// Where a block begins in the weight or its gradient.
std::uint64_t Linear::weight_place(std::uint32_t stretch, const Range& range) const {
  const std::uint64_t place = stretch * own_.count + range.first;
  return is_column() ? place * full_ : place;
}

// Without an exchange tiles would only cost time. With `blocks`, one process makes the same calls
// as ranks that exchange.
RowTiles Linear::spread_tiles() const {
  const bool exchanges = rows_ != nullptr || columns_ != nullptr;
  return exchanges || tensor_->promises_bits() ? tiles_ : RowTiles(options_.rows, options_.rows);
}

bool Linear::starts_passes(bool computes) const {
  return computes && may_start_ && !tensor_->communicator().one_memory().is_there;
}

// While one is on its way, the next one is made.
std::uint64_t Linear::sets_of_summands(bool starts) const {
  return std::min<std::uint64_t>(tiles_.count(), starts ? 2 : 1);
}

Range Linear::own_of(const Range& tile) const {
  const Range own = sharding::intersect(own_rows_, tile);
  return {own.count > 0 ? own.first - own_rows_.first : 0, own.count};
}

void* Linear::whole_of(Workspace::Use& use, const void* part, void* kept) const {
  if (rows_ == nullptr) return const_cast<void*>(part);  // it is only read
  if (kept != nullptr) return kept;
  return use.take(options_.rows * full_ * dtype_size(options_.dtype));
}

Status Linear::begin_gather(const Range& tile, const void* part, void* whole,
                            TilePasses* gathers) const {
  const std::uint64_t row = full_ * dtype_size(options_.dtype);
  return gathers->begin(tile, {linear_at(part, own_of(tile).first * row)},
                        linear_at(whole, tile.first * row));
}

// The product adds along rows, so it waits for all of them.
Status Linear::begin_full(Workspace::Use& use, const BackwardWeight& call, TilePasses* gather,
                          const void** full) const {
  *full = call.kept;
  if (keeps_in_forward() || keeps_in_backward()) return Status::success();
  const void* const own = is_column() ? call.input : call.output_gradient;
  void* const whole = whole_of(use, own, nullptr);
  *full = whole;
  return rows_ == nullptr ? Status::success()
                          : begin_gather({0, options_.rows}, own, whole, gather);
}

Status Linear::find_input_gradient(const Pass& pass, const BackwardInput& call) {
  if (is_column()) {
    return merge(pass, split_array(call.output_gradient), call.weight, nullptr,
                 call.input_gradient);
  }
  return spread(pass, call.output_gradient, keeps_in_backward() ? call.kept : nullptr, call.weight,
                nullptr, call.input_gradient);
}

// All gathers begin before the first product, so that peers that make each of them whole have the
// same order.
Status Linear::spread(const Pass& pass, const void* part, void* kept, const void* weight,
                      const void* bias, void* out) {
  Workspace::Use& use = pass.use;
  const bool starts = starts_passes(tiles_.count() > 1 || pass.meanwhile != nullptr);
  const std::uint64_t size = dtype_size(options_.dtype), count = options_.rows * split_columns();
  const RowTiles tiles = spread_tiles();
  void* const full = whole_of(use, part, kept);
  void* const local = columns_ == nullptr ? out : use.take(count * size);
  void* const wide = wide_ == options_.dtype ? local : use.take(count * dtype_size(wide_));
  const void* const added = widened(use, bias, split_columns());
  // Without one of the regions, the other one stands in and gets no pass.
  TilePasses gathers(use, rows_ == nullptr ? *sum_ : *rows_, pass.name, starts, pass.deadline);
  TilePasses collects(use, columns_ == nullptr ? *sum_ : *columns_, pass.name, starts,
                      pass.deadline);
  // No product goes on beside the first gather, or beside the last collect. The last tile may be
  // short, so that this costs little.
  const auto tile_of = [&](std::uint64_t k) {
    return tiles.range(rows_ != nullptr && columns_ == nullptr ? tiles.count() - 1 - k : k);
  };
  for (std::uint64_t k = 0; rows_ != nullptr && k < tiles.count(); ++k) {
    TRIREME_RETURN_IF_ERROR(begin_gather(tile_of(k), part, full, &gathers));
  }
  for (std::uint64_t k = 0; k < tiles.count(); ++k) {
    const Range tile = tile_of(k);
    if (rows_ != nullptr) TRIREME_RETURN_IF_ERROR(gathers.end(k));
    TRIREME_RETURN_IF_ERROR(spread_blocks(tile, full, weight, wide));
    finish(added, tile, split_columns(), wide, local);
    if (columns_ == nullptr) continue;
    const std::uint64_t lines = options_.stretches;
    TRIREME_RETURN_IF_ERROR(collects.begin({tile.first * lines, tile.count * lines},
                                           {linear_at(local, tile.first * split_columns() * size)},
                                           linear_at(out, tile.first * lines * extent_ * size)));
  }
  if (pass.meanwhile != nullptr) TRIREME_RETURN_IF_ERROR(pass.meanwhile());
  return collects.end_all();
}

Status Linear::spread_blocks(const Range& tile, const void* full, const void* weight, void* out) {
  const std::uint64_t size = dtype_size(options_.dtype);
  GemmCall call;
  call.dtype = options_.dtype;
  call.rows = tile.count;
  call.depth = full_;
  call.left = linear_at(full, tile.first * full_ * size);
  call.left_step = full_;
  call.right_transposed = is_column();
  call.right_step = is_column() ? full_ : own_.count;
  call.result_step = split_columns();
  for (std::uint64_t i = 0; i < blocks_.count; ++i) {
    const Range range = block(i);
    call.columns = range.count;
    for (std::uint32_t stretch = 0; stretch < options_.stretches; ++stretch) {
      const std::uint64_t column = stretch * own_.count + range.first;
      call.right = linear_at(weight, weight_place(stretch, range) * size);
      call.result = linear_at(out, (tile.first * split_columns() + column) * dtype_size(wide_));
      TRIREME_RETURN_IF_ERROR(tensor_->gemm()->multiply(call));
    }
  }
  return Status::success();
}

Status Linear::merge(const Pass& pass, const SplitArray& split, const void* weight,
                     const void* bias, void* out) {
  Workspace::Use& use = pass.use;
  const bool starts = starts_passes(tiles_.count() > 1 || pass.meanwhile != nullptr);
  const std::uint64_t row = full_ * dtype_size(wide_), sets = sets_of_summands(starts);
  std::vector<void*> summands(sets * blocks_.count);
  for (void*& summand : summands) summand = use.take(tiles_.most() * row);
  void* const wide = wide_ == options_.dtype ? out : use.take(own_rows_.count * row);
  const void* const added = widened(use, bias, full_);
  TilePasses sums(use, *sum_, pass.name, starts, pass.deadline);
  const auto end = [&](std::uint64_t k) -> Status {
    TRIREME_RETURN_IF_ERROR(sums.end(k));
    finish(added, own_of(tiles_.range(k)), full_, wide, out);
    return Status::success();
  };
  for (std::uint64_t k = 0; k < tiles_.count(); ++k) {
    const Range tile = tiles_.range(k);
    if (k >= sets) TRIREME_RETURN_IF_ERROR(end(k - sets));
    void* const* const set = &summands[k % sets * blocks_.count];
    for (std::uint64_t i = 0; i < blocks_.count; ++i) {
      TRIREME_RETURN_IF_ERROR(merge_block(tile, split, i, weight, set[i]));
    }
    TRIREME_RETURN_IF_ERROR(sums.begin(tile, std::vector<const void*>(set, set + blocks_.count),
                                       linear_at(wide, own_of(tile).first * row)));
  }
  if (pass.meanwhile != nullptr) TRIREME_RETURN_IF_ERROR(pass.meanwhile());
  for (std::uint64_t k = tiles_.count() - sets; k < tiles_.count(); ++k) {
    TRIREME_RETURN_IF_ERROR(end(k));
  }
  return Status::success();
}

// The stretches of a block are one summand.
Status Linear::merge_block(const Range& tile, const SplitArray& split, std::uint64_t number,
                           const void* weight, void* out) {
  const std::uint64_t size = dtype_size(options_.dtype);
  const Range range = block(number);
  GemmCall call;
  call.dtype = options_.dtype;
  call.rows = tile.count;
  call.columns = full_;
  call.depth = range.count;
  call.left_step = split.step;
  call.right_transposed = !is_column();
  call.right_step = is_column() ? full_ : own_.count;
  call.result = out;
  call.result_step = full_;
  for (std::uint32_t stretch = 0; stretch < options_.stretches; ++stretch) {
    call.add = stretch > 0;
    call.left = linear_at(block_of(split, stretch, range), tile.first * split.step * size);
    call.right = linear_at(weight, weight_place(stretch, range) * size);
    TRIREME_RETURN_IF_ERROR(tensor_->gemm()->multiply(call));
  }
  return Status::success();
}

Status Linear::weigh(const void* full, const SplitArray& split, const BackwardWeight& to) {
  GemmCall call;
  call.dtype = options_.dtype;
  call.left_transposed = true;
  call.add = to.add;
  call.depth = options_.rows;
  call.result_step = is_column() ? full_ : own_.count;
  for (std::uint64_t i = 0; i < blocks_.count; ++i) {
    const Range range = block(i);
    call.rows = is_column() ? range.count : full_;
    call.columns = is_column() ? full_ : range.count;
    for (std::uint32_t stretch = 0; stretch < options_.stretches; ++stretch) {
      const void* const part = block_of(split, stretch, range);
      call.left = is_column() ? part : full;
      call.left_step = is_column() ? split.step : full_;
      call.right = is_column() ? full : part;
      call.right_step = is_column() ? full_ : split.step;
      call.result = linear_at(to.weight_gradient, weight_place(stretch, range) * dtype_size(wide_));
      TRIREME_RETURN_IF_ERROR(tensor_->gemm()->multiply(call));
    }
  }
  if (!options_.bias) return Status::success();
  if (!is_column()) {
    kernels::add_columns(options_.dtype, full, full_, options_.rows, full_, to.add,
                         to.bias_gradient);
    return Status::success();
  }
  for (std::uint32_t stretch = 0; stretch < options_.stretches; ++stretch) {
    kernels::add_columns(options_.dtype, block_of(split, stretch, {0, own_.count}), split.step,
                         options_.rows, own_.count, to.add,
                         linear_at(to.bias_gradient, stretch * own_.count * dtype_size(wide_)));
  }
  return Status::success();
}

const void* Linear::widened(Workspace::Use& use, const void* bias, std::uint64_t columns) const {
  if (bias == nullptr || wide_ == options_.dtype) return bias;
  auto* const wide = reinterpret_cast<float*>(use.take(columns * sizeof(float)));
  kernels::widen(options_.dtype, wide, bias, columns);
  return wide;
}

// The bias is added to the products, before they are rounded.
void Linear::finish(const void* bias, const Range& rows, std::uint64_t columns, void* wide,
                    void* out) const {
  const std::uint64_t first = rows.first * columns;
  void* const products = linear_at(wide, first * dtype_size(wide_));
  if (bias != nullptr && rows.count > 0)
    kernels::add_bias(wide_, bias, rows.count, columns, products);
  if (wide_ != options_.dtype) {
    kernels::narrow(options_.dtype, linear_at(out, first * dtype_size(options_.dtype)),
                    static_cast<const float*>(products), rows.count * columns);
  }
}

}  // namespace trireme::parallel
