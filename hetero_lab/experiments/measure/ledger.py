"""What the records of a sweep say about each entry, on each host that measured it.

A sweep on one machine has records without a host: the machine is the one in its header. Turns of
two hosts are never mixed: a row belongs to one host, and so does the reference beside it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from hetero_lab.experiments.measure.environment import Environment
from hetero_lab.experiments.measure.records import AnyRecord, Finished, Host, OfEntry, Turn
from hetero_lab.statistics import turn_level

At = tuple[int, int]  # group and round


class Ledger:
    """Turns and kinds of records of each entry, on each host."""

    def __init__(self, records: Iterable[AnyRecord] = ()):
        self._levels: defaultdict[tuple[str, str], dict[At, float]] = defaultdict(dict)
        self._kinds: defaultdict[tuple[str, str], set[type]] = defaultdict(set)
        self.hosts: dict[str, Environment] = {}  # in order, each as it was when it measured last
        self.next_group = 0
        for record in records:
            self.note(record)

    def note(self, record: AnyRecord) -> None:
        """Take a record into account."""
        if isinstance(record, Host):
            self.hosts[record.host] = record.environment
        elif isinstance(record, OfEntry):
            self._kinds[record.entry, record.host].add(type(record))
            if isinstance(record, Turn):
                at = (record.group, record.round)
                self._levels[record.entry, record.host][at] = turn_level(record.samples_us)
                self.next_group = max(self.next_group, record.group + 1)

    def has(self, kind: type[OfEntry], key: str, host: str = "") -> bool:
        """Tell whether an entry has a record of a kind."""
        return kind in self._kinds[key, host]

    def levels_us(self, key: str, host: str = "") -> dict[At, float]:
        """Return what stands for each turn of an entry."""
        return self._levels[key, host]

    def n_paired(self, key: str, reference: str, host: str = "") -> int:
        """Return how many turns of an entry have one of the reference beside them."""
        beside = self.levels_us(reference, host)
        return sum(at in beside for at in self.levels_us(key, host))


def is_done(key: str, host: str, ledger: Ledger, reference: str, turns: int | None) -> bool:
    """Tell whether a host has finished an entry, with at least so many turns if asked for."""
    if not ledger.has(Finished, key, host):
        return False
    if turns is None:
        return True
    if not ledger.levels_us(reference, host):
        return len(ledger.levels_us(key, host)) >= turns
    return ledger.n_paired(key, reference, host) >= turns
