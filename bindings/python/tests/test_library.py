"""Version, names, capabilities, log and failpoints."""

import threading
import unittest

from support import PATIENCE, TestCase, rendezvous, trireme


class LibraryTest(TestCase):
    def test_the_version_is_that_of_the_headers(self):
        self.assertEqual(trireme.version()[0], 1)
        self.assertEqual(
            trireme.version(), tuple(int(part) for part in trireme.__version__.split("."))
        )

    def test_the_build_info_is_one_line_with_the_version(self):
        info = trireme.build_info()
        self.assertIn(trireme.__version__, info)
        self.assertNotIn("\n", info)

    def test_names_of_numbers_are_the_ones_the_binding_takes(self):
        from trireme import _values
        from trireme._abi.rule_options import RULES

        for name, number in _values.DTYPES.items():
            self.assertEqual(trireme.dtype_name(number), name)
            self.assertEqual(trireme.dtype_name(name), name)
        for name, number in _values.REDUCTIONS.items():
            self.assertEqual(trireme.reduction_name(number), name)
        algorithms = [
            "automatic",
            "direct",
            "ring",
            "halving_doubling",
            "binomial",
            "double_tree",
            "bruck",
            "pairwise",
            "native",
        ]
        self.assertEqual([trireme.algorithm_name(number) for number in range(9)], algorithms)
        self.assertEqual([trireme.algorithm_name(name) for name in algorithms], algorithms)
        for name, number in RULES.items():
            self.assertEqual(trireme.optimizer_name(number), name)
        self.assertEqual(trireme.status_name(-8), "PEER_LOST")
        self.assertEqual(trireme.status_name(0), "OK")

    def test_sizes_of_dtypes(self):
        sizes = {"i8": 1, "u16": 2, "f16": 2, "bf16": 2, "f32": 4, "f64": 8, "bool": 1, "bytes": 1}
        for name, size in sizes.items():
            self.assertEqual(trireme.dtype_size(name), size)

    def test_numbers_that_mean_nothing_have_names_too(self):
        self.assertEqual(trireme.dtype_name(99), "unknown")
        self.assertEqual(trireme.dtype_size(99), 0)
        self.assertEqual(trireme.reduction_name(-3), "unknown")
        self.assertEqual(trireme.algorithm_name(-1), "unknown")
        self.assertEqual(trireme.algorithm_name(99), "unknown")
        self.assertEqual(trireme.strategy_name(99), "unknown")
        self.assertEqual(trireme.optimizer_name(99), "unknown")
        self.assertEqual(trireme.status_name(7), "UNKNOWN")

    def test_strategies_are_known_by_their_usual_names(self):
        for name, proper in {
            "ddp": "data_parallel",
            "FSDP": "zero3",
            "shard_grad_op": "zero2",
            "zero1": "zero1",
        }.items():
            self.assertEqual(trireme.strategy_name(name), proper)
        with self.assertRaisesRegex(trireme.InvalidArgumentError, "zero9"):
            trireme.strategy_name("zero9")

    def test_capabilities_can_be_asked(self):
        self.assertTrue(trireme.supports("all_reduce", dtype="f32", reduction="sum"))
        self.assertTrue(trireme.supports(backend="local", device="host"))
        self.assertFalse(trireme.supports("all_reduce", dtype="f32", reduction="band"))
        with self.assertRaises(trireme.UnsupportedError) as caught:
            trireme.check_support(device="cuda")
        self.assertIn("trireme_capability", caught.exception.message)
        with self.assertRaises(trireme.InvalidArgumentError):
            trireme.check_support("all_reduce", dtype=99)
        with self.assertRaisesRegex(trireme.InvalidArgumentError, "'f33' is none of i8"):
            trireme.supports("all_reduce", dtype="f33")

    def test_numbers_that_do_not_fit_the_abi_are_refused_and_not_cut(self):
        with self.assertRaisesRegex(trireme.InvalidArgumentError, "out of range"):
            trireme.supports(1 << 32)

    def test_a_log_listener_with_a_wrong_level_is_refused(self):
        with self.assertRaises(trireme.InvalidArgumentError):
            trireme.set_log_listener(lambda level, message: None, 77)
        with self.assertRaisesRegex(trireme.InvalidArgumentError, "'loud' is none of error"):
            trireme.set_log_listener(lambda level, message: None, "loud")

    def test_a_log_listener_hears_what_the_library_says_until_it_is_taken_away(self):
        heard = []
        trireme.set_log_listener(lambda level, message: heard.append((level, message)), "debug")
        self.addCleanup(trireme.set_log_listener, None)
        trireme._native.library.trireme_version()
        group = self.alone()
        group.abort("the log test wants a failure")
        with self.assertRaises(trireme.AbortedError):
            group.barrier()
        group.close()
        trireme.set_log_listener(None)
        for level, message in heard:
            self.assertIn(level, ("error", "warning", "info", "debug"))
            self.assertNotIn("\n", message)
        count = len(heard)
        with self.alone() as other:
            other.barrier()
        self.assertEqual(len(heard), count)

    def test_a_rank_that_is_late_is_told_to_the_log(self):
        late = threading.Event()

        def listener(level, message):
            if level == "warning" and "rank 1 has not joined for" in message:
                late.set()

        trireme.set_log_listener(listener, "warning")
        self.addCleanup(trireme.set_log_listener, None)
        name = rendezvous()
        heard = []

        def first():
            with trireme.Communicator(0, 2, name, stall_warning=0.01) as group:
                group.barrier()

        thread = threading.Thread(target=first)
        thread.start()
        heard.append(late.wait(PATIENCE))
        with trireme.Communicator(1, 2, name) as group:
            group.barrier()
            thread.join()
        self.assertEqual(heard, [True])

    def test_a_time_of_warnings_below_zero_is_refused(self):
        with self.assertRaisesRegex(trireme.InvalidArgumentError, "stall_warning -1"):
            trireme.Communicator(0, 1, rendezvous(), stall_warning=-1)


class FailpointTest(TestCase):
    def setUp(self):
        self.addCleanup(trireme.set_failpoints, None)

    def test_failpoints_have_names(self):
        names = trireme.failpoint_names()
        self.assertTrue(names)
        self.assertEqual(len(names), len(set(names)))

    def test_a_failpoint_that_does_not_exist_is_named(self):
        with self.assertRaisesRegex(trireme.InvalidArgumentError, "no.such.place"):
            trireme.set_failpoints("no.such.place=fail")
        with self.assertRaises(trireme.InvalidArgumentError):
            trireme.failpoint_hits("no.such.place")

    def test_setting_begins_to_count_at_zero(self):
        name = trireme.failpoint_names()[0]
        trireme.set_failpoints(f"{name}=sleep(0)")
        self.assertEqual(trireme.failpoint_hits(name), 0)


if __name__ == "__main__":
    unittest.main()
