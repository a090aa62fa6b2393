// TiedGradients: gradients of parameters that stages of several ranks share.
//
// No rank waits for another one's gradient inside a pass: such waits make a circle. So the
// gradients of each micro-batch stay here until the pass of the whole schedule is over and all
// ranks know that it has succeeded. Then the holders of a parameter give each other theirs,
// micro-batch by micro-batch. Each holder adds all of them in the order of layers, as one process
// does, and hands in the sum. Equal sums make equal updates.
//
// Other gradients of the same bucket wait with them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "exchange/storage.hpp"
#include "model/model.hpp"
#include "platform/status.hpp"
#include "trainer/layer_table.hpp"

namespace trireme::parallel {

class TiedGradients {
 public:
  // The holders of a parameter have these numbers in common.
  struct Moment {
    std::uint64_t step = 0;
    double rate = 0, loss_scale = 1;
    std::uint64_t rates = 0;  // those of all groups, see Optimizer::rates_at()
  };

  TiedGradients(strategies::Model& model, const strategies::LayerTable& layers)
      : model_(model), layers_(layers) {}

  // Collective along the pipeline, whose ranks know the same parameters. `passes`: records that
  // this rank keeps in a step.
  Status meet(strategies::Link& link, std::uint32_t passes);
  std::uint64_t bytes() const { return record_bytes_ * passes_ + received_bytes_; }
  void use(std::shared_ptr<const void> owner, char* memory) {
    owner_ = std::move(owner);
    memory_ = memory;
  }

  // In the first training step, when all ranks know that they make one: the holders' copies are
  // the same. Collective over the mesh, whose ranks all hear of a difference.
  Status check_copies();
  // A training step begins.
  void begin();
  // Whether the gradient of this name waits here.
  bool waits(std::uint64_t parameter) const {
    return !place_of_.empty() && place_of_[parameter] != kGoes;
  }
  // Takes it; null: there is none.
  void keep(std::uint64_t parameter, std::uint32_t pass, const void* gradient);
  // All passes are over on all ranks: this rank's `passes` first records go to their holders.
  Status hand_in(const Moment& moment, std::uint32_t passes);

 private:
  static constexpr std::uint64_t kGoes = UINT64_MAX;

  // One use of a tied parameter by a layer of any rank.
  struct Use {
    std::uint64_t layer = 0, place = 0;  // in the whole model, and among the layer's parameters
    std::uint32_t rank = 0;
    std::uint64_t at = 0;  // among the uses of its rank
  };
  struct Tie {
    std::uint64_t number = 0;     // among those of the pipeline
    std::uint64_t parameter = 0;  // of this rank: the target
    std::vector<std::uint32_t> holders;
    std::vector<Use> uses;                // in the order of layers
    std::vector<std::uint64_t> uses_of;   // by holder
    std::uint64_t use_bytes = 0;          // of one gradient
    std::uint64_t record = 0;             // where this rank's part begins in a record
    std::vector<std::uint64_t> received;  // by holder: where its part comes
    std::size_t own = 0;                  // this rank among the holders
  };
  struct Header;

  std::vector<std::uint64_t> own_words() const;
  Status read_words(const std::vector<std::string>& told);
  void find_buckets();
  void place_records();
  static std::uint64_t head_bytes(std::uint64_t uses);
  std::uint64_t part_bytes(const Tie& tie, std::size_t holder) const;
  char* record(std::uint32_t pass) const { return memory_ + record_bytes_ * pass; }
  char* part(const Tie& tie, std::size_t holder, std::uint32_t pass) const;
  char* gradient(const Tie& tie, const Use& use, std::uint32_t pass) const;
  Status exchange(const Tie& tie, const Moment& moment, std::uint32_t pass);
  Status name_tie(const Tie& tie, const Status& failure) const;
  Status check_header(const Tie& tie, std::size_t holder, const Moment& moment,
                      std::uint32_t pass) const;
  // Null: no layer had a gradient.
  const void* add_up(const Tie& tie, std::uint32_t pass) const;

  strategies::Model& model_;
  const strategies::LayerTable& layers_;
  strategies::Link* link_ = nullptr;
  std::vector<Tie> ties_;                // that are trained and held here, in the order of names
  std::vector<bool> buckets_;            // that wait
  std::vector<std::uint64_t> place_of_;  // by parameter: in a record, or kGoes. Empty: none waits
  std::vector<std::uint64_t> loose_;     // parameters that wait and are not tied
  std::vector<std::vector<bool>> has_;   // by pass, then by parameter
  std::uint64_t record_bytes_ = 0, received_bytes_ = 0;
  std::uint32_t passes_ = 0;
  std::shared_ptr<const void> owner_;
  char* memory_ = nullptr;
  bool checked_ = false;
};

}  // namespace trireme::parallel
