"""How the tests of jobs wait, and for how long at the most; how they start and end a process."""

import os
import random
import signal
import socket
import time

LONG = 60  # seconds; longer than anything healthy takes on a busy machine


def wait_until(condition, what):
    end = time.monotonic() + LONG
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what} has not come after {LONG} s")
        time.sleep(0.01)


def leftovers():
    """The library's files in places that all processes see. No file of a test has its name."""
    return {
        f"{folder}/{name}"
        for folder in ("/tmp", "/dev/shm")
        for name in os.listdir(folder)
        if "trireme" in name
    }


def wait_until_gone(names):
    """Of new files, those of a test beside this one go away. A file that is left does not."""
    wait_until(lambda: not names & leftovers(), f"the end of {sorted(names)}")


def alive(pid):
    """Zombies are not: who started them has yet to look."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def listens(port):
    """Whether a socket listens on the port, without knocking there."""
    with open("/proc/net/tcp") as table:
        return any(
            f":{port:04X} " in line.split()[1] + " " and line.split()[3] == "0A"
            for line in table.readlines()[1:]
        )


def free_port():
    """On the loopback, and none that the system gives away while the test runs: it gives thousands
    to the tests that run beside it."""
    while True:
        port = random.randrange(20000, 25500)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass  # somebody's


def default_signals():
    """The tests themselves may run under nohup or in the background, where signals are ignored."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def end_now(process):
    if process.poll() is None:
        process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()
