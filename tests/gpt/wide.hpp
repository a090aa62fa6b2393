// A small transformer whose layers ranks split: what a language model of today has, small enough to
// train in milliseconds. WideNetwork computes it with the library's layers, plain_loss() with loops
// in f64.
#pragma once

#include <trireme/trireme.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace wide {

// No extent but the query heads divides by the blocks. There are fewer key/value heads than ranks.
constexpr std::uint64_t kWords = 61, kWidth = 12, kHeads = 8, kKvHeads = 2, kHeadWidth = 3;
constexpr std::uint64_t kHidden = 19, kFrozenHidden = 13;
// Two sequences. The first one goes beyond the first half of the rows.
constexpr std::uint64_t kRows = 11, kSecondSequence = 7;
constexpr std::uint32_t kBlocks = 8;
constexpr std::uint32_t kLeaves = 4;
constexpr int kSteps = 3;
constexpr double kNormEpsilon = 1e-5;
// Of a routed MLP, which may stand in place of the dense one.
constexpr std::uint32_t kExperts = 3;
constexpr std::uint64_t kExpertHidden = 11;
constexpr std::uint64_t kCapacity = 6;  // rows of a batch that an expert takes
constexpr std::uint32_t kChoices = 2;   // experts of a row

constexpr std::uint64_t begin_of(std::uint64_t row) {
  return row < kSecondSequence ? 0 : kSecondSequence;
}

struct Bf16 {
  std::uint16_t bits = 0;
  Bf16() = default;
  Bf16(float value) {
    std::uint32_t word = 0;
    std::memcpy(&word, &value, sizeof word);
    bits = static_cast<std::uint16_t>((word + 0x7fff + (word >> 16 & 1)) >> 16);
  }
  operator float() const {
    const std::uint32_t word = std::uint32_t{bits} << 16;
    float value = 0;
    std::memcpy(&value, &word, sizeof value);
    return value;
  }
};

template <class T>
constexpr trireme_dtype kType = TRIREME_DTYPE_F32;
template <>
inline constexpr trireme_dtype kType<Bf16> = TRIREME_DTYPE_BF16;

inline void check(trireme_status status) {
  if (status != TRIREME_OK) throw std::runtime_error(trireme_last_error());
}

enum class Cut { none, rows, columns };

// A gradient that is no rank's alone: the norms' have a summand for each block of rows, that of
// the key/value heads one for each query head.
enum class Summands { none, rows, heads };

struct Parameter {
  const char* name;
  std::uint64_t rows, columns;
  Cut cut = Cut::none;
  std::uint64_t stretches = 1;  // of rows
  Summands summands = Summands::none;
  bool frozen = false;
};

enum Place {
  kTokens,
  kNorm1,
  kQuery,
  kKeyValue,
  kOut,
  kOutBias,
  kNorm2,
  kFc1,
  kFc2,
  kFrozen1,
  kFrozen2,
  kNorm3,
  kPlaces,
  // Of the routed MLP.
  kRouter = kPlaces,
  kExpert1,  // for each expert the first product, then the second one
  kAllPlaces = kExpert1 + 2 * kExperts
};

inline const Parameter kParameters[kAllPlaces] = {
    {"tokens", kWords, kWidth, Cut::rows},
    {"norm1", 1, kWidth, Cut::none, 1, Summands::rows},
    {"query", kHeads* kHeadWidth, kWidth, Cut::rows},
    {"key value", 2 * kKvHeads* kHeadWidth, kWidth, Cut::none, 1, Summands::heads},
    {"out", kWidth, kHeads* kHeadWidth, Cut::columns},
    {"out bias", 1, kWidth},
    {"norm2", 1, kWidth, Cut::none, 1, Summands::rows},
    {"fc1", 2 * kHidden, kWidth, Cut::rows, 2},
    {"fc2", kWidth, kHidden, Cut::columns},
    {"frozen1", kFrozenHidden, kWidth, Cut::rows, 1, Summands::none, true},
    {"frozen2", kWidth, kFrozenHidden, Cut::columns, 1, Summands::none, true},
    {"norm3", 1, kWidth, Cut::none, 1, Summands::rows},
    {"router", kExperts, kWidth},
    {"expert 0 fc1", kExpertHidden, kWidth, Cut::rows},
    {"expert 0 fc2", kWidth, kExpertHidden, Cut::columns},
    {"expert 1 fc1", kExpertHidden, kWidth, Cut::rows},
    {"expert 1 fc2", kWidth, kExpertHidden, Cut::columns},
    {"expert 2 fc1", kExpertHidden, kWidth, Cut::rows},
    {"expert 2 fc2", kWidth, kExpertHidden, Cut::columns},
};

// The whole parameters before `end`, one after the other.
std::vector<float> initial_values(int end = kPlaces);
std::uint64_t first_of(int place);

// A rank's stretches of the dimension that is cut, as pairs of first index and count.
std::vector<std::uint64_t> stretches_of(trireme_tensor* tensor, std::int32_t rank, int place);
// The number of each element of a rank's part in all whole parameters.
std::vector<std::uint64_t> numbers_of(trireme_tensor* tensor, std::int32_t rank, int place);

struct Batch {
  std::int32_t tokens[kRows], targets[kRows];
};
Batch batch_of(int step, std::uint32_t leaf);

// The mean loss of a batch. `is_routed`: with the routed MLP, whose experts drop their last rows.
double plain_loss(const std::vector<double>& values, const Batch& batch, bool is_routed = false);

struct Destroy {
  void operator()(trireme_linear* it) const { trireme_linear_destroy(it); }
  void operator()(trireme_mlp* it) const { trireme_mlp_destroy(it); }
  void operator()(trireme_region* it) const { trireme_region_destroy(it); }
  void operator()(trireme_vocabulary* it) const { trireme_vocabulary_destroy(it); }
  void operator()(trireme_tensor* it) const { trireme_tensor_destroy(it); }
  void operator()(trireme_mesh* it) const { trireme_mesh_destroy(it); }
  void operator()(trireme_model* it) const { trireme_model_destroy(it); }
  void operator()(trireme_optimizer* it) const { trireme_optimizer_destroy(it); }
};
template <class T>
using Handle = std::unique_ptr<T, Destroy>;

// The gradients of a batch are f32. The tied weight has one more, of the type of the embedding.
template <class T>
struct Gradients {
  std::vector<T> tokens;              // of the embedding
  std::vector<float> of[kAllPlaces];  // that of kTokens is of the head
};

// Arrays that one pass keeps. Rows are those of the network; with sequence parallelism x and what
// has its shape are this rank's.
template <class T>
struct Pass {
  using Rows = std::vector<T>;
  std::vector<std::int32_t> tokens, targets;
  Rows x0, normal1, kv_input, q, kv, mixed, x1, normal2, mlp_output;
  Rows dx, dmlp_input, dmixed, dq;
  // For each query head of this rank the gradient of its keys, then that of its values.
  std::vector<std::vector<float>> dkv;
  double loss = 0;
};

struct NetworkOptions {
  bool sequence = false;
  // Gradients of norms and key/value heads are this rank's summands, along the tree over blocks.
  // Else they are whole.
  bool shared = false;
  std::vector<std::uint64_t> rows;  // of the batch, ascending; none: all
  double tokens = kRows;            // by which the loss is divided
};

template <class T>
class Network {
 public:
  Network(trireme_tensor* tensor, NetworkOptions options);
  // `values` are this rank's parts. Returns the loss.
  double run(const std::vector<T> values[], const Batch& batch, Gradients<T>* gradients);

  // The steps of run(), for callers that compute attention or the MLP with other networks' rows.
  void begin(const std::vector<T> values[], const Batch& batch);       // makes q and kv
  void attend();                                                       // makes mixed
  void mix(const std::vector<T> values[]);                             // makes normal2
  void mlp(const std::vector<T> values[]);                             // makes mlp_output
  void turn(const std::vector<T> values[], Gradients<T>* to);          // makes loss and dx
  void mlp_backward(const std::vector<T> values[], Gradients<T>* to);  // makes dmlp_input
  void unmix(const std::vector<T> values[], Gradients<T>* to);         // makes dmixed
  void attend_backward();                                              // makes dq and dkv
  void end(const std::vector<T> values[], Gradients<T>* to);

  Pass<T>& pass() { return pass_; }
  const std::vector<std::uint64_t>& rows() const { return options_.rows; }
  const trireme_head_info& heads() const { return heads_; }

 private:
  struct Attention;
  struct Layer {
    Handle<trireme_linear> linear;
    std::vector<char> kept;
    trireme_linear_info info = TRIREME_LINEAR_INFO_INIT;
  };
  struct Mlp {
    Handle<trireme_mlp> mlp;
    std::vector<char> kept;
    trireme_mlp_info info = TRIREME_MLP_INFO_INIT;
  };
  using Rows = std::vector<T>;

  Layer make_linear(const char* name, trireme_linear_kind kind, std::uint64_t input,
                    std::uint64_t output, std::uint32_t flags) const;
  Mlp make_mlp(const char* name, trireme_activation_kind activation, std::uint64_t hidden) const;
  Handle<trireme_region> make_region(const char* name, trireme_region_kind kind, bool by_rows,
                                     std::uint64_t rows, trireme_dtype dtype) const;
  Rows linear_forward(Layer& layer, const Rows& x, const Rows& weight, const T* bias);
  Rows linear_backward(Layer& layer, const Rows& x, const Rows& dy, const Rows& weight,
                       std::vector<float>* dweight, float* dbias);
  Rows mlp_forward(Mlp& mlp, const std::vector<T> values[], const Rows& input, int fc1,
                   int fc2) const;
  Rows mlp_backward(Mlp& mlp, const std::vector<T> values[], const Rows& input, const Rows& dy,
                    int fc1, int fc2, Gradients<T>* to) const;
  Rows norm(const Rows& x, const Rows& gain) const;
  // Adds to dx.
  void norm_backward(const Rows& x, const Rows& gain, const Rows& dy, Rows* dx,
                     std::vector<float>* dgain);
  // Adds the summands of this rank's blocks, and those of the other ranks unless `shared`.
  void add_up(trireme_region* region, std::vector<std::vector<float>>* summands,
              std::vector<float>* sum) const;

  trireme_tensor* const tensor_;
  NetworkOptions options_;
  std::uint64_t all_ = 0;  // rows of this network
  trireme_tensor_info info_ = TRIREME_TENSOR_INFO_INIT;
  trireme_head_info heads_ = TRIREME_HEAD_INFO_INIT;
  std::uint64_t first_row_ = 0, rows_ = 0;  // of what goes from layer to layer
  Layer query_, out_, head_;
  Mlp mlp_, frozen_;
  Handle<trireme_region> scatter_, kv_input_, norm_sum_, kv_sum_;
  Handle<trireme_vocabulary> vocabulary_;
  Pass<T> pass_;
  // Of the frozen layer and the head.
  Rows x2_, x3_, normal3_;
};

extern template class Network<float>;
extern template class Network<Bf16>;

}  // namespace wide
