// Moves against a plain copy of every element; tables of state from peers that lie.
#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "parallel/rebalance/moves.hpp"
#include "parallel/rebalance/state_table.hpp"

// cmocka's names are macros that the standard library must not see.
extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
// cmocka.h comes after those it needs.
#include <cmocka.h>
}

namespace {

using namespace trireme::parallel;

constexpr std::int64_t kParameter = 1, kState = 2;

// Cuts [0, elements) at random places, a piece for a random rank each.
void lay_out(std::mt19937& random, std::uint64_t elements, std::uint64_t parameter,
             std::int64_t kind, std::uint64_t bytes, std::vector<StateTable>* tables,
             StateList StateTable::*side) {
  for (std::uint64_t first = 0; first < elements;) {
    const std::uint64_t count = 1 + random() % (elements - first);
    StateTable& table = (*tables)[random() % tables->size()];
    (table.*side).rows.push_back({parameter, kind, kind == kState ? 1u : 0u, bytes, first, count});
    first += count;
  }
}

std::vector<StateTable> random_tables(std::mt19937& random, std::uint32_t ranks) {
  std::vector<StateTable> tables(ranks);
  const std::uint64_t parameters = 1 + random() % 4;
  for (std::uint64_t p = 0; p < parameters; ++p) {
    for (StateTable& table : tables) {
      const std::string name = {'p', static_cast<char>('0' + p)};
      const StateParameter parameter = {name, "f32", 10 + p};
      table.from.parameters.push_back(parameter);
      table.to.parameters.push_back({parameter.name, parameter.shape, 0});
    }
    const std::uint64_t elements = random() % 40;
    for (const std::int64_t kind : {kParameter, kState}) {
      const std::uint64_t bytes = kind == kParameter ? 2 : 4;
      lay_out(random, elements, p, kind, bytes, &tables, &StateTable::from);
      lay_out(random, elements, p, kind, bytes, &tables, &StateTable::to);
    }
  }
  return tables;
}

// Each element has a number of its own.
std::uint64_t number_of(const StateRow& row, std::uint64_t i) {
  return ((row.parameter * 2 + static_cast<std::uint64_t>(row.kind == kState)) << 20) + row.first +
         i;
}

void each_element_comes_to_its_place(void**) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 3000; ++trial) {
    const std::uint32_t ranks = 1 + random() % 5;
    const std::vector<StateTable> tables = random_tables(random, ranks);
    std::vector<std::vector<std::vector<std::uint64_t>>> found(ranks);
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      for (const StateRow& row : tables[rank].to.rows) found[rank].emplace_back(row.count, 0);
    }
    const std::uint64_t most_bytes = 8 + random() % 60;
    std::vector<std::vector<StateMove>> of_rank(ranks);
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      assert_true(plan_moves(tables, rank, &of_rank[rank]).ok());
      for (const auto& message : cut_into_messages(of_rank[rank], most_bytes)) {
        std::uint64_t bytes = 0;
        for (const StateMove& move : message) {
          assert_true(move.count > 0 && (move.from == rank || move.to == rank));
          bytes += move.bytes();
          if (move.to != rank) continue;
          const StateRow& from = tables[move.from].from.rows[move.from_range];
          const StateRow& to = tables[rank].to.rows[move.to_range];
          assert_true(move.from_first + move.count <= from.count);
          assert_true(move.to_first + move.count <= to.count);
          for (std::uint64_t i = 0; i < move.count; ++i) {
            std::uint64_t& place = found[rank][move.to_range][move.to_first + i];
            assert_true(place == 0);
            place = number_of(from, move.from_first + i) + 1;
          }
        }
        assert_true(bytes <= most_bytes);
      }
    }
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      for (std::size_t range = 0; range < found[rank].size(); ++range) {
        const StateRow& row = tables[rank].to.rows[range];
        for (std::uint64_t i = 0; i < row.count; ++i) {
          assert_true(found[rank][range][i] == number_of(row, i) + 1);
        }
      }
      for (const StateParameter& each : moved_parameters(tables, rank)) {
        assert_true(each.steps == 10u + static_cast<unsigned>(each.name[1] - '0'));
      }
    }
    // Two ranks have the same moves in the same order.
    for (std::uint32_t a = 0; a < ranks; ++a) {
      for (std::uint32_t b = 0; b < ranks; ++b) {
        std::vector<std::uint64_t> sent, received;
        for (const StateMove& m : of_rank[a]) {
          if (m.from == a && m.to == b) sent.push_back(m.to_range * 1000 + m.to_first);
        }
        for (const StateMove& m : of_rank[b]) {
          if (m.from == a && m.to == b) received.push_back(m.to_range * 1000 + m.to_first);
        }
        assert_true(sent == received);
      }
    }
  }
}

void faults_are_the_same_on_all_ranks(void**) {
  std::mt19937 random(2);
  int refused = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    const std::uint32_t ranks = 1 + random() % 4;
    std::vector<StateTable> tables = random_tables(random, ranks);
    StateTable& one = tables[random() % ranks];
    StateList& list = random() % 2 == 0 ? one.from : one.to;
    if (list.rows.empty()) continue;
    StateRow& row = list.rows[random() % list.rows.size()];
    switch (random() % 5) {
      case 0: ++row.count; break;
      case 1: ++row.first; break;
      case 2: list.rows.push_back(row); break;
      case 3: list.parameters[row.parameter].shape = "f32 of shape 7"; break;
      default: row.element_bytes = row.element_bytes == 8 ? 4 : 8; break;
    }
    std::vector<StateMove> moves;
    const trireme::Status first = plan_moves(tables, 0, &moves);
    assert_int_equal(first.code(), TRIREME_ERROR_MISMATCH);
    for (std::uint32_t rank = 1; rank < ranks; ++rank) {
      assert_string_equal(plan_moves(tables, rank, &moves).message().c_str(),
                          first.message().c_str());
    }
    ++refused;
  }
  assert_true(refused > 2000);
  // A parameter without elements counts, too, and parts know nothing of each other.
  std::vector<StateTable> tables(2);
  tables[0].from.parameters = {{"none", "f32", 3}};
  std::vector<StateMove> moves;
  assert_int_equal(plan_moves(tables, 0, &moves).code(), TRIREME_ERROR_MISMATCH);
  tables[1].to.parameters = tables[0].from.parameters;
  assert_true(plan_moves(tables, 0, &moves).ok());
  tables[1].part = 1;
  assert_int_equal(plan_moves(tables, 0, &moves).code(), TRIREME_ERROR_MISMATCH);
}

bool same(const StateList& a, const StateList& b) {
  const auto parameter = [](const StateParameter& x, const StateParameter& y) {
    return x.name == y.name && x.shape == y.shape && x.steps == y.steps;
  };
  const auto row = [](const StateRow& x, const StateRow& y) {
    return x.parameter == y.parameter && x.kind == y.kind && x.vector == y.vector &&
           x.element_bytes == y.element_bytes && x.first == y.first && x.count == y.count;
  };
  return std::equal(a.parameters.begin(), a.parameters.end(), b.parameters.begin(),
                    b.parameters.end(), parameter) &&
         std::equal(a.rows.begin(), a.rows.end(), b.rows.begin(), b.rows.end(), row);
}

void no_bytes_of_a_peer_are_trusted(void**) {
  std::mt19937 random(3);
  int refused = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    const StateTable table = random_tables(random, 1)[0];
    const std::string bytes = write_table(table);
    StateTable read;
    assert_true(read_table(bytes.data(), bytes.size(), &read).ok());
    assert_true(read.part == table.part && same(read.from, table.from) && same(read.to, table.to));
    // Cut off: in memory of just that size, for the sanitizers.
    const std::uint64_t length = random() % bytes.size();
    const std::vector<char> part(bytes.begin(), bytes.begin() + static_cast<long>(length));
    StateTable none;
    assert_false(read_table(part.data(), length, &none).ok());
    std::vector<char> changed(bytes.begin(), bytes.end());
    changed[random() % changed.size()] ^= static_cast<char>(1u << (random() % 8));
    StateTable other;
    refused += read_table(changed.data(), changed.size(), &other).ok() ? 0 : 1;
  }
  assert_true(refused > 200);
}

}  // namespace

int main() {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_element_comes_to_its_place),
      cmocka_unit_test(faults_are_the_same_on_all_ranks),
      cmocka_unit_test(no_bytes_of_a_peer_are_trusted),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
