// The machine's limits, measured beside the library: the memory, and the way from core to core.
#pragma once

#include <cstdint>

namespace trireme::bench {

// GB/s of a = b = a + b (f32) by two threads, counted by the bytes of one vector: the work of an
// all-reduce of two ranks in place. Each vector has `bytes`.
double sum_kernel(std::uint64_t bytes);

// Microseconds for a flag from one thread to another and back: the median of many.
double flag_round_trip();

// The cores of a virtual machine may lie in one cache complex or in two, and may move.
bool is_far(double round_trip_us);
// "near" or "far".
const char* placement(double round_trip_us);

}  // namespace trireme::bench
