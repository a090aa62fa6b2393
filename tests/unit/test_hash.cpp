// The hash is XXH3, whatever instructions the machine has: beside xxHash's own plain loops.
#include <cstdint>
#include <vector>

#include "kernels/hash.hpp"
#include "kernels/vector.hpp"
#include "levels.hpp"

#define XXH_VECTOR XXH_SCALAR
#define XXH_INLINE_ALL
#include <xxhash.h>

// Last: its macros take names like `fail`.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
extern "C" {
#include <cmocka.h>
}

namespace {

using namespace trireme::kernels;

void every_level_is_xxh3(void**) {
  std::vector<unsigned char> memory(70001);
  for (std::size_t i = 0; i < memory.size(); ++i) {
    memory[i] = static_cast<unsigned char>(i * 2654435761u >> 13);
  }
  constexpr std::uint64_t kSizes[] = {0,   1,   3,   8,   16,   17,   128,  129,   240,
                                      241, 255, 256, 512, 1023, 1024, 1025, 65536, 70000};
  for (const VectorLevel level : levels()) {
    force_vector_level(level);
    for (const std::uint64_t size : kSizes) {
      for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{7}, ~std::uint64_t{0}}) {
        for (const int misaligned : {0, 1}) {
          const unsigned char* const data = memory.data() + misaligned;
          assert_int_equal(hash(data, size, seed), XXH3_64bits_withSeed(data, size, seed));
        }
      }
    }
  }
  force_vector_level(best_vector_level());
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {cmocka_unit_test(every_level_is_xxh3)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
