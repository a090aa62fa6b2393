"""Schedules of the caller's: which rules they break, when actions run, which ones decide."""

import array
import gc
import unittest

from support import TestCase, trireme

UNIT = trireme.StageCosts(forward=1, input=1, weight=1, kept_bytes=10, held_bytes=10)


def costs(stages, **more):
    return trireme.PipelineCosts([UNIT] * stages, **more)


class InspectTest(TestCase):
    def test_a_broken_rule_is_told_with_its_place(self):
        one = [trireme.PipelineAction("B", 0), trireme.PipelineAction("F", 0)]
        two = [trireme.PipelineAction("F", 1), trireme.PipelineAction("B", 1)]
        with trireme.PipelineSchedule.from_actions([one, two], 1, [0, 1]) as schedule:
            found = schedule.inspect()
            self.assertEqual(found[:5], ("order", 0, 0, one[0], 0))
            self.assertIn("rank 0, action 0 (0B0): comes before 0F0", found.message)
            with self.assertRaises(trireme.InvalidStateError) as caught:
                schedule.check()
            self.assertEqual(str(caught.exception), found.message)
            for call in (
                lambda: schedule.times(0, costs(2)),
                lambda: schedule.critical_path(costs(2)),
            ):
                self.assertRaises(trireme.InvalidStateError, call)
            with self.assertRaises(trireme.InvalidArgumentError):
                schedule.inspect(costs(3))
        with self.assertRaises(trireme.InvalidHandleError):
            schedule.inspect()

    def test_memory_is_a_rule(self):
        schedule = trireme.PipelineSchedule("1f1b", 4, 8)
        found = schedule.inspect(costs(4), limits=[40, 30, 19, 10])
        self.assertEqual((found.rule, found.rank), ("memory", 2))
        found = schedule.inspect(costs(4), limits=[40, 30, 20, 10])
        self.assertEqual((found.rule, found.peak_bytes, found.message), (None, 40, None))
        self.assertEqual(schedule.inspect().peak_bytes, 0)

    def test_an_empty_list_is_not_complete(self):
        schedule = trireme.PipelineSchedule.from_actions([[]], 1, [0])
        self.assertEqual(schedule.inspect().rule, "complete")


class TimesTest(TestCase):
    def test_times_add_up_to_the_report(self):
        # F takes 1 second and B takes 2, on each of 4 ranks for each of 8 micro-batches.
        schedule = trireme.PipelineSchedule("1f1b", 4, 8)
        report = schedule.simulate(costs(4))
        self.assertEqual((report.work, report.idle), (96, 4 * 33 - 96))
        for rank, own in enumerate(report.ranks):
            times = schedule.times(rank, costs(4))
            seconds = [{"F": 1, "B": 2}[action.kind] for action in schedule.actions(rank)]
            self.assertEqual([end - start for start, end in times], seconds)
            self.assertEqual((times[0][0], times[-1][1]), (own.first_start, own.last_end))
            self.assertEqual((own.first_start, own.work), (rank, 24))

    def test_the_critical_path_is_as_long_as_the_step(self):
        for order in ("gpipe", "1f1b", "zb-h1"):
            schedule = trireme.PipelineSchedule(order, 3, 5)
            path = schedule.critical_path(costs(3, latency=2))
            seconds = sum(
                2 if schedule.actions(step.rank)[step.index].kind == "B" else 1 for step in path
            )
            changes = [False, *(one.rank != two.rank for one, two in zip(path, path[1:]))]
            self.assertEqual([step.waited for step in path], changes)
            self.assertIn(True, changes)
            makespan = schedule.simulate(costs(3, latency=2)).makespan
            self.assertEqual(seconds + 2 * sum(changes), makespan)


class OnAxesTest(TestCase):
    """Functions of the caller that compute the products of layers of a Parallel."""

    def test_layers_on_axes_use_the_function(self):
        inputs, outputs = [1.0, 2.0, 3.0], 4
        weight = [[float((3 * row + column) % 7 - 3) for column in range(3)] for row in range(4)]

        def body(group):
            calls = []

            def multiply(p):
                calls.append((p.left_transposed, p.right_transposed))
                for i in range(p.rows):
                    for j in range(p.columns):
                        total = p.result[i * p.result_step + j] if p.add else 0
                        for k in range(p.depth):
                            left = (k, i) if p.left_transposed else (i, k)
                            right = (j, k) if p.right_transposed else (k, j)
                            total += (
                                p.left[left[0] * p.left_step + left[1]]
                                * p.right[right[0] * p.right_step + right[1]]
                            )
                        p.result[i * p.result_step + j] = total

            options = trireme.TensorOptions(gemm=multiply)
            with trireme.Parallel(group, tensor=trireme.REST, tensor_options=options) as parallel:
                tensor = parallel.tensor()
                self.assertEqual(tensor.gemm.kind, "caller")
                own = tensor.range(outputs)
                layer = trireme.ColumnParallelLinear(tensor, "fc", 3, outputs, 1)
                tensor.close()
                del multiply, options, tensor
                gc.collect()  # the function lives as long as the object and the layer
                result = array.array("f", [0] * len(own))
                mine = weight[own.start : own.stop]
                layer.forward(array.array("f", inputs), array.array("f", sum(mine, [])), result)
                wanted = [sum(a * b for a, b in zip(row, inputs)) for row in mine]
                self.assertEqual(list(result), wanted)
                self.assertTrue(calls)
                layer.close()

        self.ranks(2, body)

    def test_an_exception_comes_out_of_the_pass(self):
        def body(group):
            def multiply(product):
                if group.rank == 1:
                    raise ZeroDivisionError("of rank 1")
                product.result[0] = 0

            options = trireme.TensorOptions(gemm=multiply)
            with trireme.Parallel(group, tensor=trireme.REST, tensor_options=options) as parallel:
                with trireme.RowParallelLinear(parallel.tensor(), "row", 2, 1, 1) as layer:
                    one = array.array("f", [1])
                    wanted = ZeroDivisionError if group.rank == 1 else trireme.CallbackError
                    with self.assertRaises(wanted):
                        layer.forward(one, one, array.array("f", [0]))

        self.ranks(2, body)

    def test_a_provider_is_a_name_or_a_function(self):
        with trireme.Communicator(0, 1, "local://python-no-function") as group:
            with self.assertRaises(TypeError):
                trireme.Parallel(group, tensor_options=trireme.TensorOptions(gemm="caller"))
            for nobody in ({"library_name": "libno.so"}, {"gemm_threads": 2}):
                with self.assertRaises(trireme.InvalidArgumentError):
                    trireme.Tensor(group, **nobody)
                with self.assertRaises(trireme.InvalidArgumentError):
                    options = trireme.TensorOptions(**nobody)
                    trireme.Parallel(group, tensor_options=options)


if __name__ == "__main__":
    unittest.main()
