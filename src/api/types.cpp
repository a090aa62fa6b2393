// types.h: sizes and names.
#include <trireme/types.h>

#include "platform/names.hpp"

uint64_t trireme_dtype_bytes(trireme_dtype dtype) { return trireme::dtype_size(dtype); }

const char* trireme_dtype_name(trireme_dtype dtype) { return trireme::dtype_name(dtype); }

const char* trireme_reduction_name(trireme_reduction reduction) {
  return trireme::reduction_name(reduction);
}
