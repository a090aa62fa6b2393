// The loops for any machine.
#include "kernels/loops_headers.hpp"

#define TRIREME_LEVEL scalar
#define TRIREME_LEVEL_BYTES 16
#include "kernels/loops.inc"
