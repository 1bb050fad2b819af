"""Which host measured what: the records of a sweep that was spread over a fleet.

A sweep on one machine has records without a host; they are those of the machine in its header.
Turns of two hosts are never mixed: a row is of one host, and so is the reference beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from hetero_lab.experiments.sweep.ledger import Ledger
from hetero_lab.experiments.sweep.records import AnyRecord, Finished, Header, Turn

_HERE = ""  # the host of a record that names none


def hosts_of_entry(
    header: Header, key: str, records: Sequence[AnyRecord], hosts: Iterable[str]
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
    if not header.fleet:
        return [_HERE]
    if header.every_host:
        return list(hosts) or [_HERE]
    turns = Counter(r.host for r in records if isinstance(r, Turn))
    if key == header.reference:
        return [host for host in hosts if turns[host]] or _last(records)
    finished = [r.host for r in records if isinstance(r, Finished)]
    if finished:
        return [finished[-1]]
    # What a worker left half done when it died counts for less than what was said last of it.
    return [max(turns, key=lambda host: turns[host])] if turns else _last(records)


def _last(records: Sequence[AnyRecord]) -> list[str]:
    return [records[-1].host] if records else [_HERE]


def is_done(key: str, host: str, ledger: Ledger, reference: str, turns: int | None) -> bool:
    """Tell whether a host has finished an entry, with at least so many turns if asked for."""
    if not ledger.has(Finished, key, host):
        return False
    if turns is None:
        return True
    if not ledger.levels_us(reference, host):
        return len(ledger.levels_us(key, host)) >= turns
    return ledger.n_paired(key, reference, host) >= turns
