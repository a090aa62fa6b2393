#include "parallel/tensor/vocabulary.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <utility>

#include "kernels/reduce.hpp"
#include "platform/mix.hpp"
#include "platform/names.hpp"
#include "platform/object_name.hpp"
#include "platform/utf8.hpp"

namespace trireme::parallel {
namespace {

constexpr std::uint64_t kMostVocabularyBytes = 1ull << 56;  // no processor of today addresses more

Status check_bytes(const char* what, std::initializer_list<std::uint64_t> factors) {
  std::uint64_t bytes = 1;
  for (const std::uint64_t factor : factors) {
    if (factor == 0) return Status::success();
  }
  for (const std::uint64_t factor : factors) {
    if (__builtin_mul_overflow(bytes, factor, &bytes) || bytes > kMostVocabularyBytes) {
      return invalid_argument(std::string("options: ") + what +
                              " has more bytes than memory can hold");
    }
  }
  return Status::success();
}

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

Status check_vocabulary_numbers(const VocabularyOptions& options) {
  if (options.classes == 0) return invalid_argument("options.classes is 0, must be 1 or more");
  if (options.classes > INT64_MAX) {
    return invalid_argument("options.classes is " + std::to_string(options.classes) +
                            ", more than a token of 64 bits can tell apart");
  }
  if (!(options.label_smoothing >= 0 && options.label_smoothing <= 1)) {
    return invalid_argument("options.label_smoothing is " + number_text(options.label_smoothing) +
                            ", not in 0 to 1");
  }
  if (!(options.z_loss >= 0 && std::isfinite(options.z_loss))) {
    return invalid_argument("options.z_loss is " + number_text(options.z_loss) +
                            ", must be finite, and 0 or more");
  }
  if (options.dtype != TRIREME_DTYPE_F32 && options.dtype != TRIREME_DTYPE_F64 &&
      options.dtype != TRIREME_DTYPE_F16 && options.dtype != TRIREME_DTYPE_BF16) {
    return unsupported("options.dtype is " + std::to_string(options.dtype) + " (" +
                       dtype_name(options.dtype) + "): a vocabulary is of f32, f64, f16 or bf16");
  }
  return Status::success();
}

Status check_vocabulary_size(const Tensor& tensor, const VocabularyOptions& options) {
  const std::uint64_t own = tensor.range(options.classes, tensor.rank()).count;
  const std::uint64_t size = dtype_size(options.dtype);
  TRIREME_RETURN_IF_ERROR(check_bytes("the weight", {own, options.width, size}));
  TRIREME_RETURN_IF_ERROR(check_bytes("an embedding", {options.width, 8}));
  TRIREME_RETURN_IF_ERROR(
      check_bytes("the array of embeddings", {options.rows, options.width, size}));
  TRIREME_RETURN_IF_ERROR(check_bytes("the array of logits", {options.rows, own, size}));
  return check_bytes("the array that ranks exchange",
                     {options.rows, CrossEntropy::node_bytes(tensor)});
}

enum : std::uint64_t { kEmbedPass = 1, kLossPass = 2 };

// The pass as peers compare it: at most 47 bytes, with as much of the name as fits.
std::string describe_vocabulary_pass(const char* pass, const std::string& name,
                                     const TokenList& tokens) {
  constexpr std::size_t kMost = 47;
  char hash[9];
  std::snprintf(hash, sizeof hash, "%08x", static_cast<unsigned>(tokens.hash()));
  const std::string begin = std::string(pass) + " \"";
  const std::string end = "\" of " + std::to_string(tokens.count()) + " tokens #" + hash;
  const std::size_t room = kMost - std::min(kMost, begin.size() + end.size());
  return begin + name.substr(0, whole_characters(name, room)) + end;
}

}  // namespace

Status Vocabulary::create(std::shared_ptr<Tensor> tensor, VocabularyOptions options,
                          std::shared_ptr<Vocabulary>* out) {
  TRIREME_RETURN_IF_ERROR(check_object_name(options.name));
  TRIREME_RETURN_IF_ERROR(check_vocabulary_numbers(options));
  TRIREME_RETURN_IF_ERROR(check_vocabulary_size(*tensor, options));
  out->reset(new Vocabulary(std::move(tensor), std::move(options)));
  return Status::success();
}

Vocabulary::Vocabulary(std::shared_ptr<Tensor> tensor, VocabularyOptions options)
    : tensor_(std::move(tensor)),
      options_(std::move(options)),
      rank_(tensor_->rank()),
      size_(dtype_size(options_.dtype)),
      own_(tensor_->range(options_.classes, tensor_->rank())),
      tokens_(options_.classes, options_.rows),
      loss_(*tensor_, {options_.classes, options_.dtype, options_.label_smoothing, options_.z_loss},
            options_.rows),
      order_(options_.rows),
      sums_(kernels::is_narrow(options_.dtype) ? options_.width : 0) {}

Vocabulary::Plan Vocabulary::plan() const {
  Plan plan;
  plan.own = own_;
  plan.kept_bytes = options_.rows * TRIREME_VOCABULARY_KEPT_BYTES;
  plan.memory_bytes = tokens_.memory_bytes() + loss_.memory_bytes() +
                      order_.size() * sizeof(std::uint64_t) + sums_.size() * sizeof(float);
  plan.scratch_bytes = std::min(options_.rows, options_.classes) * row_bytes();
  plan.embed_bytes =
      std::min(options_.rows, own_.count) * row_bytes() * (tensor_->world_size() - 1);
  plan.loss_bytes = loss_.given_bytes(options_.rows);
  return plan;
}

// --- arguments ---------------------------------------------------------------------------------

Status Vocabulary::check_output(const Argument& output, std::initializer_list<Argument> inputs,
                                const void* in_place) const {
  const auto check_there = [](const Argument& array) {
    if (array.data != nullptr || array.bytes == 0) return Status::success();
    return invalid_argument(std::string(array.name) + " is NULL but holds " +
                            std::to_string(array.bytes) + " bytes");
  };
  TRIREME_RETURN_IF_ERROR(check_there(output));
  const auto to = reinterpret_cast<std::uintptr_t>(output.data);
  for (const Argument& input : inputs) {
    TRIREME_RETURN_IF_ERROR(check_there(input));
    const auto from = reinterpret_cast<std::uintptr_t>(input.data);
    const bool overlaps =
        input.bytes > 0 && output.bytes > 0 && from < to + output.bytes && to < from + input.bytes;
    if (!overlaps || (input.data == in_place && from == to)) continue;
    return invalid_argument(std::string(input.name) + " and " + output.name + " overlap" +
                            (input.data == in_place ? "; in place, they are the same memory" : ""));
  }
  return Status::success();
}

// --- the exchange ------------------------------------------------------------------------------

template <class Body>
Status Vocabulary::collective(Body body) {
  try {
    return body();
  } catch (...) {
    tensor_->communicator().fail(TRIREME_ERROR_OUT_OF_MEMORY, "no memory left for a pass");
    throw;
  }
}

std::uint64_t Vocabulary::agreement(std::uint64_t pass) const {
  std::uint64_t hash = tokens_.hash();
  for (const char letter : options_.name)
    hash = trireme::mix(hash, static_cast<unsigned char>(letter));
  const std::int64_t ignored = options_.ignored.value_or(0);
  for (const std::uint64_t number :
       {std::uint64_t{options_.name.size()}, options_.classes, options_.width, options_.rows,
        static_cast<std::uint64_t>(options_.dtype),
        std::bit_cast<std::uint64_t>(options_.label_smoothing + 0.0),
        std::bit_cast<std::uint64_t>(options_.z_loss + 0.0),
        std::uint64_t{options_.ignored.has_value()}, static_cast<std::uint64_t>(ignored),
        std::uint64_t{tensor_->blocks()}, tokens_.count(), pass}) {
    hash = trireme::mix(hash, number);
  }
  return hash | 1;  // never 0, which other calls have
}

Status Vocabulary::communicate(
    const char* pass, Operation operation, std::uint64_t timeout_ns,
    const std::function<Status(Steps& steps, const Operation& step)>& body) {
  const std::string what = describe_vocabulary_pass(pass, options_.name, tokens_);
  operation.kind = OperationKind::all_gather_v;
  operation.agreement_name = what.c_str();
  for (const std::uint64_t count : operation.counts) operation.count += count;
  // Steps have the counts themselves.
  std::vector<std::uint64_t> counts = std::exchange(operation.counts, {});
  const Operation called = operation;
  Operation step = operation;
  step.called = &called;
  step.counts = std::move(counts);
  operation.program = [&](Steps& steps) { return body(steps, step); };
  const Status status =
      tensor_->communicator().run(std::move(operation), Deadline::after(timeout_ns));
  if (status.ok()) return Status::success();
  Status told = Status::failure(status.code(), std::string(pass) + " pass of vocabulary \"" +
                                                   options_.name + "\": " + status.message());
  if (status.details() == nullptr) return told;
  return std::move(told).with_details(*status.details());
}

// --- embedding ---------------------------------------------------------------------------------

void Vocabulary::sort_rows() {
  const auto end = order_.begin() + static_cast<std::ptrdiff_t>(tokens_.count());
  std::iota(order_.begin(), end, std::uint64_t{0});
  std::sort(order_.begin(), end, [this](std::uint64_t a, std::uint64_t b) {
    return tokens_[a] != tokens_[b] ? tokens_[a] < tokens_[b] : a < b;
  });
}

template <class Body>
void Vocabulary::each_token(Body body) const {
  for (std::uint64_t first = 0, end = 0; first < tokens_.count(); first = end) {
    const std::uint64_t token = tokens_[order_[first]];
    while (end < tokens_.count() && tokens_[order_[end]] == token) ++end;
    body(token, first, end);
  }
}

// Classes of ranks ascend, so each rank's embeddings lie side by side.
std::vector<std::uint64_t> Vocabulary::embedding_counts(std::uint64_t* out_own_place) const {
  std::vector<std::uint64_t> counts(tensor_->world_size());
  std::size_t rank = 0;
  std::uint64_t place = 0;
  sharding::Range classes = tensor_->range(options_.classes, 0);
  *out_own_place = 0;
  each_token([&](std::uint64_t token, std::uint64_t, std::uint64_t) {
    while (token >= classes.end()) {
      classes = tensor_->range(options_.classes, static_cast<std::uint32_t>(++rank));
    }
    if (rank < rank_) *out_own_place = place + options_.width;
    counts[rank] += options_.width;
    place += options_.width;
  });
  return counts;
}

Status Vocabulary::embed(const TokenArray& tokens, const void* weight, void* output,
                         std::uint64_t timeout_ns) {
  return collective([&]() -> Status {
    TRIREME_RETURN_IF_ERROR(tokens_.read(tokens, std::nullopt));
    const std::uint64_t bytes = row_bytes();
    TRIREME_RETURN_IF_ERROR(check_output(
        {"output", output, tokens.count * bytes},
        {{tokens.name, tokens.data, tokens.bytes()}, {"weight", weight, own_.count * bytes}}));
    sort_rows();
    std::uint64_t own_place = 0;
    Operation operation;
    operation.dtype = options_.dtype;
    operation.agreement = agreement(kEmbedPass);
    operation.counts = embedding_counts(&own_place);
    operation.send = weight;
    operation.receive = output;
    operation.also_uses = {tokens.data};
    return communicate(
        "embed", std::move(operation), timeout_ns,
        [&](Steps& steps, const Operation& step) -> Status {
          std::byte* packed = nullptr;
          if (step.count > 0) TRIREME_RETURN_IF_ERROR(steps.scratch(step.count * size_, &packed));
          std::byte* next = packed + own_place * size_;
          each_token([&](std::uint64_t token, std::uint64_t, std::uint64_t) {
            if (bytes == 0 || token < own_.first || token >= own_.end()) return;
            kernels::copy(
                next, static_cast<const std::byte*>(weight) + (token - own_.first) * bytes, bytes);
            next += bytes;
          });
          Operation gather = step;
          gather.send = packed + own_place * size_;
          gather.receive = packed;
          TRIREME_RETURN_IF_ERROR(steps.run(gather));
          const std::byte* from = packed;
          each_token([&](std::uint64_t, std::uint64_t first, std::uint64_t end) {
            for (std::uint64_t i = first; i < end && bytes > 0; ++i) {
              kernels::copy(static_cast<std::byte*>(output) + order_[i] * bytes, from, bytes);
            }
            from += bytes;
          });
          return Status::success();
        });
  });
}

Status Vocabulary::embed_backward(const TokenArray& tokens, const void* gradients,
                                  void* weight_gradient) {
  TRIREME_RETURN_IF_ERROR(tokens_.read(tokens, std::nullopt));
  const std::uint64_t bytes = row_bytes();
  TRIREME_RETURN_IF_ERROR(check_output({"weight_gradient", weight_gradient, own_.count * bytes},
                                       {{tokens.name, tokens.data, tokens.bytes()},
                                        {"gradients", gradients, tokens.count * bytes}}));
  if (bytes == 0) return Status::success();
  sort_rows();
  each_token([&](std::uint64_t token, std::uint64_t first, std::uint64_t end) {
    if (token < own_.first || token >= own_.end()) return;
    add_rows(static_cast<const std::byte*>(gradients), first, end,
             static_cast<std::byte*>(weight_gradient) + (token - own_.first) * bytes);
  });
  return Status::success();
}

void Vocabulary::add_rows(const std::byte* gradients, std::uint64_t first, std::uint64_t end,
                          std::byte* result) {
  const std::uint64_t width = options_.width;
  if (!sums_.empty()) {
    kernels::widen(options_.dtype, sums_.data(), result, width);
    for (std::uint64_t i = first; i < end; ++i) {
      kernels::add_widened(options_.dtype, sums_.data(), gradients + order_[i] * row_bytes(),
                           width);
    }
    kernels::narrow(options_.dtype, result, sums_.data(), width);
    return;
  }
  for (std::uint64_t i = first; i < end; ++i) {
    const void* const summands[] = {result, gradients + order_[i] * row_bytes()};
    kernels::reduce_few(options_.dtype, TRIREME_REDUCTION_SUM, result, summands, 2, width, 1, 0);
  }
}

// --- loss --------------------------------------------------------------------------------------

Status Vocabulary::loss(const TokenArray& targets, const void* logits, void* losses, void* kept,
                        std::uint64_t timeout_ns) {
  return collective([&]() -> Status {
    TRIREME_RETURN_IF_ERROR(tokens_.read(targets, options_.ignored));
    const std::uint64_t rows = targets.count;
    const Argument wanted{"losses", losses, rows * dtype_size(loss_.loss_dtype())};
    const Argument keeps{"kept", kept, kept == nullptr ? 0 : rows * TRIREME_VOCABULARY_KEPT_BYTES};
    const Argument reads{"logits", logits, logits_bytes(rows)};
    const Argument tells{targets.name, targets.data, targets.bytes()};
    TRIREME_RETURN_IF_ERROR(check_output(wanted, {tells, reads, keeps}));
    TRIREME_RETURN_IF_ERROR(check_output(keeps, {tells, reads}));
    // Before the exchange, so that ranks that are queued behind other calls compute meanwhile.
    loss_.make_nodes(tokens_, logits);
    Operation operation;
    operation.dtype = TRIREME_DTYPE_F64;
    operation.agreement = agreement(kLossPass);
    operation.counts = loss_.counts(rows);
    operation.send = logits;
    operation.receive = losses;
    operation.also_uses = {targets.data, kept};
    return communicate("loss", std::move(operation), timeout_ns,
                       [&](Steps& steps, const Operation& step) -> Status {
                         Operation gather = step;
                         gather.send = loss_.nodes() + loss_.own_place(rows);
                         gather.receive = loss_.nodes();
                         TRIREME_RETURN_IF_ERROR(steps.run(gather));
                         loss_.finish(tokens_, losses, kept);
                         return Status::success();
                       });
  });
}

Status Vocabulary::loss_backward(const TokenArray& targets, const void* logits, const void* kept,
                                 const void* loss_gradients, void* gradients) {
  TRIREME_RETURN_IF_ERROR(tokens_.read(targets, options_.ignored));
  const std::uint64_t rows = targets.count;
  const std::uint64_t given = loss_gradients == nullptr ? 0 : rows * dtype_size(loss_.loss_dtype());
  TRIREME_RETURN_IF_ERROR(check_output({"gradients", gradients, logits_bytes(rows)},
                                       {{targets.name, targets.data, targets.bytes()},
                                        {"kept", kept, rows * TRIREME_VOCABULARY_KEPT_BYTES},
                                        {"loss_gradients", loss_gradients, given},
                                        {"logits", logits, logits_bytes(rows)}},
                                       logits));
  loss_.gradients(tokens_, logits, kept, loss_gradients, gradients);
  return Status::success();
}

}  // namespace trireme::parallel
