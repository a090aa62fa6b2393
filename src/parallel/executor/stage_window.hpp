// StageWindow: the memory of a rank's activations if a file has those that are not in use. It makes
// the moves of its plan around each call of a layer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "offload/item_file.hpp"
#include "parallel/executor/window_plan.hpp"
#include "trainer/layer_failure.hpp"

namespace trireme::parallel {

class StageWindow {
 public:
  StageWindow(const strategies::Link& link, const StageWindowPlan& plan,
              const std::string& directory)
      : link_(link), plan_(plan), file_(link, directory) {}
  Status open();

  // `micro_batches`: of this rank. An evaluation writes nothing. A failure means a silent disk.
  Status begin_pass(bool trains, std::uint32_t micro_batches);
  void begin_action(std::uint64_t number);
  // Around each call of a layer, also where this rank has no part in it. `stopped` or a failure:
  // the pass has ended here. Trouble with the file becomes the failure, of the call and of the
  // micro-batch whose activations it was about.
  Status before_call(std::uint64_t layer, std::int32_t phase, bool stopped,
                     strategies::LayerFailure* failure);
  void after_call(bool stopped, const strategies::LayerFailure& failure);

  // Where the items lie now, from the first one of this place of the plan.
  char* const* items(std::uint64_t place) const {
    return places_.data() + plan_.first_items[place];
  }
  // Bytes in memory: the window, and the items that could not be written.
  std::uint64_t allocated_bytes() const { return plan_.bytes + file_.kept_bytes(); }
  void info(trireme_offload_info* out) const;

 private:
  // Whether it moves bytes in this pass.
  bool moves(const StageWindowPlan::Move& move) const;

  const strategies::Link& link_;
  const StageWindowPlan& plan_;
  std::shared_ptr<char> memory_{};
  std::vector<char*> places_{};  // by item
  strategies::ItemFile file_;
  // State of the present pass.
  bool trains_ = false;
  std::uint32_t micro_batches_ = 0;
  std::uint64_t step_ = 0, next_ = 0;  // of the moves
};

}  // namespace trireme::parallel
