// StagePlaces: the place of each stage of a micro-batch, here or in the memory of its sender. It
// sends and receives the messages of these places.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "exchange/storage.hpp"
#include "parallel/executor/links.hpp"
#include "parallel/executor/lanes.hpp"
#include "parallel/executor/mail.hpp"
#include "parallel/executor/plan.hpp"
#include "parallel/executor/stage_window.hpp"
#include "parallel/executor/skip_passes.hpp"
#include "parallel/pipeline/schedule.hpp"

namespace trireme::parallel {

class StagePlaces {
 public:
  // A stage of a micro-batch that an action is about.
  struct Cell {
    const StageShape* shape = nullptr;
    const StageLayout* layout = nullptr;
    const ExecutorPlan::Place* place = nullptr;
    const std::vector<StageLayout::Layer>* layers = nullptr;  // in this pass of the layers
    std::uint32_t micro_batch = 0;
    bool present = false;  // this rank has a part in the micro-batch
    char* activations = nullptr;
    char* gradients = nullptr;
    char* again = nullptr;
    char* work = nullptr;
    char* const* items = nullptr;           // of the window, by layer, where they lie now
    const char* input = nullptr;            // of the stage, here or in place
    const char* output_gradient = nullptr;  // the same

    char* at(std::uint64_t layer, const Spot& spot) const {
      if (spot.base == Spot::window) return items[layer] + spot.offset;
      char* const bases[] = {activations, again, work};
      return bases[spot.base] + spot.offset;
    }
    char* output(std::uint64_t layer) const { return at(layer, (*layers)[layer].output); }
    // Of a stage without layers its input.
    const char* stage_output() const {
      return layers->empty() ? input : output(layers->size() - 1);
    }
  };
  // Of one pass.
  struct Pass {
    bool trains = false;
    std::uint64_t step = 0;
    std::uint32_t micro_batches = 0;  // of this rank
  };

  // The three live as long as this. The plan is made later.
  StagePlaces(const pipeline::Schedule& schedule, strategies::Link& link, const ExecutorPlan& plan)
      : schedule_(schedule), link_(link), plan_(plan) {}

  // Whether all ranks share memory: once they have met.
  bool has_one_memory() const { return link_.communicator->one_memory().is_there; }
  // Collective, once the schedule is known to be valid.
  Status meet_skips(const strategies::LayerTable& layers, const std::vector<std::uint64_t>& cuts);
  SkipPasses& skips() { return skips_; }
  const SkipPasses& skips() const { return skips_; }
  std::uint64_t mail_bytes() const;
  // The plan is made. `arena` begins with its bytes, and has those of the mail at `mail`. Behind
  // them come those of skips().
  Status use(std::shared_ptr<Memory> arena, std::uint64_t mail, std::uint64_t hash_of_schedule);
  // Makes the file of activations, which `link` waits for.
  Status open_window(const strategies::Link& link, const std::string& directory);
  StageWindow* window() const { return window_.get(); }  // null: memory has all
  // Around each call of a layer, see StageWindow.
  Status before_call(std::uint64_t layer, std::int32_t phase, bool stopped,
                     strategies::LayerFailure* failure) {
    if (window_ == nullptr) return Status::success();
    return window_->before_call(layer, phase, stopped, failure);
  }
  void after_call(bool stopped, const strategies::LayerFailure& failure) {
    if (window_ != nullptr) window_->after_call(stopped, failure);
  }
  // Collective, see StageMail.
  Status meet() { return mail_ == nullptr ? Status::success() : mail_->meet(); }

  void begin_pass(const Pass& pass);
  // Begins receives whose memory is free before this action, of those that come after it.
  Status post_receives(std::uint64_t before);
  Status drain() { return links_.drain(); }
  void drop() { links_.drop(); }

  // `first`: as its first forward sees it.
  Cell cell(std::uint32_t stage, std::uint32_t micro_batch, bool first = false) const;
  // Waits until no message is read from these places.
  Status claim_activations(const Cell& cell);
  Status claim_again(const Cell& cell);
  Status claim_gradients(const Cell& cell);
  // The place of the gradient of the stage's input, claimed; null for the first stage.
  Status find_input_gradient(const Cell& cell, char** out);
  // A gradient has the extent of *news; an output tells its own there.
  Status receive(const Cell& to, StageDirection direction, StageNews* news);
  Status send(const Cell& from, StageDirection direction, const StageNews& news);
  // Tells the senders that the stage is done with their memory.
  Status give_back(const Cell& cell);

 private:
  struct InPlace {
    const char* input = nullptr;
    const char* output_gradient = nullptr;
  };

  char* sent_gradient(const Cell& cell) const;
  StageMessage message_of(StageDirection direction, std::uint32_t sender, std::uint32_t micro_batch,
                          std::uint64_t bytes) const;
  char* place_of(const Cell& to, StageDirection direction) const;
  StageMessage received(const Cell& to, StageDirection direction) const;

  const pipeline::Schedule& schedule_;
  strategies::Link& link_;
  const ExecutorPlan& plan_;
  std::shared_ptr<Memory> arena_;
  std::unique_ptr<Lanes> lanes_;
  std::unique_ptr<StageMail> mail_;  // null: ranks do not share memory
  std::unique_ptr<StageWindow> window_{};
  StageLinks links_{link_};
  SkipPasses skips_{links_};
  Pass pass_;
  std::size_t next_receive_ = 0;   // of the plan, that may be posted
  std::vector<InPlace> in_place_;  // by index of the plan
};

}  // namespace trireme::parallel
