// Meshes against counting by hand: ranks are numbered by nested loops, slowest axis outside.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "sharding/mesh.hpp"

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
using namespace trireme::sharding;

MeshShape make(std::vector<Axis> axes, trireme_mesh_order order, std::int32_t world_size) {
  MeshShape shape;
  const Status status = MeshShape::make(std::move(axes), order, world_size, &shape);
  if (!status.ok()) fail_msg("%s", status.message().c_str());
  return shape;
}

// `slowest_first` names the axes of a 2 x 3 x 4 mesh as nested loops would run over them.
void check_order(std::vector<Axis> axes, trireme_mesh_order order,
                 const std::vector<std::string>& slowest_first) {
  const MeshShape shape = make(axes, order, 24);
  std::vector<std::size_t> loop;
  for (const std::string& name : slowest_first) {
    for (std::size_t i = 0; i < axes.size(); ++i) {
      if (axes[i].name == name) loop.push_back(i);
    }
  }
  assert_int_equal(loop.size(), 3);
  std::int32_t rank = 0;
  std::vector<std::int32_t> at(3);
  for (at[loop[0]] = 0; at[loop[0]] < axes[loop[0]].size; ++at[loop[0]]) {
    for (at[loop[1]] = 0; at[loop[1]] < axes[loop[1]].size; ++at[loop[1]]) {
      for (at[loop[2]] = 0; at[loop[2]] < axes[loop[2]].size; ++at[loop[2]]) {
        std::int32_t found = -1;
        assert_true(shape.rank(at, &found).ok());
        assert_int_equal(found, rank);
        assert_true(shape.coordinates(rank) == at);
        ++rank;
      }
    }
  }
}

void the_order_says_which_axis_is_fastest(void**) {
  const std::vector<Axis> axes = {{"tensor", 2}, {"data", 3}, {"pipeline", 4}};
  check_order(axes, TRIREME_MESH_ORDER_BY_NAME, {"pipeline", "data", "tensor"});
  check_order(axes, TRIREME_MESH_ORDER_LAST_FASTEST, {"tensor", "data", "pipeline"});
  check_order(axes, TRIREME_MESH_ORDER_FIRST_FASTEST, {"pipeline", "data", "tensor"});
  check_order({{"data", 4}, {"expert", 3}, {"context", 2}}, TRIREME_MESH_ORDER_BY_NAME,
              {"data", "expert", "context"});
  check_order({{"shard", 4}, {"data", 3}, {"tensor", 2}}, TRIREME_MESH_ORDER_BY_NAME,
              {"data", "shard", "tensor"});
  check_order({{"tensor", 2}, {"rows", 3}, {"columns", 4}}, TRIREME_MESH_ORDER_BY_NAME,
              {"rows", "columns", "tensor"});
}

void groups_share_all_other_coordinates(void**) {
  const MeshShape shape =
      make({{"a", 3}, {"b", 2}, {"c", 1}, {"d", 4}}, TRIREME_MESH_ORDER_LAST_FASTEST, 24);
  for (unsigned mask = 1; mask < 16; ++mask) {
    std::vector<std::size_t> axes;
    std::size_t expected = 1;
    for (std::size_t i = 0; i < 4; ++i) {
      if ((mask >> i & 1) == 0) continue;
      axes.push_back(i);
      expected *= static_cast<std::size_t>(shape.axes()[i].size);
    }
    for (std::int32_t rank = 0; rank < 24; ++rank) {
      const auto ranks = shape.group(axes, rank);
      assert_int_equal(ranks.size(), expected);
      assert_true(std::is_sorted(ranks.begin(), ranks.end()));
      assert_true(std::find(ranks.begin(), ranks.end(), rank) != ranks.end());
      for (const std::int32_t other : ranks) {
        assert_true(shape.group(axes, other) == ranks);
        for (std::size_t i = 0; i < 4; ++i) {
          if ((mask >> i & 1) != 0) continue;
          assert_int_equal(shape.coordinates(rank)[i], shape.coordinates(other)[i]);
        }
      }
    }
  }
}

void one_size_is_inferred(void**) {
  assert_int_equal(make({{"data", 0}, {"tensor", 2}}, 0, 8).axes()[0].size, 4);
  assert_int_equal(make({{"data", 8}, {"tensor", 0}}, 0, 8).axes()[1].size, 1);
  assert_int_equal(make({{"data", 0}}, 0, 7).axes()[0].size, 7);
  assert_true(make({{"data", 0}, {"tensor", 2}}, 0, 8).text() ==
              make({{"data", 4}, {"tensor", 2}}, 0, 8).text());
  assert_true(make({{"data", 4}, {"tensor", 2}}, TRIREME_MESH_ORDER_FIRST_FASTEST, 8).text() !=
              make({{"data", 4}, {"tensor", 2}}, TRIREME_MESH_ORDER_LAST_FASTEST, 8).text());
}

void refuse(std::vector<Axis> axes, std::int32_t world_size, const char* word,
            trireme_mesh_order order = TRIREME_MESH_ORDER_BY_NAME) {
  MeshShape shape;
  const Status status = MeshShape::make(std::move(axes), order, world_size, &shape);
  assert_int_equal(status.code(), TRIREME_ERROR_INVALID_ARGUMENT);
  if (status.message().find(word) == std::string::npos) {
    fail_msg("\"%s\" does not say %s", status.message().c_str(), word);
  }
}

void what_is_no_mesh_is_refused_with_its_numbers(void**) {
  refuse({}, 1, "axes");
  refuse(std::vector<Axis>(17, Axis{"x", 1}), 1, "17");
  refuse({{"data", 2}, {"tensor", 3}}, 8, "make 6, but the communicator has 8");
  refuse({{"data", 0}, {"tensor", 3}}, 8, "8 ranks");
  refuse({{"data", 0}, {"tensor", 0}}, 8, "only one");
  refuse({{"data", 0}, {"tensor", 16}}, 8, "8 ranks");
  refuse({{"data", -1}, {"tensor", 1}}, 1, "below 0");
  refuse({{"data", 1}, {"data", 1}}, 1, "both called");
  refuse({{"", 1}}, 1, "empty");
  refuse({{std::string(32, 'x'), 1}}, 1, "32 bytes");
  refuse({{"\xff", 1}}, 1, "UTF-8");
  refuse({{"data", 1}}, 1, "order", 3);
  refuse({{"data", 1}}, 1, "order", -1);
  // Products that would overflow, also to the right number.
  refuse({{"a", 65536}, {"b", 65536}}, 1, "1 ranks");
  refuse({{"a", INT32_MAX}, {"b", INT32_MAX}, {"c", INT32_MAX}}, 4, "4 ranks");
}

void places_that_are_not_there_are_refused(void**) {
  const MeshShape shape = make({{"data", 2}, {"tensor", 3}}, 0, 6);
  std::int32_t rank = -7;
  for (const std::vector<std::int32_t>& at :
       std::vector<std::vector<std::int32_t>>{{2, 0}, {0, 3}, {-1, 0}, {0}, {0, 0, 0}}) {
    assert_int_equal(shape.rank(at, &rank).code(), TRIREME_ERROR_INVALID_ARGUMENT);
  }
  assert_int_equal(rank, -7);
  assert_int_equal(shape.check_rank(6).code(), TRIREME_ERROR_INVALID_ARGUMENT);
  assert_int_equal(shape.check_rank(-1).code(), TRIREME_ERROR_INVALID_ARGUMENT);
  std::size_t axis = 9;
  assert_int_equal(shape.find("Data", &axis).code(), TRIREME_ERROR_INVALID_ARGUMENT);
  assert_true(shape.find("tensor", &axis).ok() && axis == 1);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(the_order_says_which_axis_is_fastest),
      cmocka_unit_test(groups_share_all_other_coordinates),
      cmocka_unit_test(one_size_is_inferred),
      cmocka_unit_test(what_is_no_mesh_is_refused_with_its_numbers),
      cmocka_unit_test(places_that_are_not_there_are_refused),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
