// Every algorithm of every collective, run by ranks that are threads, over messages of the local
// backend. Expected values are computed here, element by element, from the formula of the inputs.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "collectives/communicator.hpp"
#include "collectives/composite.hpp"
#include "elements.hpp"
#include "platform/names.hpp"
#include "schedules/algorithm.hpp"

// cmocka's names are macros that the standard library must not see.
extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
// cmocka.h comes after those it needs.
#include <cmocka.h>
}

namespace {

using namespace trireme;

constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr std::uint64_t kLong = 100 * kSecond;
// Eight threads on few cores mostly wait where a sanitizer watches; five show it the same code.
#if defined(__SANITIZE_THREAD__)
constexpr int kWorldSizes[] = {1, 2, 3, 5};
constexpr int kSomeWorldSizes[] = {3};
#elif defined(__SANITIZE_ADDRESS__)
constexpr int kWorldSizes[] = {1, 2, 3, 4, 5};
constexpr int kSomeWorldSizes[] = {2, 3, 5};
#else
constexpr int kWorldSizes[] = {1, 2, 3, 4, 5, 8};
constexpr int kSomeWorldSizes[] = {2, 3, 5, 8};
#endif

// To ThreadSanitizer, which is the slowest, numbers of all types look alike.
#if defined(__SANITIZE_THREAD__)
constexpr bool kSeesThreadsAlone = true;
#else
constexpr bool kSeesThreadsAlone = false;
#endif

// One rank of a group of threads. Failures are reported when all have ended: cmocka is not for
// other threads.
struct Rank {
  std::shared_ptr<Communicator> group;
  int me = 0;
  int n = 1;
  std::string wrong;

  void expect(bool right, const std::string& what) {
    if (!right && wrong.empty()) wrong = "rank " + std::to_string(me) + ": " + what;
  }
  Status run(const Operation& operation, std::uint64_t timeout_ns = kLong) {
    return group->run(Operation(operation), Deadline::after(timeout_ns));
  }
  void succeed(const Operation& operation, const std::string& what) {
    const Status status = run(operation);
    expect(status.ok(), what + ": " + status.message());
  }
};

void with_ranks(int n, const std::function<void(Rank&)>& body) {
  static std::atomic<int> number{0};
  const std::string url = "local://algorithms-" + std::to_string(number++);
  std::vector<Rank> ranks(static_cast<std::size_t>(n));
  std::vector<std::thread> threads;
  std::barrier all_ready(n);  // a failure that the body makes must not meet who is still joining
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      Rank& mine = ranks[static_cast<std::size_t>(rank)];
      mine.me = rank;
      mine.n = n;
      GroupOptions options;
      options.rank = rank;
      options.world_size = n;
      options.rendezvous = url;
      options.name = "job";
      const Status joined = Communicator::create(options, kLong, &mine.group);
      mine.expect(joined.ok(), joined.message());
      if (joined.ok())
        mine.expect(mine.group->wait_ready(Deadline::after(kLong), nullptr).ok(), "ready");
      all_ready.arrive_and_wait();
      if (mine.wrong.empty()) body(mine);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Rank& rank : ranks) {
    if (!rank.wrong.empty()) fail_msg("%s", rank.wrong.c_str());
  }
}

// --- numbers -----------------------------------------------------------------------------------

// Element i of a rank's contribution. Small whole numbers: any order of sums of eight is exact, and
// none of products leaves the range.
double given(trireme_dtype dtype, int rank, std::uint64_t i) {
  const std::uint64_t mixed = (i + 1) * 2654435761u + static_cast<std::uint64_t>(rank) * 40503u;
  const bool few =
      dtype == TRIREME_DTYPE_F8E4M3 || dtype == TRIREME_DTYPE_F8E5M2 || dtype == TRIREME_DTYPE_BOOL;
  return static_cast<double>((mixed >> 7) % (few ? 2 : 4));
}

double combine(trireme_reduction reduction, double a, double b) {
  const auto bits = [](double number) { return static_cast<std::uint64_t>(number); };
  switch (reduction) {
    case TRIREME_REDUCTION_PRODUCT: return a * b;
    case TRIREME_REDUCTION_MIN: return std::fmin(a, b);
    case TRIREME_REDUCTION_MAX: return std::fmax(a, b);
    case TRIREME_REDUCTION_BAND: return static_cast<double>(bits(a) & bits(b));
    case TRIREME_REDUCTION_BOR: return static_cast<double>(bits(a) | bits(b));
    case TRIREME_REDUCTION_BXOR: return static_cast<double>(bits(a) ^ bits(b));
    default: return a + b;
  }
}

constexpr double kScale = 0.5;

bool is_float(trireme_dtype dtype) {
  return (dtype >= TRIREME_DTYPE_F16 && dtype <= TRIREME_DTYPE_F64) ||
         dtype == TRIREME_DTYPE_F8E4M3 || dtype == TRIREME_DTYPE_F8E5M2;
}

// How close is right: sums are exact, and a quotient is off by at most half of a last place.
bool agrees(trireme_dtype dtype, trireme_reduction reduction, int n, double got, double want) {
  if (reduction != TRIREME_REDUCTION_AVERAGE || (n & (n - 1)) == 0) return got == want;
  if (!is_float(dtype)) return got == std::trunc(want);
  const int bits = dtype == TRIREME_DTYPE_F64      ? 52
                   : dtype == TRIREME_DTYPE_F32    ? 23
                   : dtype == TRIREME_DTYPE_F16    ? 10
                   : dtype == TRIREME_DTYPE_BF16   ? 7
                   : dtype == TRIREME_DTYPE_F8E4M3 ? 3
                                                   : 2;
  return std::fabs(got - want) <= std::ldexp(std::fabs(want), -bits);
}

double reduced(trireme_dtype dtype, trireme_reduction reduction, int n, std::uint64_t i) {
  double result = given(dtype, 0, i);
  for (int rank = 1; rank < n; ++rank) result = combine(reduction, result, given(dtype, rank, i));
  if (reduction == TRIREME_REDUCTION_AVERAGE) {
    result /= n;
    if (!is_float(dtype)) result = std::trunc(result);
  }
  return reduction == TRIREME_REDUCTION_SCALED_SUM ? result * kScale : result;
}

// --- one collective ------------------------------------------------------------------------------

struct Kind {
  OperationKind kind;
  Pattern pattern;
  bool reduces;
  bool rooted;
};

constexpr Kind kKinds[] = {
    {OperationKind::all_reduce, Pattern::all_reduce, true, false},
    {OperationKind::reduce, Pattern::reduce, true, true},
    {OperationKind::reduce_scatter, Pattern::reduce_scatter, true, false},
    {OperationKind::reduce_scatter_v, Pattern::reduce_scatter, true, false},
    {OperationKind::all_gather, Pattern::all_gather, false, false},
    {OperationKind::all_gather_v, Pattern::all_gather, false, false},
    {OperationKind::broadcast, Pattern::broadcast, false, true},
    {OperationKind::gather, Pattern::gather, false, true},
    {OperationKind::gather_v, Pattern::gather, false, true},
    {OperationKind::scatter, Pattern::scatter, false, true},
    {OperationKind::scatter_v, Pattern::scatter, false, true},
    {OperationKind::all_to_all, Pattern::all_to_all, false, false},
    {OperationKind::all_to_all_v, Pattern::all_to_all, false, false},
};

struct Case {
  Kind kind;
  Algorithm algorithm = Algorithm::direct;
  trireme_dtype dtype = TRIREME_DTYPE_F32;
  trireme_reduction reduction = TRIREME_REDUCTION_SUM;
  std::uint64_t count = 0;  // of all elements, or of one block
  int root = 0;
  bool reproducible = false;

  std::string text() const {
    return std::string(operation_name(kind.kind)) + " by " + algorithm_name(algorithm) + ", " +
           dtype_name(dtype) + ", " + reduction_name(reduction) + ", count " +
           std::to_string(count) + ", root " + std::to_string(root) +
           (reproducible ? ", reproducible" : "");
  }
};

// Blocks of the v forms: different, and some empty.
std::uint64_t block(const Case& c, int rank) {
  const bool differ = c.kind.kind == OperationKind::reduce_scatter_v ||
                      c.kind.kind == OperationKind::all_gather_v ||
                      c.kind.kind == OperationKind::gather_v ||
                      c.kind.kind == OperationKind::scatter_v;
  return differ ? c.count * static_cast<std::uint64_t>((rank * 2 + 1) % 4) / 2 : c.count;
}

std::uint64_t begin(const Case& c, int rank) {
  std::uint64_t sum = 0;
  for (int before = 0; before < rank; ++before) sum += block(c, before);
  return sum;
}

// all_to_all: elements that a rank has for another.
std::uint64_t part(const Case& c, int from, int to) {
  if (c.kind.kind != OperationKind::all_to_all_v) return c.count;
  return c.count * static_cast<std::uint64_t>((from + 2 * to) % 3);
}

struct Sizes {
  std::uint64_t send = 0;
  std::uint64_t receive = 0;
};

Sizes sizes(const Case& c, int me, int n) {
  const std::uint64_t all = begin(c, n);
  const bool at_root = me == c.root;
  Sizes to_all;
  switch (c.kind.pattern) {
    case Pattern::all_reduce: return {c.count, c.count};
    case Pattern::reduce: return {c.count, at_root ? c.count : 0};
    case Pattern::broadcast: return {0, c.count};
    case Pattern::reduce_scatter: return {all, block(c, me)};
    case Pattern::all_gather: return {block(c, me), all};
    case Pattern::gather: return {block(c, me), at_root ? all : 0};
    case Pattern::scatter: return {at_root ? all : 0, block(c, me)};
    default:
      for (int other = 0; other < n; ++other) {
        to_all.send += part(c, me, other);
        to_all.receive += part(c, other, me);
      }
      return to_all;
  }
}

// Element i of the expected result: its first source element, or its source rank.
double expected(const Case& c, int me, int n, std::uint64_t i) {
  switch (c.kind.pattern) {
    case Pattern::all_reduce:
    case Pattern::reduce: return reduced(c.dtype, c.reduction, n, i);
    case Pattern::reduce_scatter: return reduced(c.dtype, c.reduction, n, begin(c, me) + i);
    case Pattern::broadcast: return given(c.dtype, c.root, i);
    case Pattern::scatter: return given(c.dtype, c.root, begin(c, me) + i);
    case Pattern::all_gather:
    case Pattern::gather: {
      int source = 0;
      while (i >= begin(c, source + 1)) ++source;
      return given(c.dtype, source, i - begin(c, source));
    }
    default: {
      int source = 0;
      std::uint64_t passed = 0;
      while (i >= passed + part(c, source, me)) passed += part(c, source++, me);
      std::uint64_t from = i - passed;
      for (int before = 0; before < me; ++before) from += part(c, source, before);
      return given(c.dtype, source, from);
    }
  }
}

Operation operation_of(const Case& c, int me, int n, void* send, void* receive) {
  Operation made;
  made.kind = c.kind.kind;
  made.dtype = c.dtype;
  made.reduction = c.kind.reduces ? c.reduction : 0;
  made.scale = c.reduction == TRIREME_REDUCTION_SCALED_SUM ? kScale : 0;
  made.root = c.kind.rooted ? c.root : 0;
  made.send = send;
  made.receive = receive;
  made.count = c.count;
  made.algorithm = static_cast<std::int32_t>(c.algorithm);
  made.reproducible = c.reproducible;
  if (made.kind == OperationKind::all_to_all_v) {
    for (int other = 0; other < n; ++other) made.counts.push_back(part(c, me, other));
    for (int other = 0; other < n; ++other) made.counts.push_back(part(c, other, me));
    make_all_to_all_v(&made, me, n);
  } else if (std::string(operation_name(made.kind)).ends_with("_v")) {
    for (int rank = 0; rank < n; ++rank) made.counts.push_back(block(c, rank));
    made.count = begin(c, n);
  }
  return made;
}

// Where a result may lie in the memory of the contribution, by the rules of the headers.
bool may_be_in_place(const Case& c) {
  return c.kind.pattern == Pattern::all_reduce || c.kind.pattern == Pattern::reduce_scatter ||
         c.kind.pattern == Pattern::all_gather;
}

void check(Rank& rank, const Case& c, bool in_place) {
  const Sizes count = sizes(c, rank.me, rank.n);
  const bool broadcast = c.kind.kind == OperationKind::broadcast;
  const bool gathers = c.kind.pattern == Pattern::all_gather;
  Elements send(c.dtype, in_place && gathers ? count.receive : count.send);
  Elements own(c.dtype, count.receive);
  const std::uint64_t mine = begin(c, rank.me);
  const std::uint64_t send_at = in_place && gathers ? mine : 0;
  for (std::uint64_t i = 0; i < count.send; ++i) {
    send.set(send_at + i, given(c.dtype, rank.me, i));
  }
  for (std::uint64_t i = 0; broadcast && rank.me == c.root && i < count.receive; ++i) {
    own.set(i, given(c.dtype, rank.me, i));
  }
  Elements& receive = in_place ? send : own;
  const std::uint64_t receive_at = in_place && c.kind.pattern == Pattern::reduce_scatter ? mine : 0;
  rank.succeed(operation_of(c, rank.me, rank.n, send.at(send_at), receive.at(receive_at)),
               c.text());
  if (!rank.wrong.empty()) return;
  // Of large buffers a part: the sums are cheap, finding each element's origin is not.
  const std::uint64_t stride = count.receive > 10'000 ? 97 : 1;
  for (std::uint64_t i = 0; i < count.receive; i += stride) {
    const double got = receive.get(receive_at + i);
    const double want = expected(c, rank.me, rank.n, i);
    const trireme_reduction reduction = c.kind.reduces ? c.reduction : TRIREME_REDUCTION_SUM;
    if (agrees(c.dtype, reduction, rank.n, got, want)) continue;
    return rank.expect(false, c.text() + ": element " + std::to_string(i) + " is " +
                                  std::to_string(got) + ", not " + std::to_string(want));
  }
  rank.expect(receive.guard_is_whole() && send.guard_is_whole(), c.text() + " wrote past the end");
  for (std::uint64_t i = 0; i < count.send && !in_place; i += stride) {
    rank.expect(send.get(i) == given(c.dtype, rank.me, i), c.text() + " changed what it was given");
  }
}

void for_each_algorithm(const Kind& kind, const std::function<void(Algorithm)>& body) {
  int found = 0;
  for (std::int32_t number = 1; number < kAlgorithms; ++number) {
    const auto algorithm = static_cast<Algorithm>(number);
    if (!supports(algorithm, kind.pattern)) continue;
    ++found;
    body(algorithm);
  }
  assert_true(found >= 2);
}

// --- tests -------------------------------------------------------------------------------------

void every_algorithm_gives_the_definition(void**) {
  for (const int n : kWorldSizes) {
    with_ranks(n, [](Rank& rank) {
      for (const Kind& kind : kKinds) {
        for_each_algorithm(kind, [&](Algorithm algorithm) {
          for (const std::uint64_t count : {0u, 1u, 2u, 7u, 1023u}) {
            for (const int root : {0, rank.n - 1}) {
              if (root != 0 && !kind.rooted) continue;
              Case c{kind, algorithm, TRIREME_DTYPE_F32, TRIREME_REDUCTION_SUM, count, root, false};
              check(rank, c, false);
              if (may_be_in_place(c)) check(rank, c, true);
              c.reproducible = true;
              if (kind.reduces) check(rank, c, false);
            }
          }
        });
      }
    });
  }
}

// With what the table chooses instead of what the backend offers: a message in place of a memory.
void every_dtype_and_reduction(void**) {
  for (const int n : kSomeWorldSizes) {
    with_ranks(n, [](Rank& rank) {
      for (const Kind& kind : kKinds) {
        if (!kind.reduces && kind.kind != OperationKind::all_gather) continue;
        for_each_algorithm(kind, [&](Algorithm algorithm) {
          for (trireme_dtype dtype = TRIREME_DTYPE_I8; dtype <= TRIREME_DTYPE_BYTES; ++dtype) {
            const bool common = dtype == TRIREME_DTYPE_F32 || dtype == TRIREME_DTYPE_BF16;
            if (kSeesThreadsAlone && rank.n != 3 && !common) continue;
            for (trireme_reduction reduction = TRIREME_REDUCTION_SUM;
                 reduction <= TRIREME_REDUCTION_SCALED_SUM; ++reduction) {
              const bool bits =
                  reduction >= TRIREME_REDUCTION_BAND && reduction <= TRIREME_REDUCTION_BXOR;
              const bool orders =
                  reduction == TRIREME_REDUCTION_MIN || reduction == TRIREME_REDUCTION_MAX;
              if (kind.reduces) {
                if (dtype == TRIREME_DTYPE_BYTES) continue;
                if (dtype == TRIREME_DTYPE_BOOL && !bits && !orders) continue;
                if (is_float(dtype) && bits) continue;
                if (!is_float(dtype) && reduction == TRIREME_REDUCTION_SCALED_SUM) continue;
                // 3 to the power of 8 fits no byte, and not all powers a small float.
                if (reduction == TRIREME_REDUCTION_PRODUCT && dtype_size(dtype) < 4) continue;
              } else if (reduction != TRIREME_REDUCTION_SUM) {
                continue;
              }
              check(rank, {kind, algorithm, dtype, reduction, 67, 0, false}, false);
            }
          }
        });
      }
    });
  }
}

// Whether another kind follows with this one's pattern, and with blocks that differ.
bool has_uneven_form(const Kind& kind) {
  return &kind != std::end(kKinds) - 1 && (&kind + 1)->pattern == kind.pattern;
}

// Buffers of several sections, and more elements than one message carries.
void large_buffers(void**) {
  with_ranks(3, [](Rank& rank) {
    for (const Kind& kind : kKinds) {
      if (kSeesThreadsAlone && has_uneven_form(kind)) continue;
      for_each_algorithm(kind, [&](Algorithm algorithm) {
        const std::uint64_t all = (9u << 20) / sizeof(double) + 77;
        const bool whole = kind.pattern == Pattern::all_reduce || kind.pattern == Pattern::reduce ||
                           kind.pattern == Pattern::broadcast;
        const std::uint64_t count = whole ? all : all / static_cast<std::uint64_t>(rank.n);
        check(rank, {kind, algorithm, TRIREME_DTYPE_F64, TRIREME_REDUCTION_SUM, count, 0, false},
              false);
      });
    }
    for (const Algorithm algorithm : {Algorithm::ring, Algorithm::double_tree}) {
      check(rank,
            {kKinds[0], algorithm, TRIREME_DTYPE_BF16, TRIREME_REDUCTION_SUM, 1200001, 0, false},
            true);
    }
  });
}

// Numbers whose sums depend on the order: all ranks have the same bits, and those of the order of
// ranks where that is asked for.
float uneven(int rank, std::uint64_t i) {
  const auto mixed =
      static_cast<std::uint32_t>((i + 3) * 2654435761u) ^ static_cast<std::uint32_t>(rank * 40503);
  return (static_cast<float>(mixed % 20011) - 10005.0f) / 7.0f;
}

void same_bits_on_all_ranks(void**) {
  constexpr std::uint64_t kCount = 4099;
  for (const int n : kSomeWorldSizes) {
    with_ranks(n, [](Rank& rank) {
      for_each_algorithm(kKinds[0], [&](Algorithm algorithm) {
        for (const bool reproducible : {false, true}) {
          std::vector<float> mine(kCount);
          std::vector<float> result(kCount);
          for (std::uint64_t i = 0; i < kCount; ++i) mine[i] = uneven(rank.me, i);
          Operation sum;
          sum.kind = OperationKind::all_reduce;
          sum.dtype = TRIREME_DTYPE_F32;
          sum.reduction = TRIREME_REDUCTION_SUM;
          sum.count = kCount;
          sum.send = mine.data();
          sum.receive = result.data();
          sum.algorithm = static_cast<std::int32_t>(algorithm);
          sum.reproducible = reproducible;
          rank.succeed(sum, algorithm_name(algorithm));
          std::vector<float> all(kCount * static_cast<std::uint64_t>(rank.n));
          Operation gather;
          gather.kind = OperationKind::all_gather;
          gather.dtype = TRIREME_DTYPE_F32;
          gather.count = kCount;
          gather.send = result.data();
          gather.receive = all.data();
          rank.succeed(gather, "all_gather");
          for (int other = 0; other < rank.n; ++other) {
            rank.expect(std::memcmp(all.data() + static_cast<std::uint64_t>(other) * kCount,
                                    result.data(), kCount * sizeof(float)) == 0,
                        std::string("other bits by ") + algorithm_name(algorithm));
          }
          for (std::uint64_t i = 0; i < kCount; ++i) {
            float in_order = uneven(0, i);
            double exact = in_order;
            for (int other = 1; other < rank.n; ++other) {
              in_order += uneven(other, i);
              exact += uneven(other, i);
            }
            const bool ordered = reproducible || algorithm == Algorithm::direct;
            rank.expect(ordered ? result[i] == in_order : std::fabs(result[i] - exact) < 0.01,
                        std::string("sum by ") + algorithm_name(algorithm));
          }
        }
      });
    });
  }
}

// 256 + 4 x 0.75 is 259, which bf16 rounds to 260; a sum that is rounded on its way stays 256.
void narrow_sums_are_rounded_once(void**) {
  with_ranks(5, [](Rank& rank) {
    for (const Kind& kind : {kKinds[0], kKinds[1], kKinds[2]}) {
      for_each_algorithm(kind, [&](Algorithm algorithm) {
        Elements send(TRIREME_DTYPE_BF16, 5 * 3);
        Elements receive(TRIREME_DTYPE_BF16, 5 * 3);
        for (std::uint64_t i = 0; i < 15; ++i) send.set(i, rank.me == 0 ? 256 : 0.75);
        Case c{kind, algorithm, TRIREME_DTYPE_BF16, TRIREME_REDUCTION_SUM, 3, 0, false};
        rank.succeed(operation_of(c, rank.me, rank.n, send.data(), receive.data()), c.text());
        const bool has = kind.pattern != Pattern::reduce || rank.me == 0;
        for (std::uint64_t i = 0; has && i < 3; ++i) {
          rank.expect(receive.get(i) == 260, c.text() + " gave " + std::to_string(receive.get(i)));
        }
        c.reduction = TRIREME_REDUCTION_AVERAGE;
        rank.succeed(operation_of(c, rank.me, rank.n, send.data(), receive.data()), c.text());
        for (std::uint64_t i = 0; has && i < 3; ++i) {  // 51.8, between 51.75 and 52
          rank.expect(receive.get(i) == 51.75,
                      c.text() + " gave " + std::to_string(receive.get(i)));
        }
      });
    }
  });
}

void not_a_number_reaches_all(void**) {
  with_ranks(5, [](Rank& rank) {
    for (const trireme_reduction reduction :
         {TRIREME_REDUCTION_SUM, TRIREME_REDUCTION_MIN, TRIREME_REDUCTION_MAX}) {
      for_each_algorithm(kKinds[0], [&](Algorithm algorithm) {
        for (const trireme_dtype dtype : {TRIREME_DTYPE_F32, TRIREME_DTYPE_F16}) {
          Elements send(dtype, 11);
          Elements receive(dtype, 11);
          for (std::uint64_t i = 0; i < 11; ++i) send.set(i, 1);
          std::memset(send.at(static_cast<std::uint64_t>(rank.me)), 0xff, dtype_size(dtype));
          const Case c{kKinds[0], algorithm, dtype, reduction, 11, 0, false};
          rank.succeed(operation_of(c, rank.me, rank.n, send.data(), receive.data()), c.text());
          for (std::uint64_t i = 0; i < 11; ++i) {
            rank.expect(std::isnan(receive.get(i)) == (i < 5), c.text());
          }
        }
      });
    }
  });
}

void barriers_hold_until_all_have_come(void**) {
  for (const int n : kWorldSizes) {
    std::atomic<int> inside{0};
    with_ranks(n, [&](Rank& rank) {
      int rounds = 0;
      for (const Algorithm algorithm : {Algorithm::direct, Algorithm::bruck}) {
        for (int round = 0; round < 20; ++round) {
          inside.fetch_add(1);
          Operation barrier;
          barrier.algorithm = static_cast<std::int32_t>(algorithm);
          rank.succeed(barrier, "barrier");
          rank.expect(inside.load() >= ++rounds * rank.n, "let through too early");
        }
        rank.succeed(Operation{}, "barrier");
      }
    });
  }
}

void algorithms_that_do_not_exist_are_refused(void**) {
  with_ranks(2, [](Rank& rank) {
    float value = 1;
    Operation sum;
    sum.kind = OperationKind::all_reduce;
    sum.dtype = TRIREME_DTYPE_F32;
    sum.reduction = TRIREME_REDUCTION_SUM;
    sum.count = 1;
    sum.send = sum.receive = &value;
    for (const std::int32_t algorithm :
         {static_cast<std::int32_t>(Algorithm::bruck), kAlgorithms, -1, 1 << 30}) {
      sum.algorithm = algorithm;
      const Status status = rank.run(sum);
      rank.expect(status.code() == TRIREME_ERROR_UNSUPPORTED, "was not refused");
      rank.expect(status.message().find("it has direct, ring, halving_doubling and double_tree, "
                                        "and native") != std::string::npos,
                  status.message());
      std::shared_ptr<Request> request;
      rank.expect(rank.group->start(sum, Deadline::after(kLong), &request).code() ==
                      TRIREME_ERROR_UNSUPPORTED,
                  "was started");
    }
    sum.algorithm = static_cast<std::int32_t>(Algorithm::native);
    rank.succeed(sum, "native");
    rank.expect(value == 2, "native sum");
  });
}

// Nothing is written when ranks disagree, whatever the two would have used to move it.
void disagreement_is_a_mismatch_on_all(void**) {
  const auto check_pair = [](std::int32_t first, std::int32_t second, std::uint64_t other_count,
                             const char* words) {
    with_ranks(3, [&](Rank& rank) {
      Elements send(TRIREME_DTYPE_F32, 8);
      Elements receive(TRIREME_DTYPE_F32, 8);
      for (std::uint64_t i = 0; i < 8; ++i) send.set(i, 1);
      Operation sum;
      sum.kind = OperationKind::all_reduce;
      sum.dtype = TRIREME_DTYPE_F32;
      sum.reduction = TRIREME_REDUCTION_SUM;
      sum.count = rank.me == 2 ? other_count : 8;
      sum.send = send.data();
      sum.receive = receive.data();
      sum.algorithm = rank.me == 2 ? second : first;
      const Status status = rank.run(sum);
      rank.expect(status.code() == TRIREME_ERROR_MISMATCH, status.message());
      rank.expect(status.message().find(words) != std::string::npos, status.message());
      rank.expect(status.details() != nullptr &&
                      status.details()->blamed == std::vector<std::int32_t>({0, 2}),
                  "blames others");
      rank.expect(receive.is_untouched(), "wrote something");
      rank.expect(rank.run(sum).code() == TRIREME_ERROR_MISMATCH, "the group did not fail");
    });
  };
  const auto number = [](Algorithm algorithm) { return static_cast<std::int32_t>(algorithm); };
  check_pair(number(Algorithm::ring), number(Algorithm::direct), 8, "with different algorithms");
  check_pair(number(Algorithm::ring), number(Algorithm::automatic), 8, "with different algorithms");
  check_pair(number(Algorithm::ring), number(Algorithm::ring), 7, "count 7");
  check_pair(number(Algorithm::double_tree), number(Algorithm::double_tree), 7, "count 7");
}

// A rank that never calls is named, and no rank waits longer than its deadline.
void a_missing_rank_is_named(void**) {
  with_ranks(3, [](Rank& rank) {
    std::vector<float> data(3, 1);
    Operation sum;
    sum.kind = OperationKind::all_reduce;
    sum.dtype = TRIREME_DTYPE_F32;
    sum.reduction = TRIREME_REDUCTION_SUM;
    sum.count = 3;
    sum.send = sum.receive = data.data();
    sum.algorithm = static_cast<std::int32_t>(Algorithm::ring);
    if (rank.me == 1) {  // leaves when the others have failed
      while (rank.group->wait_ready(Deadline::after(0), nullptr).ok()) std::this_thread::yield();
      return;
    }
    const Status status = rank.run(sum, kSecond / 5);
    rank.expect(status.code() == TRIREME_ERROR_TIMEOUT, status.message());
    const std::vector<std::int32_t>& blamed = status.details()->blamed;
    rank.expect(std::find(blamed.begin(), blamed.end(), 1) != blamed.end(), status.message());
  });
}

void an_abort_ends_it(void**) {
  with_ranks(4, [](Rank& rank) {
    std::vector<float> data(100'000, 1);
    Operation sum;
    sum.kind = OperationKind::all_reduce;
    sum.dtype = TRIREME_DTYPE_F32;
    sum.reduction = TRIREME_REDUCTION_SUM;
    sum.count = data.size();
    sum.send = sum.receive = data.data();
    sum.algorithm = static_cast<std::int32_t>(Algorithm::double_tree);
    if (rank.me == 3) rank.group->abort("enough");
    Status status = Status::success();
    while (status.ok()) status = rank.run(sum);
    rank.expect(status.code() == TRIREME_ERROR_ABORTED, status.message());
    rank.expect(status.message().find("enough") != std::string::npos, status.message());
  });
}

// Messages of the caller, collectives of algorithms and native ones at once; a large message
// without a receive stops none of the others.
void messages_and_algorithms_do_not_meet(void**) {
  with_ranks(3, [](Rank& rank) {
    using Bytes = std::vector<std::uint8_t>;
    Bytes large(70u << 20, static_cast<std::uint8_t>(rank.me));  // more than is kept for later
    Bytes other(large.size());
    const auto message = [&](OperationKind kind, Bytes& data, int peer) {
      MessageArguments made;
      made.kind = kind;
      made.data = data.data();
      made.count = data.size();
      made.dtype = TRIREME_DTYPE_U8;
      made.peer = peer;
      made.tag = 1;
      return made;
    };
    std::shared_ptr<Request> sent;
    std::shared_ptr<Request> received;
    const int next = (rank.me + 1) % rank.n;
    const int before = (rank.me + rank.n - 1) % rank.n;
    const Deadline deadline = Deadline::after(kLong);
    rank.expect(
        rank.group->start_message(message(OperationKind::send, large, next), deadline, &sent).ok(),
        "send");
    for (int round = 0; round < 5; ++round) {
      for_each_algorithm(kKinds[0], [&](Algorithm algorithm) {
        check(rank,
              {kKinds[0], algorithm, TRIREME_DTYPE_I32, TRIREME_REDUCTION_SUM, 20011, 0, false},
              true);
      });
      check(rank,
            {kKinds[0], Algorithm::automatic, TRIREME_DTYPE_I32, TRIREME_REDUCTION_SUM, 20011, 0,
             false},
            true);
    }
    rank.expect(
        rank.group
            ->start_message(message(OperationKind::receive, other, before), deadline, &received)
            .ok(),
        "receive");
    rank.expect(sent->wait(deadline).ok() && received->wait(deadline).ok(), "messages");
    rank.expect(other.front() == before && other.back() == before, "the message's content");
  });
}

void started_ones_run_in_order(void**) {
  with_ranks(4, [](Rank& rank) {
    constexpr int kStarted = 24;
    std::vector<std::vector<std::int64_t>> data;
    std::vector<std::shared_ptr<Request>> requests(kStarted);
    for (int i = 0; i < kStarted; ++i) data.emplace_back(1000 + i, rank.me + i);
    for (int i = 0; i < kStarted; ++i) {
      const auto at = static_cast<std::size_t>(i);
      Operation sum;
      sum.kind = OperationKind::all_reduce;
      sum.dtype = TRIREME_DTYPE_I64;
      sum.reduction = TRIREME_REDUCTION_MAX;
      sum.count = data[at].size();
      sum.send = sum.receive = data[at].data();
      sum.algorithm = i % 5;  // automatic, direct, ring, halving_doubling ...
      if (i % 5 == 4) sum.algorithm = static_cast<std::int32_t>(Algorithm::double_tree);
      rank.expect(rank.group->start(sum, Deadline::after(kLong), &requests[at]).ok(), "start");
    }
    for (int i = 0; i < kStarted; ++i) {
      const auto at = static_cast<std::size_t>(i);
      rank.expect(requests[at]->wait(Deadline::after(kLong)).ok(), "wait");
      for (const std::int64_t value : data[at]) rank.expect(value == 3 + i, "value");
    }
  });
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(every_algorithm_gives_the_definition),
      cmocka_unit_test(every_dtype_and_reduction),
      cmocka_unit_test(large_buffers),
      cmocka_unit_test(same_bits_on_all_ranks),
      cmocka_unit_test(narrow_sums_are_rounded_once),
      cmocka_unit_test(not_a_number_reaches_all),
      cmocka_unit_test(barriers_hold_until_all_have_come),
      cmocka_unit_test(algorithms_that_do_not_exist_are_refused),
      cmocka_unit_test(disagreement_is_a_mismatch_on_all),
      cmocka_unit_test(a_missing_rank_is_named),
      cmocka_unit_test(an_abort_ends_it),
      cmocka_unit_test(messages_and_algorithms_do_not_meet),
      cmocka_unit_test(started_ones_run_in_order),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
