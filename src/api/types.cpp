// types.h: sizes and names.
#include <trireme/types.h>

#include <iterator>

namespace {

struct DtypeEntry {
  const char* name;
  uint64_t size;
};
// By number; 0 is none.
constexpr DtypeEntry kDtypes[] = {
    {"unknown", 0}, {"i8", 1},   {"u8", 1},  {"i16", 2}, {"u16", 2},    {"i32", 4},
    {"u32", 4},     {"i64", 8},  {"u64", 8}, {"f16", 2}, {"bf16", 2},   {"f32", 4},
    {"f64", 8},     {"f8e4m3", 1}, {"f8e5m2", 1}, {"bool", 1}, {"bytes", 1},
};
static_assert(std::size(kDtypes) == TRIREME_DTYPE_BYTES + 1);

constexpr const char* kReductions[] = {"unknown", "sum",  "average", "product", "min",
                                       "max",     "band", "bor",     "bxor",    "scaled_sum"};
static_assert(std::size(kReductions) == TRIREME_SCALED_SUM + 1);

const DtypeEntry& dtype_entry(trireme_dtype dtype) {
  const bool known = dtype >= TRIREME_DTYPE_I8 && dtype <= TRIREME_DTYPE_BYTES;
  return kDtypes[known ? dtype : 0];
}

}  // namespace

uint64_t trireme_dtype_size(trireme_dtype dtype) { return dtype_entry(dtype).size; }

const char* trireme_dtype_name(trireme_dtype dtype) { return dtype_entry(dtype).name; }

const char* trireme_reduction_name(trireme_reduction reduction) {
  const bool known = reduction >= TRIREME_SUM && reduction <= TRIREME_SCALED_SUM;
  return kReductions[known ? reduction : 0];
}
