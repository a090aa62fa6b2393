"""Started operations: waiting, asyncio, callbacks, cancelling, and the life of their memory."""

import array
import asyncio
import gc
import select
import threading
import time
import unittest
import weakref

from support import PATIENCE, TestCase, run_ranks, trireme


class Bytes(bytearray):
    """A bytearray that weak references can watch."""


class RequestTest(TestCase):
    def test_every_operation_can_be_started(self):
        def body(group):
            size, rank = group.world_size, group.rank
            reduced = array.array("i", [rank + 1])
            block = array.array("i", [0])
            block_v = array.array("i", [0])
            gathered = array.array("i", bytes(4 * size))
            gathered_v = array.array("i", bytes(4 * size))
            given = array.array("i", [42 if rank == 0 else 0])
            received = array.array("i", [0])
            ones = [1] * size
            requests = [
                group.start_all_reduce(reduced),
                group.start_reduce_scatter(array.array("i", range(size)), block),
                group.start_reduce_scatter_v(array.array("i", range(size)), block_v, ones),
                group.start_all_gather(array.array("i", [rank]), gathered),
                group.start_all_gather_v(array.array("i", [rank]), gathered_v, ones),
                group.start_broadcast(given),
                group.start_barrier(),
                group.start_send(array.array("i", [rank]), (rank + 1) % size),
                group.start_receive(received, (rank - 1) % size),
            ]
            for request in requests:
                request.wait()
            self.assertTrue(all(request.test() for request in requests))
            return [
                data.tolist()
                for data in (reduced, block, block_v, gathered, gathered_v, given, received)
            ]

        for rank, result in enumerate(self.ranks(3, body)):
            everyone = [0, 1, 2]
            want = [[6], [3 * rank], [3 * rank], everyone, everyone, [42], [(rank - 1) % 3]]
            self.assertEqual(result, want)

    def test_a_wait_that_times_out_leaves_the_operation_running(self):
        done = threading.Event()

        def body(group):
            data = bytearray(1)
            if group.rank == 1:
                done.wait(PATIENCE)
                group.send(b"x", 0)
                return None
            request = group.start_receive(data, 1)
            with self.assertRaises(trireme.TimeoutError):
                request.wait(0.01)
            with self.assertRaises(TimeoutError):  # also the one everybody knows
                request.wait(0)
            self.assertFalse(request.test())
            done.set()
            request.wait(PATIENCE)
            return bytes(data)

        self.assertEqual(self.ranks(2, body)[0], b"x")

    def test_an_operation_that_runs_out_of_time_says_so_through_its_request(self):
        def body(group):
            if group.rank == 1:
                return None
            request = group.start_receive(bytearray(1), 1, timeout=0.05)
            with self.assertRaises(trireme.TimeoutError) as caught:
                request.wait()
            with self.assertRaises(trireme.TimeoutError):
                request.test()
            return caught.exception

        failure = run_ranks(2, body)[0]
        self.assertIsInstance(failure, trireme.TimeoutError)
        self.assertEqual((failure.operation, failure.blamed), ("receive", (1,)))

    def test_wait_any_answers_the_lowest_that_is_done(self):
        ready = threading.Event()

        def body(group):
            if group.rank == 1:
                group.send(b"b", 0, tag=2)
                ready.wait(PATIENCE)
                group.send(b"a", 0, tag=1)
                return None
            requests = [
                group.start_receive(bytearray(1), 1, tag=1),
                group.start_receive(bytearray(1), 1, tag=2),
            ]
            first = trireme.wait_any(requests)
            with self.assertRaises(trireme.TimeoutError):
                trireme.wait_any(requests[:1], 0.01)
            ready.set()
            requests[0].wait()
            return first, trireme.wait_any(requests, PATIENCE)

        self.assertEqual(self.ranks(2, body)[0], (1, 0))

    def test_wait_any_of_nothing_is_refused(self):
        with self.assertRaises(trireme.InvalidArgumentError):
            trireme.wait_any([])

    def test_an_unmatched_message_can_be_cancelled_and_the_group_lives_on(self):
        def body(group):
            if group.rank == 0:
                request = group.start_receive(bytearray(1), 1)
                request.cancel()
                with self.assertRaises(trireme.CancelledError):
                    request.wait()
                with self.assertRaises(trireme.InvalidStateError):
                    request.cancel()
            data = array.array("i", [1])
            group.all_reduce(data)
            return data[0]

        self.assertEqual(self.ranks(2, body), [2, 2])

    def test_a_finished_operation_cannot_be_cancelled(self):
        request = self.alone().start_barrier()
        request.wait()
        with self.assertRaises(trireme.InvalidStateError):
            request.cancel()

    def test_the_descriptor_becomes_readable(self):
        go = threading.Event()

        def body(group):
            if group.rank == 1:
                go.wait(PATIENCE)
                group.send(b"x", 0)
                return None
            request = group.start_receive(bytearray(1), 1)
            descriptor = request.fileno()
            before, _, _ = select.select([request], [], [], 0)
            go.set()
            after, _, _ = select.select([request], [], [], PATIENCE)
            self.assertEqual(request.fileno(), descriptor)
            return before, after == [request], request.test()

        self.assertEqual(self.ranks(2, body)[0], ([], True, True))

    def test_requests_can_be_awaited(self):
        def body(group):
            async def main():
                data = array.array("i", [group.rank])
                await group.start_all_reduce(data)
                request = group.start_barrier()
                await asyncio.gather(request, request)  # two tasks, one request
                await request  # done already
                return data[0]

            return asyncio.run(main())

        self.assertEqual(self.ranks(3, body), [3, 3, 3])

    def test_an_await_raises_what_the_operation_failed_with(self):
        def body(group):
            async def main():
                await group.start_receive(bytearray(1), 1, timeout=0.05)

            if group.rank == 0:
                with self.assertRaises(trireme.TimeoutError):
                    asyncio.run(main())

        self.ranks(2, body)

    def test_a_cancelled_await_leaves_the_operation_running(self):
        go = threading.Event()

        def body(group):
            if group.rank == 1:
                go.wait(PATIENCE)
                group.send(b"x", 0)
                return None
            data = bytearray(1)
            request = group.start_receive(data, 1)

            async def main():
                with self.assertRaises(asyncio.TimeoutError):
                    await asyncio.wait_for(request._finish(), 0.02)

            asyncio.run(main())
            go.set()
            request.wait()
            return bytes(data)

        self.assertEqual(self.ranks(2, body)[0], b"x")

    def test_a_completion_is_told_once_with_none_or_the_failure(self):
        def body(group):
            told, event = [], threading.Event()

            def finished(failure):
                told.append(failure)
                event.set()

            request = group.start_barrier()
            request.on_complete(finished)
            with self.assertRaises((trireme.InvalidStateError)):
                request.on_complete(finished)
            request.wait()
            self.assertTrue(event.wait(PATIENCE))
            if group.rank == 0:
                event.clear()
                group.start_receive(bytearray(1), 1, timeout=0.05).on_complete(finished)
                gc.collect()  # the request itself is gone; the call still comes
                self.assertTrue(event.wait(PATIENCE))
            return told

        first, second = self.ranks(2, body)
        self.assertEqual((first[0], second), (None, [None]))
        self.assertEqual(len(first), 2)
        self.assertIsInstance(first[1], trireme.TimeoutError)
        self.assertEqual(first[1].blamed, (1,))

    def test_what_a_completion_raises_does_not_pass_through_the_library(self):
        text = """
import sys, threading, trireme
heard = threading.Event()
threading.excepthook = lambda info: (print(repr(info.exc_value)), heard.set())
def broken(failure):
    raise RuntimeError("broken callback")
with trireme.Communicator(0, 1, "local://x") as group:
    request = group.start_barrier()
    request.on_complete(broken)
    request.wait()
    heard.wait(60)
    group.barrier()
"""
        self.assertEqual(self.passes(text).strip(), "RuntimeError('broken callback')")

    def test_a_completion_must_be_callable(self):
        request = self.alone().start_barrier()
        with self.assertRaises(TypeError):
            request.on_complete(5)
        request.wait()


class LifetimeTest(TestCase):
    def test_memory_of_a_dropped_request_lives_until_the_operation_is_done(self):
        go = threading.Event()

        def body(group):
            if group.rank == 1:
                go.wait(PATIENCE)
                group.send(b"hello", 0)
                group.barrier()
                return None
            data = Bytes(5)
            watch = weakref.ref(data)
            request = group.start_receive(data, 1)
            del data, request
            gc.collect()
            alive = watch() is not None
            go.set()
            group.barrier()
            end = time.monotonic() + PATIENCE
            while watch() is not None and time.monotonic() < end:
                group.start_send(b"", 0, tag=9)  # any start looks after what was dropped
                group.receive(bytearray(0), 0, tag=9)
                gc.collect()
            return alive, watch() is None

        self.assertEqual(self.ranks(2, body)[0], (True, True))

    def test_memory_is_let_go_once_the_request_is_known_to_be_done(self):
        group = self.alone()
        data = Bytes(5)
        watch = weakref.ref(data)
        request = group.start_all_reduce(data)
        request.wait()
        del data
        gc.collect()
        self.assertIsNone(watch())
        self.assertTrue(request.test())

    def test_a_bytearray_cannot_be_resized_under_a_running_operation(self):
        def body(group):
            if group.rank == 1:
                return
            data = bytearray(5)
            request = group.start_receive(data, 1)
            with self.assertRaises(BufferError):
                data.extend(b"more")
            request.cancel()
            with self.assertRaises(trireme.CancelledError):
                request.wait()
            data.extend(b"more")

        self.ranks(2, body)

    def test_a_request_keeps_its_group(self):
        data = array.array("i", [5])
        request = trireme.Communicator(0, 1, "local://keeps").start_all_reduce(data)
        gc.collect()
        request.wait()
        self.assertEqual(data[0], 5)

    def test_objects_go_in_any_order(self):
        import itertools

        for order in itertools.permutations(range(5)):
            group = self.alone()
            model = trireme.Model(group, "zero3")
            model.add_parameter("a", [3])
            model.seal()
            optimizer = trireme.Optimizer(model, lambda update: None)
            things = [group, model, optimizer, trireme.Buffer(group, 64), group.start_barrier()]
            del group, model, optimizer
            for index in order:
                things[index] = None
                gc.collect(0)

    def test_objects_in_a_cycle_are_collected(self):
        group = self.alone()
        buffer = trireme.Buffer(group, 64)
        watch = weakref.ref(buffer)
        cycle = [buffer]
        cycle.append(cycle)
        del buffer, cycle
        gc.collect()
        self.assertIsNone(watch())


class ExitTest(TestCase):
    """A program may end at any moment."""

    START = "import array, sys, threading, trireme\n"

    def test_with_an_operation_under_way(self):
        self.passes(
            self.START
            + """
group = trireme.Communicator(0, 2, "local://exit")
data = bytearray(1 << 20)
request = group.start_all_reduce(data)
"""
        )

    def test_with_everything_still_open(self):
        self.passes(
            self.START
            + """
group = trireme.Communicator(0, 1, "local://exit")
model = trireme.Model(group, "zero2")
model.add_parameter("a", [3])
model.seal()
optimizer = trireme.Optimizer(model, lambda update: None)
buffer = trireme.Buffer(group, 100)
view = buffer.view("f32")
parameter = model.parameter("a")
requests = [group.start_barrier() for _ in range(10)]
"""
        )

    def test_with_a_daemon_thread_inside_a_call(self):
        self.passes(
            self.START
            + """
group = trireme.Communicator(0, 2, "local://exit")
entered = threading.Event()
def wait():
    entered.set()
    try:
        group.barrier()
    except trireme.TriremeError:
        pass
threading.Thread(target=wait, daemon=True).start()
entered.wait()
"""
        )

    def test_with_a_completion_that_was_not_told_yet(self):
        output = self.passes(
            self.START
            + """
group = trireme.Communicator(0, 2, "local://exit")
request = group.start_all_reduce(bytearray(8))
request.on_complete(lambda failure: print("told", type(failure).__name__))
"""
        )
        self.assertRegex(output, r"^told \w+Error\n$")

    def test_with_completions_that_are_being_told(self):
        text = (
            self.START
            + """
group = trireme.Communicator(0, 2, "local://exit")
def slow(failure):
    total = sum(range(int(sys.argv[1])))
    sys.stdout.write("told\\n")
for i in range(20):
    group.start_all_reduce(bytearray(8)).on_complete(slow)
"""
        )
        for work in (0, 1000, 100000, 1000000):
            self.assertEqual(self.passes(text, str(work)), "told\n" * 20)

    def test_with_a_daemon_thread_inside_a_rule(self):
        self.passes(
            self.START
            + """
entered = threading.Event()
def rule(update):
    entered.set()
    sum(range(300000))
def train():
    group = trireme.Communicator(0, 1, "local://exit")
    model = trireme.Model(group, "zero1")
    model.add_parameter("weight", [3])
    model.seal()
    optimizer = trireme.Optimizer(model, rule)
    while True:
        model.accumulate_flat(array.array("f", [1, 2, 3]))
        optimizer.step()
def train_until_the_end():
    try:
        train()
    except trireme.TriremeError:
        pass
threading.Thread(target=train_until_the_end, daemon=True).start()
entered.wait()
"""
        )

    def test_with_a_daemon_thread_inside_a_schedule(self):
        self.passes(
            self.START
            + """
entered = threading.Event()
def factor(step):
    entered.set()
    sum(range(3000000))
    return 1.0
def train():
    group = trireme.Communicator(0, 1, "local://exit")
    model = trireme.Model(group, "zero1", update_in_backward=True)
    model.add_parameter("weight", [3])
    model.seal()
    optimizer = trireme.Optimizer(model, "sgd")
    optimizer.set_schedule(trireme.Schedule(factor))
    while True:
        model.begin_backward()
        model.gradient_ready("weight", array.array("f", [1, 2, 3]))
        model.end_backward()
        optimizer.step()
def train_until_the_end():
    try:
        train()
    except trireme.TriremeError:
        pass
threading.Thread(target=train_until_the_end, daemon=True).start()
entered.wait()
"""
        )

    def test_with_a_log_listener(self):
        self.passes(
            self.START
            + """
trireme.set_log_listener(lambda level, line: None, "debug")
group = trireme.Communicator(0, 2, "local://exit")
request = group.start_barrier()
"""
        )

    def test_by_an_exception_in_a_with_block(self):
        self.passes(
            self.START
            + """
try:
    with trireme.Communicator(0, 2, "local://exit") as group:
        group.start_barrier()
        raise KeyError("mine")
except KeyError:
    pass
assert group.closed
"""
        )

    def test_by_exit_in_a_thread(self):
        self.passes(
            self.START
            + """
def work():
    with trireme.Communicator(0, 1, "local://exit") as group:
        group.barrier()
        sys.exit(3)
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
        )


class ForkTest(TestCase):
    def test_objects_of_before_a_fork_are_refused_in_the_child(self):
        text = """
import os, sys, trireme
group = trireme.Communicator(0, 2, "local://fork")
request = group.start_all_reduce(bytearray(8))
buffer = trireme.Buffer(group, 8)
child = os.fork()
if child == 0:
    for call in (group.barrier, request.test, request.wait, group.abort,
                 lambda: trireme.Buffer(group, 1), lambda: trireme.Model(group, "zero1")):
        try:
            call()
        except trireme.InvalidHandleError as problem:
            assert "fork" in problem.message, problem.message
        else:
            os._exit(1)
    try:
        trireme.Communicator(0, 1, "local://child")
    except trireme.InvalidStateError as problem:
        assert "forked" in problem.message, problem.message
    else:
        os._exit(2)
    del request
    group.close()
    sys.exit(0)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
assert not request.test()
"""
        self.passes(text)


if __name__ == "__main__":
    unittest.main()
