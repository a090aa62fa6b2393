#!/usr/bin/env python3
"""trireme run, whose launcher, agent or whole tree is killed, or gets a signal, in every way that ends a
job from outside. The tests check that no process of it is left, and how soon.

Usage: test_kills.py TRIREME [unittest arguments]
"""

import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from waiting import (
    LONG,
    alive,
    default_signals,
    leftovers,
    listens,
    wait_until,
    wait_until_gone,
)

TRIREME = ""
TOKEN = "a token of the tests, which no job has"
TRIALS = (
    1 if os.environ.get("TRIREME_TEST_QUICK") else 100 if os.environ.get("TRIREME_TEST_LONG") else 4
)  # of each of ten ways
WORKERS = 2  # of a launcher
# Writes its number under its rank, whole from the beginning, and then does nothing for ever.
WORKER = (
    'echo $$ > "$FOLDER/$RANK.tmp"; mv "$FOLDER/$RANK.tmp" "$FOLDER/$RANK.pid"; exec sleep 100000'
)
times = {}


def tree(pid):
    """The process and all below it."""
    found = [pid]
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if int((process / "stat").read_text().rsplit(")", 1)[1].split()[1]) == pid:
                found += tree(int(process.name))
        except (OSError, IndexError):
            pass  # it has ended
    return found


class Kills(unittest.TestCase):
    def start(self, agents, **streams):
        """So many launchers, each with its workers, once all of these run."""
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        port = self.number = getattr(self, "number", 20000 + os.getpid() % 5000) + 1
        address = f"127.{80 + os.getpid() % 100}.{port % 200}.7"
        nodes = (
            ["--nnodes", str(agents), "--rdzv-endpoint", f"{address}:{port}"] if agents > 1 else []
        )
        launchers = []
        for _ in range(agents):
            launchers.append(
                subprocess.Popen(
                    [
                        TRIREME,
                        "run",
                        "--nproc-per-node",
                        str(WORKERS),
                        *nodes,
                        "--",
                        "sh",
                        "-c",
                        WORKER,
                    ],
                    env={**os.environ, "FOLDER": self.folder.name, "TRIREME_TOKEN": TOKEN},
                    stderr=subprocess.DEVNULL,
                    **{"stdout": subprocess.DEVNULL, **streams},
                )
            )
            self.addCleanup(self.end, launchers[-1])
            if agents > 1 and len(launchers) == 1:
                wait_until(lambda: listens(port), "a coordinator")
        files = pathlib.Path(self.folder.name)
        wait_until(lambda: len(list(files.glob("*.pid"))) == agents * WORKERS, "a worker")
        return launchers, [int(file.read_text()) for file in files.glob("*.pid")]

    @staticmethod
    def end(launcher):
        if launcher.poll() is None:
            launcher.kill()
        launcher.wait()

    def ends(self, name, harm, agents=1, **streams):
        """That after harm(launchers) no worker is left, nor a file, nor the launchers."""
        before = leftovers()
        for _ in range(TRIALS):
            launchers, workers = self.start(agents, **streams)
            everybody = {pid for launcher in launchers for pid in tree(launcher.pid)}
            self.assertLessEqual(set(workers), everybody)
            harm(launchers)
            since = time.monotonic()
            while any(alive(pid) for pid in workers):
                if time.monotonic() - since > LONG:
                    self.fail(f"{name}: a worker is left")
                time.sleep(0.001)
            times.setdefault(name, []).append(time.monotonic() - since)
            for launcher in launchers:
                launcher.wait(timeout=LONG)
            wait_until(lambda: not any(alive(pid) for pid in everybody), "the end of every process")
        wait_until_gone(leftovers() - before)

    @staticmethod
    def kill_in_random_order(launchers):
        everybody = [pid for launcher in launchers for pid in tree(launcher.pid)]
        random.shuffle(everybody)
        for pid in everybody:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def test_kill_9_of_the_launcher(self):
        self.ends("kill -9 of the launcher", lambda launchers: launchers[0].kill())

    def test_kill_9_of_the_whole_tree(self):
        self.ends("kill -9 of all in random order", self.kill_in_random_order)

    def test_signals(self):
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            self.ends(number.name, lambda launchers, n=number: launchers[0].send_signal(n))

    def test_kill_9_of_a_launcher_without_streams(self):
        reader, writer = os.pipe()
        os.close(reader)  # its output is not read
        self.addCleanup(os.close, writer)
        self.ends(
            "kill -9, stdin and stdout closed",
            lambda launchers: launchers[0].kill(),
            stdin=subprocess.DEVNULL,
            stdout=writer,
        )

    def test_kill_9_of_an_agent(self):
        self.ends("kill -9 of an agent", lambda launchers: launchers[1].kill(), agents=2)

    def test_kill_9_of_the_coordinator(self):
        self.ends("kill -9 of the coordinator", lambda launchers: launchers[0].kill(), agents=2)

    def test_kill_9_of_all_agents_and_workers(self):
        self.ends("kill -9 of two agents' trees", self.kill_in_random_order, agents=2)

    def test_a_signal_to_an_agent(self):
        self.ends("SIGTERM to an agent", lambda launchers: launchers[1].terminate(), agents=2)


def report():
    every = sorted(value for values in times.values() for value in values)
    if every:
        print(
            f"kill: launchers and agents, {len(every)} jobs ended in {len(times)} ways, 0 workers left after "
            f"{1e3 * every[len(every) // 2]:.1f} ms (p50), {1e3 * every[len(every) * 99 // 100]:.1f} ms (p99), "
            f"{1e3 * every[-1]:.1f} ms (max)",
            flush=True,
        )
    for name, values in sorted(times.items()):
        print(
            f"kill: {name}: {1e3 * sorted(values)[len(values) // 2]:.1f} ms (p50), "
            f"{1e3 * max(values):.1f} ms (max)",
            flush=True,
        )


if __name__ == "__main__":
    TRIREME = os.path.abspath(sys.argv.pop(1))
    default_signals()
    result = unittest.main(verbosity=2, exit=False).result
    report()
    sys.exit(not result.wasSuccessful())
