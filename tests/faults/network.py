"""Two nodes, each in a network namespace of its own, and the cable between them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator

from tests.faults.kills import PAIR
from tests.faults.matrix import fault
from tests.faults.site import Launched, Site, Skipped, expect

ADDRESSES = ("10.199.77.1", "10.199.77.2")
PORT = "29555"


class Nodes:
    """Two namespaces with a pair of virtual network cards."""

    def __init__(self, site: Site) -> None:
        if shutil.which("ip") is None:
            raise Skipped("no command ip (Debian: apt install iproute2)")
        self.site = site
        tail = os.getpid() % 100_000
        self.names = (f"nga{tail}", f"ngb{tail}")
        self.cards = (f"va{tail}", f"vb{tail}")
        for name in self.names:
            self._ip("netns", "add", name)
            site.at_the_end(lambda name=name: self._ip("netns", "del", name))  # type: ignore[misc]
        self._ip("link", "add", self.cards[0], "type", "veth", "peer", "name", self.cards[1])
        for name, card, address in zip(self.names, self.cards, ADDRESSES, strict=True):
            self._ip("link", "set", card, "netns", name)
            self._ip("-n", name, "addr", "add", f"{address}/24", "dev", card)
            self._ip("-n", name, "link", "set", "lo", "up")
            self._ip("-n", name, "link", "set", card, "up")

    def _ip(self, *arguments: str) -> None:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Skipped(f"ip {' '.join(arguments)}: {done.stderr.strip()}")

    def cable(self, state: str) -> None:
        """Cuts ("down") or mends ("up") the connection."""
        self._ip("-n", self.names[1], "link", "set", self.cards[1], state)

    def start(self) -> Iterator[Launched]:
        """A launcher on each node, the same command."""
        for rank, (name, card) in enumerate(zip(self.names, self.cards, strict=True)):
            place = {"MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": PORT, "NODE_RANK": str(rank)}
            card_of = {"GLOO_SOCKET_IFNAME": card, "TP_SOCKET_IFNAME": card}
            command = ["ip", "netns", "exec", name, *self.site.command(PAIR, "hardware.nodes=2")]
            yield self.site.start(command, place | card_of)


@fault(
    "two nodes, of which one is cut off",
    "both end with exit status 1 and no process left; connected again, to the same bits",
    tries=1,
    quick=1,
    limit_s=300,
)
def node_cut_off(site: Site, tries: int) -> None:
    reference = site.reference(PAIR)
    nodes = Nodes(site)
    for _ in range(tries):
        with site.attempt("the cable is cut"):
            first, second = nodes.start()
            first.until(lambda: site.step() >= 10)
            nodes.cable("down")
            site.expect_exit(first, 1, limit=120)
            site.expect_exit(second, 1, limit=120)
            site.expect_no_process(10)
            kind = site.status().kind
            expect(kind == "failed", f"the status is {kind!r} instead of 'failed'")
        nodes.cable("up")
    with site.attempt("connected again, to the end"):
        for launched in [*nodes.start()]:
            site.expect_exit(launched, 0)
        site.expect_as(reference)
