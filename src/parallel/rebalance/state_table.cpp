#include "parallel/rebalance/state_table.hpp"

#include <trireme/optimizer_options.h>

#include <cstring>

namespace trireme::parallel {
namespace {

constexpr std::uint64_t kTableMagic = 0x454c4241'54415453;  // "STATABLE" in memory

void put(std::string* out, std::uint64_t number) {
  out->append(reinterpret_cast<const char*>(&number), sizeof number);
}

void put(std::string* out, const std::string& text) {
  put(out, text.size());
  out->append(text);
}

void put(std::string* out, const StateList& list) {
  put(out, list.parameters.size());
  for (const StateParameter& parameter : list.parameters) {
    put(out, parameter.name);
    put(out, parameter.shape);
    put(out, parameter.steps);
    put(out, parameter.copies);
  }
  put(out, list.rows.size());
  for (const StateRow& row : list.rows) {
    put(out, row.parameter);
    put(out, static_cast<std::uint64_t>(row.kind));
    put(out, row.vector);
    put(out, row.element_bytes);
    put(out, row.first);
    put(out, row.count);
  }
}

// Takes bytes away from the front, never more than there are.
class TableReader {
 public:
  TableReader(const char* bytes, std::uint64_t length) : next_(bytes), left_(length) {}

  bool number(std::uint64_t* out) {
    if (left_ < sizeof *out) return false;
    std::memcpy(out, next_, sizeof *out);
    skip(sizeof *out);
    return true;
  }
  bool text(std::string* out) {
    std::uint64_t length = 0;
    if (!number(&length) || length > left_) return false;
    out->assign(next_, length);
    skip(length);
    return true;
  }
  // Each of so many items has at least `bytes`.
  bool count(std::uint64_t bytes, std::uint64_t* out) {
    return number(out) && *out <= left_ / bytes;
  }
  bool list(StateList* out) {
    std::uint64_t parameters = 0, rows = 0;
    if (!count(4 * sizeof(std::uint64_t), &parameters)) return false;
    out->parameters.resize(parameters);
    for (StateParameter& each : out->parameters) {
      if (!text(&each.name) || !text(&each.shape) || !number(&each.steps) ||
          !number(&each.copies)) {
        return false;
      }
    }
    if (!count(6 * sizeof(std::uint64_t), &rows)) return false;
    out->rows.resize(rows);
    for (StateRow& row : out->rows) {
      std::uint64_t kind = 0;
      if (!number(&row.parameter) || !number(&kind) || !number(&row.vector) ||
          !number(&row.element_bytes) || !number(&row.first) || !number(&row.count)) {
        return false;
      }
      row.kind = static_cast<std::int64_t>(kind);
      if (!is_sound(row, parameters)) return false;
    }
    return true;
  }
  bool at_end() const { return left_ == 0; }

 private:
  static bool is_sound(const StateRow& row, std::uint64_t parameters) {
    constexpr std::uint64_t kMost = std::uint64_t{1} << 60;
    return row.parameter < parameters && row.kind >= TRIREME_STATE_KIND_PARAMETER &&
           row.kind <= TRIREME_STATE_KIND_COLUMNS && row.element_bytes > 0 &&
           row.element_bytes <= 8 && row.count > 0 && row.count <= kMost && row.first <= kMost;
  }
  void skip(std::uint64_t bytes) {
    next_ += bytes;
    left_ -= bytes;
  }

  const char* next_;
  std::uint64_t left_;
};

}  // namespace

std::string write_table(const StateTable& table) {
  std::string out;
  put(&out, kTableMagic);
  put(&out, table.part);
  put(&out, table.from);
  put(&out, table.to);
  return out;
}

Status read_table(const char* bytes, std::uint64_t length, StateTable* out) {
  TableReader reader(bytes, length);
  std::uint64_t magic = 0;
  if (reader.number(&magic) && magic == kTableMagic && reader.number(&out->part) &&
      reader.list(&out->from) && reader.list(&out->to) && reader.at_end()) {
    return Status::success();
  }
  return Status::failure(TRIREME_ERROR_CORRUPT, "a peer's table of state is none");
}

}  // namespace trireme::parallel
