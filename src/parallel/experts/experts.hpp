// Experts: networks of a layer that lie on several ranks. Its passes route rows, bring them to
// their experts and back, and do the same with gradients.
#pragma once

#include <trireme/experts.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "collectives/communicator.hpp"
#include "parallel/experts/expert_layout.hpp"
#include "parallel/experts/router.hpp"
#include "parallel/experts/routing.hpp"

namespace trireme::parallel {

struct ExpertsOptions {
  std::string name;
  RouterOptions router;
  std::uint64_t width = 0;
  std::uint64_t rows = 0;  // most of a pass
  trireme_dtype dtype = 0;
  std::uint32_t leaves = 0;  // 0: one for each rank
  std::uint64_t timeout_ns = 0;
};

enum class ExpertPass { route, dispatch, combine, combine_backward, dispatch_backward };
constexpr std::size_t kExpertPasses = 5;

// Most numbers of a pass, whatever is routed.
struct ExpertsPlan {
  std::uint64_t received = 0;     // rows
  std::uint64_t sent = 0;         // slots
  std::uint64_t kept_bytes = 0;   // of a route pass
  std::uint64_t table_bytes = 0;  // of the object
  std::uint64_t pass_memory = 0;  // of a pass that moves rows
  std::uint64_t route_bytes = 0;  // of this rank that peers read
};

// One thread at a time makes a pass; the rest any thread.
class Experts {
 public:
  static Status create(std::shared_ptr<Communicator> communicator, ExpertsOptions options,
                       std::shared_ptr<Experts>* out);
  ~Experts() { drop_name(); }
  Experts(const Experts&) = delete;
  Experts& operator=(const Experts&) = delete;

  Status route(const trireme_experts_route_arrays& arrays, std::uint64_t timeout_ns,
               trireme_experts_route_info* info);
  Status dispatch(const void* kept, const void* rows, void* received, std::uint64_t timeout_ns);
  Status combine(const void* kept, const void* results, void* returned, void* output,
                 std::uint64_t timeout_ns);
  Status combine_backward(const void* kept, const void* d_output, const void* returned,
                          void* d_results, float* d_weights, std::uint64_t timeout_ns);
  Status dispatch_backward(const void* kept, const void* d_received, void* d_rows,
                           std::uint64_t timeout_ns);
  Status route_backward(const void* kept, const float* scores, const float* d_weights,
                        const double* d_mean, float* d_scores);

  // The name may be taken again.
  void drop_name() noexcept;

  Communicator& communicator() const { return *communicator_; }
  std::uint32_t rank() const { return static_cast<std::uint32_t>(communicator_->rank()); }
  const ExpertsOptions& options() const { return options_; }
  const ExpertLayout& layout() const { return layout_; }
  const ExpertsPlan& plan() const { return plan_; }
  std::uint64_t segment_count() const;
  std::uint64_t held_bytes() const { return held_bytes_; }
  std::uint64_t passes(ExpertPass pass) const { return passes_[static_cast<std::size_t>(pass)]; }

 private:
  Experts(std::shared_ptr<Communicator> communicator, ExpertsOptions options);

  // An array of the caller, as arguments are checked.
  struct Argument {
    const char* name;
    const void* data;
    std::uint64_t bytes;
    bool written;
  };
  static Status check_arguments(std::initializer_list<Argument> arguments);
  Status check_rows(const trireme_experts_route_arrays& arrays) const;
  Status check_route(const trireme_experts_route_arrays& arrays) const;
  Status check_pairs(ExpertPass backward, ExpertPass forward) const;
  // Reads what a route pass kept.
  Status load(const void* kept);
  // Tells kept bytes from those of another layer, rank or group, also of one with the same name.
  std::uint64_t kept_shape() const;
  std::uint64_t row_bytes() const { return row_bytes_; }
  std::uint64_t rows_bytes() const { return routing_.rows() * row_bytes_; }

  // Runs a pass: one at a time, and peers learn if memory runs out here.
  template <class Body>
  Status run_pass(ExpertPass pass, Body body);
  Status communicate(ExpertPass pass, Operation operation, std::uint64_t timeout_ns,
                     const std::function<Status(Steps& steps, const Operation& step)>& body);
  // Rows to their experts, or `back`. On one rank `send` and `receive` are one array already.
  Status move_rows(ExpertPass pass, bool back, const void* send, void* receive,
                   std::uint64_t timeout_ns);
  Status take_memory(ExpertPass pass, std::byte** out);
  // Names the pass and the layer.
  Status tell(ExpertPass pass, const Status& status) const;

  Status tell_counts(const trireme_experts_route_arrays& arrays, std::uint64_t timeout_ns);
  Status refused_row() const;
  void read_counts();
  void write_counts(const trireme_experts_route_arrays& arrays) const;
  void write_segments(std::uint64_t* segments) const;
  void write_slots(const trireme_experts_route_arrays& arrays) const;
  // The sum of each row's results or gradients, which lie at `landed`.
  void add_slots(const std::byte* landed, bool weighted, void* rows);

  const std::shared_ptr<Communicator> communicator_;
  const ExpertsOptions options_;
  const ExpertLayout layout_;
  const std::uint64_t row_bytes_;
  const std::uint64_t shape_;   // a number of the name and all options, the same on all ranks
  const std::uint64_t serial_;  // of all layers that this process has made
  std::atomic<bool> named_{false};
  Router router_;
  Routing routing_;
  std::vector<std::uint64_t> own_words_;  // of the counts that this rank tells
  std::vector<std::uint64_t> all_words_;
  std::vector<std::uint64_t> word_counts_;  // by rank
  std::vector<LeafCounts> leaves_;          // in all_words_
  std::vector<const void*> sources_;        // of a sum over the slots of a row
  std::vector<float> weights_;
  ExpertsPlan plan_;
  std::shared_ptr<Memory> memory_;
  std::atomic<bool> busy_{false};
  std::atomic<std::uint64_t> held_bytes_{0};
  std::array<std::atomic<std::uint64_t>, kExpertPasses> passes_{};
};

}  // namespace trireme::parallel
