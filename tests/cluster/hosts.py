"""Hosts that are none: network namespaces of this machine, joined by a switch.

    with Hosts(2) as hosts:
        job = hosts.popen(0, ["trireme", ...])      # as on a machine of its own
        hosts.cut(1)                                # its packets go nowhere, without an error

`links`: each host has so many networks, eth0, eth1, ...; each is a switch of its own.

The namespaces have no names: each lives as long as a process that does nothing, and that dies with
this one. Nothing is left behind, however it ends.
"""

import ctypes
import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import unittest

from waiting import end_now, wait_until


def missing():
    """Why there can be no hosts here, or ""."""
    for tool in ("ip", "unshare", "nsenter"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    probe = subprocess.run(["unshare", "-n", "true"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        return f"network namespaces are not permitted: {probe.stderr.strip()}"
    probe = subprocess.run(
        ["unshare", "-n", "ip", "link", "add", "name", "probe", "type", "bridge"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"no bridge can be made: {probe.stderr.strip()}" if probe.returncode != 0 else ""


def _die_with_parent():
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG


class _Namespace:
    def __init__(self):
        self.keeper = subprocess.Popen(
            ["unshare", "-n", "sleep", "infinity"], preexec_fn=_die_with_parent
        )
        own = os.readlink("/proc/self/ns/net")
        wait_until(
            lambda: os.readlink(f"/proc/{self.keeper.pid}/ns/net") != own, "a network namespace"
        )

    def command(self, program):
        return ["nsenter", "-t", str(self.keeper.pid), "-n", "--", *program]

    def ip(self, *words):
        subprocess.run(self.command(["ip", *words]), check=True, capture_output=True, text=True)

    def close(self):
        self.keeper.kill()
        self.keeper.wait()


class Hosts:
    def __init__(self, count, links=1):
        why = missing()
        if why:
            raise unittest.SkipTest(f"no hosts: {why}")
        self.links = links
        self.addresses = [self.address(number, 0) for number in range(count)]
        self.jobs = []
        self.spaces = []
        try:
            self.switch = self._space()
            for link in range(links):
                self.switch.ip("link", "add", "name", f"switch{link}", "type", "bridge")
                self.switch.ip("link", "set", f"switch{link}", "up")
            self.hosts = [self._host(number) for number in range(count)]
        except BaseException:
            self.close()
            raise

    def _space(self):
        self.spaces.append(_Namespace())
        return self.spaces[-1]

    def address(self, number, link):
        return f"10.77.{link}.{number + 1}"

    def _host(self, number):
        host = self._space()
        host.ip("link", "set", "lo", "up")
        for link in range(self.links):
            port, name = self._port(number, link), f"eth{link}"
            keeper = str(host.keeper.pid)
            pair = ["type", "veth", "peer", "name", name, "netns", keeper]
            self.switch.ip("link", "add", port, *pair)
            self.heal(number, link)
            self.switch.ip("link", "set", port, "up")
            host.ip("addr", "add", self.address(number, link) + "/24", "dev", name)
            host.ip("link", "set", name, "up")
        return host

    def _port(self, number, link):
        return f"port{number}.{link}"

    def limit(self, link, rate):
        """Each host sends no more over that network: "1gbit". Skips the test where that cannot be."""
        for host in self.hosts:
            bucket = ["tbf", "rate", rate, "burst", "256kb", "latency", "20ms"]
            made = subprocess.run(
                host.command(["tc", "qdisc", "add", "dev", f"eth{link}", "root", *bucket]),
                check=False,
                capture_output=True,
                text=True,
            )
            if made.returncode != 0:
                raise unittest.SkipTest(f"no limits: {made.stderr.strip()}")

    def sent_bytes(self, number, link):
        """By the kernel's count of that host's interface."""
        said = self.run(
            number, ["ip", "-j", "-s", "link", "show", f"eth{link}"], capture_output=True, text=True
        )
        assert said.returncode == 0, said.stderr
        return json.loads(said.stdout)[0]["stats64"]["tx"]["bytes"]

    def popen(self, number, program, **settings):
        job = subprocess.Popen(self.hosts[number].command(program), **settings)
        self.jobs.append(job)
        return job

    def run(self, number, program, **settings):
        return subprocess.run(self.hosts[number].command(program), check=False, **settings)

    def mpirun(self, name, each, folder):
        """The beginning of a command, for the first host, by which the MPI of that name starts `each`
        ranks on every host. `folder` gets the script by which they are started. Ranks of Open MPI
        reach each other over the network alone. Those of MPICH 4.0 do as UCX likes, which is memory
        that these hosts share: over its TCP MPI_Finalize often never comes back, in any program."""
        script = pathlib.Path(folder, "start-on-host")
        cases = [
            f'{address}) exec {shlex.join(host.command(["sh", "-c"]))} "$*" ;;'
            for address, host in zip(self.addresses, self.hosts)
        ]
        script.write_text(
            "\n".join(
                [
                    "#!/bin/sh",
                    "host=$1",
                    "shift",
                    'case "$host" in',
                    *cases,
                    "esac",
                    'echo "no such host: $host" >&2',
                    "exit 1",
                    "",
                ]
            )
        )
        script.chmod(0o755)
        where = ",".join(f"{address}:{each}" for address in self.addresses)
        ranks = ["-np", str(each * len(self.hosts))]
        if name == "mpich":
            return [
                "mpirun.mpich",
                "-launcher",
                "rsh",
                "-launcher-exec",
                str(script),
                "-hosts",
                where,
                "-iface",
                "eth0",
                *ranks,
            ]
        settings = {
            "plm_rsh_agent": script,
            "oob_tcp_if_include": "eth0",
            "pml": "ob1",
            "btl": "tcp,self",
            "btl_tcp_if_include": "eth0",
        }
        # Each host's ranks would be bound to the first cores, which are all hosts'.
        return [
            "mpirun.openmpi",
            "--allow-run-as-root",
            "--oversubscribe",
            "--bind-to",
            "none",
            "--host",
            where,
            *ranks,
            *(str(word) for setting in settings.items() for word in ("--mca", *setting)),
        ]

    def cut(self, number, link=0):
        """No packet comes or goes any more; the link still looks up."""
        self.switch.ip("link", "set", self._port(number, link), "nomaster")

    def heal(self, number, link=0):
        self.switch.ip("link", "set", self._port(number, link), "master", f"switch{link}")

    def close(self):
        for job in self.jobs:
            end_now(job)
        for space in self.spaces:
            space.close()

    def __enter__(self):
        return self

    def __exit__(self, *what):
        self.close()
