// The choice of vector instructions, and the tables of loops compiled for each.
#pragma once

#include <trireme/types.h>

#include <cstdint>

#include "kernels/activation.hpp"
#include "kernels/rules.hpp"

namespace trireme::kernels {

enum class VectorLevel { scalar, avx2, avx512 };

// The best level of this machine, or a lower one if TRIREME_VECTOR=avx2|scalar asks for it.
VectorLevel best_vector_level();
VectorLevel vector_level();
// For tests: sets the answer of vector_level(). Must not be above best_vector_level().
void force_vector_level(VectorLevel level);

// For tests: results of this size and more are stored past the caches. 0 restores the machine's own
// size.
void force_streaming_bytes(std::uint64_t bytes);

// factor: divisor of AVERAGE, scale of SCALED_SUM, else unused.
using ReduceLoop = void (*)(void* destination, const void* const* sources,
                            std::uint32_t source_count, std::uint64_t count, double factor);

using UpdateLoop = void (*)(void* parameters, const void* gradients, void* const* states,
                            std::uint64_t count, const UpdateFactors& factors);
struct RuleLoops {
  UpdateLoop of[kMostVariants][2];  // [variant][weight decay]
};

// Writes the direction of a step over the gradients, and updates the states.
using DirectionLoop = void (*)(const void* parameters, void* gradients, void* const* states,
                               std::uint64_t count, const UpdateFactors& factors);

// Factors of one row of a matrix, or of a vector: see kernels/factored.hpp.
struct FactoredFactors {
  double gradient_scale;
  double scale;          // of what is squared
  double first, second;  // adding them rounds a square, and then its remainder
  double weight, limit;
};
using FactoredSquaresLoop = void (*)(const void* gradients, std::uint64_t count,
                                     const FactoredFactors& factors, void* column_high,
                                     void* column_low, std::uint64_t* row);
using FactoredDirectionLoop = void (*)(void* gradients, std::uint64_t count,
                                       const FactoredFactors& factors, double row,
                                       const void* columns);
using FactoredVectorLoop = void (*)(void* gradients, void* squares, std::uint64_t count,
                                    const FactoredFactors& factors);
struct FactoredLoops {
  std::uint64_t (*largest)(const void* values, std::uint64_t count);
  FactoredSquaresLoop squares;
  FactoredDirectionLoop direction;
  FactoredVectorLoop vector;
};
// Makes a direction without parameters: the matrix that MUON then orthogonalises.
using VelocityLoop = void (*)(void* gradients, void* velocity, std::uint64_t count,
                              const UpdateFactors& factors);

// Writes partial sums of the squares, whose total is exact, to `partial`, which holds zeros.
// Returns false, and writes no sum, if the values lie outside the range where that works. count is
// at most kSquareBlock.
constexpr int kSquarePartials = 40;
constexpr std::uint64_t kSquareBlock = 8192;
using SquareLoop = bool (*)(const void* values, std::uint64_t count, double* partial);

// Whether no value is inf or NaN.
using FiniteLoop = bool (*)(const void* values, std::uint64_t count);

// Marks of kernels/gaps.hpp: the 16 bits that repeat, and the bit in which the marks differ.
constexpr std::uint16_t kGapMark = 0x7ffc, kGapMarks = 1;
using MarkLoop = void (*)(void* memory, std::uint64_t bytes, std::uint16_t half);
using FirstMarkedLoop = std::uint64_t (*)(const void* values, std::uint64_t count);

// A product of matrices of f32 or f64, or of f16 or bf16 into f32; steps are in elements. result(i,
// j) is the sum of left(i, k)
// * right(k, j), or added_factor * added(i, j) + factor * that sum. `lower` computes only j <= i,
// for a square result.
struct MatrixProduct {
  const void* left;
  std::uint64_t left_row, left_k;  // steps from a row to the next, and from k to k + 1
  const void* right;
  std::uint64_t right_k, right_column;
  void* result;
  std::uint64_t result_step;  // from row to row; elements of a row are adjacent
  const void* added;          // or null; may be the result
  std::uint64_t added_step;
  double added_factor, factor;
  std::uint64_t rows, columns, depth;
  bool lower;
};
// Sizes of the blocks that stay in the caches: rows, columns and products.
constexpr std::uint64_t kProductRows = 96, kProductColumns = 192, kProductDepth = 256;
constexpr std::uint64_t kProductStep = 24;  // rows and columns of a block are rounded up to
using ProductLoop = void (*)(const MatrixProduct& product, double* memory);

// Convert between a float narrower than f32 and f32.
using WidenLoop = void (*)(float* destination, const void* source, std::uint64_t count);
using NarrowLoop = void (*)(void* destination, const float* source, std::uint64_t count);
// f32 to bf16 by chance. The numbers of all `count` draws from `first` on agree in their upper 32
// bits.
using RandomLoop = void (*)(void* destination, const float* source, std::uint64_t count,
                            std::uint64_t key, std::uint64_t first);

// Random numbers: see kernels/random.hpp. Writes the four words of each block; the number of blocks
// is a multiple of kRandomBlocks.
constexpr std::uint64_t kRandomBlocks = 32;
using RandomWordsLoop = void (*)(std::uint32_t* words, std::uint64_t seed, std::uint64_t draw,
                                 std::uint64_t block, std::uint64_t blocks);
// rest: the words of the last bits of f64, else unused.
using UniformLoop = void (*)(void* data, const std::uint32_t* words, const std::uint32_t* rest,
                             std::uint64_t count);
// Elements whose word is below `limit` become 0.
using DropoutLoop = void (*)(void* destination, const void* source, const std::uint32_t* words,
                             std::uint64_t count, std::uint32_t limit, double factor);

// Soft-max of a part of a row: see kernels/softmax.hpp. f32 and f64.
constexpr std::uint64_t kSoftmaxLanes = 16;
struct SoftmaxLoops {
  double (*largest)(const void* elements, std::uint64_t count);
  // Adds to the lanes of exp(element - largest), and behind them to those of the elements.
  void (*add)(const void* elements, std::uint64_t count, double largest, bool with_sum,
              double* lanes);
  void (*gradients)(const void* elements, void* gradients, std::uint64_t count, double largest,
                    double factor, double shift);
};

// Activations: see kernels/activation.hpp. f32 and f64.
struct ActivationLoops {
  void (*forward)(const void* input, const void* values, std::uint64_t count, void* output);
  void (*back)(const ActivationBack& arrays, std::uint64_t count);
};

// Matrices of layers by columns: see kernels/columns.hpp. f32 and f64.
struct ColumnLoops {
  void (*add_bias)(const void* bias, std::uint64_t rows, std::uint64_t columns, void* matrix);
  // Adds each row to `sums`, one after the other.
  void (*add_rows)(const void* matrix, std::uint64_t step, std::uint64_t rows,
                   std::uint64_t columns, double* sums);
  void (*end)(const double* sums, std::uint64_t count, bool add, void* result);
};

struct Loops {
  ReduceLoop reduce[TRIREME_DTYPE_BYTES + 1]
                   [TRIREME_REDUCTION_SCALED_SUM + 1];  // null: unsupported
  WidenLoop widen[TRIREME_DTYPE_BYTES + 1];             // null: not narrower
  NarrowLoop narrow[TRIREME_DTYPE_BYTES + 1];
  RandomLoop round_randomly;
  WidenLoop adopt[TRIREME_DTYPE_BYTES + 1];    // widens each value that the other does not round to
  const RuleLoops* update[2];                  // [f64], by number of the rule
  DirectionLoop lamb[2][2];                    // [f64][weight decay]
  VelocityLoop muon[2][2];                     // [f64][NESTEROV]
  FactoredLoops factored[2];                   // [f64]
  SquareLoop squares[2];                       // [f64]
  ProductLoop product[TRIREME_DTYPE_F64 + 1];  // f16, bf16, f32, f64
  FiniteLoop finite[TRIREME_DTYPE_BYTES + 1];  // f16, bf16, f32, f64
  MarkLoop mark;
  FirstMarkedLoop first_marked[2];  // [f64]
  RandomWordsLoop random_words;
  UniformLoop uniform[TRIREME_DTYPE_F64 + 1];  // f16, bf16, f32, f64
  DropoutLoop dropout[TRIREME_DTYPE_F64 + 1];
  double (*exponential)(double x);
  SoftmaxLoops softmax[2];                             // [f64]
  ActivationLoops activation[2][kActivationFormulas];  // [f64]
  ColumnLoops columns[2];                              // [f64]
  // memcpy past the caches; ends with the fence that makes the stores visible in order.
  void (*stream)(void* destination, const void* source, std::uint64_t bytes);
};

namespace scalar {
extern const Loops loops;
}
namespace avx2 {
extern const Loops loops;
}
namespace avx512 {
extern const Loops loops;
}

const Loops& loops();

}  // namespace trireme::kernels
