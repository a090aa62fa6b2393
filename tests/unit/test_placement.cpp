// Placements against counting by hand: on every mesh the ranks of a copy are those whose "data"
// coordinate is the same, and their parts are their "shard" coordinates.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "sharding/layout.hpp"
#include "sharding/placement.hpp"
#include "sharding/strategy.hpp"

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

MeshShape make(std::vector<Axis> axes, trireme_mesh_order order) {
  std::int32_t world_size = 1;
  for (const Axis& axis : axes) world_size *= axis.size;
  MeshShape shape;
  const Status status = MeshShape::make(std::move(axes), order, world_size, &shape);
  if (!status.ok()) fail_msg("%s", status.message().c_str());
  return shape;
}

AxisPlacement placed_on(const std::string& axis, trireme_placement kind) {
  AxisPlacement placement;
  placement.axis = axis;
  placement.kind = kind;
  return placement;
}

Spread spread_of(const Placement& placement, trireme_strategy strategy) {
  Spread spread;
  spread.strategy = strategy;
  spread.world_size = placement.world_size();
  spread.shard_ranks = placement.shard_ranks();
  spread.shard_stride = placement.shard_stride();
  return spread;
}

bool allowed(trireme_strategy strategy, std::int32_t data, std::int32_t shard) {
  switch (strategy) {
    case TRIREME_STRATEGY_DATA_PARALLEL: return shard == 1;
    case TRIREME_STRATEGY_HYBRID_SHARD: return true;
    default: return data == 1 || shard == 1;
  }
}

// Every rank of the model, in the order of its communicator.
void check_ranks(const MeshShape& shape, const Placement& placement, trireme_strategy strategy,
                 std::int32_t first) {
  const Spread spread = spread_of(placement, strategy);
  const std::vector<std::int32_t> ranks = shape.group(placement.spread_axes(), first);
  assert_int_equal(ranks.size(), placement.world_size());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::vector<std::int32_t> at = shape.coordinates(ranks[i]);
    const auto number = static_cast<std::uint32_t>(i);
    if (strategy == TRIREME_STRATEGY_HYBRID_SHARD) {
      assert_int_equal(spread.part_of(number, spread.shard_ranks), at[1]);
      assert_int_equal(spread.replica_of(number, spread.shard_ranks), at[0]);
    } else {
      assert_int_equal(spread.part_of(number, spread.shard_ranks), at[0] + at[1]);
    }
  }
}

void check_mesh(const std::vector<std::int32_t>& sizes, trireme_mesh_order order) {
  const MeshShape shape = make({{"data", sizes[0]},
                                {"shard", sizes[1]},
                                {"tensor", sizes[2]},
                                {"pipeline", sizes[3]},
                                {"replica", 1}},
                               order);
  std::vector<std::size_t> models;
  for (const std::size_t axis : {2, 3}) {
    if (sizes[axis] > 1) models.push_back(axis);
  }
  for (trireme_strategy strategy = 1; is_strategy(strategy); ++strategy) {
    Placement placement;
    const Status status = Placement::on_mesh(strategy, shape, Contents::all, {}, &placement);
    assert_int_equal(status.ok(), allowed(strategy, sizes[0], sizes[1]));
    if (!status.ok()) continue;
    assert_true(placement.on_mesh());
    assert_true(placement.model_axes() == models);
    assert_int_equal(placement.world_size(), sizes[0] * sizes[1]);
    for (std::int32_t first = 0; first < shape.world_size(); ++first) {
      check_ranks(shape, placement, strategy, first);
    }
  }
}

void each_part_lies_at_its_coordinate(void**) {
  for (std::int32_t data = 1; data <= 4; ++data) {
    for (std::int32_t shard = 1; shard <= 4; ++shard) {
      for (std::int32_t tensor = 1; tensor <= 3; ++tensor) {
        for (std::int32_t pipeline = 1; pipeline <= 3; ++pipeline) {
          for (trireme_mesh_order order = 0; order <= TRIREME_MESH_ORDER_FIRST_FASTEST; ++order) {
            check_mesh({data, shard, tensor, pipeline}, order);
          }
        }
      }
    }
  }
}

// As the page of model.h says: ranks of a copy are `stride` apart.
void a_communicator_places_as_the_options_say(void**) {
  for (std::uint32_t world = 1; world <= 12; ++world) {
    for (trireme_strategy strategy = 1; strategy < TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
      Placement placement;
      assert_true(Placement::on_ranks(strategy, world, {}, &placement).ok());
      assert_int_equal(placement.shard_ranks(), world);
      assert_int_equal(placement.shard_stride(), 1);
      assert_false(placement.on_mesh());
      assert_true(placement.model_axes().empty());
      assert_false(Placement::on_ranks(strategy, world, {1, 0}, &placement).ok());
      assert_false(Placement::on_ranks(strategy, world, {0, 1}, &placement).ok());
    }
    for (std::uint32_t ranks = 1; ranks <= 13; ++ranks) {
      for (std::uint32_t stride = 0; stride <= 13; ++stride) {
        Placement placement;
        const Status status =
            Placement::on_ranks(TRIREME_STRATEGY_HYBRID_SHARD, world, {ranks, stride}, &placement);
        const std::uint32_t apart = std::max(stride, 1U);
        assert_int_equal(status.ok(), world % (ranks * apart) == 0);
        if (!status.ok()) continue;
        assert_int_equal(placement.shard_ranks(), ranks);
        assert_int_equal(placement.shard_stride(), apart);
        const Spread spread = spread_of(placement, TRIREME_STRATEGY_HYBRID_SHARD);
        for (std::uint32_t rank = 0; rank < world; ++rank) {
          assert_int_equal(spread.part_of(rank, ranks), rank / apart % ranks);
        }
        // Another strategy knows no copies, and the same one is the same again.
        assert_int_equal(placement.with(TRIREME_STRATEGY_ZERO3).shard_ranks(), world);
        assert_int_equal(placement.with(TRIREME_STRATEGY_ZERO3).shard_stride(), 1);
        assert_int_equal(placement.with(TRIREME_STRATEGY_HYBRID_SHARD).shard_ranks(), ranks);
        assert_int_equal(placement.with(TRIREME_STRATEGY_HYBRID_SHARD).shard_stride(), apart);
      }
    }
    Placement placement;
    assert_true(Placement::on_ranks(TRIREME_STRATEGY_HYBRID_SHARD, world, {0, 1}, &placement).ok());
    assert_int_equal(placement.shard_ranks(), 0);
    assert_false(
        Placement::on_ranks(TRIREME_STRATEGY_HYBRID_SHARD, world, {0, 2}, &placement).ok());
  }
}

void wishes_are_compared_with_the_axes(void**) {
  for (trireme_mesh_order order = 0; order <= TRIREME_MESH_ORDER_FIRST_FASTEST; ++order) {
    const MeshShape shape = make({{"data", 3}, {"tensor", 2}, {"shard", 2}}, order);
    const std::uint32_t apart = order == TRIREME_MESH_ORDER_FIRST_FASTEST ? 3 : 1;
    for (std::uint32_t ranks = 0; ranks <= 4; ++ranks) {
      for (std::uint32_t stride = 0; stride <= 4; ++stride) {
        Placement placement;
        const Status status = Placement::on_mesh(TRIREME_STRATEGY_HYBRID_SHARD, shape,
                                                 Contents::all, {ranks, stride}, &placement);
        const bool fits = (ranks == 0 || ranks == 2) && (stride == 0 || stride == apart);
        assert_int_equal(status.ok(), fits);
        if (!fits) {
          assert_true(status.message().find("axis \"shard\"") != std::string::npos);
          continue;
        }
        assert_int_equal(placement.shard_ranks(), 2);
        assert_int_equal(placement.shard_stride(), apart);
      }
    }
  }
}

void axes_of_other_names_are_refused(void**) {
  Placement placement;
  const auto place = [&](std::vector<Axis> axes, Contents contents = Contents::all) {
    return Placement::on_mesh(TRIREME_STRATEGY_ZERO1, make(std::move(axes), 0), contents, {},
                              &placement);
  };
  assert_int_equal(place({{"context", 2}, {"expert", 2}}).code(), TRIREME_ERROR_INVALID_ARGUMENT);
  assert_int_equal(place({{"data", 2}, {"Tensor", 2}}).code(), TRIREME_ERROR_INVALID_ARGUMENT);
  assert_int_equal(place({{"tensor", 2}, {"pipeline", 2}}).code(), TRIREME_ERROR_INVALID_ARGUMENT);
  assert_int_equal(place({{"data", 2}, {"context", 1}, {"Tensor", 1}}).code(), TRIREME_OK);
  assert_int_equal(placement.model_axes().size(), 0);
  assert_int_equal(place({{"shard", 1}, {"pipeline", 3}, {"tensor", 2}}).code(), TRIREME_OK);
  assert_string_equal(placement.model_axis_names().c_str(), "\"pipeline\" and \"tensor\"");
}

// Along context lie copies of a model. Along expert do copies of what is no expert, and other
// experts.
void context_and_expert_are_as_data_but_for_experts(void**) {
  const MeshShape shape = make(
      {{"pipeline", 2}, {"data", 2}, {"shard", 3}, {"expert", 2}, {"context", 2}, {"tensor", 2}},
      0);
  Placement placement;
  const auto place = [&](Contents contents) {
    assert_true(
        Placement::on_mesh(TRIREME_STRATEGY_HYBRID_SHARD, shape, contents, {}, &placement).ok());
  };
  place(Contents::all);
  assert_int_equal(placement.world_size(), 24);
  assert_true(placement.spread_axes() == (std::vector<std::size_t>{1, 2, 3, 4}));
  assert_true(placement.model_axes() == (std::vector<std::size_t>{0, 5}));
  assert_int_equal(placement.shard_ranks(), 3);
  assert_int_equal(placement.shard_stride(), 4);
  place(Contents::experts);
  assert_int_equal(placement.world_size(), 12);
  assert_true(placement.spread_axes() == (std::vector<std::size_t>{1, 2, 4}));
  assert_true(placement.model_axes() == (std::vector<std::size_t>{0, 3, 5}));
  assert_int_equal(placement.shard_ranks(), 3);
  assert_int_equal(placement.shard_stride(), 2);
  assert_string_equal(placement.model_axis_names().c_str(),
                      "\"pipeline\" and \"expert\" and \"tensor\"");
  // A parameter can be placed along expert where ranks have models of their own, and only there.
  trireme_parameter_options options = TRIREME_PARAMETER_OPTIONS_INIT;
  options.name = "p";
  std::vector<AxisPlacement> whole = {placed_on("expert", TRIREME_PLACEMENT_WHOLE)};
  assert_true(placement.place(&options, &whole).ok());
  assert_int_equal(options.replicas, 2);
  place(Contents::all);
  for (const char* axis : {"expert", "context", "data", "shard"}) {
    options.replicas = 0;
    whole = {placed_on(axis, TRIREME_PLACEMENT_WHOLE)};
    assert_int_equal(placement.place(&options, &whole).code(), TRIREME_ERROR_INVALID_ARGUMENT);
  }
}

void replicas_are_the_models_that_hold_it(void**) {
  const MeshShape shape =
      make({{"pipeline", 3}, {"data", 2}, {"tensor", 2}, {"shard", 1}, {"other", 1}}, 0);
  Placement placement;
  assert_true(
      Placement::on_mesh(TRIREME_STRATEGY_ZERO2, shape, Contents::all, {}, &placement).ok());
  struct Row {
    std::vector<std::string> axes;
    std::uint32_t told;
    std::uint32_t replicas;  // 0: refused
    std::vector<std::string> whole_on;
  };
  const Row rows[] = {
      {{}, 0, 1, {}},
      {{}, 1, 1, {}},
      {{}, 2, 0, {}},
      {{"tensor"}, 0, 2, {"tensor"}},
      {{"tensor"}, 2, 2, {"tensor"}},
      {{"tensor"}, 3, 0, {}},
      {{"tensor"}, 1, 0, {}},
      {{"pipeline"}, 0, 3, {"pipeline"}},
      {{"tensor", "pipeline"}, 0, 6, {"pipeline", "tensor"}},
      {{"pipeline", "tensor"}, 6, 6, {"pipeline", "tensor"}},
      {{"other"}, 0, 1, {"other"}},
      {{"data"}, 0, 0, {}},
      {{"shard"}, 0, 0, {}},
      {{"tensor", "tensor"}, 0, 0, {}},
      {{"context"}, 0, 0, {}},
  };
  for (const Row& row : rows) {
    trireme_parameter_options options = TRIREME_PARAMETER_OPTIONS_INIT;
    options.name = "p";
    options.replicas = row.told;
    std::vector<AxisPlacement> placements;
    for (const std::string& axis : row.axes) {
      placements.push_back(placed_on(axis, TRIREME_PLACEMENT_WHOLE));
    }
    const Status status = placement.place(&options, &placements);
    assert_int_equal(status.ok(), row.replicas > 0);
    if (!status.ok()) continue;
    assert_int_equal(options.replicas, row.replicas);
    std::vector<std::string> whole_on;
    std::uint32_t models = 1;
    for (const AxisPlacement& placed : placements) {
      whole_on.push_back(placed.axis);
      models *= placed.ranks;
    }
    assert_true(whole_on == row.whole_on);
    assert_int_equal(models, row.replicas);
  }
  // An alias takes both from its parameter.
  trireme_parameter_options alias = TRIREME_PARAMETER_OPTIONS_INIT;
  alias.name = "alias";
  alias.tied_to = "p";
  std::vector<AxisPlacement> none;
  assert_true(placement.place(&alias, &none).ok());
  assert_int_equal(alias.replicas, 0);
  // A communicator has no axes, and the caller counts.
  Placement plain;
  assert_true(Placement::on_ranks(TRIREME_STRATEGY_ZERO2, 4, {}, &plain).ok());
  trireme_parameter_options counted = TRIREME_PARAMETER_OPTIONS_INIT;
  counted.name = "counted";
  counted.replicas = 7;
  assert_true(plain.place(&counted, &none).ok());
  assert_int_equal(counted.replicas, 7);
  const auto code_of = [](const Placement& on, trireme_parameter_options options,
                          std::vector<AxisPlacement> placements) {
    return on.place(&options, &placements).code();
  };
  for (const trireme_placement kind : {TRIREME_PLACEMENT_WHOLE, TRIREME_PLACEMENT_SHARED}) {
    assert_int_equal(code_of(plain, counted, {placed_on("tensor", kind)}),
                     TRIREME_ERROR_INVALID_ARGUMENT);
    assert_int_equal(code_of(placement, alias, {placed_on("tensor", kind)}), TRIREME_OK);
  }
  for (const trireme_placement kind : {-1, 0, 4, 5}) {  // tied along "pipeline" alone
    assert_int_equal(code_of(placement, alias, {placed_on("tensor", kind)}),
                     TRIREME_ERROR_INVALID_ARGUMENT);
  }
}

// A gradient is a summand along one axis.
void a_parameter_is_shared_along_one_axis(void**) {
  const MeshShape shape = make({{"data", 2}, {"tensor", 2}, {"pipeline", 2}, {"context", 1}}, 0);
  Placement placement;
  assert_true(
      Placement::on_mesh(TRIREME_STRATEGY_ZERO2, shape, Contents::all, {}, &placement).ok());
  const auto code_of = [&](const char* first, trireme_placement kind) {
    trireme_parameter_options options = TRIREME_PARAMETER_OPTIONS_INIT;
    options.name = "p";
    std::vector<AxisPlacement> placements = {placed_on(first, kind),
                                             placed_on("tensor", TRIREME_PLACEMENT_SHARED)};
    const Status status = placement.place(&options, &placements);
    if (status.ok()) assert_int_equal(options.replicas, first[0] == 'p' ? 4 : 2);
    return status.code();
  };
  assert_int_equal(code_of("pipeline", TRIREME_PLACEMENT_SHARED), TRIREME_ERROR_UNSUPPORTED);
  assert_int_equal(code_of("pipeline", TRIREME_PLACEMENT_TIED), TRIREME_ERROR_UNSUPPORTED);
  assert_int_equal(code_of("context", TRIREME_PLACEMENT_TIED), TRIREME_ERROR_INVALID_ARGUMENT);
  assert_int_equal(code_of("pipeline", TRIREME_PLACEMENT_WHOLE), TRIREME_OK);
  assert_int_equal(code_of("context", TRIREME_PLACEMENT_SHARED), TRIREME_OK);
}

void no_strategy_has_no_placement(void**) {
  Placement placement;
  for (const trireme_strategy strategy : {-1, 0, 6}) {
    assert_false(Placement::on_ranks(strategy, 2, {}, &placement).ok());
    assert_false(
        Placement::on_mesh(strategy, make({{"data", 2}}, 0), Contents::all, {}, &placement).ok());
  }
}

}  // namespace

int main() {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_part_lies_at_its_coordinate),
      cmocka_unit_test(a_communicator_places_as_the_options_say),
      cmocka_unit_test(wishes_are_compared_with_the_axes),
      cmocka_unit_test(axes_of_other_names_are_refused),
      cmocka_unit_test(context_and_expert_are_as_data_but_for_experts),
      cmocka_unit_test(replicas_are_the_models_that_hold_it),
      cmocka_unit_test(a_parameter_is_shared_along_one_axis),
      cmocka_unit_test(no_strategy_has_no_placement),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
