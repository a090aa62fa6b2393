"""Schedules of pipelines, and layers cut to stages."""

import gc
import json
import unittest

from support import TestCase, trireme

UNIT = trireme.StageCosts(forward=1, input=1, weight=1, kept_bytes=10, held_bytes=10)


def costs(stages, **more):
    return trireme.PipelineCosts([UNIT] * stages, **more)


class ScheduleTest(TestCase):
    def test_lists_and_reports(self):
        with trireme.PipelineSchedule("1f1b", 4, 8) as schedule:
            schedule.check(costs(4), limits=[40, 30, 20, 10])
            report = schedule.simulate(costs(4))
            self.assertEqual((report.makespan, report.span, report.lower_bound), (33, 33, 27))
            self.assertEqual([rank.peak_bytes for rank in report.ranks], [40, 30, 20, 10])
            self.assertEqual(schedule.info[:6], (4, 4, 8, 64, "1f1b", False))
            self.assertEqual(schedule.placement, [0, 1, 2, 3])
            self.assertEqual(schedule.actions(3)[:2], [("F", 3, 0, 0), ("B", 3, 0, 0)])
            self.assertEqual(schedule.times(3, costs(4))[:2], [(3, 4), (4, 6)])
            path = schedule.critical_path(costs(4))
            self.assertEqual(path[0], (0, 0, False))
            with self.assertRaises(trireme.InvalidStateError) as caught:
                schedule.check(costs(4), limits=[40, 30, 19, 10])
            self.assertIn("rank 2", str(caught.exception))

    def test_latency_and_buffers_count(self):
        schedule = trireme.PipelineSchedule("gpipe", 2, 3)
        self.assertEqual(schedule.simulate(costs(2, latency=2)).makespan, 12 + 4)
        self.assertGreaterEqual(schedule.simulate(costs(2), buffers=1).makespan, 12)

    def test_texts_read_back(self):
        text = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
        schedule = trireme.PipelineSchedule.parse(text)
        self.assertEqual(schedule.write("csv"), text)
        again = trireme.PipelineSchedule.parse(schedule.write())
        self.assertEqual(again.actions(1), schedule.actions(1))
        self.assertIsNone(again.info.order)
        self.assertTrue(schedule.write("drawing").startswith("rank 0 0F0"))
        self.assertIn("<svg", schedule.write("svg"))
        events = json.loads(schedule.write("trace", costs(2)))["traceEvents"]
        self.assertEqual(len(events), 8)

    def test_own_lists(self):
        one = [trireme.PipelineAction("F", 0), trireme.PipelineAction("B", 0)]
        two = [trireme.PipelineAction("F", 1), trireme.PipelineAction("B", 1)]
        schedule = trireme.PipelineSchedule.from_actions([one, two], 1, [0, 1])
        schedule.check()
        self.assertEqual(schedule.actions(0), one)
        broken = trireme.PipelineSchedule.from_actions([one[::-1], two], 1, [0, 1])
        with self.assertRaises(trireme.InvalidStateError) as caught:
            broken.check()
        self.assertIn("rank 0, action 0 (0B0): comes before 0F0", str(caught.exception))

    def test_best_keeps_what_it_is_given(self):
        for seed in (0, 1):
            gc.collect()
            best = trireme.PipelineSchedule(
                "best", 4, 8, stages_per_rank=2, costs=costs(8), limits=[60] * 4, seed=seed
            )
            self.assertLessEqual(best.info.bound, best.info.value)
            self.assertLessEqual(best.info.value, 53)
            best.check(costs(8), limits=[60] * 4)
        placed = trireme.PipelineSchedule(
            "best", 2, 4, placement=[0, 1, 1, 0, 1], costs=costs(5), objective="span", messages=True
        )
        self.assertEqual(placed.placement, [0, 1, 1, 0, 1])
        self.assertTrue(placed.info.has_messages)

    def test_bad_arguments(self):
        for arguments in (("fastest", 2, 2), ("1f1b", 0, 2), ("1f1b", 2, 0), ("best", 2, 2)):
            with self.assertRaises(trireme.InvalidArgumentError):
                trireme.PipelineSchedule(*arguments)
        with self.assertRaises(trireme.InvalidArgumentError):
            trireme.PipelineSchedule("zbv", 2, 2)
        with self.assertRaises(trireme.InvalidArgumentError):
            trireme.PipelineSchedule.parse("0F")
        schedule = trireme.PipelineSchedule("gpipe", 2, 2)
        with self.assertRaises(trireme.InvalidArgumentError):
            schedule.actions(2)
        with self.assertRaises(trireme.InvalidArgumentError):
            schedule.simulate(costs(3))
        schedule.close()
        with self.assertRaises(trireme.InvalidHandleError):
            schedule.info


class PartitionTest(TestCase):
    def test_layers_are_cut(self):
        layers = [trireme.LayerCosts(seconds, 4) for seconds in (1, 1, 1, 3, 2)]
        self.assertEqual(trireme.partition(layers, 2), ([0, 3, 5], 5))
        folded = trireme.partition(layers, 2, stages_per_rank=2, placement="v")
        self.assertEqual((folded.seconds, folded.cuts[0], folded.cuts[-1]), (4, 0, 5))
        with self.assertRaises(trireme.InvalidArgumentError):
            trireme.partition(layers, 2, limits=[7, 7])
        with self.assertRaises(trireme.InvalidArgumentError):
            trireme.partition(layers, 2, limits=[7])
        with self.assertRaises(trireme.InvalidArgumentError):
            trireme.partition(layers[:1], 2)
        self.assertEqual(trireme.partition(layers[:1], 2, allow_empty=True).seconds, 1)


if __name__ == "__main__":
    unittest.main()
