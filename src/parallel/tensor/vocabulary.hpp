// Vocabulary: an embedding, and a loss over classes, that ranks split.
#pragma once

#include <trireme/vocabulary.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/tensor/cross_entropy.hpp"
#include "parallel/tensor/tensor.hpp"
#include "parallel/tensor/token_list.hpp"

namespace trireme::parallel {

struct VocabularyOptions {
  std::string name;
  std::uint64_t classes = 0;
  std::uint64_t width = 0;
  std::uint64_t rows = 0;  // most of a pass
  trireme_dtype dtype = 0;
  double label_smoothing = 0;
  double z_loss = 0;
  std::optional<std::int64_t> ignored;
};

// One thread at a time, but for the plan.
class Vocabulary {
 public:
  static Status create(std::shared_ptr<Tensor> tensor, VocabularyOptions options,
                       std::shared_ptr<Vocabulary>* out);

  struct Plan {
    sharding::Range own;  // classes
    std::uint64_t kept_bytes = 0;
    std::uint64_t memory_bytes = 0;
    std::uint64_t scratch_bytes = 0;
    std::uint64_t embed_bytes = 0;
    std::uint64_t loss_bytes = 0;
  };
  Plan plan() const;
  const Tensor& tensor() const { return *tensor_; }

  Status embed(const TokenArray& tokens, const void* weight, void* output,
               std::uint64_t timeout_ns);
  Status embed_backward(const TokenArray& tokens, const void* gradients, void* weight_gradient);
  Status loss(const TokenArray& targets, const void* logits, void* losses, void* kept,
              std::uint64_t timeout_ns);
  Status loss_backward(const TokenArray& targets, const void* logits, const void* kept,
                       const void* loss_gradients, void* gradients);

 private:
  Vocabulary(std::shared_ptr<Tensor> tensor, VocabularyOptions options);

  // An array of the caller, as arguments are checked.
  struct Argument {
    const char* name;
    const void* data;
    std::uint64_t bytes;
  };
  // `output` overlaps no input, but may be all of `in_place`.
  Status check_output(const Argument& output, std::initializer_list<Argument> inputs,
                      const void* in_place = nullptr) const;

  std::uint64_t row_bytes() const { return options_.width * size_; }
  std::uint64_t logits_bytes(std::uint64_t rows) const { return rows * own_.count * size_; }
  // Orders the rows by their token, and those of one token upwards.
  void sort_rows();
  // Calls body(token, first, end) for the rows order_[first] to order_[end - 1] of each token.
  template <class Body>
  void each_token(Body body) const;
  void add_rows(const std::byte* gradients, std::uint64_t first, std::uint64_t end,
                std::byte* result);
  std::uint64_t agreement(std::uint64_t pass) const;
  std::vector<std::uint64_t> embedding_counts(std::uint64_t* out_own_place) const;
  Status communicate(const char* pass, Operation operation, std::uint64_t timeout_ns,
                     const std::function<Status(Steps& steps, const Operation& step)>& body);
  // Runs a pass that peers may be in already: they learn of it if memory runs out here.
  template <class Body>
  Status collective(Body body);

  const std::shared_ptr<Tensor> tensor_;
  const VocabularyOptions options_;
  const std::size_t rank_;
  const std::uint64_t size_;  // bytes of an element
  const sharding::Range own_;
  TokenList tokens_;
  CrossEntropy loss_;
  std::vector<std::uint64_t> order_;  // rows
  std::vector<float> sums_;           // of one embedding of 16 bits
};

}  // namespace trireme::parallel
