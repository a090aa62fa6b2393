"""Groups over a transport that Python functions are."""

import array
import queue
import threading
import unittest

from support import PATIENCE, PACKAGE, WORLD_SIZES  # noqa: F401
import trireme


class Queues:
    """Queues of one process, one for each rank; a rank's transport is one end of them."""

    def __init__(self, world_size):
        self.inboxes = [queue.Queue(64) for _ in range(world_size)]
        self.released = threading.Semaphore(0)

    def end(self, rank):
        return End(self, rank)


class End:
    frame_bytes = 4096

    def __init__(self, queues, rank):
        self.queues = queues
        self.rank = rank
        self.fails = False

    def send(self, to, frame, timeout):
        if self.fails:
            self.fails = False  # the other ranks can still be told
            raise ValueError("no more frames")
        try:
            self.queues.inboxes[to].put((self.rank, frame), timeout=timeout)
            return True
        except queue.Full:
            return False

    def receive(self, timeout):
        try:
            return self.queues.inboxes[self.rank].get(timeout=timeout)
        except queue.Empty:
            return None

    def released(self):
        self.queues.released.release()


def over_transport(world_size, body):
    """Runs body(group, end) on as many threads; answers what each returned or raised."""
    queues = Queues(world_size)
    outcomes = [None] * world_size
    through = threading.Barrier(world_size)

    def rank_main(rank):
        end = queues.end(rank)
        with trireme.Communicator(
            rank, world_size, "transport://python", timeout=PATIENCE, transport=end
        ) as group:
            try:
                outcomes[rank] = body(group, end)
            except BaseException as problem:
                outcomes[rank] = problem
            through.wait(PATIENCE)

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _ in range(world_size):  # the library gives every transport back
        if not queues.released.acquire(timeout=PATIENCE):
            raise AssertionError("a transport was not released")
    return outcomes


class TransportTests(unittest.TestCase):
    def test_operations_go_over_it(self):
        def body(group, end):
            self.assertEqual(group.backend, "frames (transport)")
            data = array.array("d", [group.rank + i for i in range(3000)])
            group.all_reduce(data)
            n = group.world_size
            want = [n * i + n * (n - 1) / 2 for i in range(3000)]
            self.assertEqual(group.statistics().sent_messages > 0, n > 1)
            return data.tolist() == want

        for world_size in WORLD_SIZES:
            with self.subTest(world_size=world_size):
                self.assertEqual(over_transport(world_size, body), [True] * world_size)

    def test_an_exception_in_it_fails_the_group_on_all_ranks(self):
        hook, threading.excepthook = threading.excepthook, lambda arguments: None
        self.addCleanup(setattr, threading, "excepthook", hook)

        def body(group, end):
            group.barrier()
            if group.rank == 1:
                end.fails = True
            data = array.array("f", [1] * 1000)
            while True:
                group.all_reduce(data, reduction="min")

        for problem in over_transport(3, body):
            self.assertIsInstance(problem, trireme.CallbackError)

    def test_what_is_no_transport_is_refused(self):
        end = Queues(1).end(0)
        with self.assertRaises(trireme.InvalidArgumentError):
            trireme.Communicator(0, 1, "local://x", transport=end)
        with self.assertRaises(trireme.InvalidArgumentError):
            trireme.Communicator(0, 1, "transport://x")
        end.frame_bytes = 10
        with self.assertRaises(trireme.InvalidArgumentError):
            trireme.Communicator(0, 1, "transport://x", transport=end)


if __name__ == "__main__":
    unittest.main()
