"""Models on meshes: the axes tell how a model lies, which ranks have one norm, and what is whole."""

import array
import unittest

from support import TestCase, trireme


class MeshModelsTest(TestCase):
    def test_a_mesh_trains_as_one_process(self):
        """data 2 x tensor 2: "part" is other on each tensor rank, "common" whole on them."""

        def body(group):
            with trireme.Mesh(group, {"data": 2, "tensor": 2}) as mesh:
                at = mesh.coordinates(group.rank)
                with trireme.Model(mesh, "zero1") as model:
                    model.add_parameter("part", [1])
                    model.add_parameter("common", [1], placement={"tensor": "whole"})
                    model.seal()
                    optimizer = trireme.Optimizer(model, "sgd", learning_rate=1.0, clipping=1.5)
                    # Averages over "data" are 1 and 2 of "part", and 2 of "common".
                    part = 1.0 + at["tensor"] + (-0.5, 0.5)[at["data"]]
                    common = (1.0, 3.0)[at["data"]]
                    model.accumulate_flat(array.array("f", [part, common]))
                    optimizer.step()
                    model.check_replicas()
                    self.assertIs(model.mesh, mesh)
                    self.assertIsNone(model.communicator)
                    world = model.info().world_size
                    return world, optimizer.gradient_norm, model.get_parameters().tolist()

        results = self.ranks(4, body)  # 1 + 4 + 4 under the root, clipped to half of it
        first, second = (2, 3.0, [-0.5, -1.0]), (2, 3.0, [-1.0, -1.0])
        self.assertEqual(sorted(results), sorted([first, first, second, second]))

    def test_summands_are_added_up_along_an_axis(self):
        def body(group):
            with trireme.Mesh(group, {"data": 2, "tensor": 2}) as mesh:
                with trireme.Model(mesh, "zero2") as model:
                    model.add_parameter("norm", [2], placement={"tensor": "shared"})
                    model.seal()
                    optimizer = trireme.Optimizer(model, "sgd", learning_rate=1.0)
                    summand = [group.rank + 1.0, group.rank * 10.0]
                    model.accumulate_flat(array.array("f", summand))
                    optimizer.step()
                    return model.get_parameters().tolist()

        # Halves of 10 and 60.
        self.assertEqual(self.ranks(4, body), [[-5.0, -30.0]] * 4)

    def test_parts_make_the_whole(self):
        def seal(group, stretches, rule="adamw"):
            with trireme.Mesh(group, {"data": 1, "tensor": 2}) as mesh:
                with trireme.Model(mesh, "zero2") as model:
                    own = stretches[mesh.coordinates(group.rank)["tensor"]]
                    placement = {"tensor": trireme.Split(1, 12, own)}
                    model.add_parameter("qkv", [4, 6], placement=placement)
                    model.seal()
                    trireme.Optimizer(model, rule)

        halves = [[(0, 2), (4, 2), (8, 2)], [(2, 2), (6, 2), (10, 2)]]
        overlapping = [[(0, 6)], [(5, 6)]]
        self.ranks(2, lambda group: seal(group, halves))

        def refused(group):
            with self.assertRaisesRegex(ValueError, "index 5 of dimension 1 of split parameter"):
                seal(group, overlapping)
            with self.assertRaisesRegex(ValueError, "has 5 indices, but dimension 1 has 6"):
                seal(group, [[(0, 5)]] * 2)
            with self.assertRaisesRegex(ValueError, "stretches are pairs"):
                seal(group, [[(0, 5, 1)]] * 2)

        self.ranks(2, refused)

    def test_muon_takes_the_whole_of_parts(self):
        def train(model, gradient):
            with trireme.Optimizer(model, "muon", learning_rate=1) as optimizer:
                model.accumulate_flat(array.array("f", gradient))
                optimizer.step()
            return list(model.get_parameters())

        whole = [(7 * i) % 11 - 4.5 for i in range(24)]
        with trireme.Communicator(0, 1, "local://muon-whole") as group:
            with trireme.Model(group, "zero2") as model:
                model.add_parameter("w", [4, 6])
                model.seal()
                right = train(model, whole)

        def body(group):
            with trireme.Mesh(group, {"data": 1, "tensor": 2}) as mesh:
                first = 3 * mesh.coordinates(group.rank)["tensor"]
                with trireme.Model(mesh, "zero2") as model:
                    placement = {"tensor": trireme.Split(1, 6, [(first, 3)])}
                    model.add_parameter("w", [4, 3], placement=placement)
                    model.seal()
                    numbers = [6 * row + first + i for row in range(4) for i in range(3)]
                    values = train(model, [whole[number] for number in numbers])
                    self.assertEqual(values, [right[number] for number in numbers])

        self.ranks(2, body)

    def test_hybrid_shard_takes_the_axis(self):
        def body(group):
            shape = {"data": 2, "shard": 2}
            with trireme.Mesh(group, shape, order="first_fastest") as mesh:
                shards = trireme.Shards(share="never")
                with trireme.Model(mesh, "hybrid_shard", shards=shards) as model:
                    model.add_parameter("odd", [5])
                    model.seal()
                    held = model.memory().planned_parameters
                    return mesh.coordinates(group.rank)["shard"], held

        # The first part has 3 of the 5 elements.
        self.assertEqual(sorted(self.ranks(4, body)), [(0, 12), (0, 12), (1, 8), (1, 8)])

    def test_copies_along_an_axis_are_compared(self):
        def body(group):
            with trireme.Mesh(group, {"data": 1, "tensor": 2}) as mesh:
                with trireme.Model(mesh, "zero3") as model:
                    model.add_parameter("part", [3])
                    model.add_parameter("common", [1], placement={"tensor": "whole"})
                    model.seal()
                    model.set_parameters(array.array("f", [group.rank] * 3 + [7]))
                    model.check_replicas()
                    model.set_parameters(array.array("f", [0, 0, 0, group.rank]))
                    with self.assertRaisesRegex(
                        trireme.MismatchError, 'along axis "tensor" of the mesh: parameter 1'
                    ):
                        model.check_replicas()

        self.ranks(2, body)

    def test_what_does_not_fit_is_refused(self):
        with trireme.Communicator(0, 1, "local://mesh-models-refused") as group:
            with trireme.Mesh(group, {"data": 1, "tensor": 1}) as mesh:
                with self.assertRaisesRegex(trireme.InvalidArgumentError, 'axis "shard"'):
                    trireme.Model(mesh, "hybrid_shard")
                with trireme.Model(mesh, "zero1") as model:
                    with self.assertRaisesRegex(trireme.InvalidArgumentError, "is no axis"):
                        model.add_parameter("x", placement={"tensors": "whole"})
                    with self.assertRaisesRegex(trireme.InvalidArgumentError, "places parameters"):
                        model.add_parameter("x", placement={"data": "whole"})
                    with self.assertRaisesRegex(ValueError, "placement"):
                        model.add_parameter("x", placement={"tensor": "hole"})
                    model.add_parameter("x", placement={"tensor": "whole"})
                    model.seal()
                    with self.assertRaisesRegex(trireme.InvalidArgumentError, "norm_ranks"):
                        trireme.Optimizer(model, "sgd", clipping=1.0, norm_ranks=group)
            with self.assertRaises(trireme.InvalidHandleError):
                trireme.Model(mesh, "zero1")
            with trireme.Model(group, "zero1") as model:
                with self.assertRaisesRegex(trireme.InvalidArgumentError, "has no axes"):
                    model.add_parameter("x", placement={"tensor": "whole"})


if __name__ == "__main__":
    unittest.main()
