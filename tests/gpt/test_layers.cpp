// Every kind of layer in double: backward against central differences of forward. Then what float
// computes with, and the network as a whole.
#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

extern "C" {
#include <setjmp.h>
// cmocka.h needs the headers before it.
#include <cmocka.h>
}

#include "layers.hpp"
#include "numbers.hpp"
#include "plain.hpp"

namespace {

using Vector = std::vector<double>;
using Numbers = std::vector<std::int32_t>;

Vector random_vector(std::size_t count, std::uint64_t key, double size = 1) {
  Vector values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = size * (2 * gpt::uniform(key, i) - 1);
  return values;
}

double dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// `gradient` is backward's d(loss)/d(values). Each element is compared with the difference of the
// loss on both sides of it, to 1e-6 of the largest.
void compare(const char* what, Vector& values, const Vector& gradient,
             const std::function<double()>& loss, std::size_t stride = 1) {
  assert_int_equal(values.size(), gradient.size());
  double largest = 0;
  for (const double g : gradient) largest = std::max(largest, std::fabs(g));
  assert_true(largest > 1e-9);
  for (std::size_t i = 0; i < values.size(); i += stride) {
    constexpr double kStep = 1e-5;
    const double kept = values[i];
    values[i] = kept + kStep;
    const double above = loss();
    values[i] = kept - kStep;
    const double below = loss();
    values[i] = kept;
    const double numeric = (above - below) / (2 * kStep);
    if (!(std::fabs(numeric - gradient[i]) <= 1e-6 * largest))
      fail_msg("%s, element %zu: backward %.10g, differences %.10g", what, i, gradient[i], numeric);
  }
}

void embedding(void**) {
  constexpr int kRows = 6, kContext = 3, kWidth = 4, kWords = 5;
  const Numbers tokens = {0, 3, 3, 4, 1, 3};  // some twice, one never
  Vector token = random_vector(kWords * kWidth, 1), position = random_vector(kContext * kWidth, 2);
  const Vector up = random_vector(kRows * kWidth, 3);
  Vector dtoken(token.size(), 7), dposition(position.size(), 7), x(up.size());
  const auto loss = [&] {
    gpt::embedding_forward(kRows, kContext, kWidth, tokens.data(), token.data(), position.data(),
                           x.data());
    return dot(x, up);
  };
  gpt::embedding_backward(kRows, kContext, kWidth, kWords, tokens.data(), up.data(), dtoken.data(),
                          dposition.data());
  compare("token", token, dtoken, loss);
  compare("position", position, dposition, loss);
}

void linear(void**) {
  constexpr int kRows = 5, kIn = 3, kOut = 4;
  for (const bool biased : {true, false}) {
    Vector x = random_vector(kRows * kIn, 1), weight = random_vector(kIn * kOut, 2);
    Vector bias = random_vector(kOut, 3), y(kRows * kOut);
    const Vector up = random_vector(kRows * kOut, 4);
    Vector dx(x.size(), 7), dweight(weight.size(), 7), dbias(bias.size(), 7);
    const auto loss = [&] {
      gpt::linear_forward(kRows, kIn, kOut, x.data(), weight.data(), biased ? bias.data() : nullptr,
                          y.data());
      return dot(y, up);
    };
    gpt::linear_backward(kRows, kIn, kOut, x.data(), weight.data(), up.data(), dx.data(),
                         dweight.data(), biased ? dbias.data() : nullptr);
    compare("x", x, dx, loss);
    compare("weight", weight, dweight, loss);
    if (biased) compare("bias", bias, dbias, loss);
  }
}

void norm(void**) {
  constexpr int kRows = 4, kWidth = 6;
  Vector x = random_vector(kRows * kWidth, 1, 3), gain = random_vector(kWidth, 2);
  Vector bias = random_vector(kWidth, 3), y(x.size());
  const Vector up = random_vector(x.size(), 4), before = random_vector(x.size(), 5);
  Vector dx = before, dgain(kWidth, 7), dbias(kWidth, 7);
  const auto loss = [&] {
    gpt::norm_forward(kRows, kWidth, x.data(), gain.data(), bias.data(), y.data());
    return dot(y, up);
  };
  gpt::norm_backward(kRows, kWidth, x.data(), gain.data(), up.data(), dx.data(), dgain.data(),
                     dbias.data());
  for (std::size_t i = 0; i < dx.size(); ++i) dx[i] -= before[i];  // it adds
  compare("x", x, dx, loss);
  compare("gain", gain, dgain, loss);
  compare("bias", bias, dbias, loss);
}

void gelu(void**) {
  Vector x = random_vector(40, 1, 6), y(x.size());
  x[0] = 0;
  const Vector up = random_vector(x.size(), 2);
  const auto loss = [&] {
    gpt::gelu_forward(static_cast<std::int64_t>(x.size()), x.data(), y.data());
    return dot(y, up);
  };
  Vector dx = up;
  gpt::gelu_backward(static_cast<std::int64_t>(x.size()), x.data(), dx.data(), dx.data());
  compare("x", x, dx, loss);
  loss();
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double inner = std::sqrt(2 / M_PI) * (x[i] + 0.044715 * x[i] * x[i] * x[i]);
    assert_true(std::fabs(y[i] - 0.5 * x[i] * (1 + std::tanh(inner))) < 1e-12);
  }
}

void attention(void**) {
  const gpt::AttentionShape shape{2, 5, 6, 2};
  constexpr std::size_t kRows = 10, kWidth = 6;
  Vector qkv = random_vector(kRows * 3 * kWidth, 1, 2), weights(2 * 2 * 5 * 5), y(kRows * kWidth);
  const Vector up = random_vector(y.size(), 2);
  const auto loss = [&] {
    gpt::attention_forward(shape, qkv.data(), weights.data(), y.data());
    return dot(y, up);
  };
  loss();
  Vector dqkv(qkv.size(), 7), work(25, 7);
  gpt::attention_backward(shape, qkv.data(), weights.data(), up.data(), dqkv.data(), work.data());
  compare("qkv", qkv, dqkv, loss);

  loss();
  const Vector before = y;
  for (std::size_t i = 0; i < 3 * kWidth; ++i) qkv[3 * 3 * kWidth + i] += 1;  // position 3 of 5
  loss();
  const auto row = [&](std::size_t n) { return static_cast<std::ptrdiff_t>(n * kWidth); };
  assert_true(std::equal(y.begin(), y.begin() + row(3), before.begin()));
  for (std::size_t n = 3; n < 5; ++n)
    assert_false(std::equal(y.begin() + row(n), y.begin() + row(n + 1), before.begin() + row(n)));
  assert_true(std::equal(y.begin() + row(5), y.end(), before.begin() + row(5)));
}

void dropping_out(void**) {
  constexpr std::int64_t kCount = 20000;
  Vector a(kCount, 1), b(kCount, 2), c(kCount, 1);
  gpt::dropout(kCount, 0.25, 5, a.data());
  gpt::dropout(kCount, 0.25, 5, b.data());
  gpt::dropout(kCount, 0.25, 6, c.data());
  double sum = 0;
  for (std::size_t i = 0; i < kCount; ++i) {
    assert_true(b[i] == 2 * a[i]);
    assert_true(a[i] == 0 || a[i] == 1 / 0.75);
    sum += a[i];
  }
  assert_true(std::fabs(sum / kCount - 1) < 0.02);
  assert_true(a != c);
  Vector d = random_vector(10, 1);
  const Vector same = d;
  gpt::dropout(10, 0, 5, d.data());
  assert_true(d == same);
}

void cross_entropy(void**) {
  constexpr int kRows = 4, kClasses = 5;
  const Numbers targets = {0, 4, 2, 2};
  Vector scores = random_vector(kRows * kClasses, 1, 4);
  double plain = 0;
  for (std::size_t row = 0; row < kRows; ++row) {
    double sum = 0;
    for (std::size_t i = 0; i < kClasses; ++i) sum += std::exp(scores[row * kClasses + i]);
    plain -= std::log(std::exp(scores[row * kClasses + targets[row]]) / sum) / kRows;
  }
  const auto loss = [&] {
    Vector copy = scores;
    return gpt::cross_entropy(kRows, kClasses, copy.data(), targets.data());
  };
  assert_true(std::fabs(loss() - plain) < 1e-12);
  Vector gradient = scores;
  gpt::cross_entropy(kRows, kClasses, gradient.data(), targets.data());
  compare("scores", scores, gradient, loss);
}

// ---- the network as a whole, called as a trainer calls it ----------------------------------

struct Whole {
  Numbers tokens, targets;
  gpt::Plain<double> layers;
  std::uint64_t seeds[6] = {1, 2, 3, 4, 5, 6};

  explicit Whole(const gpt::Config& config)
      : layers(config, 2, random_vector(gpt::element_count(gpt::describe(config)), 3, 0.7)) {
    for (std::uint64_t i = 0; i < 20; ++i) {  // two leaves
      tokens.push_back(static_cast<std::int32_t>(gpt::stream(1, i) % 7));
      targets.push_back(static_cast<std::int32_t>(gpt::stream(2, i) % 7));
    }
  }
  double forward() {
    return layers.forward(TRIREME_PHASE_FORWARD, {tokens.data(), targets.data()}, 1, seeds);
  }
  Vector backward(double loss_scale) {
    layers.backward(loss_scale);
    return layers.gradients;
  }
  // Without a loss, forward leaves the scores unchanged: they show the output of the layers below.
  Vector scores(std::int32_t phase) {
    layers.forward(phase, {tokens.data(), nullptr}, 1, seeds);
    return {layers.scores(), layers.scores() + 10 * 7};
  }
};

gpt::Config small(double dropout = 0.2) {
  gpt::Config config;
  config.blocks = 4;
  config.width = 6;
  config.heads = 2;
  config.context = 5;
  config.vocabulary = 7;
  config.dropout = dropout;
  return config;
}

void network(void**) {
  Whole w(small());
  w.forward();
  const Vector gradient = w.backward(1);
  compare(
      "a parameter", w.layers.values, gradient, [&] { return w.forward(); }, 7);
}

void a_loss_scale_scales_every_gradient(void**) {
  Whole w(small());
  w.forward();
  Vector gradient = w.backward(1);
  w.forward();
  const Vector scaled = w.backward(4);  // no bit is lost
  for (double& element : gradient) element *= 4;
  assert_true(scaled == gradient);
}

void dropout_falls_on_the_same_again_but_not_in_evaluation(void**) {
  Whole w(small()), dry(small(0));
  const Vector forward = w.scores(TRIREME_PHASE_FORWARD);
  assert_true(w.scores(TRIREME_PHASE_RECOMPUTE) == forward);
  assert_true(w.scores(TRIREME_PHASE_EVALUATE) != forward);
  assert_true(w.scores(TRIREME_PHASE_EVALUATE) == dry.scores(TRIREME_PHASE_FORWARD));
  assert_true(w.scores(TRIREME_PHASE_RECOMPUTE) == forward);
  w.seeds[2] = 99;
  assert_true(w.scores(TRIREME_PHASE_RECOMPUTE) != forward);
}

void exponential_of_floats(void**) {
  for (int i = -87000; i <= 88000; ++i) {
    const float x = static_cast<float>(i) / 1000;
    const double right = std::exp(static_cast<double>(x));
    if (!(std::fabs(gpt::exponential(x) - right) <= 2.5e-7 * right)) fail_msg("e^%g", x);
  }
  assert_true(gpt::exponential(0.0f) == 1);
  assert_true(gpt::exponential(-1e30f) == gpt::exponential(-87.0f));
  assert_true(gpt::exponential(1e30f) == gpt::exponential(88.0f));
}

template <class T>
void products_of(double tolerance) {
  constexpr int m = 7, n = 5, k = 3;
  std::vector<T> a(m * k), b(k * n);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<T>(gpt::uniform(1, i));
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<T>(gpt::uniform(2, i));
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      std::vector<T> c(m * n, 1);
      gpt::multiply(m, n, k, T(2), {a.data(), ta ? m : k, ta}, {b.data(), tb ? k : n, tb}, T(3),
                    c.data(), n);
      for (int i = 0; i < m; ++i) {
        for (int j = 0; j < n; ++j) {
          double sum = 3;
          for (int l = 0; l < k; ++l)
            sum += 2.0 * a[static_cast<std::size_t>(ta ? l * m + i : i * k + l)] *
                   b[static_cast<std::size_t>(tb ? j * k + l : l * n + j)];
          assert_true(std::fabs(c[static_cast<std::size_t>(i * n + j)] - sum) < tolerance);
        }
      }
    }
  }
}

void products(void**) {
  products_of<float>(1e-5);
  products_of<double>(1e-13);
}

}  // namespace

int main() {
  gpt::use_one_thread();
  const CMUnitTest tests[] = {
      cmocka_unit_test(embedding),
      cmocka_unit_test(linear),
      cmocka_unit_test(norm),
      cmocka_unit_test(gelu),
      cmocka_unit_test(attention),
      cmocka_unit_test(dropping_out),
      cmocka_unit_test(cross_entropy),
      cmocka_unit_test(network),
      cmocka_unit_test(a_loss_scale_scales_every_gradient),
      cmocka_unit_test(dropout_falls_on_the_same_again_but_not_in_evaluation),
      cmocka_unit_test(products),
      cmocka_unit_test(exponential_of_floats),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
