// Whether an inf or NaN is found wherever it lies, with all vector instructions of the machine.
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/finite.hpp"
#include "kernels/vector.hpp"
#include "levels.hpp"

// Last: its macros take names like `fail`.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
extern "C" {
#include <cmocka.h>
}

namespace {

using namespace trireme::kernels;

struct Type {
  trireme_dtype dtype;
  int bits, mantissa;
};
constexpr Type kTypes[] = {{TRIREME_DTYPE_F16, 16, 10},
                           {TRIREME_DTYPE_BF16, 16, 7},
                           {TRIREME_DTYPE_F32, 32, 23},
                           {TRIREME_DTYPE_F64, 64, 52}};

void one_of_many_is_found(void**) {
  for (const VectorLevel level : levels()) {
    force_vector_level(level);
    for (const Type& type : kTypes) {
      const std::size_t size = static_cast<std::size_t>(type.bits) / 8;
      const std::uint64_t sign = std::uint64_t{1} << (type.bits - 1);
      const std::uint64_t infinity = (sign - 1) >> type.mantissa << type.mantissa;
      // The largest number, the smallest, 0 and those below 0; then values that are not finite.
      const std::uint64_t numbers[] = {infinity - 1, 1, 0, sign | (infinity - 1), sign};
      const std::uint64_t others[] = {infinity, infinity + 1, sign - 1, sign | infinity,
                                      sign | (sign - 1)};
      for (const std::size_t count : {0, 1, 5, 67, 9001}) {
        std::vector<unsigned char> bytes(count * size + 1);
        unsigned char* const values = bytes.data() + 1;  // at no multiple of its size
        const auto put = [&](std::size_t i, std::uint64_t code) {
          std::memcpy(values + i * size, &code, size);
        };
        for (std::size_t i = 0; i < count; ++i) put(i, numbers[i % 5]);
        assert_true(all_finite(type.dtype, values, count));
        for (std::size_t i = 0; i<count; i += count> 1000 ? 449 : 1) {
          put(i, others[i % 5]);
          assert_false(all_finite(type.dtype, values, count));
          assert_true(all_finite(type.dtype, values, i));
          put(i, numbers[i % 5]);
        }
      }
    }
  }
  force_vector_level(best_vector_level());
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {cmocka_unit_test(one_of_many_is_found)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
