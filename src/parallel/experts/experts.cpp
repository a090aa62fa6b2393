#include "parallel/experts/experts.hpp"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <utility>

#include "kernels/reduce.hpp"
#include "parallel/experts/expert_checks.hpp"
#include "parallel/experts/expert_names.hpp"
#include "parallel/experts/expert_rows.hpp"
#include "platform/mix.hpp"
#include "platform/names.hpp"
#include "platform/pass_guard.hpp"
#include "platform/utf8.hpp"

namespace trireme::parallel {
namespace {

constexpr std::size_t kVerdictWords = 3;  // of a RefusedRow, before a rank's counts

const char* pass_name(ExpertPass pass) {
  static constexpr const char* kNames[] = {"route", "dispatch", "combine", "backward combine",
                                           "backward dispatch"};
  return kNames[static_cast<std::size_t>(pass)];
}

std::uint64_t shape_of(const ExpertsOptions& options, const ExpertLayout& layout) {
  std::uint64_t hash = 0x3c6ef372fe94f82bu;
  for (const char letter : options.name) hash = mix(hash, static_cast<unsigned char>(letter));
  for (const std::uint64_t number :
       {std::uint64_t{options.name.size()}, std::uint64_t{options.router.experts},
        std::uint64_t{options.router.top_k}, std::uint64_t{options.router.normalizes},
        static_cast<std::uint64_t>(options.router.scores), options.router.capacity,
        static_cast<std::uint64_t>(options.router.drop), options.width, options.rows,
        static_cast<std::uint64_t>(options.dtype), std::uint64_t{layout.leaves()}}) {
    hash = mix(hash, number);
  }
  return hash;
}

std::uint64_t next_serial() {
  static std::atomic<std::uint64_t> made{0};
  return ++made;
}

// The most slots of one rank's rows that are routed to one of `experts` experts.
std::uint64_t most_slots(const ExpertsOptions& options, std::uint64_t leaves,
                         std::uint64_t experts) {
  const std::uint64_t rows = options.rows;
  const std::uint64_t chosen = rows * std::min<std::uint64_t>(options.router.top_k, experts);
  if (options.router.drop == TRIREME_EXPERTS_DROP_NONE) return chosen;
  const bool binds = options.router.capacity <= rows / leaves;  // so no product overflows
  return std::min(chosen, experts * (binds ? options.router.capacity * leaves : rows));
}

ExpertsPlan plan_experts(const ExpertsOptions& options, const ExpertLayout& layout,
                         std::uint32_t rank) {
  ExpertsPlan plan;
  const std::uint64_t own = layout.experts_of(rank).count;
  for (std::uint32_t source = 0; source < layout.ranks(); ++source) {
    plan.received += most_slots(options, layout.leaves_of(source).count, own);
  }
  plan.sent = most_slots(options, layout.leaves_of(rank).count, layout.experts());
  plan.kept_bytes = Routing::kept_bytes(layout, options.router.top_k, options.rows);
  // One rank finds its rows where the caller has them.
  plan.pass_memory =
      layout.ranks() == 1 ? 0 : plan.sent * options.width * dtype_size(options.dtype);
  return plan;
}

Status check_refused_row(std::uint64_t reason, std::uint64_t row, std::uint64_t expert,
                         std::uint32_t rank) {
  const std::string where = "row " + std::to_string(row) + " of rank " + std::to_string(rank);
  const std::string score =
      where + " has, for expert " + std::to_string(expert) + ", a score that is ";
  switch (reason) {
    case RefusedRow::kNone: return Status::success();
    case RefusedRow::kNotFinite: return invalid_argument(score + "no finite number");
    case RefusedRow::kNegative: return invalid_argument(score + "below 0, and no probability");
    default:
      return invalid_argument(where +
                              " chooses experts whose probabilities are 0, so its weights "
                              "cannot be normalized");
  }
}

// As peers compare it. At least 19 bytes of the name fit.
std::string describe_pass(ExpertPass pass, const std::string& name, std::uint64_t agreement) {
  constexpr std::size_t kMost = 47;  // bytes of a fingerprint's name
  char form[16];
  std::snprintf(form, sizeof form, "\" #%06x", static_cast<unsigned>(agreement & 0xffffff));
  const std::string begin = std::string(pass_name(pass)) + " \"";
  const std::size_t room = kMost - begin.size() - std::strlen(form);
  return begin + name.substr(0, whole_characters(name, room)) + form;
}

Status check_alone(const PassGuard& guard, const std::string& name) {
  if (guard.entered()) return Status::success();
  return invalid_state("another pass of experts \"" + name + "\" runs");
}

}  // namespace

// --- creation ----------------------------------------------------------------------------------

Status Experts::create(std::shared_ptr<Communicator> communicator, ExpertsOptions options,
                       std::shared_ptr<Experts>* out) {
  const auto ranks = static_cast<std::uint32_t>(communicator->world_size());
  TRIREME_RETURN_IF_ERROR(check_experts_options(options, ranks));
  if (options.leaves == 0) options.leaves = ranks;
  std::shared_ptr<Experts> experts(new Experts(std::move(communicator), std::move(options)));
  TRIREME_RETURN_IF_ERROR(take_expert_name(experts->communicator(), experts->options_.name));
  experts->named_ = true;
  *out = std::move(experts);
  return Status::success();
}

void Experts::drop_name() noexcept {
  if (named_.exchange(false)) drop_expert_name(*communicator_, options_.name);
}

Experts::Experts(std::shared_ptr<Communicator> communicator, ExpertsOptions options)
    : communicator_(std::move(communicator)),
      options_(std::move(options)),
      layout_(options_.router.experts, options_.leaves,
              static_cast<std::uint32_t>(communicator_->world_size())),
      row_bytes_(options_.width * dtype_size(options_.dtype)),
      shape_(shape_of(options_, layout_)),
      serial_(next_serial()),
      router_(options_.router, options_.rows),
      routing_(layout_, rank(), options_.router.top_k, options_.rows),
      sources_(options_.router.top_k),
      weights_(options_.router.top_k),
      plan_(plan_experts(options_, layout_, rank())) {
  const std::uint64_t leaf_words = LeafCounts::words(layout_.experts());
  std::uint64_t all = 0;
  for (std::uint32_t source = 0; source < layout_.ranks(); ++source) {
    word_counts_.push_back(kVerdictWords + layout_.leaves_of(source).count * leaf_words);
    all += word_counts_.back();
  }
  own_words_.resize(word_counts_[rank()]);
  all_words_.resize(all);
  std::uint64_t* next = all_words_.data();
  for (std::uint32_t source = 0; source < layout_.ranks(); ++source) {
    next += kVerdictWords;
    for (std::uint64_t leaf = 0; leaf < layout_.leaves_of(source).count; ++leaf) {
      leaves_.emplace_back(next, layout_.experts());
      next += leaf_words;
    }
  }
  plan_.route_bytes = own_words_.size() * sizeof(std::uint64_t) * (layout_.ranks() - 1);
  plan_.table_bytes = router_.memory_bytes() + routing_.memory_bytes() +
                      (own_words_.size() + all_words_.size() + word_counts_.size()) * 8 +
                      leaves_.size() * sizeof(LeafCounts) + sources_.size() * sizeof(void*) +
                      weights_.size() * sizeof(float);
}

std::uint64_t Experts::segment_count() const {
  return layout_.experts_of(rank()).count * layout_.leaves() + 1;
}

// --- arguments ---------------------------------------------------------------------------------

Status Experts::check_arguments(std::initializer_list<Argument> arguments) {
  for (const Argument& one : arguments) {
    if (one.data == nullptr && one.bytes > 0) {
      return invalid_argument(std::string(one.name) + " is NULL but holds " +
                              std::to_string(one.bytes) + " bytes");
    }
  }
  const auto address = [](const Argument& one) {
    return reinterpret_cast<std::uintptr_t>(one.data);
  };
  for (const Argument* a = arguments.begin(); a != arguments.end(); ++a) {
    for (const Argument* b = a + 1; b != arguments.end(); ++b) {
      if (!a->written && !b->written) continue;
      if (a->bytes == 0 || b->bytes == 0) continue;
      if (address(*a) >= address(*b) + b->bytes || address(*b) >= address(*a) + a->bytes) continue;
      return invalid_argument(std::string(a->name) + " and " + b->name +
                              " overlap, and the pass writes one of them");
    }
  }
  return Status::success();
}

Status Experts::check_rows(const trireme_experts_route_arrays& arrays) const {
  if (arrays.rows > options_.rows) {
    return invalid_argument("arrays.rows is " + std::to_string(arrays.rows) +
                            ", above options.rows, which is " + std::to_string(options_.rows));
  }
  const std::uint64_t leaves = layout_.leaves_of(rank()).count;
  if (arrays.leaf_rows == nullptr) {
    if (leaves == 1) return Status::success();
    return invalid_argument("arrays.leaf_rows is NULL, but this rank has " +
                            std::to_string(leaves) + " leaves");
  }
  std::uint64_t sum = 0;
  for (std::uint64_t leaf = 0; leaf < leaves; ++leaf) {
    if (__builtin_add_overflow(sum, arrays.leaf_rows[leaf], &sum)) sum = UINT64_MAX;
    if (sum > arrays.rows) break;
  }
  if (sum == arrays.rows) return Status::success();
  return invalid_argument("the sum of arrays.leaf_rows is " +
                          std::string(sum > arrays.rows ? "above" : "below") +
                          " arrays.rows, which is " + std::to_string(arrays.rows));
}

Status Experts::check_route(const trireme_experts_route_arrays& arrays) const {
  TRIREME_RETURN_IF_ERROR(check_rows(arrays));
  const std::uint64_t rows = arrays.rows, experts = layout_.experts();
  const std::uint64_t slots = rows * options_.router.top_k;
  const auto wanted = [](const void* data, std::uint64_t bytes) {
    return data == nullptr ? 0 : bytes;
  };
  return check_arguments(
      {{"arrays.scores", arrays.scores, rows * experts * sizeof(float), false},
       {"arrays.padding", arrays.padding, wanted(arrays.padding, rows), false},
       {"arrays.leaf_rows", arrays.leaf_rows,
        wanted(arrays.leaf_rows, layout_.leaves_of(rank()).count * 8), false},
       {"arrays.kept", arrays.kept, plan_.kept_bytes, true},
       {"arrays.segments", arrays.segments, segment_count() * 8, true},
       {"arrays.chosen", arrays.chosen, wanted(arrays.chosen, slots * 4), true},
       {"arrays.weights", arrays.weights, wanted(arrays.weights, slots * 4), true},
       {"arrays.expert_rows", arrays.expert_rows, wanted(arrays.expert_rows, experts * 8), true},
       {"arrays.expert_dropped", arrays.expert_dropped, wanted(arrays.expert_dropped, experts * 8),
        true},
       {"arrays.mean_probabilities", arrays.mean_probabilities,
        wanted(arrays.mean_probabilities, experts * 8), true}});
}

Status Experts::check_pairs(ExpertPass backward, ExpertPass forward) const {
  if (passes(backward) < passes(forward)) return Status::success();
  return invalid_state(std::string(pass_name(backward)) + " pass " +
                       std::to_string(passes(backward) + 1) + " of experts \"" + options_.name +
                       "\" needs as many " + pass_name(forward) + " passes, but there were " +
                       std::to_string(passes(forward)));
}

std::uint64_t Experts::kept_shape() const {
  return mix(mix(mix(shape_, rank()), layout_.ranks()), serial_);
}

Status Experts::load(const void* kept) {
  if (kept == nullptr) {
    return invalid_argument("kept is NULL but holds " + std::to_string(plan_.kept_bytes) +
                            " bytes");
  }
  if (routing_.load(kept_shape(), kept)) return Status::success();
  return invalid_argument("kept has not the bytes that a route pass of experts \"" + options_.name +
                          "\" wrote on this rank");
}

// --- one pass ----------------------------------------------------------------------------------

template <class Body>
Status Experts::run_pass(ExpertPass pass, Body body) {
  const PassGuard guard(busy_);
  TRIREME_RETURN_IF_ERROR(check_alone(guard, options_.name));
  try {
    Status status = body();
    if (status.ok()) ++passes_[static_cast<std::size_t>(pass)];
    return status;
  } catch (...) {  // peers may be in the pass already
    char what[64];
    std::snprintf(what, sizeof what, "no memory left for a %s pass of experts", pass_name(pass));
    communicator_->fail(TRIREME_ERROR_OUT_OF_MEMORY, what);
    throw;
  }
}

Status Experts::tell(ExpertPass pass, const Status& status) const {
  Status told =
      Status::failure(status.code(), std::string(pass_name(pass)) + " pass of experts \"" +
                                         options_.name + "\": " + status.message());
  if (status.details() == nullptr) return told;
  return std::move(told).with_details(*status.details());
}

Status Experts::take_memory(ExpertPass pass, std::byte** out) {
  *out = nullptr;
  if (plan_.pass_memory == 0) return Status::success();
  if (memory_ == nullptr) {
    const Status allocated = communicator_->allocate(plan_.pass_memory, &memory_);
    if (!allocated.ok()) {
      Status status = tell(pass, allocated);
      communicator_->fail(status.code(), status.message());  // peers may be in the pass already
      return status;
    }
    held_bytes_ = memory_->bytes();
  }
  *out = static_cast<std::byte*>(memory_->data());
  return Status::success();
}

Status Experts::communicate(
    ExpertPass pass, Operation operation, std::uint64_t timeout_ns,
    const std::function<Status(Steps& steps, const Operation& step)>& body) {
  const std::string what = describe_pass(pass, options_.name, operation.agreement);
  operation.agreement = mix(operation.agreement, static_cast<std::uint64_t>(pass)) | 1;
  operation.agreement_name = what.c_str();
  const Operation called = operation;
  Operation step = operation;
  step.called = &called;
  operation.program = [&](Steps& steps) { return body(steps, step); };
  const Status status = communicator_->run(std::move(operation), Deadline::after(timeout_ns));
  return status.ok() ? status : tell(pass, status);
}

Status Experts::move_rows(ExpertPass pass, bool back, const void* send, void* receive,
                          std::uint64_t timeout_ns) {
  Operation operation;
  operation.kind = OperationKind::all_to_all_v;
  operation.agreement = mix(shape_, routing_.agreement());
  operation.send = send;
  operation.receive = receive;
  return communicate(
      pass, std::move(operation), timeout_ns, [&](Steps& steps, Operation step) -> Status {
        const auto* from = static_cast<const std::byte*>(send);
        auto* to = static_cast<std::byte*>(receive);
        bool moved = false;
        for (std::uint32_t round = 0; layout_.ranks() > 1 && round < layout_.rounds(); ++round) {
          step.counts = routing_.blocks_of_round(round, back, row_bytes());
          if (step.counts.empty()) continue;
          moved = true;
          step.send = from;
          step.receive = to;
          TRIREME_RETURN_IF_ERROR(steps.run(step));
          const std::uint64_t sent = routing_.sent_in_round(round) * row_bytes();
          const std::uint64_t received = routing_.received_in_round(round) * row_bytes();
          from += back ? received : sent;
          to += back ? sent : received;
        }
        if (moved) return Status::success();
        step.kind = OperationKind::barrier;  // ranks are compared, although no row travels
        step.counts.clear();
        return steps.run(step);
      });
}

// --- routing -----------------------------------------------------------------------------------

Status Experts::tell_counts(const trireme_experts_route_arrays& arrays, std::uint64_t timeout_ns) {
  routing_.begin(arrays.rows);
  const std::uint64_t leaf_words = LeafCounts::words(layout_.experts());
  RefusedRow refused;
  std::uint64_t first = 0;
  for (std::uint64_t leaf = 0; leaf < layout_.leaves_of(rank()).count; ++leaf) {
    const std::uint64_t rows = arrays.leaf_rows == nullptr ? arrays.rows : arrays.leaf_rows[leaf];
    LeafCounts counts(own_words_.data() + kVerdictWords + leaf * leaf_words, layout_.experts());
    router_.route(arrays.scores + first * layout_.experts(),
                  arrays.padding == nullptr ? nullptr : arrays.padding + first, first, rows,
                  routing_.slots() + first * options_.router.top_k, counts, &refused);
    first += rows;
  }
  own_words_[0] = refused.reason;
  own_words_[1] = refused.row;
  own_words_[2] = refused.expert;
  Operation operation;
  operation.kind = OperationKind::all_gather_v;
  operation.dtype = TRIREME_DTYPE_U64;
  operation.count = all_words_.size();
  operation.agreement = shape_;
  operation.send = own_words_.data();
  operation.receive = all_words_.data();
  return communicate(ExpertPass::route, std::move(operation), timeout_ns,
                     [&](Steps& steps, Operation step) -> Status {
                       step.counts = word_counts_;
                       return steps.run(step);
                     });
}

// The same answer on all ranks.
Status Experts::refused_row() const {
  const std::uint64_t* words = all_words_.data();
  for (std::uint32_t source = 0; source < layout_.ranks(); ++source) {
    TRIREME_RETURN_IF_ERROR(check_refused_row(words[0], words[1], words[2], source));
    words += word_counts_[source];
  }
  return Status::success();
}

void Experts::read_counts() {
  // Route passes with equal counts are told apart by their number.
  std::uint64_t agreement = mix(shape_, passes(ExpertPass::route));
  for (const std::uint64_t word : all_words_) agreement = mix(agreement, word);
  routing_.finish(agreement, leaves_);
}

void Experts::write_segments(std::uint64_t* segments) const {
  const sharding::Range own = layout_.experts_of(rank());
  std::uint64_t at = 0;
  *segments++ = 0;
  for (std::uint64_t expert = own.first; expert < own.end(); ++expert) {
    for (const LeafCounts& leaf : leaves_) {
      at += leaf.chosen[expert] - leaf.dropped[expert];
      *segments++ = at;
    }
  }
}

void Experts::write_slots(const trireme_experts_route_arrays& arrays) const {
  const ExpertSlot* const slots = routing_.slots();
  for (std::uint64_t i = 0; i < routing_.slot_count(); ++i) {
    if (arrays.chosen != nullptr) arrays.chosen[i] = slots[i].routed() ? slots[i].expert : -1;
    if (arrays.weights != nullptr) arrays.weights[i] = slots[i].weight;
  }
}

void Experts::write_counts(const trireme_experts_route_arrays& arrays) const {
  for (std::uint64_t expert = 0; expert < layout_.experts(); ++expert) {
    std::uint64_t chosen = 0, dropped = 0;
    double sum = 0;
    for (const LeafCounts& leaf : leaves_) {
      chosen += leaf.chosen[expert];
      dropped += leaf.dropped[expert];
      sum += leaf.probability(expert);
    }
    if (arrays.expert_rows != nullptr) arrays.expert_rows[expert] = chosen;
    if (arrays.expert_dropped != nullptr) arrays.expert_dropped[expert] = dropped;
    if (arrays.mean_probabilities != nullptr) {
      const auto rows = static_cast<double>(routing_.real_rows());
      arrays.mean_probabilities[expert] = routing_.real_rows() == 0 ? 0 : sum / rows;
    }
  }
}

Status Experts::route(const trireme_experts_route_arrays& arrays, std::uint64_t timeout_ns,
                      trireme_experts_route_info* info) {
  return run_pass(ExpertPass::route, [&]() -> Status {
    TRIREME_RETURN_IF_ERROR(check_route(arrays));
    TRIREME_RETURN_IF_ERROR(tell_counts(arrays, timeout_ns));
    TRIREME_RETURN_IF_ERROR(refused_row());
    read_counts();
    routing_.save(kept_shape(), arrays.kept);
    write_segments(arrays.segments);
    write_slots(arrays);
    write_counts(arrays);
    info->received_rows = routing_.received_rows();
    info->sent_rows = routing_.sent_rows();
    info->real_rows = routing_.real_rows();
    info->dispatch_bytes = routing_.rows_to_peers() * row_bytes();
    info->combine_bytes = routing_.rows_from_peers() * row_bytes();
    return Status::success();
  });
}

Status Experts::route_backward(const void* kept, const float* scores, const float* d_weights,
                               const double* d_mean, float* d_scores) {
  const PassGuard guard(busy_);
  TRIREME_RETURN_IF_ERROR(check_alone(guard, options_.name));
  TRIREME_RETURN_IF_ERROR(load(kept));
  const std::uint64_t rows = routing_.rows(), experts = layout_.experts();
  const Argument gradient{"d_scores", d_scores, rows * experts * sizeof(float), true};
  const Argument wanted{"scores", scores, gradient.bytes, false};
  const std::uint64_t mean_bytes = d_mean == nullptr ? 0 : experts * sizeof(double);
  TRIREME_RETURN_IF_ERROR(
      check_arguments({{"kept", kept, plan_.kept_bytes, false},
                       {"d_weights", d_weights, routing_.slot_count() * sizeof(float), false},
                       {"d_mean_probabilities", d_mean, mean_bytes, false},
                       gradient}));
  if (static_cast<const void*>(scores) != d_scores) {
    TRIREME_RETURN_IF_ERROR(check_arguments({wanted, gradient}));
  }
  const RefusedRow refused = router_.check_scores(scores, routing_.slots(), rows);
  TRIREME_RETURN_IF_ERROR(check_refused_row(refused.reason, refused.row, refused.expert, rank()));
  router_.gradients(scores, routing_.slots(), rows, d_weights, d_mean, routing_.real_rows(),
                    d_scores);
  return Status::success();
}

// --- rows --------------------------------------------------------------------------------------

void Experts::add_slots(const std::byte* landed, bool weighted, void* rows) {
  const std::uint32_t top_k = options_.router.top_k;
  const ExpertSlot* slot = routing_.slots();
  for (std::uint64_t row = 0; row < routing_.rows(); ++row) {
    std::uint32_t count = 0;
    for (std::uint32_t k = 0; k < top_k; ++k, ++slot) {
      if (!slot->routed()) continue;
      sources_[count] = landed + slot->place * row_bytes();
      weights_[count++] = slot->weight;
    }
    add_weighted_rows(options_.dtype, sources_.data(), weighted ? weights_.data() : nullptr, count,
                      options_.width, static_cast<std::byte*>(rows) + row * row_bytes());
  }
}

Status Experts::dispatch(const void* kept, const void* rows, void* received,
                         std::uint64_t timeout_ns) {
  return run_pass(ExpertPass::dispatch, [&]() -> Status {
    TRIREME_RETURN_IF_ERROR(load(kept));
    TRIREME_RETURN_IF_ERROR(
        check_arguments({{"kept", kept, plan_.kept_bytes, false},
                         {"rows", rows, rows_bytes(), false},
                         {"received", received, routing_.received_rows() * row_bytes(), true}}));
    std::byte* packed = nullptr;
    TRIREME_RETURN_IF_ERROR(take_memory(ExpertPass::dispatch, &packed));
    if (layout_.ranks() == 1) packed = static_cast<std::byte*>(received);
    const ExpertSlot* const slots = routing_.slots();
    for (std::uint64_t i = 0; row_bytes() > 0 && i < routing_.slot_count(); ++i) {
      if (!slots[i].routed()) continue;
      const std::uint64_t row = i / options_.router.top_k;
      std::memcpy(packed + slots[i].place * row_bytes(),
                  static_cast<const std::byte*>(rows) + row * row_bytes(), row_bytes());
    }
    return move_rows(ExpertPass::dispatch, false, packed, received, timeout_ns);
  });
}

Status Experts::combine(const void* kept, const void* results, void* returned, void* output,
                        std::uint64_t timeout_ns) {
  return run_pass(ExpertPass::combine, [&]() -> Status {
    TRIREME_RETURN_IF_ERROR(load(kept));
    const std::uint64_t landed_bytes = routing_.sent_rows() * row_bytes();
    TRIREME_RETURN_IF_ERROR(
        check_arguments({{"kept", kept, plan_.kept_bytes, false},
                         {"results", results, routing_.received_rows() * row_bytes(), false},
                         {"returned", returned, returned == nullptr ? 0 : landed_bytes, true},
                         {"output", output, rows_bytes(), true}}));
    std::byte* memory = nullptr;
    if (returned == nullptr) {
      TRIREME_RETURN_IF_ERROR(take_memory(ExpertPass::combine, &memory));
    }
    void* const landing = returned != nullptr ? returned : memory;
    TRIREME_RETURN_IF_ERROR(move_rows(ExpertPass::combine, true, results, landing, timeout_ns));
    const auto* landed = static_cast<const std::byte*>(landing);
    if (layout_.ranks() == 1) {
      landed = static_cast<const std::byte*>(results);
      if (returned != nullptr && landed_bytes > 0) kernels::copy(returned, results, landed_bytes);
    }
    add_slots(landed, true, output);
    return Status::success();
  });
}

Status Experts::combine_backward(const void* kept, const void* d_output, const void* returned,
                                 void* d_results, float* d_weights, std::uint64_t timeout_ns) {
  return run_pass(ExpertPass::combine_backward, [&]() -> Status {
    TRIREME_RETURN_IF_ERROR(check_pairs(ExpertPass::combine_backward, ExpertPass::combine));
    TRIREME_RETURN_IF_ERROR(load(kept));
    TRIREME_RETURN_IF_ERROR(
        check_arguments({{"kept", kept, plan_.kept_bytes, false},
                         {"d_output", d_output, rows_bytes(), false},
                         {"returned", returned, routing_.sent_rows() * row_bytes(), false},
                         {"d_results", d_results, routing_.received_rows() * row_bytes(), true},
                         {"d_weights", d_weights, routing_.slot_count() * sizeof(float), true}}));
    std::byte* packed = nullptr;
    TRIREME_RETURN_IF_ERROR(take_memory(ExpertPass::combine_backward, &packed));
    if (layout_.ranks() == 1) packed = static_cast<std::byte*>(d_results);
    const ExpertSlot* const slots = routing_.slots();
    for (std::uint64_t i = 0; i < routing_.slot_count(); ++i) {
      d_weights[i] = 0;
      if (!slots[i].routed() || row_bytes() == 0) continue;
      const auto* const gradient =
          static_cast<const std::byte*>(d_output) + i / options_.router.top_k * row_bytes();
      const std::uint64_t at = slots[i].place * row_bytes();
      d_weights[i] = static_cast<float>(multiply_rows(
          options_.dtype, static_cast<const std::byte*>(returned) + at, gradient, options_.width));
      scale_row(options_.dtype, slots[i].weight, gradient, options_.width, packed + at);
    }
    return move_rows(ExpertPass::combine_backward, false, packed, d_results, timeout_ns);
  });
}

Status Experts::dispatch_backward(const void* kept, const void* d_received, void* d_rows,
                                  std::uint64_t timeout_ns) {
  return run_pass(ExpertPass::dispatch_backward, [&]() -> Status {
    TRIREME_RETURN_IF_ERROR(check_pairs(ExpertPass::dispatch_backward, ExpertPass::dispatch));
    TRIREME_RETURN_IF_ERROR(load(kept));
    TRIREME_RETURN_IF_ERROR(
        check_arguments({{"kept", kept, plan_.kept_bytes, false},
                         {"d_received", d_received, routing_.received_rows() * row_bytes(), false},
                         {"d_rows", d_rows, rows_bytes(), true}}));
    std::byte* landing = nullptr;
    TRIREME_RETURN_IF_ERROR(take_memory(ExpertPass::dispatch_backward, &landing));
    TRIREME_RETURN_IF_ERROR(
        move_rows(ExpertPass::dispatch_backward, true, d_received, landing, timeout_ns));
    const std::byte* const landed =
        layout_.ranks() == 1 ? static_cast<const std::byte*>(d_received) : landing;
    add_slots(landed, false, d_rows);
    return Status::success();
  });
}

}  // namespace trireme::parallel
