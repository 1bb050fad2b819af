"""A sweep on disk: a header and one record a line, flushed as they come.

``sweep.json`` says what is measured, ``records.jsonl`` what was. Every record carries a
checksum, so that a torn or edited line is noticed and named and the rest is kept. A lock that
dies with its owner keeps two processes from writing into one store.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import msgspec
from filelock import FileLock, Timeout

from hetero_lab.errors import (
    OutputPathError,
    StoredFileError,
    StoreError,
    shorten,
    warn,
)
from hetero_lab.experiments.measure.records import AnyRecord, Header
from hetero_lab.tables import make_directory, read_json, write_json

HEADER, RECORDS, LOCK = "sweep.json", "records.jsonl", ".lock"
_PRIVATE = 0o600  # names of models, hosts and devices are nobody else's business
_MAX_BYTES = 1 << 30
_FRESH = "Take another store= directory, or delete this one."


class Store:
    """A store that is open for writing by this process.

    Raises
    ------
    StoreError
        Another process has it, it was made for another model or OpenVINO version, or it is damaged.
    OutputPathError
        The directory cannot be made or written.
    """

    def __init__(self, directory: str | os.PathLike[str], header: Header):
        self.directory = make_directory(directory, private=True)
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
            self.records = _records_to_go_on_from(self.directory)
            self._file: IO[str] = self._open()
        except BaseException:
            self._lock.release()
            raise

    def append(self, record: AnyRecord) -> None:
        """Add a record; it is on disk when this returns."""
        self.records.append(record)
        self._check_still_there()
        try:
            self._file.write(stored_line(msgspec.to_builtins(record)))
            self._file.flush()
            os.fsync(self._file.fileno())
        except (OSError, ValueError) as error:
            raise OutputPathError(
                f"The store {shorten(str(self.directory))} cannot be written: {error}. What was "
                "written before is intact; run the same sweep again to go on."
            ) from error

    def _check_still_there(self) -> None:
        """A file that was removed takes what is written into it, and keeps none of it."""
        try:
            own = os.fstat(self._file.fileno())
            there = os.stat(self.directory / RECORDS)
            same = (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino)
        except FileNotFoundError:
            same = False
        except (OSError, ValueError):
            return  # writing says what is wrong
        if not same:
            raise OutputPathError(
                f"The store {shorten(str(self.directory))} was removed or replaced while it was "
                "written. Measure again, there or into another store."
            )

    def close(self) -> None:
        """Close the file and let others have the store."""
        try:
            self._file.close()
        except OSError:
            pass
        finally:
            self._lock.release()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _merge_header(self, new: Header) -> Header:
        path = self.directory / HEADER
        if path.exists():
            try:
                old = _header_from(path)
            except msgspec.ValidationError as error:
                raise StoreError(
                    f"{_named(path)} holds a damaged sweep: {error}. {_FRESH}"
                ) from error
            _check_same(old, new, path)
            # Entries that were measured before and are not asked for now keep their place.
            asked = {entry.key for entry in new.entries}
            before = [
                msgspec.structs.replace(entry, asked=False)
                for entry in old.entries
                if entry.key not in asked
            ]
            new = msgspec.structs.replace(
                new,
                entries=[*new.entries, *before],
                environments=[*old.environments, *new.environments],
            )
        elif (self.directory / RECORDS).exists():
            raise StoreError(
                f"{shorten(str(self.directory))} holds turns, but no {HEADER} that tells of which "
                f"model. {_FRESH}"
            )
        write_json(path, msgspec.to_builtins(new), private=True)
        return new

    def _open(self) -> IO[str]:
        path = self.directory / RECORDS
        try:
            if path.exists():
                whole = path.read_bytes()
                # A torn last line goes, so that the next record starts on a line of its own.
                keep = whole.rfind(b"\n") + 1
                if keep < len(whole):
                    with open(path, "r+b") as file:
                        file.truncate(keep)
            return open(path, "a", encoding="utf-8", newline="", opener=_open_private)
        except OSError as error:
            raise OutputPathError(
                f"The store {shorten(str(self.directory))} cannot be written: {error}"
            ) from error


def read_store(directory: str | os.PathLike[str]) -> tuple[Header, list[AnyRecord]]:
    """Read header and records of a store; no lock and no device is needed.

    Raises
    ------
    StoredFileError
        The directory holds no sweep, or a broken one.
    """
    path = Path(directory) / HEADER
    try:
        header = _header_from(path)
    except msgspec.ValidationError as error:
        raise StoredFileError(f"{_named(path)} is not a whole sweep: {error}") from error
    return header, read_records(Path(directory))


def read_records(directory: Path) -> list[AnyRecord]:
    """Read all whole records; a torn last line is dropped, other broken lines are named.

    Raises
    ------
    StoredFileError
        The file cannot be read, or a line of it is whole and yet no record of a sweep.
    """
    path = directory / RECORDS
    if not path.exists():
        return []
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise StoredFileError(f"{shorten(str(path))} is larger than 1 GiB; that is no sweep.")
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise StoredFileError(f"{shorten(str(path))} cannot be read: {error}") from error
    torn = lines.pop()  # empty if the last line is whole
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
                f"{shorten(str(path))}: line {number} is whole, but no record of a sweep: {error}"
            ) from error
    if broken:
        shown = ", ".join(map(str, broken[:10])) + (" …" if len(broken) > 10 else "")
        warn(
            f"{shorten(str(path))}: {len(broken)} of {len(lines) + bool(torn)} lines cannot be "
            f"read and are left out (line {shown}); the rest is kept."
        )
    return records


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, _PRIVATE)


def stored_line(record: Mapping[str, Any]) -> str:
    """Return a record as a line with its checksum."""
    text = json.dumps(record, ensure_ascii=True, allow_nan=False)
    return json.dumps({"crc": zlib.crc32(text.encode()), "record": record}, allow_nan=False) + "\n"


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        data = json.loads(line)
        text = json.dumps(data["record"], ensure_ascii=True, allow_nan=False)
        whole = zlib.crc32(text.encode()) == data["crc"] and isinstance(data["record"], dict)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return data["record"] if whole else None


def _header_from(path: Path) -> Header:
    return msgspec.convert(read_json(path, kind="sweep"), Header)


def _records_to_go_on_from(directory: Path) -> list[AnyRecord]:
    try:
        return read_records(directory)
    except StoredFileError as error:
        raise StoreError(f"{error}. {_FRESH}") from error


def _named(path: Path) -> str:
    return shorten(str(path.parent))


def _check_same(old: Header, new: Header, path: Path) -> None:
    where = _named(path)

    def prints(header: Header) -> dict[str, str]:
        return {name: model.fingerprint for name, model in header.models.items()}

    if prints(old) != prints(new):
        names = ", ".join(shorten(model.name) for model in old.models.values())
        raise StoreError(f"{where} holds a sweep of another model ({names}). {_FRESH}")
    if old.fleet != new.fleet:
        kinds = ("one machine", "a fleet")
        raise StoreError(
            f"{where} holds a sweep over {kinds[old.fleet]}, now it is {kinds[new.fleet]}. {_FRESH}"
        )
    # A fleet has versions and hosts of its own; where this process runs does not matter.
    of_here = (("openvino_version", "OpenVINO version"), ("host", "host"))
    for what, name in () if new.fleet else of_here:
        before = getattr(old.environments[-1], what)
        now = getattr(new.environments[-1], what)
        if before != now:
            raise StoreError(
                f"{where} was measured with another {name}: {before}, now {now}. Numbers of the "
                f"two are not mixed; hetero_lab.compare(before, after) sets them side by side. "
                f"{_FRESH}"
            )
    for what in ("emulated", "reference", "seed", "inputs_digest"):
        if getattr(old, what) != getattr(new, what):
            raise StoreError(
                f"{where} holds a sweep with other {what.replace('_', ' ')}: "
                f"{getattr(old, what)!r}, now {getattr(new, what)!r}. {_FRESH}"
            )
