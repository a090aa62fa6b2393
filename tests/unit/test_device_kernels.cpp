// Kernels of devices, run over the host one thread after the other, against the host's loops: bit
// for bit, for every kernel, dtype and shift. TRIREME_TEST_LONG tries more lengths,
// TRIREME_TEST_QUICK few. With TRIREME_TEST_DEVICE=0 the kernels run on that CUDA device.
#include <trireme/optimizer.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/elements/anywhere.hpp"
#include "kernels/exact_sum.hpp"
#include "kernels/reduce.hpp"
#include "kernels/update.hpp"
#include "kernels/vector.hpp"
#include "levels.hpp"
#include "on_device.hpp"
#include "platform/mix.hpp"
#include "platform/names.hpp"

// Last: its macros take names like `fail`.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
extern "C" {
#include <cmocka.h>
}

namespace trireme::kernels {
namespace {
namespace device {

#include "kernels/elements/numbers.inc"
#include "kernels/elements/casts.inc"
#include "kernels/elements/digits.inc"
#include "kernels/rules.inc"
#include "kernels/elements/update.inc"
#include "kernels/elements/kernels.inc"
#include "kernels/elements/list.inc"

}  // namespace device

// The blocks and threads of a launch.
struct Grid {
  std::uint32_t blocks, threads;
};

template <class Kernel, int kPhase>
void run_phases(const typename Kernel::Args& args, typename Kernel::Shared& shared,
                std::uint32_t block, Grid grid) {
  for (std::uint32_t thread = 0; thread < grid.threads; ++thread) {
    Kernel::template phase<kPhase>(args, shared, {block, grid.blocks, thread, grid.threads});
  }
  if constexpr (kPhase + 1 < Kernel::kPhases) {
    run_phases<Kernel, kPhase + 1>(args, shared, block, grid);
  }
}

template <class Kernel>
void run_on_host(const void* args, Grid grid) {
  for (std::uint32_t block = 0; block < grid.blocks; ++block) {
    typename Kernel::Shared shared;
    std::memset(static_cast<void*>(&shared), 0x5a, sizeof shared);
    run_phases<Kernel, 0>(*static_cast<const typename Kernel::Args*>(args), shared, block, grid);
  }
}

struct Row {
  const char* name;
  std::size_t args;
  void (*run)(const void* args, Grid grid);
};

#define TRIREME_ROW_OF_KERNEL(name, ...) \
  {#name, sizeof(__VA_ARGS__::Args), run_on_host<__VA_ARGS__>},
using namespace device;
const Row kRows[] = {TRIREME_KERNELS(TRIREME_ROW_OF_KERNEL)};
#undef TRIREME_ROW_OF_KERNEL

const Row& row(const std::string& name) {
  for (const Row& each : kRows) {
    if (name == each.name) return each;
  }
  fail_msg("no kernel %s", name.c_str());
  return kRows[0];
}

bool launched[std::size(kRows)];  // on the device

template <class Args>
void launch(const std::string& name, const Args& args, std::uint64_t count) {
  constexpr Grid kGrids[] = {{1, 1}, {1, 32}, {3, 64}, {2, 256}, {7, 96}};
  const Row& kernel = row(name);
  assert_int_equal(kernel.args, sizeof(Args));
  const Grid grid = kGrids[count % std::size(kGrids)];
  if (OnDevice* const device = OnDevice::get()) {
    const auto number = static_cast<std::uint32_t>(&kernel - kRows);
    device->launch(number, &args, sizeof args, grid.blocks, grid.threads);
    launched[number] = true;
  } else {
    kernel.run(&args, grid);
  }
}

// ---- memory ----

std::uint64_t random_bits() {
  static std::uint64_t number = 0;
  return mix(11, number++);
}

// Bytes that the kernels reach.
class Reached {
 public:
  explicit Reached(std::uint64_t bytes) : bytes_(bytes) {
    OnDevice* const device = OnDevice::get();
    assert_true(device == nullptr || bytes <= OnDevice::kSlot);
    first_ = device == nullptr ? new std::byte[bytes] : device->take();
  }
  Reached(const Reached& other) = delete;
  ~Reached() {
    if (OnDevice* const device = OnDevice::get()) {
      device->give_back(first_);
    } else {
      delete[] first_;
    }
  }
  std::byte* begin() const { return first_; }
  std::byte* end() const { return first_ + bytes_; }
  std::byte* data() const { return first_; }
  std::uint64_t size() const { return bytes_; }

 private:
  std::byte* first_;
  std::uint64_t bytes_;
};

// Elements somewhere behind a multiple of 128 bytes, with room around them that stays.
class Area {
 public:
  Area(std::uint64_t count, std::uint64_t element, std::uint64_t shift)
      : bytes_((count + 2 * kRoom) * element + 256), first_(kRoom * element) {
    const auto address = reinterpret_cast<std::uintptr_t>(bytes_.data());
    first_ += (128 - (address + first_) % 128) % 128 + shift % 32 * element;
    for (std::byte& byte : bytes_) byte = static_cast<std::byte>(random_bits());
  }
  Area(const Area& other) = delete;

  // The same bytes at the same distance from a multiple of 128.
  void copy_from(const Area& other) {
    std::memcpy(data(), other.data(),
                std::min(bytes_.size() - first_, other.bytes_.size() - other.first_));
  }
  bool same_as(const Area& other, std::uint64_t bytes) const {
    return std::memcmp(data(), other.data(), bytes) == 0;
  }
  // Every second element is a usual number, the others keep any bits.
  template <class T>
  void make_usual(std::uint64_t count, bool from_zero) {
    for (std::uint64_t i = 0; i < count; i += 2) {
      T value =
          static_cast<T>(static_cast<double>(static_cast<std::int64_t>(random_bits())) * 0x1p-62);
      if (from_zero) value = value * value;
      std::memcpy(data() + i * sizeof value, &value, sizeof value);
    }
  }
  std::byte* data() { return bytes_.data() + first_; }
  const std::byte* data() const { return bytes_.data() + first_; }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(data());
  }

 private:
  static constexpr std::uint64_t kRoom = 40;
  Reached bytes_;
  std::uint64_t first_;
};

// All lengths to 65, and every `step`th from there to 4,099. Each call begins with another one.
std::vector<std::uint64_t> lengths(std::uint64_t step) {
  static std::uint64_t turn = 0;
  if (std::getenv("TRIREME_TEST_LONG") != nullptr) step = step / 16 + 1;
  if (std::getenv("TRIREME_TEST_QUICK") != nullptr) return {0, 1, 7, 66 + turn++ % step};
  std::vector<std::uint64_t> all;
  for (std::uint64_t i = 0; i < 66; ++i) all.push_back(i);
  for (std::uint64_t i = 66 + turn++ % step; i < 4099; i += step) all.push_back(i);
  all.push_back(4099);
  return all;
}

// ---- update rules ----

struct RuleCase {
  UpdateRule rule;
  std::uint64_t step;
};

std::vector<RuleCase> rule_cases() {
  std::vector<RuleCase> all;
  for (trireme_rule_kind kind = 1; find_rule(kind) != nullptr; ++kind) {
    if (loops().update[0][kind].of[0][0] == nullptr) continue;
    for (const double momentum : {0.0, 0.9}) {
      for (const std::uint32_t flags : {0u, 1u}) {
        for (const double decay : {0.0, 0.1}) {
          for (const std::uint64_t step : {1u, 7u}) {
            UpdateRule rule;
            rule.kind = kind;
            rule.momentum = momentum;
            rule.flags = find_rule(kind)->flags.empty() ? 0 : flags;
            rule.beta1 = 0.9;
            rule.beta2 = 0.999;
            rule.epsilon = 1e-8;
            rule.weight_decay = decay;
            rule.step_size = 0.01;
            if (find_rule(kind)->refuse(rule) == nullptr) all.push_back({rule, step});
          }
        }
      }
    }
  }
  return all;
}

struct Vectors {
  Vectors(std::uint64_t count, std::uint64_t parameter, std::uint64_t element, std::uint64_t shift)
      : all{{count, parameter, shift},
            {count, element, shift + 5},
            {count, element, shift + 9},
            {count, element, shift + 17},
            {count, element, shift + 30}} {}
  void copy_from(const Vectors& other) {
    for (int i = 0; i < 5; ++i) all[i].copy_from(other.all[i]);
  }
  bool same_as(const Vectors& other, std::uint64_t count, std::uint64_t parameter,
               std::uint64_t element) const {
    // With some room behind the last element.
    bool same = p.same_as(other.p, (count + 8) * parameter);
    for (int i = 1; i < 5; ++i) same = same && all[i].same_as(other.all[i], (count + 8) * element);
    return same;
  }

  Area all[5];
  Area &p = all[0], &g = all[1], &s0 = all[2], &s1 = all[3], &s2 = all[4];
};

template <class T>
void make_usual(Vectors* vectors, std::uint64_t count, bool narrow) {
  if (!narrow) vectors->p.make_usual<T>(count, false);
  vectors->g.make_usual<T>(count, false);
  for (int i = 2; i < 5; ++i) vectors->all[i].make_usual<T>(count, true);
}

constexpr double kRate = 0.01, kScale = 0.75;

template <class T>
void compare_updates(const RuleCase& one, trireme_dtype dtype, Storage storage,
                     std::uint64_t step_of_lengths) {
  const std::uint64_t size = dtype_size(dtype);
  const RuleTraits& traits = rule_traits(one.rule.kind);
  UpdateFactors factors{one.rule, kScale, kRate};
  traits.prepare(&factors, one.step);
  const std::string name = std::string("update_") + traits.name + "_" +
                           std::to_string(traits.variant(one.rule, one.step)) +
                           (sizeof(T) == 4 ? "_f32" : "_f64");
  for (const std::uint64_t count : lengths(step_of_lengths)) {
    Vectors by_kernel(count, size, sizeof(T), count), by_loop(count, size, sizeof(T), count);
    make_usual<T>(&by_kernel, count, size < sizeof(T));
    by_loop.copy_from(by_kernel);
    // The numbers of some draws pass 2^32 on the way.
    const RandomRounding random{random_bits(), (std::uint64_t{1} << 32) * (count % 3) - count / 2};
    UpdateArgs<T> args{by_kernel.p.data(),
                       by_kernel.g.as<T>(),
                       {by_kernel.s0.as<T>(), by_kernel.s1.as<T>(), by_kernel.s2.as<T>()},
                       count,
                       device::Factors<T>(factors),
                       one.rule.weight_decay != 0,
                       storage,
                       random.key,
                       random.first};
    launch(name, args, count);
    void* const states[] = {by_loop.s0.data(), by_loop.s1.data(), by_loop.s2.data()};
    update(one.rule, dtype, by_loop.p.data(), by_loop.g.data(), states, count, one.step, kRate,
           kScale, storage == Storage::bf16_by_chance ? &random : nullptr);
    if (!by_kernel.same_as(by_loop, count, size, sizeof(T))) {
      fail_msg("%s of %llu elements of %s differs", name.c_str(),
               static_cast<unsigned long long>(count), dtype_name(dtype));
    }
  }
}

void updates_have_the_bits_of_the_loops(void**) {
  for (const VectorLevel level : levels()) {
    force_vector_level(level);
    for (const RuleCase& one : rule_cases()) {
      compare_updates<float>(one, TRIREME_DTYPE_F32, Storage::own, 613);
      compare_updates<double>(one, TRIREME_DTYPE_F64, Storage::own, 613);
      compare_updates<float>(one, TRIREME_DTYPE_F16, Storage::f16, 1511);
      compare_updates<float>(one, TRIREME_DTYPE_BF16, Storage::bf16, 1511);
      compare_updates<float>(one, TRIREME_DTYPE_BF16, Storage::bf16_by_chance, 1511);
    }
  }
  force_vector_level(best_vector_level());
}

template <class T>
void compare_directions(double decay, trireme_dtype dtype, Storage storage) {
  const std::string type = sizeof(T) == 4 ? "f32" : "f64";
  const std::uint64_t size = dtype_size(dtype);
  UpdateRule rule;
  rule.kind = TRIREME_RULE_LAMB;
  rule.beta1 = 0.9;
  rule.beta2 = 0.999;
  rule.epsilon = 1e-6;
  rule.weight_decay = decay;
  UpdateFactors factors{rule, kScale, 1};
  rule_traits(rule.kind).prepare(&factors, 3);
  for (const std::uint64_t count : lengths(97)) {
    Vectors by_kernel(count, size, sizeof(T), count), by_loop(count, size, sizeof(T), count);
    make_usual<T>(&by_kernel, count, size < sizeof(T));
    by_loop.copy_from(by_kernel);
    const typename Direction<T>::Args args{by_kernel.p.data(),
                                           by_kernel.g.as<T>(),
                                           by_kernel.s0.as<T>(),
                                           by_kernel.s1.as<T>(),
                                           count,
                                           device::Factors<T>(factors),
                                           decay != 0,
                                           storage};
    launch("lamb_direction_" + type, args, count);
    void* const states[] = {by_loop.s0.data(), by_loop.s1.data()};
    lamb_direction(rule, dtype, by_loop.p.data(), by_loop.g.data(), states, count, 3, kScale);
    assert_true(by_kernel.same_as(by_loop, count, size, sizeof(T)));
  }
}

template <class T>
void compare_velocities(bool nesterov, trireme_dtype dtype) {
  UpdateRule rule;
  rule.kind = TRIREME_RULE_MUON;
  rule.momentum = 0.95;
  rule.flags = nesterov ? TRIREME_MUON_FLAG_NESTEROV : 0;
  const UpdateFactors factors{rule, kScale, 1};
  for (const std::uint64_t count : lengths(97)) {
    Vectors by_kernel(count, sizeof(T), sizeof(T), count),
        by_loop(count, sizeof(T), sizeof(T), count);
    make_usual<T>(&by_kernel, count, false);
    by_loop.copy_from(by_kernel);
    const typename Velocity<T>::Args args{by_kernel.g.as<T>(), by_kernel.s0.as<T>(), count,
                                          device::Factors<T>(factors), nesterov};
    launch(std::string("muon_direction_") + dtype_name(dtype), args, count);
    void* const states[] = {by_loop.s0.data()};
    muon_direction(rule, dtype, by_loop.g.data(), states, count, kScale);
    assert_true(by_kernel.same_as(by_loop, count, sizeof(T), sizeof(T)));
  }
}

void directions_have_the_bits_of_the_loops(void**) {
  for (const VectorLevel level : levels()) {
    force_vector_level(level);
    for (const double decay : {0.0, 0.1}) {
      compare_directions<float>(decay, TRIREME_DTYPE_F32, Storage::own);
      compare_directions<double>(decay, TRIREME_DTYPE_F64, Storage::own);
      compare_directions<float>(decay, TRIREME_DTYPE_F16, Storage::f16);
      compare_directions<float>(decay, TRIREME_DTYPE_BF16, Storage::bf16);
    }
    for (const bool nesterov : {false, true}) {
      compare_velocities<float>(nesterov, TRIREME_DTYPE_F32);
      compare_velocities<double>(nesterov, TRIREME_DTYPE_F64);
    }
  }
  force_vector_level(best_vector_level());
}

// ---- casts ----

template <class Type>
void compare_casts(trireme_dtype dtype) {
  using Stored = typename Type::Stored;
  const std::string name = dtype_name(dtype);
  for (const std::uint64_t count : lengths(97)) {
    Area wide(count, 4, count), loop_wide(count, 4, count);
    Area narrow(count, sizeof(Stored), count + 3), loop_narrow(count, sizeof(Stored), count + 3);
    wide.make_usual<float>(count, false);
    loop_wide.copy_from(wide);
    loop_narrow.copy_from(narrow);
    // Half of the values kept round to the narrow ones.
    if (count % 2 == 1) kernels::widen(dtype, wide.as<float>(), narrow.data(), count / 2);
    if (count % 2 == 1) kernels::widen(dtype, loop_wide.as<float>(), narrow.data(), count / 2);
    launch("adopt_" + name,
           typename Adopt<Type>::Args{wide.as<std::uint32_t>(), narrow.as<Stored>(), count}, count);
    loops().adopt[dtype](loop_wide.as<float>(), loop_narrow.data(), count);
    assert_true(wide.same_as(loop_wide, (count + 8) * 4));
    launch("narrow_" + name,
           typename Narrow<Type>::Args{narrow.as<Stored>(), wide.as<float>(), count}, count);
    kernels::narrow(dtype, loop_narrow.data(), loop_wide.as<float>(), count);
    assert_true(narrow.same_as(loop_narrow, (count + 8) * sizeof(Stored)));
    for (std::uint64_t i = 0; i < count * sizeof(Stored); ++i) {
      narrow.data()[i] = loop_narrow.data()[i] = static_cast<std::byte>(random_bits());
    }
    launch("widen_" + name,
           typename Widen<Type>::Args{wide.as<float>(), narrow.as<Stored>(), count}, count);
    kernels::widen(dtype, loop_wide.as<float>(), loop_narrow.data(), count);
    assert_true(wide.same_as(loop_wide, (count + 8) * 4));
  }
}

void compare_rounding() {
  for (const std::uint64_t count : lengths(97)) {
    Area wide(count, 4, count), narrow(count, 2, count + 3), by_loop(count, 2, count + 3);
    wide.make_usual<float>(count, false);
    by_loop.copy_from(narrow);
    const std::uint64_t key = random_bits(), first = std::uint64_t{count % 5} << 32;
    launch("round_by_chance",
           RoundByChance::Args{narrow.as<std::uint16_t>(), wide.as<float>(), count, key, first},
           count);
    loops().round_randomly(by_loop.data(), wide.as<float>(), count, key, first);
    assert_true(narrow.same_as(by_loop, (count + 8) * 2));
  }
}

void casts_have_the_bits_of_the_loops(void**) {
  for (const VectorLevel level : levels()) {
    force_vector_level(level);
    compare_casts<F16>(TRIREME_DTYPE_F16);
    compare_casts<Bf16>(TRIREME_DTYPE_BF16);
    compare_casts<F8e4m3>(TRIREME_DTYPE_F8E4M3);
    compare_casts<F8e5m2>(TRIREME_DTYPE_F8E5M2);
    compare_rounding();
  }
  force_vector_level(best_vector_level());
}

// ---- reductions ----

template <class Type>
void compare_reductions(trireme_dtype dtype, trireme_reduction reduction, std::uint32_t sources) {
  using Stored = typename Type::Stored;
  const double scale = 0.3;
  for (const std::uint64_t count : lengths(1009)) {
    std::vector<Area*> areas;
    const Stored* from[9];
    const void* raw[9];
    for (std::uint32_t k = 0; k < sources; ++k) {
      areas.push_back(new Area(count, sizeof(Stored), count + 7 * k));
      from[k] = areas[k]->as<Stored>();
      raw[k] = from[k];
    }
    Area to(count, sizeof(Stored), count + 1), by_loop(count, sizeof(Stored), count + 1);
    by_loop.copy_from(to);
    kernels::reduce(dtype, reduction, by_loop.data(), raw, sources, count, sources, scale);
    // Into a source, for every third length.
    const bool in_place = count % 3 == 0;
    typename Reduce<Type>::Args args{in_place ? areas[sources - 1]->as<Stored>() : to.as<Stored>(),
                                     {},
                                     sources,
                                     reduction,
                                     count,
                                     reduction == TRIREME_REDUCTION_SCALED_SUM ? scale : sources};
    std::copy_n(from, sources, args.sources);
    launch(std::string("reduce_") + dtype_name(dtype), args, count);
    const Area& result = in_place ? *areas[sources - 1] : to;
    if (std::memcmp(result.data(), by_loop.data(), count * sizeof(Stored)) != 0) {
      fail_msg("%s of %llu elements of %s, %u sources", reduction_name(reduction),
               static_cast<unsigned long long>(count), dtype_name(dtype), sources);
    }
    for (Area* area : areas) delete area;
  }
}

template <class Type>
void compare_all_reductions(trireme_dtype dtype) {
  for (trireme_reduction op = TRIREME_REDUCTION_SUM; op <= TRIREME_REDUCTION_SCALED_SUM; ++op) {
    if (!reduction_supported(dtype, op)) continue;
    for (const std::uint32_t sources : {1u, 2u, 3u, 4u, 5u, 9u}) {
      compare_reductions<Type>(dtype, op, sources);
    }
  }
}

void reductions_have_the_bits_of_the_loops(void**) {
  for (const VectorLevel level : levels()) {
    force_vector_level(level);
    compare_all_reductions<Plain<std::int8_t>>(TRIREME_DTYPE_I8);
    compare_all_reductions<Plain<std::uint8_t>>(TRIREME_DTYPE_U8);
    compare_all_reductions<Plain<std::int16_t>>(TRIREME_DTYPE_I16);
    compare_all_reductions<Plain<std::uint16_t>>(TRIREME_DTYPE_U16);
    compare_all_reductions<Plain<std::int32_t>>(TRIREME_DTYPE_I32);
    compare_all_reductions<Plain<std::uint32_t>>(TRIREME_DTYPE_U32);
    compare_all_reductions<Plain<std::int64_t>>(TRIREME_DTYPE_I64);
    compare_all_reductions<Plain<std::uint64_t>>(TRIREME_DTYPE_U64);
    compare_all_reductions<F16>(TRIREME_DTYPE_F16);
    compare_all_reductions<Bf16>(TRIREME_DTYPE_BF16);
    compare_all_reductions<Plain<float>>(TRIREME_DTYPE_F32);
    compare_all_reductions<Plain<double>>(TRIREME_DTYPE_F64);
    compare_all_reductions<F8e4m3>(TRIREME_DTYPE_F8E4M3);
    compare_all_reductions<F8e5m2>(TRIREME_DTYPE_F8E5M2);
    compare_all_reductions<Bool>(TRIREME_DTYPE_BOOL);
  }
  force_vector_level(best_vector_level());
}

// ---- norms ----

template <class Type>
void compare_norms(trireme_dtype dtype, bool any_bits) {
  using Stored = typename Type::Stored;
  for (const std::uint64_t count : lengths(97)) {
    Area values(count, sizeof(Stored), count);
    if (!any_bits) {  // no inf and no NaN: a number's highest bit of the exponent is 0
      auto* const words = values.as<Stored>();
      using Word =
          std::conditional_t<sizeof(Stored) == 8, std::uint64_t,
                             std::conditional_t<sizeof(Stored) == 4, std::uint32_t, Stored>>;
      for (std::uint64_t i = 0; i < count; ++i) {
        Word word;
        std::memcpy(&word, words + i, sizeof word);
        word &= static_cast<Word>(~(Word{1} << (8 * sizeof word - 2)));
        std::memcpy(words + i, &word, sizeof word);
      }
    }
    ExactSum wanted, found;
    wanted.add_squares(dtype, values.data(), count);
    const Reached digits(sizeof(std::int64_t) * (ExactSum::kDigits + 1));
    std::memset(digits.data(), 0, digits.size());
    auto* const sum = reinterpret_cast<std::int64_t*>(digits.data());
    launch(std::string("measure_") + dtype_name(dtype),
           typename Measure<Type>::Args{values.as<Stored>(), count, sum}, count);
    std::copy_n(sum, ExactSum::kDigits, found.digits);
    found.not_finite = sum[ExactSum::kDigits];
    wanted.normalise();
    found.normalise();
    assert_memory_equal(wanted.digits, found.digits, sizeof wanted.digits);
    assert_int_equal(wanted.not_finite, found.not_finite);
    assert_true(any_bits || wanted.not_finite == 0);
  }
}

void norms_have_the_digits_of_the_exact_sum(void**) {
  for (const VectorLevel level : levels()) {
    force_vector_level(level);
    for (const bool any_bits : {false, true}) {
      compare_norms<F16>(TRIREME_DTYPE_F16, any_bits);
      compare_norms<Bf16>(TRIREME_DTYPE_BF16, any_bits);
      compare_norms<Plain<float>>(TRIREME_DTYPE_F32, any_bits);
      compare_norms<Plain<double>>(TRIREME_DTYPE_F64, any_bits);
    }
  }
  force_vector_level(best_vector_level());
}

void every_rule_with_a_loop_has_its_kernels(void**) {
  for (trireme_rule_kind kind = 1; find_rule(kind) != nullptr; ++kind) {
    for (int variant = 0; variant < kMostVariants; ++variant) {
      if (loops().update[0][kind].of[variant][0] == nullptr) continue;
      for (const char* const type : {"_f32", "_f64"}) {
        row(std::string("update_") + rule_name(kind) + "_" + std::to_string(variant) + type);
      }
    }
  }
}

// Runs last.
void every_kernel_has_run_on_the_device(void**) {
  if (OnDevice::get() == nullptr) return;
  for (std::size_t i = 0; i < std::size(kRows); ++i) {
    if (!launched[i]) fail_msg("%s was not launched", kRows[i].name);
  }
  print_message("%zu kernels, %llu launches, 0 bits differ\n", std::size(kRows),
                static_cast<unsigned long long>(OnDevice::get()->launches()));
}

}  // namespace
}  // namespace trireme::kernels

int main() {
  using namespace trireme::kernels;
  const CMUnitTest tests[] = {
      cmocka_unit_test(every_rule_with_a_loop_has_its_kernels),
      cmocka_unit_test(updates_have_the_bits_of_the_loops),
      cmocka_unit_test(directions_have_the_bits_of_the_loops),
      cmocka_unit_test(casts_have_the_bits_of_the_loops),
      cmocka_unit_test(reductions_have_the_bits_of_the_loops),
      cmocka_unit_test(norms_have_the_digits_of_the_exact_sum),
      cmocka_unit_test(every_kernel_has_run_on_the_device),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
