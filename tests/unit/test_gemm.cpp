// Every provider of products against plain loops. Those of the library have the same bits at every
// vector level and for every cut of the result. Libraries that cannot be used say why.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "elements.hpp"
#include "levels.hpp"
#include "parallel/tensor/gemm.hpp"
#include "parallel/tensor/gemm_trial.hpp"
#include "parallel/tensor/loaded_gemm.hpp"
#include "parallel/tensor/tensor.hpp"
#include "platform/dynamic_library.hpp"

// Last: its macros take names like `fail`.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
extern "C" {
#include <cmocka.h>
}

namespace {

using namespace trireme::parallel;
using trireme::DynamicLibrary;
using trireme::Status;

constexpr trireme_dtype F16 = TRIREME_DTYPE_F16, BF16 = TRIREME_DTYPE_BF16, F32 = TRIREME_DTYPE_F32,
                        F64 = TRIREME_DTYPE_F64;
const std::string kFake = TRIREME_FAKE_BLAS;

bool says(const Status& status, const std::string& words) {
  return status.message().find(words) != std::string::npos;
}

std::unique_ptr<Gemm> made(const GemmOptions& options) {
  std::unique_ptr<Gemm> gemm;
  const Status status = make_gemm(options, &gemm);
  if (!status.ok()) std::printf("%s\n", status.message().c_str());
  assert_true(status.ok());
  return gemm;
}

Status refusal(const GemmOptions& options) {
  std::unique_ptr<Gemm> gemm;
  Status status = make_gemm(options, &gemm);
  assert_false(status.ok());
  assert_null(gemm.get());
  return status;
}

// ---- matrices and the plain loop ----

std::vector<double> decoded(trireme_dtype dtype, const void* data, std::uint64_t count) {
  std::vector<double> numbers(count);
  const std::uint64_t size = trireme::dtype_size(dtype);
  for (std::uint64_t i = 0; i < count; ++i) {
    numbers[i] = decode(dtype, static_cast<const char*>(data) + i * size);
  }
  return numbers;
}

// A call with memory of its own. The numbers are small integers, or any.
struct Job {
  trireme_dtype dtype;
  GemmCall call;
  Elements left, right, result, before;
  std::vector<double> lefts, rights;  // the same numbers

  Job(trireme_dtype type, std::uint64_t rows, std::uint64_t columns, std::uint64_t depth,
      bool left_turned, bool right_turned, bool add, std::uint64_t gap, bool integers)
      : dtype(type),
        left(type, (left_turned ? depth : rows) * ((left_turned ? rows : depth) + gap)),
        right(type, (right_turned ? columns : depth) * ((right_turned ? depth : columns) + gap)),
        result(result_dtype(type), rows * (columns + gap)),
        before(result_dtype(type), rows * (columns + gap)) {
    call.dtype = type;
    call.left_transposed = left_turned;
    call.right_transposed = right_turned;
    call.add = add;
    call.rows = rows;
    call.columns = columns;
    call.depth = depth;
    call.left_step = (left_turned ? rows : depth) + gap;
    call.right_step = (right_turned ? depth : columns) + gap;
    call.result_step = columns + gap;
    std::uint64_t seed = rows * 31 + columns * 7 + depth;
    const auto number = [&](trireme_dtype of) {
      seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
      if (integers) return static_cast<double>(seed >> 60) - 8;
      if (of == F16 || of == BF16) {  // few different ones, whose products differ much in size
        return std::ldexp(static_cast<double>(seed >> 58) - 32,
                          static_cast<int>(seed >> 30) % 3 * 5);
      }
      const double any = static_cast<double>(seed >> 11) * 0x1p-52 - 1;
      return of == F64 ? any : static_cast<double>(static_cast<float>(any));
    };
    const std::uint64_t left_lines = left_turned ? depth : rows;
    const std::uint64_t right_lines = right_turned ? columns : depth;
    for (std::uint64_t i = 0; i < left_lines * call.left_step; ++i) left.set(i, number(type));
    for (std::uint64_t i = 0; i < right_lines * call.right_step; ++i) right.set(i, number(type));
    for (std::uint64_t i = 0; i < rows * call.result_step; ++i) {
      const double value = number(result_dtype(type));
      before.set(i, value);
      result.set(i, value);
    }
    call.left = left.data();
    call.right = right.data();
    call.result = result.data();
    lefts = decoded(type, call.left, left_lines * call.left_step);
    rights = decoded(type, call.right, right_lines * call.right_step);
  }

  void reset() {
    result = before;
    call.result = result.data();
  }

  // The sum in f64 from k = 0 up, with what was there last; *size adds up magnitudes.
  double sum(std::uint64_t i, std::uint64_t j, double* size) {
    double all = 0;
    *size = 0;
    for (std::uint64_t k = 0; k < call.depth; ++k) {
      const double a =
          lefts[call.left_transposed ? k * call.left_step + i : i * call.left_step + k];
      const double b =
          rights[call.right_transposed ? j * call.right_step + k : k * call.right_step + j];
      all += a * b;
      *size += std::fabs(a * b);
    }
    if (call.add) {
      const double first = before.get(i * call.result_step + j);
      all = first + all;
      *size += std::fabs(first);
    }
    return all;
  }

  // Compares every element, and that nothing beside the result was written.
  void check(bool exact) {
    for (std::uint64_t i = 0; i < call.rows; ++i) {
      for (std::uint64_t j = 0; j < call.result_step; ++j) {
        const double value = result.get(i * call.result_step + j);
        if (j >= call.columns) {
          assert_true(value == before.get(i * call.result_step + j));
          continue;
        }
        double size = 0;
        const double wanted = sum(i, j, &size);
        const bool wide = result_dtype(dtype) == F64;
        if (exact) {
          assert_true(value == (wide ? wanted : static_cast<double>(static_cast<float>(wanted))));
        } else {
          const double unit = wide ? 0x1p-52 : 0x1p-23;
          assert_true(std::fabs(value - wanted) <=
                      static_cast<double>(call.depth + 2) * unit * size);
        }
      }
    }
    assert_true(result.guard_is_whole());
  }
};

struct Size {
  std::uint64_t rows, columns, depth;
};
constexpr Size kSizes[] = {{0, 3, 5},    {3, 0, 5},    {4, 3, 0},      {0, 0, 0},     {1, 1, 1},
                           {1, 9, 4},    {7, 1, 3},    {13, 11, 2},    {8, 24, 257},  {25, 49, 12},
                           {97, 193, 5}, {3, 200, 64}, {100, 50, 300}, {131, 67, 129}};

// Under a sanitizer, one kind of product in so many: it looks at memory, not at numbers.
#if defined(__SANITIZE_ADDRESS__)
constexpr unsigned kKindStep = 3;
#else
constexpr unsigned kKindStep = 1;
#endif

// Each product by a plain loop. Those of the builtin once more at every vector level.
void check_provider(Gemm& gemm, const std::vector<trireme_dtype>& dtypes, bool always_exact) {
  using namespace trireme::kernels;
  for (const trireme_dtype dtype : dtypes) {
    for (const Size& size : kSizes) {
      for (unsigned kind = 0; kind < 32; kind += kKindStep) {
        const bool integers = (kind & 16) != 0;
        Job job(dtype, size.rows, size.columns, size.depth, kind & 1, kind & 2, kind & 4,
                kind & 8 ? 3 : 0, integers);
        assert_true(gemm.multiply(job.call).ok());
        job.check(integers || always_exact);
        if (gemm.info().provider != "builtin") continue;
        Elements first = job.result;
        for (const VectorLevel level : levels()) {
          force_vector_level(level);
          job.reset();
          assert_true(gemm.multiply(job.call).ok());
          assert_memory_equal(
              job.result.data(), first.data(),
              size.rows * job.call.result_step * trireme::dtype_size(result_dtype(dtype)));
        }
        force_vector_level(best_vector_level());
      }
    }
  }
}

// ---- the builtin ----

void the_builtin_has_the_bits_of_a_plain_loop_at_every_level(void**) {
  const std::unique_ptr<Gemm> gemm = made({.provider = "builtin"});
  assert_string_equal(gemm->info().provider.c_str(), "builtin");
  assert_true(gemm->info().repeatable && gemm->info().threads == 1);
  check_provider(*gemm, {F32, F64, F16, BF16}, true);
}

// Any part of the result, by a call of its own, has the bits of the whole.
void the_builtin_has_the_same_bits_for_every_cut(void**) {
  const std::unique_ptr<Gemm> gemm = made({.provider = "builtin"});
  constexpr std::uint64_t kRows = 101, kColumns = 203, kDepth = 260;
  for (const trireme_dtype dtype : {F32, F64, F16, BF16}) {
    const std::uint64_t wide = trireme::dtype_size(result_dtype(dtype));
    for (unsigned kind = 0; kind < 8; kind += kKindStep) {
      Job job(dtype, kRows, kColumns, kDepth, kind & 1, kind & 2, kind & 4, 2, false);
      assert_true(gemm->multiply(job.call).ok());
      Elements whole = job.result;
      for (const std::uint64_t parts : {2, 3, 5, 8}) {
        for (const bool by_rows : {false, true}) {
          job.reset();
          for (std::uint64_t part = 0; part < parts; ++part) {
            const std::uint64_t extent = by_rows ? kRows : kColumns;
            const std::uint64_t first = part * extent / parts;
            const std::uint64_t count = (part + 1) * extent / parts - first;
            GemmCall call = job.call;
            if (by_rows) {
              call.rows = count;
              call.left = job.left.at(call.left_transposed ? first : first * call.left_step);
              call.result = job.result.at(first * call.result_step);
            } else {
              call.columns = count;
              call.right = job.right.at(call.right_transposed ? first * call.right_step : first);
              call.result = job.result.at(first);
            }
            assert_true(gemm->multiply(call).ok());
          }
          assert_memory_equal(job.result.data(), whole.data(), kRows * job.call.result_step * wide);
        }
      }
    }
  }
}

// ---- the caller's ----

struct Host {
  int calls = 0;
  std::int32_t answer = 0;
  bool throws = false;
};

std::int32_t host_product(const trireme_product* p, void* user_data) {
  Host& host = *static_cast<Host*>(user_data);
  ++host.calls;
  if (host.throws) throw std::runtime_error("host");
  if (host.answer != 0) return host.answer;
  assert_int_equal(p->struct_size, sizeof *p);
  const bool wide = p->dtype == F64;
  const std::uint64_t left_lines = p->left_transposed ? p->depth : p->rows;
  const std::uint64_t right_lines = p->right_transposed ? p->columns : p->depth;
  const std::vector<double> left = decoded(p->dtype, p->left, left_lines * p->left_step);
  const std::vector<double> right = decoded(p->dtype, p->right, right_lines * p->right_step);
  for (std::uint64_t i = 0; i < p->rows; ++i) {
    for (std::uint64_t j = 0; j < p->columns; ++j) {
      double sum = 0;
      for (std::uint64_t k = 0; k < p->depth; ++k) {
        sum += left[p->left_transposed ? k * p->left_step + i : i * p->left_step + k] *
               right[p->right_transposed ? j * p->right_step + k : k * p->right_step + j];
      }
      char* const at = static_cast<char*>(p->result) + (i * p->result_step + j) * (wide ? 8 : 4);
      if (p->add) sum += decode(wide ? F64 : F32, at);
      encode(wide ? F64 : F32, sum, at);
    }
  }
  return 0;
}

void the_caller_computes(void**) {
  Host host;
  const std::unique_ptr<Gemm> gemm =
      made({.provider = "caller", .callback = host_product, .user_data = &host});
  assert_int_equal(gemm->info().threads, 0);
  check_provider(*gemm, {F32, F64, F16, BF16}, true);
  assert_true(host.calls > 0);
  host.answer = -7;
  Job job(F32, 2, 3, 4, false, false, false, 0, true);
  Status status = gemm->multiply(job.call);
  assert_int_equal(status.code(), TRIREME_ERROR_CALLBACK);
  assert_true(says(status, "the caller's product of 2 by 4 by 3 answered -7"));
  host.throws = true;
  status = gemm->multiply(job.call);
  assert_int_equal(status.code(), TRIREME_ERROR_CALLBACK);
  assert_true(says(status, "threw an exception"));
  // With nothing to compute the callback stays uncalled.
  const int calls = host.calls;
  job.call.rows = 0;
  assert_true(gemm->multiply(job.call).ok());
  assert_int_equal(host.calls, calls);
}

// ---- bad calls ----

void calls_that_cannot_be_are_refused(void**) {
  const std::unique_ptr<Gemm> gemm = made({.provider = "builtin"});
  const auto refused = [&](const GemmCall& call, trireme_status code, const char* words) {
    const Status status = gemm->multiply(call);
    assert_int_equal(status.code(), code);
    if (!says(status, words)) std::printf("%s\n", status.message().c_str());
    assert_true(says(status, words));
  };
  Job job(F32, 3, 4, 5, false, false, false, 0, true);
  for (const trireme_dtype dtype : {trireme_dtype{TRIREME_DTYPE_I32}, trireme_dtype{0},
                                    trireme_dtype{TRIREME_DTYPE_F8E4M3}, trireme_dtype{99}}) {
    GemmCall call = job.call;
    call.dtype = dtype;
    refused(call, TRIREME_ERROR_UNSUPPORTED, "by the provider builtin");
  }
  GemmCall call = job.call;
  call.left = nullptr;
  refused(call, TRIREME_ERROR_INVALID_ARGUMENT, "left is NULL");
  call = job.call;
  call.right = nullptr;
  refused(call, TRIREME_ERROR_INVALID_ARGUMENT, "right is NULL");
  call = job.call;
  call.result = nullptr;
  refused(call, TRIREME_ERROR_INVALID_ARGUMENT, "result is NULL");
  call = job.call;
  call.left_step = 4;
  refused(call, TRIREME_ERROR_INVALID_ARGUMENT, "left_step is 4, below 5");
  call.left_transposed = true;
  call.left_step = 2;
  refused(call, TRIREME_ERROR_INVALID_ARGUMENT, "left_step is 2, below 3");
  call = job.call;
  call.right_step = 3;
  refused(call, TRIREME_ERROR_INVALID_ARGUMENT, "right_step is 3, below 4");
  call.right_transposed = true;
  call.right_step = 4;
  refused(call, TRIREME_ERROR_INVALID_ARGUMENT, "right_step is 4, below 5");
  call = job.call;
  call.result_step = 3;
  refused(call, TRIREME_ERROR_INVALID_ARGUMENT, "result_step is 3, below 4");
  for (const std::uint64_t step : {UINT64_MAX, UINT64_MAX / 2, UINT64_MAX / 8}) {
    call = job.call;
    call.right_step = step;
    refused(call, TRIREME_ERROR_INVALID_ARGUMENT, "right: 5 rows");
  }
  assert_memory_equal(job.result.data(), job.before.data(), 3 * 4 * sizeof(float));
}

void a_provider_is_named(void**) {
  for (const char* const name : {"", "Builtin", "blas", "openblas"}) {
    const Status status = refusal({.provider = name});
    assert_int_equal(status.code(), TRIREME_ERROR_INVALID_ARGUMENT);
    assert_true(says(status, "none of builtin, loaded, caller"));
  }
  int data = 0;
  assert_true(says(refusal({.provider = "builtin", .library = "x"}), "a library means nothing"));
  assert_true(says(refusal({.provider = "builtin", .threads = 2}), "threads means nothing"));
  assert_true(says(refusal({.provider = "builtin", .user_data = &data}), "a callback means"));
  assert_true(says(refusal({.provider = "loaded", .callback = host_product}), "a callback means"));
  assert_true(says(refusal({.provider = "caller"}), "needs a callback"));
}

// ---- loaded ----

void openblas_is_right_and_repeats(void**) {
  std::string why;
  DynamicLibrary::open("libopenblas.so.0", &why);
  if (!why.empty()) {
    std::printf("skipped: no OpenBLAS: %s\n", why.c_str());
    skip();
  }
  for (const char* const library : {"", "libopenblas.so.0"}) {
    const std::unique_ptr<Gemm> gemm = made({.provider = "loaded", .library = library});
    const GemmInfo& info = gemm->info();
    assert_string_equal(info.library.c_str(), "libopenblas.so.0");
    assert_true(info.version.find("OpenBLAS") != std::string::npos);
    assert_int_equal(info.threads, 1);
    assert_true(info.repeatable && info.difference.empty());
    check_provider(*gemm, {F32, F64}, false);
  }
  assert_int_equal(made({.provider = "loaded", .threads = 2})->info().threads, 2);
}

void a_loaded_library_computes(void**) {
  const std::unique_ptr<Gemm> gemm = made({.provider = "loaded", .library = kFake});
  const GemmInfo& info = gemm->info();
  assert_string_equal(info.provider.c_str(), "loaded");
  assert_string_equal(info.library.c_str(), kFake.c_str());
  assert_string_equal(info.version.c_str(), "Fake 1.2");
  assert_int_equal(info.threads, 1);
  assert_true(info.repeatable);
  check_provider(*gemm, {F32, F64}, false);
  Job job(BF16, 2, 2, 2, false, false, false, 0, true);
  const Status status = gemm->multiply(job.call);
  assert_int_equal(status.code(), TRIREME_ERROR_UNSUPPORTED);
  assert_true(says(status, "bf16"));
  // With numbers of 64 bits.
  const std::unique_ptr<Gemm> wide = made({.provider = "loaded", .library = TRIREME_FAKE_BLAS_64});
  assert_int_equal(wide->info().threads, 1);
  assert_string_equal(wide->info().version.c_str(), "Fake 1.2");
  check_provider(*wide, {F32, F64}, false);
}

void another_number_of_threads_is_set_back(void**) {
  const std::unique_ptr<Gemm> gemm = made({.provider = "loaded", .library = kFake, .threads = 3});
  assert_int_equal(gemm->info().threads, 3);
  std::string why;
  const DynamicLibrary library = DynamicLibrary::open(kFake, &why);
  const auto set = reinterpret_cast<void (*)(int)>(library.symbol("openblas_set_num_threads"));
  const auto get = reinterpret_cast<int (*)()>(library.symbol("openblas_get_num_threads"));
  set(5);
  Job job(F32, 2, 2, 2, false, false, false, 0, true);
  assert_true(gemm->multiply(job.call).ok());
  assert_int_equal(get(), 3);
}

// How a fake library behaves until the end of the block.
class Behaving {
 public:
  explicit Behaving(const char* how, const char* variable = "FAKE_BLAS") : variable_(variable) {
    setenv(variable, how, 1);
  }
  ~Behaving() { unsetenv(variable_); }
  Behaving(const Behaving&) = delete;
  Behaving& operator=(const Behaving&) = delete;

 private:
  const char* const variable_;
};

void two_numbers_of_threads_of_one_library_are_refused(void**) {
  std::string why;
  const DynamicLibrary library = DynamicLibrary::open(kFake, &why);
  const auto get = reinterpret_cast<int (*)()>(library.symbol("openblas_get_num_threads"));
  // The same file by another name is the same library.
  const std::size_t slash = kFake.rfind('/');
  const std::string other_name = kFake.substr(0, slash) + "/." + kFake.substr(slash);
  std::unique_ptr<Gemm> first = made({.provider = "loaded", .library = kFake, .threads = 3});
  std::unique_ptr<Gemm> second = made({.provider = "loaded", .library = other_name, .threads = 3});
  const auto refused = [&] {
    for (const std::string& name : {kFake, other_name}) {
      for (const int threads : {1, 2, 4}) {
        const Status status = refusal({.provider = "loaded", .library = name, .threads = threads});
        assert_int_equal(status.code(), TRIREME_ERROR_INVALID_STATE);
        assert_true(says(status, "threads is " + std::to_string(threads) + ", but " + name));
        assert_true(says(status, "computes with 3 in this process"));
        assert_int_equal(get(), 3);
      }
    }
  };
  refused();
  // Another library has a number of its own.
  assert_int_equal(
      made({.provider = "loaded", .library = TRIREME_FAKE_BLAS_64, .threads = 2})->info().threads,
      2);
  first.reset();
  refused();
  second.reset();
  first = made({.provider = "loaded", .library = kFake, .threads = 2});
  assert_int_equal(get(), 2);
}

void a_refused_library_keeps_its_number_of_threads(void**) {
  std::string why;
  const DynamicLibrary library = DynamicLibrary::open(kFake, &why);
  const auto set = reinterpret_cast<void (*)(int)>(library.symbol("openblas_set_num_threads"));
  const auto get = reinterpret_cast<int (*)()>(library.symbol("openblas_get_num_threads"));
  const GemmOptions four = {.provider = "loaded", .library = kFake, .threads = 4};
  set(7);
  {
    const Behaving badly("does nothing");
    assert_true(says(refusal(four), "computes wrong products"));
    assert_int_equal(get(), 7);
  }
  set(1);
  {
    const Behaving badly("few threads");
    assert_true(says(refusal(four), "takes 2"));
    assert_int_equal(get(), 1);
  }
  // A number that another Gemm uses stays.
  const std::unique_ptr<Gemm> gemm = made(four);
  const Behaving badly("does nothing");
  assert_true(says(refusal(four), "computes wrong products"));
  assert_int_equal(get(), 4);
  assert_int_equal(refusal({.provider = "loaded", .library = kFake, .threads = 5}).code(),
                   TRIREME_ERROR_INVALID_STATE);
}

void the_first_library_that_can_be_used_is_taken(void**) {
  const std::string blis = TRIREME_FAKE_BLAS_BLIS;
  const LoadedOptions options = {
      .names = {"libno_such_blas.so.3", TRIREME_FAKE_BLAS_HALF, kFake, blis}, .threads = 4};
  const auto takes = [&](const std::string& library, const char* version) {
    std::unique_ptr<Gemm> gemm;
    const Status status = LoadedGemm::open(options, &gemm);
    if (!status.ok()) std::printf("%s\n", status.message().c_str());
    assert_true(status.ok());
    assert_string_equal(gemm->info().library.c_str(), library.c_str());
    assert_string_equal(gemm->info().version.c_str(), version);
    assert_int_equal(gemm->info().threads, 4);
    check_provider(*gemm, {F32, F64}, false);
  };
  takes(kFake, "Fake 1.2");
  for (const char* const how : {"does nothing", "forgets to transpose", "few threads"}) {
    const Behaving badly(how);
    takes(blis, "Fake 0.9");
    // A library that the caller names is the only one.
    LoadedOptions named = options;
    named.library = kFake;
    std::unique_ptr<Gemm> gemm;
    const Status status = LoadedGemm::open(named, &gemm);
    assert_int_equal(status.code(), TRIREME_ERROR_UNSUPPORTED);
    assert_null(gemm.get());
    assert_false(says(status, blis));
  }
  const Behaving badly("few threads");
  const Behaving wide("wide numbers", "FAKE_BLIS");
  std::unique_ptr<Gemm> gemm;
  const Status status = LoadedGemm::open(options, &gemm);
  assert_int_equal(status.code(), TRIREME_ERROR_UNSUPPORTED);
  assert_null(gemm.get());
  assert_true(says(status, "no BLAS for gemm loaded; tried libno_such_blas.so.3: "));
  assert_true(says(status, std::string("; tried ") + TRIREME_FAKE_BLAS_HALF + ": it has no cblas"));
  assert_true(says(status, "; tried " + kFake + ": threads is 4, but " + kFake + " takes 2"));
  assert_true(says(status, "; tried " + blis + ": its cblas_sgemm has 64-bit numbers"));
}

// Another library would give other bits than the caller's first Gemm has.
void a_second_number_of_threads_takes_no_other_library(void**) {
  const std::unique_ptr<Gemm> first = made({.provider = "loaded", .library = kFake, .threads = 3});
  std::unique_ptr<Gemm> gemm;
  const Status status =
      LoadedGemm::open({.names = {kFake, TRIREME_FAKE_BLAS_BLIS}, .threads = 2}, &gemm);
  assert_int_equal(status.code(), TRIREME_ERROR_INVALID_STATE);
  assert_null(gemm.get());
}

void bits_that_do_not_repeat_are_reported(void**) {
  for (const char* const how : {"counts", "looks at addresses"}) {
    const Behaving badly(how);
    const std::unique_ptr<Gemm> gemm = made({.provider = "loaded", .library = kFake});
    assert_false(gemm->info().repeatable);
    assert_true(gemm->info().difference.find("equal products of ") == 0);
  }
}

void blocks_need_a_library_whose_bits_repeat(void**) {
  GroupOptions group;
  group.world_size = 1;
  group.rendezvous = "local://blocks_need_a_library";
  std::shared_ptr<Communicator> alone;
  constexpr std::uint64_t kMinuteNs = 60'000'000'000;
  assert_true(Communicator::create(group, kMinuteNs, &alone).ok());
  TensorOptions options;
  options.blocks = 4;
  options.gemm = {.provider = "loaded", .library = kFake};
  std::shared_ptr<Tensor> tensor;
  assert_true(Tensor::create(alone, options, &tensor).ok());
  tensor.reset();
  const Behaving badly("counts");
  const Status status = Tensor::create(alone, options, &tensor);
  assert_int_equal(status.code(), TRIREME_ERROR_UNSUPPORTED);
  assert_true(says(status, "options.blocks is 4, which promises the same bits, but "));
  assert_true(says(status, "is not repeatable: equal products of "));
  assert_null(tensor.get());
  options.blocks = 0;
  assert_true(Tensor::create(alone, options, &tensor).ok());
}

void libraries_that_cannot_be_used_say_why(void**) {
  const auto refused = [](const GemmOptions& options, const std::vector<std::string>& words) {
    const Status status = refusal(options);
    assert_int_equal(status.code(), TRIREME_ERROR_UNSUPPORTED);
    for (const std::string& word : words) {
      if (!says(status, word)) std::printf("%s\n", status.message().c_str());
      assert_true(says(status, word));
    }
  };
  const auto behaving = [&](const char* how, int threads, const std::vector<std::string>& words) {
    const Behaving badly(how);
    refused({.provider = "loaded", .library = kFake, .threads = threads}, words);
  };
  refused({.provider = "loaded", .library = "libno_such_blas.so.3"},
          {"no BLAS", "tried libno_such_blas.so.3: ", "No such file"});
  refused({.provider = "loaded", .library = "/etc/passwd"}, {"tried /etc/passwd: "});
  refused({.provider = "loaded", .library = "libm.so.6"},
          {"tried libm.so.6: it has no cblas_sgemm and cblas_dgemm"});
  refused({.provider = "loaded", .library = TRIREME_FAKE_BLAS_HALF}, {"it has no cblas_sgemm"});
  refused({.provider = "loaded", .library = TRIREME_FAKE_BLAS_BITS}, {"has 64-bit numbers"});
  {
    const Behaving wide("wide numbers", "FAKE_BLIS");
    refused({.provider = "loaded", .library = TRIREME_FAKE_BLAS_BLIS}, {"has 64-bit numbers"});
  }
  behaving("does nothing", 1, {"computes wrong products: 1 by 1 by 1 of f32"});
  behaving("forgets to transpose", 1, {"computes wrong products: 5 by 3 by 7"});
  behaving("few threads", 4, {"threads is 4, but ", "takes 2"});
  for (const int threads : {0, -1}) {
    const Status status = refusal({.provider = "loaded", .library = kFake, .threads = threads});
    assert_int_equal(status.code(), TRIREME_ERROR_INVALID_ARGUMENT);
    assert_true(says(status, "must be 1 or more"));
  }
}

// As if numbers of the library ended at 100: larger extents take several calls, a larger step none.
void extents_beyond_the_numbers_of_a_library_are_split(void**) {
  std::string why;
  const DynamicLibrary library = DynamicLibrary::open(kFake, &why);
  const auto largest = reinterpret_cast<std::int64_t (*)()>(library.symbol("fake_blas_largest"));
  std::unique_ptr<Gemm> gemm;
  // The trial has larger steps than 100.
  assert_true(LoadedGemm::open({.library = kFake, .most = 300}, &gemm).ok());
  largest();
  for (const trireme_dtype dtype : {F32, F64}) {
    for (const bool add : {false, true}) {
      Job rows(dtype, 701, 5, 7, false, false, add, 0, true);
      assert_true(gemm->multiply(rows.call).ok());
      rows.check(true);
      assert_int_equal(largest(), 300);
      Job depth(dtype, 5, 7, 901, true, false, add, 1, true);
      assert_true(gemm->multiply(depth.call).ok());
      depth.check(true);
      assert_int_equal(largest(), 300);
    }
    const auto refused = [&](Job job, const char* words) {
      const Status status = gemm->multiply(job.call);
      assert_int_equal(status.code(), TRIREME_ERROR_UNSUPPORTED);
      assert_true(says(status, words));
      assert_int_equal(largest(), 0);
    };
    refused(Job(dtype, 2, 2, 301, false, false, false, 0, true),
            "left_step is 301, above 300, the largest that ");
    refused(Job(dtype, 2, 2, 301, true, true, false, 0, true), "right_step is 301");
    refused(Job(dtype, 2, 302, 3, false, true, false, 0, true), "result_step is 302");
  }
  // The real limit: nothing is touched before it is compared.
  const std::unique_ptr<Gemm> whole = made({.provider = "loaded", .library = kFake});
  Job job(F32, 2, 2, 2, false, false, false, 0, true);
  job.call.result_step = std::uint64_t{1} << 31;
  const Status status = whole->multiply(job.call);
  assert_int_equal(status.code(), TRIREME_ERROR_UNSUPPORTED);
  assert_true(says(status, "result_step is 2147483648, above 2147483647"));
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(the_builtin_has_the_bits_of_a_plain_loop_at_every_level),
      cmocka_unit_test(the_builtin_has_the_same_bits_for_every_cut),
      cmocka_unit_test(the_caller_computes),
      cmocka_unit_test(calls_that_cannot_be_are_refused),
      cmocka_unit_test(a_provider_is_named),
      cmocka_unit_test(openblas_is_right_and_repeats),
      cmocka_unit_test(a_loaded_library_computes),
      cmocka_unit_test(another_number_of_threads_is_set_back),
      cmocka_unit_test(two_numbers_of_threads_of_one_library_are_refused),
      cmocka_unit_test(a_refused_library_keeps_its_number_of_threads),
      cmocka_unit_test(the_first_library_that_can_be_used_is_taken),
      cmocka_unit_test(a_second_number_of_threads_takes_no_other_library),
      cmocka_unit_test(bits_that_do_not_repeat_are_reported),
      cmocka_unit_test(blocks_need_a_library_whose_bits_repeat),
      cmocka_unit_test(libraries_that_cannot_be_used_say_why),
      cmocka_unit_test(extents_beyond_the_numbers_of_a_library_are_split),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
