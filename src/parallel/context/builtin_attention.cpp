#include "parallel/context/builtin_attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "parallel/context/exponential.hpp"

namespace trireme::parallel {
namespace {

const float* row_of(const void* rows, std::uint64_t row, std::uint64_t heads, std::uint64_t head,
                    std::uint64_t width) {
  return static_cast<const float*>(rows) + (row * heads + head) * width;
}
float* row_of(float* rows, std::uint64_t row, std::uint64_t heads, std::uint64_t head,
              std::uint64_t width) {
  return rows + (row * heads + head) * width;
}

void add_times(float* to, const float* from, float factor, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) to[i] += from[i] * factor;
}

void forward_of_query(const trireme_attention_call& call, std::uint64_t row, std::uint64_t head,
                      float* scores) {
  const std::uint64_t kv_head = head / (call.heads / call.kv_heads);
  const auto scale = static_cast<float>(call.scale);
  const float* const query = row_of(call.q, row, call.heads, head, call.width);
  const std::uint64_t first = call.visible_first[row];
  const std::uint64_t end = call.visible_end[row];
  float maximum = -std::numeric_limits<float>::infinity();
  for (std::uint64_t key = first; key < end; ++key) {
    scores[key] =
        scale * dot(query, row_of(call.k, key, call.kv_heads, kv_head, call.width), call.width);
    if (!std::isnan(maximum) && !(scores[key] <= maximum)) maximum = scores[key];  // or a NaN
  }
  float* const output = row_of(call.output, row, call.heads, head, call.width);
  std::fill_n(output, call.width, 0.0f);
  float sum = 0;
  for (std::uint64_t key = first; key < end; ++key) {
    const float weight = exponential(scores[key] - maximum);
    sum += weight;
    add_times(output, row_of(call.v, key, call.kv_heads, kv_head, call.width), weight, call.width);
  }
  call.maximum[row * call.heads + head] = maximum;
  call.sum[row * call.heads + head] = sum;
}

void backward_of_query(const trireme_attention_call& call, std::uint64_t row, std::uint64_t head) {
  const std::uint64_t kv_head = head / (call.heads / call.kv_heads);
  const auto scale = static_cast<float>(call.scale);
  const std::uint64_t number = row * call.heads + head;
  const float* const query = row_of(call.q, row, call.heads, head, call.width);
  const float* const gradient = row_of(call.d_output, row, call.heads, head, call.width);
  float* const dq = row_of(call.dq, row, call.heads, head, call.width);
  for (std::uint64_t key = call.visible_first[row]; key < call.visible_end[row]; ++key) {
    const float* const k = row_of(call.k, key, call.kv_heads, kv_head, call.width);
    const float* const v = row_of(call.v, key, call.kv_heads, kv_head, call.width);
    const float score = scale * dot(query, k, call.width);
    const float p = exponential(score - call.total_maximum[number]) / call.total_sum[number];
    const float ds = p * (dot(gradient, v, call.width) - call.delta[number]) * scale;
    add_times(dq, k, ds, call.width);
    add_times(row_of(call.dk, key, call.kv_heads, kv_head, call.width), query, ds, call.width);
    add_times(row_of(call.dv, key, call.kv_heads, kv_head, call.width), gradient, p, call.width);
  }
}

}  // namespace

float dot(const float* a, const float* b, std::uint64_t count) {
  constexpr std::uint64_t kLanes = 8;
  float lanes[kLanes] = {};
  std::uint64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::uint64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  }
  for (; i < count; ++i) lanes[i % kLanes] += a[i] * b[i];
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
         ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

void builtin_forward(const trireme_attention_call& call, float* scores) {
  for (std::uint64_t row = 0; row < call.q_count; ++row) {
    for (std::uint64_t head = 0; head < call.heads; ++head) {
      forward_of_query(call, row, head, scores);
    }
  }
}

void builtin_backward(const trireme_attention_call& call) {
  std::fill_n(call.dq, call.q_count * call.heads * call.width, 0.0f);
  std::fill_n(call.dk, call.kv_count * call.kv_heads * call.width, 0.0f);
  std::fill_n(call.dv, call.kv_count * call.kv_heads * call.width, 0.0f);
  for (std::uint64_t row = 0; row < call.q_count; ++row) {
    for (std::uint64_t head = 0; head < call.heads; ++head) backward_of_query(call, row, head);
  }
}

}  // namespace trireme::parallel
