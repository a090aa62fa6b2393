#include "parallel/executor/stage_window.hpp"

#include <cstring>
#include <new>

#include "platform/memory.hpp"
#include "sharding/activation_plan.hpp"

namespace trireme::parallel {

using strategies::LayerFailure;
using Kind = StageWindowPlan::Kind;

namespace {

constexpr std::uint64_t kHugePageBytes = 2u << 20;

// A disk takes a large page in one piece.
std::shared_ptr<char> window_memory(std::uint64_t bytes) {
  const std::align_val_t alignment{bytes < kHugePageBytes ? strategies::kWindowAlignment
                                                          : kHugePageBytes};
  auto* const memory = static_cast<char*>(::operator new(bytes, alignment, std::nothrow));
  if (memory == nullptr) return nullptr;
  prefer_huge_pages(memory, bytes);
  std::memset(memory, 0, bytes);  // whole pages are written, also where layers fill only a part
  return {memory, [alignment](char* end) { ::operator delete(end, alignment); }};
}

}  // namespace

Status StageWindow::open() {
  if (plan_.bytes > 0) {
    memory_ = window_memory(plan_.bytes);
    if (memory_ == nullptr) {
      return Status::failure(
          TRIREME_ERROR_OUT_OF_MEMORY,
          "no memory for a window of " + std::to_string(plan_.bytes) + " bytes of activations");
    }
  }
  places_.assign(plan_.items.size(), nullptr);
  std::vector<strategies::ItemFile::Place> places;
  for (const StageWindowPlan::Item& item : plan_.items) places.push_back({item.bytes, item.offset});
  return file_.open(places, plan_.file_bytes, memory_);
}

Status StageWindow::begin_pass(bool trains, std::uint32_t micro_batches) {
  trains_ = trains;
  micro_batches_ = micro_batches;
  return file_.begin();
}

void StageWindow::begin_action(std::uint64_t number) {
  step_ = plan_.first_steps[number];
  next_ = plan_.first_moves[number];
}

bool StageWindow::moves(const StageWindowPlan::Move& move) const {
  return trains_ && plan_.items[move.item].micro_batch < micro_batches_;
}

Status StageWindow::before_call(std::uint64_t layer, std::int32_t phase, bool stopped,
                                LayerFailure* failure) {
  const bool goes_on = !stopped && failure->kind == LayerFailure::none;
  strategies::ItemFile::Trouble trouble;
  for (; next_ < plan_.moves.size(); ++next_) {
    const StageWindowPlan::Move& move = plan_.moves[next_];
    if (move.step != step_ || move.kind == Kind::store) break;
    if (move.kind == Kind::take || move.kind == Kind::fetch) {
      places_[move.item] = memory_.get() + move.place;
    }
    if (!goes_on || trouble.any() || !moves(move)) continue;
    if (move.kind == Kind::settle) TRIREME_RETURN_IF_ERROR(file_.settle(move.item, &trouble));
    if (move.kind == Kind::fetch) file_.fetch(move.item, places_[move.item]);
    if (move.kind == Kind::need) TRIREME_RETURN_IF_ERROR(file_.need(move.item, &trouble));
  }
  if (!trouble.any()) return Status::success();
  const std::uint32_t micro_batch = plan_.items[trouble.item].micro_batch;
  const std::uint32_t leaf = micro_batch * link_.world_size() + link_.rank();
  *failure = {strategies::kind_of(trouble), phase, trouble.error_number, layer, leaf, {}};
  return Status::success();
}

void StageWindow::after_call(bool stopped, const LayerFailure& failure) {
  const bool goes_on = !stopped && failure.kind == LayerFailure::none;
  for (; next_ < plan_.moves.size() && plan_.moves[next_].step == step_; ++next_) {
    const StageWindowPlan::Move& move = plan_.moves[next_];
    if (goes_on && moves(move)) file_.store(move.item, places_[move.item]);
  }
  ++step_;
}

void StageWindow::info(trireme_offload_info* out) const {
  file_.info(out);
  out->file_bytes = plan_.file_bytes;
  out->resident_bytes = file_.kept_bytes();
  out->buffer_bytes = plan_.bytes;
  out->block_bytes = plan_.largest_item;
}

}  // namespace trireme::parallel
