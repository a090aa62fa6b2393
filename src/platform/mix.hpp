// Random numbers as functions of their purpose, so that they are the same wherever they are drawn.
#pragma once

#include <cstdint>

namespace trireme {

// A stream of numbers for each number (Steele, Lea and Flood 2014).
inline std::uint64_t mix(std::uint64_t state, std::uint64_t number) {
  state += (number + 1) * 0x9e3779b97f4a7c15;
  state = (state ^ state >> 30) * 0xbf58476d1ce4e5b9;
  state = (state ^ state >> 27) * 0x94d049bb133111eb;
  return state ^ state >> 31;
}

}  // namespace trireme
