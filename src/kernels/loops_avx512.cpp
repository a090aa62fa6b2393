// The loops for AVX-512. FMA only where it changes no bit: see loops.inc and loops_product.inc.
#include "kernels/loops_headers.hpp"

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c")
#endif
#define TRIREME_LEVEL avx512
#define TRIREME_LEVEL_BYTES 64
#include "kernels/loops.inc"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
