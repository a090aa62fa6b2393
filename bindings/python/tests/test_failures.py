"""A failure between ranks raises the right exception, with the ranks to blame."""

import array
import threading
import unittest

from support import PATIENCE, TestCase, rendezvous, run_ranks, trireme


class FailureTest(TestCase):
    def failures(self, world_size, body, kind, **options):
        """The exceptions that body raised on each rank; they must be of one kind everywhere."""
        outcomes = run_ranks(world_size, body, **options)
        for rank, outcome in enumerate(outcomes):
            if isinstance(outcome, BaseException) and not isinstance(outcome, trireme.TriremeError):
                raise outcome
            self.assertIsInstance(outcome, kind, f"rank {rank}")
        return outcomes

    def test_a_rank_that_never_joins_is_named(self):
        with trireme.Communicator(0, 2, rendezvous(), name="lonely") as group:
            with self.assertRaises(trireme.TimeoutError) as caught:
                group.wait_ready(0.05)
            failure = caught.exception
            self.assertEqual((failure.code, failure.status), (-6, "TIMEOUT"))
            self.assertEqual((failure.blamed, failure.blamed_count), ((1,), 1))
            self.assertIn("1", str(failure))
            with self.assertRaises(trireme.TimeoutError) as caught:
                group.all_reduce(bytearray(1), timeout=0.05)
            failure = caught.exception
            self.assertEqual(failure.blamed, (1,))
            self.assertEqual((failure.operation, failure.sequence), ("all_reduce", 1))
            self.assertEqual(failure.communicator, "lonely")

    def test_ranks_that_do_not_call_are_named_at_the_deadline(self):
        over = threading.Event()

        def body(group):
            group.barrier()
            if group.rank in (1, 3):
                over.wait(PATIENCE)
                return None
            try:
                group.barrier(timeout=0.2)
            finally:
                if group.rank == 0:
                    over.set()

        outcomes = run_ranks(4, body)
        for rank in (0, 2):
            self.assertIsInstance(outcomes[rank], trireme.TimeoutError)
        # The first to give up names those that are missing; the others may hear it from that rank.
        self.assertIn((1, 3), [outcomes[rank].blamed for rank in (0, 2)])

    def test_a_disagreement_is_told_on_both_sides(self):
        cases = {
            "count": lambda group: group.all_reduce(bytearray(8 + group.rank)),
            "dtype": lambda group: group.all_reduce(array.array("fi"[group.rank], [1, 2])),
            "reduction": lambda group: group.all_reduce(
                bytearray(8), reduction=("sum", "max")[group.rank]
            ),
            "root": lambda group: group.broadcast(bytearray(8), group.rank),
            "operation": lambda group: (
                group.barrier() if group.rank else group.all_reduce(bytearray(8))
            ),
        }
        for what, body in cases.items():
            with self.subTest(what):
                failures = self.failures(2, body, trireme.MismatchError)
                for failure in failures:
                    self.assertEqual((failure.code, failure.sequence), (-9, 1))
                    self.assertTrue(failure.message)

    def test_a_message_of_another_length_is_a_mismatch(self):
        def body(group):
            if group.rank == 0:
                group.start_send(b"four", 1)
                return None
            with self.assertRaises(trireme.MismatchError) as caught:
                group.receive(bytearray(5), 0)
            return caught.exception.message

        message = run_ranks(2, body)[1]
        self.assertIn("4", message)
        self.assertIn("5", message)

    def test_a_failed_group_gives_the_same_answer_from_then_on(self):
        def body(group):
            kinds = []
            for _ in range(3):
                try:
                    group.all_reduce(bytearray(8 + group.rank))
                except trireme.TriremeError as problem:
                    kinds.append(type(problem))
            return kinds

        for kinds in self.ranks(2, body):
            self.assertEqual(kinds, [trireme.MismatchError] * 3)

    def test_a_rank_that_leaves_is_named(self):
        name = rendezvous()
        gone = threading.Event()
        caught = []

        def stay():
            with trireme.Communicator(0, 2, name, timeout=PATIENCE) as group:
                group.barrier()
                gone.wait(PATIENCE)
                try:
                    group.barrier()
                except trireme.PeerLostError as problem:
                    caught.append(problem)

        def leave():
            with trireme.Communicator(1, 2, name, timeout=PATIENCE) as group:
                group.barrier()
                ready.wait(PATIENCE)
            gone.set()

        ready = threading.Event()
        threads = [threading.Thread(target=stay), threading.Thread(target=leave)]
        for thread in threads:
            thread.start()
        ready.set()
        for thread in threads:
            thread.join()
        self.assertEqual([problem.blamed for problem in caught], [(1,)])
        self.assertEqual(caught[0].status, "PEER_LOST")

    def test_an_abort_ends_what_waits_on_every_rank_with_its_reason(self):
        def body(group):
            if group.rank == 2:
                group.wait_ready(PATIENCE)
                group.abort("the loss is not a number")
            group.barrier()

        for failure in self.failures(3, body, trireme.AbortedError):
            self.assertIn("the loss is not a number", failure.message)
            self.assertEqual(failure.blamed, (2,))

    def test_ranks_of_two_sizes_do_not_form_a_group(self):
        name = rendezvous()
        with trireme.Communicator(0, 2, name):
            with self.assertRaises(trireme.MismatchError):
                trireme.Communicator(1, 3, name)

    def test_exceptions_carry_what_a_program_needs(self):
        with self.assertRaises(ValueError) as caught:  # InvalidArgumentError is one
            self.alone().all_reduce(bytearray(1), reduction=99)
        failure = caught.exception
        self.assertIsInstance(failure, trireme.TriremeError)
        self.assertTrue(failure.message.startswith("trireme_all_reduce: "), failure.message)
        self.assertIn("99", failure.message)
        self.assertEqual(str(failure), failure.message)
        self.assertEqual((failure.code, failure.status), (-1, "INVALID_ARGUMENT"))
        self.assertEqual((failure.blamed, failure.system_error), ((), 0))

    def test_each_status_has_a_class(self):
        from trireme import _errors, _native

        codes = {
            value
            for name, value in vars(_native).items()
            if name.startswith("TRIREME_ERROR_") and isinstance(value, int)
        }
        self.assertEqual(set(_errors._CLASSES), codes)
        self.assertEqual(len(set(_errors._CLASSES.values())), len(codes))
        for code, kind in _errors._CLASSES.items():
            self.assertEqual(str(kind("a message", code)), "a message")
            self.assertTrue(issubclass(kind, trireme.TriremeError))

    def test_two_threads_have_their_own_last_error(self):
        def body(group):
            messages = []
            for _ in range(200):
                try:
                    group.all_reduce(bytearray(1), reduction=90 + group.rank)
                except trireme.InvalidArgumentError as problem:
                    messages.append(problem.message)
            return messages

        for rank, messages in enumerate(self.ranks(3, body)):
            self.assertEqual(len(messages), 200)
            for message in messages:
                self.assertIn(str(90 + rank), message)


if __name__ == "__main__":
    unittest.main()
