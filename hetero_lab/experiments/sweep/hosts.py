"""Which host measured what: the records of a sweep that was spread over a fleet.

A sweep on one machine has records without a host; they are those of the machine in its header.
Turns of two hosts are never mixed: a row is of one host, and so is the reference beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]
_HERE = ""  # the host of a record that names none


def host_of(record: Record) -> str:
    """Return the host that made a record, or an empty string if that was the caller's own."""
    return record.get("host", _HERE)


def known_hosts(records: Iterable[Record]) -> dict[str, dict[str, Any]]:
    """Return the environment of each host in order, as it was when it measured last."""
    return {r["host"]: r["environment"] for r in records if r["type"] == "host"}


def hosts_of_entry(
    header: Mapping[str, Any], key: str, records: Sequence[Record], hosts: Iterable[str]
) -> list[str]:
    """Return the hosts of which an entry has a row.

    Parameters
    ----------
    header
        What is measured. With ``every_host`` each host has a row of each entry; otherwise the
        reference has one on each host that measured it and any other entry one in all.
    key, records
        The entry, and its records in order.
    hosts
        All hosts that took part.
    """
    if not header.get("fleet"):
        return [_HERE]
    if header.get("every_host"):
        return list(hosts) or [_HERE]
    turns = Counter(host_of(r) for r in records if r["type"] == "turn")
    if key == header["reference"]:
        return [host for host in hosts if turns[host]] or _last(records)
    finished = [host_of(r) for r in records if r["type"] == "finished"]
    if finished:
        return [finished[-1]]
    # What a worker left half done when it died counts for less than what was said last of it.
    return [max(turns, key=lambda host: turns[host])] if turns else _last(records)


def _last(records: Sequence[Record]) -> list[str]:
    return [host_of(records[-1])] if records else [_HERE]


def is_done(
    key: str, host: str, records: Iterable[Record], reference: str, turns: int | None
) -> bool:
    """Tell whether a host has finished an entry, with at least so many turns if asked for."""
    mine = [r for r in records if host_of(r) == host and "entry" in r]
    if not any(r["type"] == "finished" and r["entry"] == key for r in mine):
        return False
    if turns is None:
        return True
    at = {
        name: {(r["group"], r["round"]) for r in mine if r["type"] == "turn" and r["entry"] == name}
        for name in {key, reference}
    }
    paired = at[key] & at[reference] if at[reference] else at[key]
    return len(paired) >= turns
