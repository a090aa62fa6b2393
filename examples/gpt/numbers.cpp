#include "numbers.hpp"

#include <cblas.h>

namespace gpt {

namespace {

CBLAS_TRANSPOSE as_stored(bool transposed) { return transposed ? CblasTrans : CblasNoTrans; }

}  // namespace

void multiply(int m, int n, int k, float alpha, Matrix<float> a, Matrix<float> b, float beta,
              float* c, int ldc) {
  cblas_sgemm(CblasRowMajor, as_stored(a.transposed), as_stored(b.transposed), m, n, k, alpha,
              a.data, a.ld, b.data, b.ld, beta, c, ldc);
}

void multiply(int m, int n, int k, double alpha, Matrix<double> a, Matrix<double> b, double beta,
              double* c, int ldc) {
  cblas_dgemm(CblasRowMajor, as_stored(a.transposed), as_stored(b.transposed), m, n, k, alpha,
              a.data, a.ld, b.data, b.ld, beta, c, ldc);
}

void use_one_thread() { openblas_set_num_threads(1); }

}  // namespace gpt
