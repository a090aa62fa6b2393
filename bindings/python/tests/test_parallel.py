"""Parallel objects: places, groups, schedules, cuts, rows, and models on all axes."""

import array
import gc
import itertools
import unittest

from support import TestCase, run_ranks, trireme

AXES = ("data", "shard", "tensor", "pipeline", "context", "expert")


def members(group):
    own = array.array("i", [group.ranks[group.rank]])
    seen = array.array("i", [0] * group.world_size)
    group.all_gather(own, seen)
    return seen.tolist()


class ParallelTest(TestCase):
    def test_every_rank_has_its_place(self):
        def body(group):
            with trireme.Parallel(
                group, data=trireme.REST, tensor=2, pipeline=2, micro_batches=4
            ) as p:
                assert p.info.world_size == 8 and p.info.rank == group.rank
                assert p.info.sizes["data"] == 2 and p.info.readers == 2
                places = [p.coordinates(rank) for rank in range(8)]
                assert [p.rank(**place) for place in places] == list(range(8))
                assert p.info.coordinates == places[group.rank]
                found = {axis: members(p.communicator(axis)) for axis in AXES}
                found["all"] = members(p.communicator("all"))
                with p.make_communicator(("tensor", "pipeline"), timeout=100) as both:
                    found["both"] = members(both)
                return places, found

        order = itertools.product(range(2), range(2), range(2))  # pipeline, data, tensor
        want = [
            dict.fromkeys(AXES, 0) | {"tensor": t, "data": d, "pipeline": p} for p, d, t in order
        ]
        groups = {axis: {axis} for axis in AXES} | {
            "all": set(AXES),
            "both": {"tensor", "pipeline"},
        }
        for rank, (places, found) in enumerate(self.ranks(8, body)):
            self.assertEqual(places, want)
            for name, axes in groups.items():
                rest = [{k: v for k, v in place.items() if k not in axes} for place in want]
                self.assertEqual(found[name], [r for r in range(8) if rest[r] == rest[rank]])

    def test_gradients_have_two_groups(self):
        def body(group):
            with trireme.Parallel(group, data=2, expert=2) as p:
                return (
                    members(p.communicator("gradients")),
                    members(p.communicator("expert_gradients")),
                    p.info.gradient_ranks,
                    p.info.expert_gradient_ranks,
                )

        for rank, outcome in enumerate(self.ranks(4, body)):
            self.assertEqual(outcome, ([0, 1, 2, 3], [rank % 2, rank % 2 + 2], 4, 2))

    def test_a_communicator_keeps_the_object(self):
        def body(group):
            data = trireme.Parallel(group, data=2).communicator("data")
            gc.collect()
            return members(data)

        self.assertEqual(self.ranks(2, body), [[0, 1]] * 2)

    def test_schedules_and_stages(self):
        def body(group):
            with trireme.Parallel(
                group, pipeline=4, micro_batches=8, stages_per_rank=2, schedule="zbv"
            ) as p:
                info, schedule = p.info, p.schedule()
                stages = [p.stages(rank) for rank in range(4)]
                assert info.own_stages == tuple(stages[group.rank]) == tuple(p.stages())
                assert info.has_first_stage == info.has_last_stage == (group.rank == 0)
                ranks = [p.stage_rank(stage) for stage in range(8)]
            # The schedule outlives the object, and makes an equal one.
            with trireme.Parallel(group, pipeline=4, schedule=schedule) as again:
                assert again.info.order is None
                assert again.info.micro_batches == 8
                assert again.schedule().write() == schedule.write()
            return info.order, info.makespan, info.span, info.kept_micro_batches, stages, ranks

        want = ("zbv", 25.5, 24.0, 8, [[0, 7], [1, 6], [2, 5], [3, 4]], [0, 1, 2, 3, 3, 2, 1, 0])
        self.assertEqual(self.ranks(4, body), [want] * 4)

    def test_the_best_schedule_needs_costs(self):
        costs = trireme.PipelineCosts(
            [trireme.StageCosts(1 + s / 4, 1, 1, kept_bytes=10, held_bytes=10) for s in range(3)]
        )

        def body(group, **options):
            with trireme.Parallel(group, pipeline=3, micro_batches=6, **options) as p:
                return p.info.makespan, p.info.kept_micro_batches

        limited = {"costs": costs, "activation_limit_bytes": 30}
        best = self.ranks(3, lambda group: body(group, schedule="best", **limited))
        named = self.ranks(3, lambda group: body(group, schedule="1f1b", **limited))
        self.assertLess(best[0][0], named[0][0])
        self.assertLessEqual(max(kept for _, kept in best), 3)
        for outcome in run_ranks(3, lambda group: body(group, schedule="best")):
            self.assertIsInstance(outcome, trireme.InvalidArgumentError)

    def test_cuts_are_the_same_on_all_ranks(self):
        seconds = [3, 1, 4, 1, 5, 9, 2, 6, 5]

        def body(group):
            with trireme.Parallel(group, pipeline=3, micro_batches=4) as p:
                # Each rank has measured three layers.
                layers = [
                    trireme.LayerCosts(s if i // 3 == group.rank else 0)
                    for i, s in enumerate(seconds)
                ]
                cut = p.partition(layers)
                own = [i for layer in p.layers(cut).values() for i in layer]
                return cut.cuts, cut.seconds, own

        def slowest(a, b):
            return max(sum(seconds[:a]), sum(seconds[a:b]), sum(seconds[b:]))

        best = min(slowest(a, b) for a in range(1, 8) for b in range(a + 1, 9))
        outcomes = self.ranks(3, body)
        self.assertEqual([i for _, _, own in outcomes for i in own], list(range(9)))
        for cuts, found, _ in outcomes:
            self.assertEqual(cuts, outcomes[0][0])
            self.assertEqual(found, best)
            self.assertEqual(slowest(*cuts[1:3]), best)

    def test_rows_are_read_once(self):
        def body(group):
            with trireme.Parallel(group, data=2, context=2, micro_batches=3) as p:
                return [row for k in range(3) for row in p.rows(13, k)]

        outcomes = self.ranks(4, body)
        self.assertEqual(outcomes[0], outcomes[1])  # context
        self.assertEqual(sorted(outcomes[0] + outcomes[2]), list(range(13)))

    def test_the_tensor_object_has_the_options(self):
        def body(group):
            options = trireme.TensorOptions(blocks=6, gemm="builtin", sequence=True, row_tile=3)
            with trireme.Parallel(group, tensor=2, tensor_options=options) as p:
                tensor = p.tensor()
                assert p.info.has_tensor and tensor.sequence and tensor.gemm.kind == "builtin"
                with trireme.ColumnParallelLinear(tensor, "fc", 4, 6, 7) as layer:
                    assert layer.info.tile_rows == 3
                return tensor.blocks, tensor.range(12)

        self.assertEqual(self.ranks(2, body), [(6, range(0, 6)), (6, range(6, 12))])

    def test_models_lie_on_the_axes(self):
        def body(group):
            with trireme.Parallel(group, data=2, expert=2) as p:
                found = []
                for experts in (False, True):
                    model = trireme.Model(
                        p, "zero1", experts=experts, gradients="sum" if experts else "average"
                    )
                    assert model.parallel is p and model.mesh is None
                    model.add_parameter("w", [1])
                    model.seal()
                    optimizer = trireme.Optimizer(model, "sgd", learning_rate=1)
                    model.accumulate_flat(array.array("f", [4.0 * (group.rank + 1)]))
                    optimizer.step()
                    found.append(model.get_parameters()[0])
                return found

        for rank, (common, expert) in enumerate(self.ranks(4, body)):
            self.assertEqual(common, -4.0 * (1 + 2 + 3 + 4) / 4)
            self.assertEqual(expert, -4.0 * ((rank % 2 + 1) + (rank % 2 + 3)))

    def test_options_that_differ_are_a_mismatch_on_all(self):
        def body(group):
            trireme.Parallel(group, data=3 if group.rank else 1, tensor=1 if group.rank else 3)

        for outcome in run_ranks(3, body):
            self.assertIsInstance(outcome, trireme.MismatchError)
            self.assertIn("options.data is 1 on rank 0 and 3 on rank 1", str(outcome))

    def test_wrong_arguments_are_refused(self):
        group = self.alone()
        for wrong in (
            {"data": 2},
            {"data": -2},
            {"data": trireme.REST, "tensor": trireme.REST},
            {"micro_batches": -1},
            {"schedule": "1f1b"},
            {"schedule": "no such order"},
            {"placement": "circle"},
            {"tensor_options": trireme.TensorOptions(gemm="none")},
        ):
            with self.assertRaises((trireme.InvalidArgumentError, ValueError)):
                trireme.Parallel(group, **wrong)
        with self.assertRaises(trireme.InvalidArgumentError):
            trireme.Model(group, "zero1", experts=True)
        parallel = trireme.Parallel(group)
        for call in (
            lambda: parallel.communicator("rows"),
            lambda: parallel.coordinates(1),
            lambda: parallel.rank(data=1),
            lambda: parallel.rank(rows=0),
            lambda: parallel.stages(1),
            lambda: parallel.stage_rank(1),
            lambda: parallel.rows(4, 1),
            lambda: parallel.partition([]),
        ):
            with self.assertRaises(trireme.InvalidArgumentError):
                call()
        for call in (parallel.tensor, parallel.schedule):
            with self.assertRaises(trireme.InvalidStateError):
                call()
        parallel.close()
        with self.assertRaises(trireme.InvalidHandleError):
            parallel.info


if __name__ == "__main__":
    unittest.main()
