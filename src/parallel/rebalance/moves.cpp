#include "parallel/rebalance/moves.hpp"

#include <trireme/optimizer_options.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "sharding/registry.hpp"

namespace trireme::parallel {
namespace {

// One row with its rank and its place among that rank's ranges.
struct Piece {
  std::uint64_t first = 0, count = 0;
  std::uint32_t rank = 0;
  std::uint64_t range = 0;
  std::uint64_t element_bytes = 0;
  const StateParameter* parameter = nullptr;
};

// Part, name, kind and vector.
using StateKey = std::tuple<std::uint64_t, std::string, std::int64_t, std::uint64_t>;
using StatePieces = std::map<StateKey, std::vector<Piece>>;

StatePieces pieces_of(const std::vector<StateTable>& tables, StateList StateTable::*side) {
  StatePieces all;
  for (std::uint32_t rank = 0; rank < tables.size(); ++rank) {
    const StateList& list = tables[rank].*side;
    for (std::uint64_t range = 0; range < list.rows.size(); ++range) {
      const StateRow& row = list.rows[range];
      const StateParameter& parameter = list.parameters[row.parameter];
      all[{tables[rank].part, parameter.name, row.kind, row.vector}].push_back(
          {row.first, row.count, rank, range, row.element_bytes, &parameter});
    }
  }
  for (auto& [key, pieces] : all) {
    std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
      return std::tie(a.first, a.rank) < std::tie(b.first, b.rank);
    });
  }
  return all;
}

std::string text_of_key(const StateKey& key) {
  std::string text = sharding::quoted(std::get<1>(key));
  const std::string vector = std::to_string(std::get<3>(key));
  switch (std::get<2>(key)) {
    case TRIREME_STATE_KIND_PARAMETER: break;
    case TRIREME_STATE_KIND_OPTIMIZER: text += ", state vector " + vector; break;
    case TRIREME_STATE_KIND_ROWS: text += ", rows of the state"; break;
    default: text += ", columns of the state"; break;
  }
  const std::uint64_t part = std::get<0>(key);
  return part == 0 ? text : text + " in part " + std::to_string(part);
}

Status differs(const StateKey& key, const std::string& what) {
  return Status::failure(TRIREME_ERROR_MISMATCH, "parameter " + text_of_key(key) + ": " + what);
}

// No element comes twice, but for those of a parameter that several models hold.
Status check_once(const StateKey& key, const std::vector<Piece>& pieces, const char* layout) {
  for (std::size_t i = 1; i < pieces.size(); ++i) {
    const Piece &before = pieces[i - 1], &here = pieces[i];
    const bool copied = before.parameter->copies > 1 && here.parameter->copies > 1;
    if (copied || here.first >= before.first + before.count) continue;
    return differs(key, "element " + std::to_string(here.first) + " lies on rank " +
                            std::to_string(before.rank) + " and on rank " +
                            std::to_string(here.rank) + " in the " + layout + " layout");
  }
  return Status::success();
}

// Of elements that several models hold, those of the first rank that has them. Each range of
// `part` is a piece of a range.
struct PartOfPiece {
  Piece piece;
  std::uint64_t skipped = 0;  // elements of its range before this part
};

std::vector<PartOfPiece> parts_once(const std::vector<Piece>& pieces) {
  std::vector<PartOfPiece> parts;
  std::uint64_t end = 0;  // of all parts so far, as pieces are sorted
  for (const Piece& each : pieces) {
    const std::uint64_t piece_end = each.first + each.count;
    if (!parts.empty() && piece_end <= end) continue;
    PartOfPiece part{each, 0};
    if (!parts.empty() && each.first < end) {
      part.skipped = end - each.first;
      part.piece.first = end;
      part.piece.count = piece_end - end;
    }
    end = piece_end;
    parts.push_back(part);
  }
  return parts;
}

Status lacks(const StateKey& key, std::uint64_t element, std::uint32_t rank, bool in_new) {
  return differs(key, "element " + std::to_string(element) + " lies on rank " +
                          std::to_string(rank) + " in the " + (in_new ? "old" : "new") +
                          " layout, and on no rank in the " + (in_new ? "new" : "old") + " one");
}

Status check_same(const StateKey& key, const Piece& source, const Piece& target) {
  if (source.parameter->shape != target.parameter->shape) {
    return differs(key, "it is " + source.parameter->shape + " on rank " +
                            std::to_string(source.rank) + " in the old layout, and " +
                            target.parameter->shape + " on rank " + std::to_string(target.rank) +
                            " in the new one");
  }
  if (source.element_bytes == target.element_bytes) return Status::success();
  return differs(key, "its elements have other sizes in the new layout");
}

// Both layouts have the same elements.
Status check_covered(const StateKey& key, const std::vector<PartOfPiece>& from,
                     const std::vector<PartOfPiece>& to) {
  std::size_t i = 0, k = 0;
  std::uint64_t done_from = 0, done_to = 0;  // of the present parts
  while (i < from.size() || k < to.size()) {
    const std::uint64_t at_from = i < from.size() ? from[i].piece.first + done_from : UINT64_MAX;
    const std::uint64_t at_to = k < to.size() ? to[k].piece.first + done_to : UINT64_MAX;
    if (at_from < at_to) return lacks(key, at_from, from[i].piece.rank, true);
    if (at_to < at_from) return lacks(key, at_to, to[k].piece.rank, false);
    const Piece &source = from[i].piece, &target = to[k].piece;
    TRIREME_RETURN_IF_ERROR(check_same(key, source, target));
    const std::uint64_t count = std::min(source.count - done_from, target.count - done_to);
    done_from += count;
    done_to += count;
    if (done_from == source.count) ++i, done_from = 0;
    if (done_to == target.count) ++k, done_to = 0;
  }
  return Status::success();
}

// Every range of the new layout is filled, also those of further copies.
Status match(const StateKey& key, const std::vector<Piece>& from, const std::vector<Piece>& to,
             std::uint32_t rank, std::vector<StateMove>* out) {
  TRIREME_RETURN_IF_ERROR(check_once(key, from, "old"));
  TRIREME_RETURN_IF_ERROR(check_once(key, to, "new"));
  const std::vector<PartOfPiece> sources = parts_once(from);
  TRIREME_RETURN_IF_ERROR(check_covered(key, sources, parts_once(to)));
  for (const Piece& target : to) {
    const std::uint64_t end = target.first + target.count;
    auto next = std::partition_point(sources.begin(), sources.end(), [&](const PartOfPiece& part) {
      return part.piece.first + part.piece.count <= target.first;
    });
    for (; next != sources.end() && next->piece.first < end; ++next) {
      const Piece& source = next->piece;
      TRIREME_RETURN_IF_ERROR(check_same(key, source, target));
      const std::uint64_t first = std::max(source.first, target.first);
      const std::uint64_t count = std::min(source.first + source.count, end) - first;
      if (source.rank != rank && target.rank != rank) continue;
      out->push_back({source.rank, target.rank, source.range, target.range,
                      next->skipped + first - source.first, first - target.first, count,
                      source.element_bytes});
    }
  }
  return Status::success();
}

// A parameter without elements has no pieces, but may have steps.
using NamesInPart = std::map<std::pair<std::uint64_t, std::string>, std::uint32_t>;

NamesInPart names_of(const std::vector<StateTable>& tables, StateList StateTable::*side) {
  NamesInPart names;
  for (std::uint32_t rank = 0; rank < tables.size(); ++rank) {
    for (const StateParameter& each : (tables[rank].*side).parameters) {
      names.emplace(std::pair{tables[rank].part, each.name}, rank);
    }
  }
  return names;
}

Status check_names(const NamesInPart& has, const NamesInPart& wants, bool in_new) {
  for (const auto& [key, rank] : has) {
    if (wants.count(key) > 0) continue;
    return Status::failure(TRIREME_ERROR_MISMATCH, "parameter " + sharding::quoted(key.second) +
                                                       " lies on rank " + std::to_string(rank) +
                                                       " in the " + (in_new ? "old" : "new") +
                                                       " layout, and on no rank in the " +
                                                       (in_new ? "new" : "old") + " one");
  }
  return Status::success();
}

}  // namespace

Status plan_moves(const std::vector<StateTable>& tables, std::uint32_t rank,
                  std::vector<StateMove>* out) {
  const NamesInPart before = names_of(tables, &StateTable::from);
  const NamesInPart after = names_of(tables, &StateTable::to);
  TRIREME_RETURN_IF_ERROR(check_names(before, after, true));
  TRIREME_RETURN_IF_ERROR(check_names(after, before, false));
  const StatePieces from = pieces_of(tables, &StateTable::from);
  const StatePieces to = pieces_of(tables, &StateTable::to);
  const std::vector<Piece> none;
  for (const auto& [key, pieces] : from) {
    const auto found = to.find(key);
    TRIREME_RETURN_IF_ERROR(
        match(key, pieces, found == to.end() ? none : found->second, rank, out));
  }
  for (const auto& [key, pieces] : to) {
    if (from.count(key) == 0) TRIREME_RETURN_IF_ERROR(match(key, none, pieces, rank, out));
  }
  return Status::success();
}

std::vector<StateParameter> moved_parameters(const std::vector<StateTable>& tables,
                                             std::uint32_t rank) {
  std::map<std::string, const StateParameter*> known;
  for (const StateTable& table : tables) {
    if (table.part != tables[rank].part) continue;
    for (const StateParameter& each : table.from.parameters) known.emplace(each.name, &each);
  }
  std::vector<StateParameter> parameters = tables[rank].to.parameters;
  for (StateParameter& each : parameters) each.steps = known.at(each.name)->steps;
  return parameters;
}

std::vector<std::vector<StateMove>> cut_into_messages(const std::vector<StateMove>& moves,
                                                      std::uint64_t most_bytes) {
  std::vector<std::vector<StateMove>> messages;
  std::uint64_t left = 0;  // of the last message
  for (StateMove rest : moves) {
    while (rest.count > 0) {
      if (left < rest.element_bytes) {
        messages.emplace_back();
        left = most_bytes;
      }
      StateMove piece = rest;
      piece.count = std::min(rest.count, left / rest.element_bytes);
      messages.back().push_back(piece);
      left -= piece.bytes();
      rest.from_first += piece.count;
      rest.to_first += piece.count;
      rest.count -= piece.count;
    }
  }
  return messages;
}

}  // namespace trireme::parallel
