// A mark of formulas that the kernels of devices compile, too.
#pragma once

#ifdef __CUDACC__
#define TRIREME_ANYWHERE __host__ __device__
#else
#define TRIREME_ANYWHERE
#endif
