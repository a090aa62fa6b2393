"""Meshes: places, groups, and the communicators of axes."""

import array
import gc
import itertools
import unittest

from support import TestCase, run_ranks, trireme


def members(group):
    own = array.array("i", [group.ranks[group.rank]])
    seen = array.array("i", [0] * group.world_size)
    group.all_gather(own, seen)
    return seen.tolist()


class MeshTest(TestCase):
    def test_tensor_is_fastest_and_an_open_size_is_inferred(self):
        def body(group):
            with trireme.Mesh(group, {"tensor": 2, "data": 0, "pipeline": 2}) as mesh:
                places = [mesh.coordinates(rank) for rank in range(8)]
                assert [mesh.rank(place) for place in places] == list(range(8))
                axes = {axis: members(mesh.communicator(axis)) for axis in mesh.axes}
                with mesh.make_communicator(["tensor", "data"], timeout=100) as together:
                    axes["both"] = members(together)
                assert axes["both"] == mesh.group(("data", "tensor"), group.rank)
                assert axes["data"] == mesh.group("data", group.rank)
                return places, mesh.axis_size("data"), axes

        order = list(itertools.product(range(2), range(2), range(2)))  # pipeline, data, tensor
        want = [{"tensor": t, "data": d, "pipeline": p} for p, d, t in order]
        for rank, (places, size, axes) in enumerate(self.ranks(8, body)):
            self.assertEqual((places, size), (want, 2))
            for axis in ("tensor", "data", "pipeline"):
                rest = [{k: v for k, v in place.items() if k != axis} for place in want]
                self.assertEqual(axes[axis], [r for r in range(8) if rest[r] == rest[rank]])
            half = [r for r in range(8) if want[r]["pipeline"] == want[rank]["pipeline"]]
            self.assertEqual(axes["both"], half)

    def test_the_order_can_be_chosen(self):
        def body(group):
            axes = {"data": 2, "tensor": 3}
            with trireme.Mesh(group, axes, order="first_fastest") as mesh:
                first = mesh.coordinates(1)
            with trireme.Mesh(group, axes, order="last_fastest") as mesh:
                return first, mesh.coordinates(1)

        want = ({"data": 1, "tensor": 0}, {"data": 0, "tensor": 1})
        self.assertEqual(self.ranks(6, body), [want] * 6)

    def test_a_communicator_of_an_axis_keeps_the_mesh(self):
        def body(group):
            data = trireme.Mesh(group, {"data": 2}).communicator("data")
            gc.collect()
            return members(data)

        self.assertEqual(self.ranks(2, body), [[0, 1]] * 2)

    def test_communicators_of_a_mesh_work_on_the_host(self):
        def body(group):
            with trireme.Mesh(group, {"data": 2}) as mesh:
                with mesh.make_communicator(["data"]) as made:
                    for one in mesh.communicator("data"), made:
                        self.assertIsNone(one.device)
                        with trireme.Buffer(one, 8) as buffer:
                            self.assertEqual(bytes(buffer.memory), bytes(8))

        self.ranks(2, body)

    def test_meshes_that_differ_are_a_mismatch_on_all(self):
        def body(group):
            trireme.Mesh(group, {"data": 3} if group.rank else {"tensor": 3})

        for outcome in run_ranks(3, body):
            self.assertIsInstance(outcome, trireme.MismatchError)

    def test_wrong_arguments_are_refused(self):
        group = self.alone()
        for axes in ({}, {"data": 2}, {"data": -1}, {"": 1}, {"n" * 32: 1}, {"a": 0, "b": 0}):
            with self.assertRaises(trireme.InvalidArgumentError):
                trireme.Mesh(group, axes)
        with self.assertRaises(trireme.InvalidArgumentError):
            trireme.Mesh(group, {"data": 1}, order=3)
        mesh = trireme.Mesh(group, {"data": 1})
        with self.assertRaisesRegex(trireme.InvalidArgumentError, "it has data"):
            mesh.axis_size("tensor")
        with self.assertRaises(trireme.InvalidArgumentError):
            mesh.coordinates(1)
        with self.assertRaises(trireme.InvalidArgumentError):
            mesh.rank({"data": 1})
        with self.assertRaises(ValueError):
            mesh.rank({"tensor": 0})
        with self.assertRaises(trireme.InvalidArgumentError):
            mesh.group(["data", "data"], 0)
        with self.assertRaises(trireme.InvalidArgumentError):
            mesh.make_communicator([])
        axis = mesh.communicator("data")
        mesh.close()
        for call in (axis.barrier, lambda: mesh.communicator("data")):
            with self.assertRaises(trireme.InvalidHandleError):
                call()


if __name__ == "__main__":
    unittest.main()
