"""The cable between the machine and its node, and the one rule that lets Pods out."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from localcluster import namespaces, shell
from localcluster.namespaces import Process
from localcluster.settings import NODE_POD_CIDR, ClusterError, Settings

# 10.213.0.0/16 in pieces of four addresses: one piece a cluster.
CABLES = ipaddress.ip_network("10.213.0.0/16")
INTERFACE_PREFIX = "sea"
IP_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
FORWARD_BEFORE = Path("/run/seatrial-ip-forward-before")
"""The machine's own setting, kept by the first cluster and given back by the last."""


@dataclass(frozen=True)
class Cable:
    subnet: ipaddress.IPv4Network

    @property
    def host_ip(self) -> str:
        return str(self.subnet[1])

    @property
    def node_ip(self) -> str:
        return str(self.subnet[2])


def choose_cable(ident: str, *, taken: Iterable[str]) -> Cable:
    """A piece of the network that nobody on the machine uses, the same each time if it is free.

    Args:
        ident: eight hexadecimal digits of the cluster.
        taken: addresses and networks in use, as in "192.0.2.0/24".
    """
    used = [ipaddress.ip_network(entry, strict=False) for entry in taken]
    pieces = list(CABLES.subnets(new_prefix=30))
    start = int(ident, 16) % len(pieces)
    for subnet in pieces[start:] + pieces[:start]:
        if isinstance(subnet, ipaddress.IPv4Network) and not any(subnet.overlaps(other) for other in used if other.version == 4):
            return Cable(subnet)
    raise ClusterError(f"no free piece of {CABLES} on this machine; end clusters that are no longer needed")


def taken_networks() -> list[str]:
    """Networks of the machine's routes, the default route apart."""
    routes = json.loads(shell.run(["ip", "-json", "-4", "route", "show", "table", "all"]))
    return [route["dst"] for route in routes if route["dst"] != "default"]


def machine_mtu() -> int:
    """MTU of the interface with the default route; 1500 without one."""
    routes = json.loads(shell.run(["ip", "-json", "-4", "route", "show", "default"]))
    for route in routes:
        for link in json.loads(shell.run(["ip", "-json", "link", "show", "dev", route["dev"]])):
            return int(link["mtu"])
    return 1500


def interface(settings: Settings) -> str:
    """Name of the machine's end of the cable; at most 15 characters are allowed."""
    return f"{INTERFACE_PREFIX}{settings.ident}"


def firewall_rules(settings: Settings, cable: Cable) -> list[list[str]]:
    """The machine's iptables rules of this cluster: table, chain, then the rule."""
    comment = ["-m", "comment", "--comment", settings.name]
    name = interface(settings)
    return [
        ["nat", "POSTROUTING", "-s", str(cable.subnet), "!", "-d", str(cable.subnet), *comment, "-j", "MASQUERADE"],
        ["filter", "FORWARD", "-i", name, *comment, "-j", "ACCEPT"],
        ["filter", "FORWARD", "-o", name, *comment, "-j", "ACCEPT"],
    ]


def connect(settings: Settings, cable: Cable, *, init: Process, mtu: int) -> None:
    """Lay the cable to a node that has just started, and let it out."""
    name = interface(settings)
    if not shell.succeeds(["ip", "link", "show", "dev", name]):
        shell.run(
            ["ip", "link", "add", name, "mtu", str(mtu), "type", "veth", "peer", "name", "eth0", "mtu", str(mtu), "netns", str(init.pid)]
        )
        shell.run(["ip", "address", "add", f"{cable.host_ip}/30", "dev", name])
        shell.run(["ip", "link", "set", name, "up"])
        for words in (
            ["address", "add", f"{cable.node_ip}/30", "dev", "eth0"],
            ["link", "set", "eth0", "up"],
            ["route", "add", "default", "via", cable.host_ip],
        ):
            namespaces.run_inside(init, ["ip", *words])
        # What leaves the node has the node's address: nobody outside knows the way to a Pod.
        masquerade = ["POSTROUTING", "-s", NODE_POD_CIDR, "-o", "eth0", "-j", "MASQUERADE"]
        namespaces.run_inside(init, ["iptables", "-w", "-t", "nat", "-A", *masquerade])
    if not FORWARD_BEFORE.exists():
        shell.write(FORWARD_BEFORE, IP_FORWARD.read_text())
    IP_FORWARD.write_text("1\n")
    for table, chain, *rule in firewall_rules(settings, cable):
        if not shell.succeeds(["iptables", "-w", "-t", table, "-C", chain, *rule]):
            # First, because a machine's own rules may drop what is forwarded.
            shell.run(["iptables", "-w", "-t", table, "-I", chain, *rule])


def unplug(settings: Settings) -> None:
    """Remove the machine's end of a cable, and with it the other one."""
    name = interface(settings)
    if shell.succeeds(["ip", "link", "show", "dev", name]):
        shell.run(["ip", "link", "delete", name])


def disconnect(settings: Settings, cable: Cable) -> None:
    """Take back all that ``connect`` did on the machine; the cable itself ends with the node."""
    for table, chain, *rule in firewall_rules(settings, cable):
        while shell.succeeds(["iptables", "-w", "-t", table, "-C", chain, *rule]):
            shell.run(["iptables", "-w", "-t", table, "-D", chain, *rule])
    unplug(settings)
    links = json.loads(shell.run(["ip", "-json", "link", "show", "type", "veth"]))
    if FORWARD_BEFORE.exists() and not any(link["ifname"].startswith(INTERFACE_PREFIX) for link in links):
        IP_FORWARD.write_text(FORWARD_BEFORE.read_text())
        FORWARD_BEFORE.unlink()
