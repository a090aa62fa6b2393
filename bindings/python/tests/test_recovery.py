"""examples/recovery: whoever dies and whenever, the others end with the bits of one process."""

import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

from support import PACKAGE, PATIENCE, REPOSITORY, TestCase, needs_numpy

PROGRAM = REPOSITORY / "examples/recovery/recovery.py"
LAST = re.compile(r"steps=60 ranks=(\d+) parameters=([0-9a-f]{8})")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Job:
    """Some ranks of the example as processes."""

    def __init__(self, place, ranks, folder, kills=()):
        usual = {name: value for name, value in os.environ.items() if name != "MASTER_ADDR"}
        self.processes = [
            subprocess.Popen(
                [sys.executable, PROGRAM, "--folder", folder, *map(str, kills)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={
                    **usual,
                    "PYTHONPATH": str(PACKAGE),
                    "RANK": str(rank),
                    "WORLD_SIZE": str(ranks),
                    "TRIREME_RENDEZVOUS": place,
                    "TRIREME_TOKEN": "a token for tests of 27 bytes",
                },
            )
            for rank in range(ranks)
        ]

    def end(self):
        """[(exit code, what it wrote)] of the ranks."""
        try:
            said = [process.communicate(timeout=PATIENCE) for process in self.processes]
        finally:
            for process in self.processes:
                process.kill()
        return [(p.returncode, out + errors) for p, (out, errors) in zip(self.processes, said)]


@needs_numpy
class RecoveryTest(TestCase):
    def run_job(self, place, ranks, kills=()):
        with tempfile.TemporaryDirectory() as folder:
            return Job(place, ranks, pathlib.Path(folder), kills).end()

    def wanted(self):
        ((code, said),) = self.run_job(f"host://recovery-alone-{os.getpid()}", 1)
        self.assertEqual(code, 0, said)
        return LAST.search(said).group(2)

    def check(self, ends, victim, ranks, wanted):
        for rank, (code, said) in enumerate(ends):
            self.assertEqual(code, -signal.SIGKILL if rank == victim else 0, f"rank {rank}: {said}")
        said = "".join(text for _, text in ends)
        self.assertEqual(LAST.findall(said), [(str(ranks), wanted)], said)

    def test_nobody_dies(self):
        self.check(self.run_job(f"host://recovery-{os.getpid()}", 3), None, 3, self.wanted())

    def test_a_rank_of_one_host_dies(self):
        wanted = self.wanted()
        for victim, step in ((0, 3), (1, 20), (2, 25)):  # before, right after, between snapshots
            with self.subTest(victim=victim, step=step):
                kills = ("--kill-rank", victim, "--kill-step", step)
                place = f"host://recovery-{os.getpid()}-{victim}"
                self.check(self.run_job(place, 3, kills), victim, 2, wanted)

    def test_a_rank_of_another_host_dies(self):
        wanted = self.wanted()
        for victim, step in ((0, 25), (2, 20)):
            with self.subTest(victim=victim, step=step):
                kills = ("--kill-rank", victim, "--kill-step", step)
                place = f"tcp://127.0.0.1:{free_port()}?host=rank"
                self.check(self.run_job(place, 3, kills), victim, 2, wanted)


if __name__ == "__main__":
    unittest.main()
