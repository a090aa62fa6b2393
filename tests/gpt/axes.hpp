// Parts of the small transformer that ranks along "context" or "expert" compute together. Each has
// two forms: with the library, where a rank has some of the rows, and with plain loops in one
// process, which has all of them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "wide.hpp"

namespace wide {

constexpr std::uint32_t kChunks = 4;
constexpr std::uint32_t kSides = 2;  // ranks along the axis

struct DestroyAxes {
  void operator()(trireme_context* it) const { trireme_context_destroy(it); }
  void operator()(trireme_experts* it) const { trireme_experts_destroy(it); }
};

// Networks of one process that compute a part together: one on a rank, kSides in the plain form.
template <class T>
using Networks = std::vector<std::unique_ptr<Network<T>>>;

// ---- attention over positions -----------------------------------------------------------------

enum class Way {
  exchange,  // of rows for heads, and then loops over whole sequences
  pairs,     // of chunks, which a caller's function computes
  builtin    // the same by the library's function
};

struct ContextSetup {
  Way way = Way::pairs;
  trireme_context_layout layout = TRIREME_CONTEXT_LAYOUT_CONTIGUOUS;
  trireme_context_method method = TRIREME_CONTEXT_METHOD_GATHER;
};

// The rows of a side, by plain arithmetic.
std::vector<std::uint64_t> rows_of_side(trireme_context_layout layout, std::uint32_t side);

// Rows of some positions. Each query head has keys and values of its own, so that their gradients
// are one summand for each query head.
template <class T>
struct HeadRows {
  std::uint64_t heads = 0;
  std::vector<std::uint64_t> positions;  // ascending
  std::vector<T> q, k, v, mixed, dmixed, dq, dk, dv;
};

template <class T>
class AttentionCore {
 public:
  virtual ~AttentionCore() = default;
  virtual void forward(HeadRows<T>* rows) = 0;
  virtual void backward(HeadRows<T>* rows) = 0;
};

// Over the ranks of `communicator`.
template <class T>
std::unique_ptr<AttentionCore<T>> make_attention(trireme_communicator* communicator,
                                                 std::uint64_t heads, const ContextSetup& setup);
// In one process. For Way::builtin that is the library with one rank, as no loop outside of it has
// its exponential.
template <class T>
std::unique_ptr<AttentionCore<T>> make_plain_attention(trireme_communicator* one,
                                                       std::uint64_t heads,
                                                       const ContextSetup& setup);

template <class T>
void attend_together(const Networks<T>& networks, AttentionCore<T>* core);
template <class T>
void attend_backward_together(const Networks<T>& networks, AttentionCore<T>* core);

// ---- routed MLP -------------------------------------------------------------------------------

template <class T>
class RoutedMlp {
 public:
  virtual ~RoutedMlp() = default;
  virtual void forward(const Networks<T>& networks, const std::vector<T> values[]) = 0;
  // Gradients of experts are those of all sides' rows: the last network's are, others are 0.
  virtual void backward(const Networks<T>& networks, const std::vector<T> values[],
                        std::vector<Gradients<T>>* to) = 0;
};

struct ExpertSetup {
  trireme_tensor* tensor = nullptr;  // of experts: without sequence parallelism
  trireme_tensor* rows = nullptr;    // of the network, if that has sequence parallelism
  bool lowest = false;               // an expert drops the rows of the lowest weights
};

// Over the ranks of `communicator`.
template <class T>
std::unique_ptr<RoutedMlp<T>> make_routed(trireme_communicator* communicator,
                                          const ExpertSetup& setup);
template <class T>
std::unique_ptr<RoutedMlp<T>> make_plain_routed(const ExpertSetup& setup);
// The experts of a rank along the axis.
std::vector<int> places_of_experts(std::int32_t rank, std::int32_t ranks);

}  // namespace wide
