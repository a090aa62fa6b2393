// The headers of loops.inc. They must come before the choice of instructions: the rest of the
// library shares their code, which must run on every machine.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/elements/anywhere.hpp"
#include "kernels/vector.hpp"

#if defined(__clang__)
#define TRIREME_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define TRIREME_INDEPENDENT _Pragma("GCC ivdep")
#endif
