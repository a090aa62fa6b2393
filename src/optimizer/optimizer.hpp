// Optimizer: the end of a step. State lies with the gradients' owners.
#pragma once

#include <trireme/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "model/model.hpp"
#include "optimizer/counters.hpp"
#include "optimizer/norm_ranks.hpp"
#include "optimizer/offload.hpp"
#include "optimizer/rules/adafactor_state.hpp"
#include "optimizer/rules/clipping.hpp"
#include "optimizer/rules/loss_scale.hpp"
#include "optimizer/rules/matrix_plan.hpp"
#include "optimizer/rules/settings.hpp"
#include "optimizer/rules/shard_update.hpp"
#include "optimizer/schedule.hpp"

namespace trireme::strategies {

class Optimizer {
 public:
  // `options` as read by the boundary.
  static Status create(const std::shared_ptr<Model>& model,
                       const trireme_optimizer_options& options,
                       const std::shared_ptr<Communicator>& norm_ranks,
                       std::shared_ptr<Optimizer>* out);
  // Working memory of a rule for norms of parameters.
  static std::uint64_t trust_bytes(const optimizers::Settings& settings,
                                   const sharding::Registry& registry);
  ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  Status step();
  Status join(std::uint64_t* out_steps);
  Status set_learning_rate(double learning_rate);
  Status set_group_rate_factor(std::uint64_t group, double factor);
  // `options` as read by the boundary, or null for none.
  Status set_schedule(const trireme_schedule_options* options);
  double learning_rate() const { return settings_.learning_rate; }
  // Of the next step, by the schedule.
  Status next_rate(double* out);
  std::uint64_t step_count() const { return steps_; }
  // Update in backward: with which rate the step goes on, and a bucket that is reduced.
  void take_rate(double rate);
  void tell_discarded(const HookAnswer& hook);
  Status update_bucket(std::uint64_t number, char* reduced);
  Status gradient_norm(double* out) const;
  Status group_norm(std::uint64_t group, double* out) const;
  // What a loss is multiplied with before its backward pass; 1 if losses are not scaled.
  double loss_scale() const { return loss_scale_.scale(); }
  Status loss_scale_info(trireme_loss_scale_info* out) const;
  // That the last step had.
  double last_rate() const { return settings_.step_rate; }
  // Of the last step; negative if it computed none.
  double norm_or_negative() const { return norm_; }
  const std::shared_ptr<Model>& model() const { return model_; }
  Communicator& communicator() const { return model_->communicator(); }
  Status check_call() const { return model_->check_call(); }
  // As the model's.
  void fail_groups(trireme_status code, std::string_view why) const noexcept;

  // State of training that this rank owns, see saved_state.cpp.
  std::uint64_t range_count() const { return ranges_.size(); }
  Status range(std::uint64_t index, trireme_state_range* out) const;
  std::uint64_t saved_bytes() const;
  Status read_range(std::uint64_t index, void* data, std::uint64_t bytes) const;
  Status write_range(std::uint64_t index, const void* data, std::uint64_t bytes);
  Status offload_info(trireme_offload_info* out) const;
  Status save(char* state, std::uint64_t capacity) const;
  Status load(const char* state, std::uint64_t bytes);

  // What is in no range, and going on with what was written to ranges: see restore.cpp.
  Status counters(trireme_optimizer_counters* out) const;
  // `given` as read by the boundary, whose outcome is `read`.
  Status restore(const trireme_optimizer_counters* given, Status read);

 private:
  Optimizer(std::shared_ptr<Model> model, const optimizers::Settings& settings)
      : model_(std::move(model)), settings_(settings), loss_scale_(settings.loss_scale) {}

  struct OwnedRange {
    std::int32_t kind = 0;
    std::uint32_t vector = 0;
    std::uint64_t parameter = 0, first = 0, count = 0;
    void* data = nullptr;                  // or null: it lies in a file
    std::uint64_t piece = 0, skipped = 0;  // whose state it is; its elements before these
  };
  // Where the first vector of a piece lies in what is saved, and how far it is to the next.
  struct SavedPlace {
    std::uint64_t offset = 0, stride = 0;
  };
  struct Saved;
  // An inf or NaN among the gradients of the last step, which all ranks skipped.
  struct Overflow {
    bool found = false;
    bool at_floor = false;                      // and the scale is as small as it may be
    std::uint64_t parameter = sharding::kNone;  // the lowest; kNone: of another model
    std::int32_t rank = -1;                     // the lowest that handed in such a gradient of it
  };

  // Stretches of the piece whose parameters are in memory, in order; itself, where all are.
  template <class Act>
  Status with_parameters(const optimizers::Piece& piece, ParameterFile::Access access,
                         const Act& act) const {
    if (!model_->lie_in_file(piece.parameter)) return act(piece);
    return with_windows(piece, access, std::cref(act));
  }
  Status with_windows(const optimizers::Piece& piece, ParameterFile::Access access,
                      const std::function<Status(const optimizers::Piece& part)>& act) const;
  // Of a rule that looks at them several times: before each time. The peers wait for this rank.
  Status expect_parameters() const;
  Status allocate_state();
  void place_pieces();
  void place_ranges();
  // Vectors of state that a piece may have, its masters last; whether it has one on this rank.
  std::uint32_t all_vectors() const { return settings_.states + (settings_.master_weights ? 1 : 0); }
  bool keeps(std::uint64_t piece, std::uint32_t vector) const;
  // Elements of one vector of a piece.
  OwnedRange stretch_of(std::uint64_t piece, std::uint32_t vector, sharding::Range in_piece) const;
  Counters counted() const;
  // What check_replicas() compares.
  Status read_copies(OptimizerCopies* out) const;
  Status give_written();
  Status give_state();
  Status refresh_masters();
  Status check_narrow() const;
  Saved describe_saved() const;
  std::uint64_t scale_bytes() const {
    return loss_scale_.on() ? sizeof(optimizers::LossScale::State) : 0;
  }
  Status check_saved(const char* state, std::uint64_t bytes, Saved* out,
                     optimizers::LossScale::State* scale) const;
  Status check_step() const;
  // nobody: set if all ranks only follow each other, so that there is no step to make.
  Status run_step(bool shadowed, bool* nobody);
  Status end_step(bool shadowed, double norm);
  Status leave_step(bool shadowed);
  Status skip_step(bool shadowed);
  Status floor_failure() const;
  Status agree_on_contributors(bool shadowed, std::uint32_t* out, bool* nobody);
  Status check_update_in_backward() const;
  Status check_rate_is_free() const;
  Status finish_updates();
  Status check_one_sweep() const;
  Status sweep();
  void look_for_overflow();
  void find_overflow(const std::int64_t* words);
  void clip_values();
  void clip_values(const sharding::Bucket& bucket, char* reduced);
  Status begin_update(double* out_norm);
  std::uint64_t rates_to_compare() const;
  Status open_norm_ranks(Communicator& ranks, const std::vector<sharding::Fact>& facts,
                         const Status& ready);
  Status check_groups() const;
  // Groups of parameters that are clipped.
  std::size_t group_count() const { return settings_.group_max_norms.size(); }
  std::uint64_t step_word_bytes(bool own_norm) const;
  template <class Add>
  void add_own_gradients(const Add& add) const;
  Status norm_over_models(double* out_norms);
  double scale_of(std::uint64_t parameter, double norm) const;
  void count_skipped(const std::int64_t* words);
  Status update(double norm);
  void place_norms();
  Status update_by_norms(double norm);
  Status add_up_norms();
  Status update_factored(double norm);
  void place_factored_ranges();
  void place_matrices();
  void place_matrix_states();
  Status update_matrices(double norm);
  Status orthogonalise_whole();
  Status orthogonalise_round(std::size_t round);
  bool is_skipped(const optimizers::Piece& piece) const {
    return !skipped_.empty() && skipped_[piece.parameter];
  }
  std::uint64_t step_of(const optimizers::Piece& piece) const {
    return steps_of_.empty() ? steps_ + 1 : steps_of_[piece.parameter];
  }
  // Of pieces [first, end).
  Status update_offloaded(std::uint64_t first, std::uint64_t end,
                          const std::function<Status(const optimizers::Piece&)>& update_piece,
                          const std::int32_t* answer);
  void count_offload();
  std::uint64_t saved_place(const Offload::Visited& visited, std::uint32_t vector) const;
  Status check_range(std::uint64_t index, const void* data, std::uint64_t bytes) const;
  Status check_no_copy(const OwnedRange& range) const;
  Status copy_range(const OwnedRange& range, char* read, const char* written) const;
  // An answer for no parameter: this rank has discarded the step.
  static constexpr std::int32_t kDiscarded = 1;
  Status compare_answers(std::int32_t answer, std::uint64_t number, const char* who,
                         const char* what);
  // What a step has updated, or what the caller has written to ranges, frozen parameters too.
  enum class Given { updated, written };
  Status give_parameters(Given what);
  Status give_group(std::uint64_t number);
  Status give_blocks(std::uint64_t number);
  Status give(std::uint64_t number, std::uint64_t count, std::uint64_t index, char* data,
              std::shared_ptr<const void> owner);
  std::vector<StepEvent> step_to_follow() const;
  Status shadow_step(bool* nobody);

  const std::shared_ptr<Model> model_;
  optimizers::Settings settings_;
  optimizers::Schedule schedule_;
  Arena state_;
  std::unique_ptr<Offload> offload_;      // or null: all state is in state_
  std::uint64_t state_bytes_ = 0;         // of all of it
  std::vector<SavedPlace> saved_places_;  // by piece
  Arena masters_;  // of parameters of 16 bits, piece by piece, if they are asked for
  std::unique_ptr<NormRanks> norm_ranks_;  // or null: the norm is that of the model's own ranks
  std::vector<optimizers::Piece> pieces_;
  // With update in backward: the pieces of each bucket from here on, with an end, and where the
  // gradients of each piece begin in what is reduced.
  std::vector<std::uint64_t> first_pieces_, gradient_places_;
  // The first answer of the caller's rule in this step that was not 0.
  std::int32_t answer_ = 0;
  std::uint64_t answered_parameter_ = 0;
  std::vector<sharding::Range> own_parts_;  // by piece: what of it no other rank owns
  std::vector<OwnedRange> ranges_;
  std::uint64_t steps_ = 0;
  std::vector<std::uint64_t> steps_of_;  // by target, if parameters can be skipped; or empty
  std::vector<bool> skipped_;            // by target, in this step
  static constexpr double kNoNorm = -1;
  double norm_ = kNoNorm;  // of the last step, which may be one that was loaded
  optimizers::LossScale loss_scale_;
  std::uint64_t own_overflow_ = sharding::kNone;  // parameter, of this rank's part in this step
  Overflow overflow_;
  // What ranks add up in a step, with groups or a loss scale; NormRanks has its own.
  Arena step_words_;
  // LAMB, LARS and ADAFACTOR: sums of squares that ranks add up, two for each place of a parameter.
  Arena trust_words_;
  std::vector<std::uint64_t> trust_places_;  // by parameter
  std::unique_ptr<Factored> factored_;       // ADAFACTOR; or null
  // MUON: who computes with which matrix, the memory for that, and by matrix the pieces of it.
  std::unique_ptr<const MatrixPlan> matrices_;
  Arena matrix_memory_;
  std::vector<std::vector<std::size_t>> matrix_pieces_;
  // Of groups of parameters, if there are any.
  std::vector<optimizers::GradientNorm> group_sums_;
  std::vector<double> group_norms_, last_group_norms_;  // of this step; of the last one
  bool has_group_norms_ = false;                        // there was one
};

inline void fail_to_hand_out(const Optimizer& optimizer) noexcept {
  optimizer.fail_groups(TRIREME_ERROR_OUT_OF_MEMORY, kNoMemory);
}

}  // namespace trireme::strategies
