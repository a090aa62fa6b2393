// The plugin's own declarations of NCCL are those of nccl.h: otherwise this does not compile.
#include <nccl.h>

#include <array>
#include <cstddef>
#include <type_traits>

#include "devices/cuda/plugin/nccl.hpp"

namespace trireme::cuda {
namespace {

template <class Function>
struct NcclWidths;
template <class Answer, class... Parameters>
struct NcclWidths<Answer (*)(Parameters...)> {
  static constexpr std::array<std::size_t, sizeof...(Parameters) + 1> kAll{sizeof(Answer),
                                                                           sizeof(Parameters)...};
};

#define TRIREME_COMPARE(name, parameters)                  \
  static_assert(NcclWidths<decltype(&nccl##name)>::kAll == \
                NcclWidths<decltype(NcclLibrary::name)>::kAll);
TRIREME_NCCL_FUNCTIONS(TRIREME_COMPARE)
#undef TRIREME_COMPARE

static_assert(sizeof(ncclUniqueId) == sizeof(NcclId) && alignof(ncclUniqueId) == alignof(NcclId));
static_assert(ncclSuccess == kNcclDone && ncclInvalidUsage == kNcclInvalidUsage);
static_assert(ncclInProgress == kNcclBusy);
static_assert(offsetof(ncclConfig_t, magic) == offsetof(NcclConfig, magic));
static_assert(offsetof(ncclConfig_t, blocking) == offsetof(NcclConfig, blocking));
static_assert(offsetof(ncclConfig_t, maxCTAs) == offsetof(NcclConfig, most_blocks));
static_assert(offsetof(ncclConfig_t, netName) == offsetof(NcclConfig, net));
static_assert(offsetof(ncclConfig_t, splitShare) == offsetof(NcclConfig, shares));
static_assert(sizeof(ncclConfig_t) >= sizeof(NcclConfig));

constexpr bool is(NcclType ours, int theirs) { return static_cast<int>(ours) == theirs; }
static_assert(is(NcclType::i8, ncclInt8) && is(NcclType::u8, ncclUint8));
static_assert(is(NcclType::i32, ncclInt32) && is(NcclType::u32, ncclUint32));
static_assert(is(NcclType::i64, ncclInt64) && is(NcclType::u64, ncclUint64));
static_assert(is(NcclType::f16, ncclFloat16) && is(NcclType::bf16, ncclBfloat16));
static_assert(is(NcclType::f32, ncclFloat32) && is(NcclType::f64, ncclFloat64));

constexpr bool is(NcclReduction ours, int theirs) { return static_cast<int>(ours) == theirs; }
static_assert(is(NcclReduction::sum, ncclSum) && is(NcclReduction::product, ncclProd));
static_assert(is(NcclReduction::max, ncclMax) && is(NcclReduction::min, ncclMin));

}  // namespace
}  // namespace trireme::cuda
