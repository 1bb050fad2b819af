"""A sweep on disk: a header and one record per line, each flushed as it is made.

``sweep.json`` names the trials, ``records.jsonl`` holds their measurements. Every record
carries a checksum: a process may be killed in the middle of a write and a disk may fill up, and a
line that is still valid JSON may yet be wrong. Damaged lines are named and the rest is kept. A
lock that ends with its owner keeps two processes from writing into one store.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

import msgspec
from filelock import FileLock, Timeout

from hetero_lab.errors import OutputPathError, StoredFileError, StoreError, reason, shorten, warn
from hetero_lab.results.records import AnyRecord, Header
from hetero_lab.tables import (
    check_directory,
    check_values,
    json_value,
    make_directory,
    read_bytes,
    read_json,
    reading,
    unread,
    write_json,
)

HEADER, RECORDS, LOCK = "sweep.json", "records.jsonl", ".lock"
_PRIVATE = 0o600  # names of models, hosts and devices are not for other users
_MOST_BYTES, _LONGEST = 1 << 27, 1 << 25  # of the records, and of one
_FRESH = "Take another store= directory, or delete this one."


class Store:
    """A store that is open for writing by this process.

    Raises StoreError if another process has it open, it is for another model or OpenVINO version,
    or it is damaged; OutputPathError if the directory cannot be made or written.
    """

    def __init__(self, directory: str | os.PathLike[str], header: Header):
        self.directory = make_directory(directory, private=True)
        check_directory(self.directory)  # nothing is written through a link
        self._lock = FileLock(self.directory / LOCK, mode=_PRIVATE)
        try:
            self._lock.acquire(timeout=0)
        except Timeout as error:
            raise StoreError(
                f"Another process is writing into {shorten(str(self.directory))}. Wait for it, or "
                "take another store."
            ) from error
        try:
            self.header = self._merge_header(header)
            self.records = read_records(self.directory)
            self._file: IO[str] = self._open()
        except BaseException as error:
            self._lock.release()
            if isinstance(error, StoredFileError):
                raise StoreError(f"{str(error).rstrip('.')}. {_FRESH}") from error
            raise

    def append(self, record: AnyRecord) -> None:
        """Add a record; it is on disk when this returns."""
        self.records.append(record)
        self._check_still_there()
        try:
            self._file.write(stored_line(json_value(msgspec.to_builtins(record))))
            self._file.flush()
            os.fsync(self._file.fileno())
        except (OSError, ValueError) as error:
            raise OutputPathError(
                f"The store {shorten(str(self.directory))} cannot be written: {error}. All "
                "earlier records are intact; run the same sweep again to go on."
            ) from error

    def _check_still_there(self) -> None:
        """Raise if the file was removed: writing would still succeed, but the data be lost."""
        try:
            ours = os.fstat(self._file.fileno())
            there = os.stat(self.directory / RECORDS)
            same = (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)
        except FileNotFoundError:
            same = False
        except (OSError, ValueError):
            return  # writing will raise the right error
        if not same:
            raise OutputPathError(
                f"The store {shorten(str(self.directory))} was removed or replaced while it was "
                "written. Measure again, there or into another store."
            )

    def close(self) -> None:
        """Close the file and release the lock."""
        with contextlib.suppress(OSError):
            self._file.close()
        self._lock.release()

    def _unusable(self, why: str) -> StoreError:
        return StoreError(f"{shorten(str(self.directory))} {why}. {_FRESH}")

    def _merge_header(self, new: Header) -> Header:
        path = self.directory / HEADER
        if path.exists():
            old = _read_header(self.directory)
            for why in _differences(old, new):
                raise self._unusable(why)
            # Entries that were measured before and are not asked for now keep their place.
            keys = {entry.key for entry in new.entries}
            before = [
                msgspec.structs.replace(entry, asked=False)
                for entry in old.entries
                if entry.key not in keys
            ]
            new = msgspec.structs.replace(
                new,
                entries=[*new.entries, *before],
                environments=[*old.environments, *new.environments],
            )
        elif (self.directory / RECORDS).exists():
            raise self._unusable(f"holds records, but no {HEADER} that tells their model")
        write_json(path, msgspec.to_builtins(new), private=True)
        return new

    def _open(self) -> IO[str]:
        path = self.directory / RECORDS
        try:
            if path.exists():
                # Cut off an incomplete last line, so that the next record starts a new line.
                os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
            private = partial(os.open, mode=_PRIVATE)
            return open(path, "a", encoding="utf-8", newline="", opener=private)
        except OSError as error:
            raise OutputPathError(
                f"The store {shorten(str(self.directory))} cannot be written: {error}"
            ) from error


def read_store(directory: str | os.PathLike[str]) -> tuple[Header, list[AnyRecord]]:
    """Read header and records, without a lock; StoredFileError if they are missing or damaged."""
    return _read_header(Path(directory)), read_records(Path(directory))


def read_records(directory: Path) -> list[AnyRecord]:
    """Read all valid records; drop an incomplete last line, warn about other damaged lines.

    Raises StoredFileError if the file cannot be read, or a line is intact but not a record.
    """
    path = directory / RECORDS
    name = shorten(str(path))
    if not path.exists():
        return []
    try:
        lines = read_bytes(path, _MOST_BYTES).split(b"\n")
    except (OSError, ValueError) as error:
        raise StoredFileError(f"{name} cannot be read: {unread(error)}.") from error
    torn = lines.pop()  # empty if the last line is complete
    records: list[AnyRecord] = []
    broken = []
    for number, line in enumerate(lines, start=1):
        plain = _parse(line)
        if plain is None:
            broken.append(number)
            continue
        try:
            records.append(msgspec.convert(plain, AnyRecord))
        except msgspec.ValidationError as error:
            raise StoredFileError(
                f"{name}: line {number} is intact, but is not a record of a sweep: {reason(error)}"
            ) from error
    if broken:
        numbers = ", ".join(map(str, broken[:10])) + (" …" if len(broken) > 10 else "")
        warn(
            f"{name}: {len(broken)} of {len(lines) + bool(torn)} lines cannot be read and are "
            f"left out (line {numbers}); the rest is kept."
        )
    return records


def stored_line(record: Mapping[str, Any]) -> str:
    """Return the line of a record, with its checksum."""
    text = json.dumps(record, ensure_ascii=True, allow_nan=False)
    return json.dumps({"crc": zlib.crc32(text.encode()), "record": record}, allow_nan=False) + "\n"


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        data = json.loads(line) if len(line) < _LONGEST else {}
        text = json.dumps(data["record"], ensure_ascii=True, allow_nan=False)
        check_values(data)
        whole = zlib.crc32(text.encode()) == data["crc"] and isinstance(data["record"], dict)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return data["record"] if whole else None


def _read_header(directory: Path) -> Header:
    with reading(directory, "sweep"):
        return msgspec.convert(read_json(directory / HEADER, kind="sweep"), Header)


def _differences(old: Header, new: Header) -> Iterator[str]:
    """Say why a sweep cannot be continued in the store of another; nothing if it can."""
    if _fingerprints(old) != _fingerprints(new):
        names = ", ".join(shorten(model.name) for model in old.models.values())
        yield f"holds a sweep of another model ({names})"
    if old.fleet != new.fleet:
        kinds = ("one machine", "a fleet")
        yield f"holds a sweep over {kinds[old.fleet]}, now it is {kinds[new.fleet]}"
    # The hosts of a fleet have their own versions; those of this process do not matter.
    of_here = (("openvino_version", "OpenVINO version"), ("host", "host"))
    for field, name in () if new.fleet else of_here:
        before = getattr(old.environments[-1], field)
        now = getattr(new.environments[-1], field)
        if before != now:
            yield (
                f"was measured with another {name}: {before}, now {now}. Numbers of the two are "
                "not mixed; hetero_lab.compare(before, after) sets them side by side"
            )
    for field in ("emulated", "reference", "seed", "inputs_digest"):
        before, now = getattr(old, field), getattr(new, field)
        if before != now:
            yield f"holds a sweep with other {field.replace('_', ' ')}: {before!r}, now {now!r}"


def _fingerprints(header: Header) -> dict[str, str]:
    return {name: model.fingerprint for name, model in header.models.items()}
