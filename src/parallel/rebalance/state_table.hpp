// StateTable: what one rank has of a training, and what it is to get, range by range. Ranks tell
// each other their tables. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "platform/status.hpp"

namespace trireme::parallel {

// One range of state, as trireme_state_range has it.
struct StateRow {
  std::uint64_t parameter = 0;  // in its list
  std::int64_t kind = 0;
  std::uint64_t vector = 0;
  std::uint64_t element_bytes = 0;
  std::uint64_t first = 0, count = 0;
};

struct StateParameter {
  std::string name;
  std::string shape;         // in words, with the type
  std::uint64_t steps = 0;   // in which it had a gradient, if the optimizer counts them
  std::uint64_t copies = 1;  // models along the pipeline that hold it, each whole
};

// A model with its optimizer.
struct StateList {
  std::vector<StateParameter> parameters;
  std::vector<StateRow> rows;
};

struct StateTable {
  std::uint64_t part = 0;  // ranks of one part move state among each other
  StateList from, to;
};

std::string write_table(const StateTable& table);
// CORRUPT unless the bytes are a table: those of a peer are not trusted.
Status read_table(const char* bytes, std::uint64_t length, StateTable* out);

}  // namespace trireme::parallel
