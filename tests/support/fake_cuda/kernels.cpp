// The kernels of the fake: the bodies that a device compiles, thread by thread, and what each reads
// and writes.
#include <cstring>
#include <new>

#include "fake_cuda/world.hpp"
#include "kernels/calls.hpp"

namespace fake {
namespace {

using namespace trireme::kernels;
using namespace trireme::kernels::device;

std::size_t stored_bytes(Storage storage, std::size_t own) {
  return storage == Storage::own ? own : 2;
}

// Says what the kernel touches, and puts the places for the host into its arguments. False if the
// kernel must not run.
template <class Kernel>
struct Touches;

template <class T, class Rule, int kVariant>
struct Touches<Update<T, Rule, kVariant>> {
  static bool all(Access& access, UpdateArgs<T>& args) {
    bool good = access.writes(args.parameters, args.count * stored_bytes(args.storage, sizeof(T)));
    good = access.reads(args.gradients, args.count * sizeof(T)) && good;
    for (int k = 0; k < Rule::states(kVariant); ++k) {
      good = access.writes(args.states[k], args.count * sizeof(T)) && good;
    }
    return good;
  }
};

template <class T>
struct Touches<Direction<T>> {
  static bool all(Access& access, typename Direction<T>::Args& args) {
    const std::size_t parameters = args.count * stored_bytes(args.storage, sizeof(T));
    return (args.decay == 0 || access.reads(args.parameters, parameters)) &&
           access.writes(args.gradients, args.count * sizeof(T)) &&
           access.writes(args.mean, args.count * sizeof(T)) &&
           access.writes(args.squares, args.count * sizeof(T));
  }
};

template <class T>
struct Touches<Velocity<T>> {
  static bool all(Access& access, typename Velocity<T>::Args& args) {
    return access.writes(args.gradients, args.count * sizeof(T)) &&
           access.writes(args.velocity, args.count * sizeof(T));
  }
};

template <class Args>
bool touches_cast(Access& access, Args& args) {
  return access.reads(args.from, args.count * sizeof *args.from) &&
         access.writes(args.to, args.count * sizeof *args.to);
}

template <class Type>
struct Touches<Widen<Type>> {
  static bool all(Access& access, typename Widen<Type>::Args& args) {
    return touches_cast(access, args);
  }
};

template <class Type>
struct Touches<Narrow<Type>> {
  static bool all(Access& access, typename Narrow<Type>::Args& args) {
    return touches_cast(access, args);
  }
};

template <>
struct Touches<RoundByChance> {
  static bool all(Access& access, RoundByChance::Args& args) { return touches_cast(access, args); }
};

template <class Type>
struct Touches<Adopt<Type>> {
  static bool all(Access& access, typename Adopt<Type>::Args& args) {
    return access.reads(args.narrow, args.count * sizeof *args.narrow) &&
           access.writes(args.wide, args.count * sizeof *args.wide);
  }
};

template <class Type>
struct Touches<Measure<Type>> {
  static bool all(Access& access, typename Measure<Type>::Args& args) {
    return access.reads(args.values, args.count * sizeof *args.values) &&
           access.writes(args.sum, (Measure<Type>::kDigits + 1) * sizeof *args.sum);
  }
};

template <class Type>
struct Touches<Reduce<Type>> {
  static bool all(Access& access, typename Reduce<Type>::Args& args) {
    bool good = true;
    for (std::uint32_t k = 0; k < args.source_count; ++k) {
      good = access.reads(args.sources[k], args.count * sizeof *args.to) && good;
    }
    return access.writes(args.to, args.count * sizeof *args.to) && good;
  }
};

template <class Kernel, int kPhase>
void run_phases(const typename Kernel::Args& args, typename Kernel::Shared& shared,
                std::uint32_t block, std::uint32_t blocks, std::uint32_t threads) {
  for (std::uint32_t thread = 0; thread < threads; ++thread) {
    Kernel::template phase<kPhase>(args, shared, {block, blocks, thread, threads});
  }
  if constexpr (kPhase + 1 < Kernel::kPhases) {
    run_phases<Kernel, kPhase + 1>(args, shared, block, blocks, threads);
  }
}

template <class Kernel>
void run(std::vector<std::byte>& bytes, std::uint32_t blocks, std::uint32_t threads,
         Access& access) {
  using Args = typename Kernel::Args;
  auto& args = *std::launder(reinterpret_cast<Args*>(bytes.data()));
  if (args.count == 0 || !Touches<Kernel>::all(access, args)) return;
  // The last block first: nothing may depend on their order.
  for (std::uint32_t block = blocks; block-- > 0;) {
    typename Kernel::Shared shared;
    std::memset(static_cast<void*>(&shared), 0x5a, sizeof shared);
    run_phases<Kernel, 0>(args, shared, block, blocks, threads);
  }
}

using Run = void (*)(std::vector<std::byte>&, std::uint32_t, std::uint32_t, Access&);
#define TRIREME_RUN_OF_KERNEL(name, ...) run<__VA_ARGS__>,
const Run kRuns[] = {TRIREME_KERNELS(TRIREME_RUN_OF_KERNEL)};

}  // namespace

int find_kernel(const std::string& name) {
  for (std::uint32_t i = 0; i < kKernelCount; ++i) {
    if (name == std::string("trireme_") + kKernels[i].name) return static_cast<int>(i);
  }
  return -1;
}

std::size_t kernel_args(int kernel) { return kKernels[kernel].bytes; }
const char* kernel_name(int kernel) { return kKernels[kernel].name; }

void run_kernel(int kernel, std::vector<std::byte> args, std::uint32_t blocks,
                std::uint32_t threads, Access& access) {
  kRuns[kernel](args, blocks, threads, access);
}

}  // namespace fake
