"""A sweep on disk: a header and one record a line, flushed as they come.

``sweep.json`` says what is measured, ``records.jsonl`` what was. Every record carries a
checksum, so that a torn or edited line is noticed and named and the rest is kept. A lock that
dies with its owner keeps two processes from writing into one store.
"""

from __future__ import annotations

import json
import os
import warnings
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from hetero_lab.errors import (
    HeteroLabWarning,
    OutputPathError,
    StoredFileError,
    StoreError,
    shorten,
)
from hetero_lab.tables import make_directory, read_json, write_json

HEADER, RECORDS, LOCK = "sweep.json", "records.jsonl", ".lock"
_PRIVATE = 0o600  # names of models, hosts and devices are nobody else's business
_MAX_BYTES = 1 << 30


class Store:
    """A store that is open for writing by this process.

    Raises
    ------
    StoreError
        Another process has it, or it was made for another model or OpenVINO version.
    OutputPathError
        The directory cannot be made or written.
    """

    def __init__(self, directory: str | os.PathLike[str], header: Mapping[str, Any]):
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
            self.records = read_records(self.directory)
            self._file: IO[str] = self._open()
        except BaseException:
            self._lock.release()
            raise

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a record; it is on disk when this returns."""
        self.records.append(dict(record))
        self._check_still_there()
        try:
            self._file.write(_line(record))
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
            mine = os.fstat(self._file.fileno())
            there = os.stat(self.directory / RECORDS)
            same = (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)
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

    def _merge_header(self, header: Mapping[str, Any]) -> dict[str, Any]:
        path = self.directory / HEADER
        new = dict(header)
        if path.exists():
            old = read_json(path, kind="sweep")
            _check_same(old, new, path)
            # Entries that were measured before and are not asked for now keep their place.
            asked = {entry["key"] for entry in new["entries"]}
            new["entries"] += [
                {**e, "asked": False} for e in old["entries"] if e["key"] not in asked
            ]
            new["environments"] = old["environments"] + new["environments"]
        elif (self.directory / RECORDS).exists():
            raise StoreError(
                f"{shorten(str(self.directory))} holds turns, but no {HEADER} that tells of which "
                "model. Take another store= directory, or delete this one."
            )
        write_json(path, new, private=True)
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


def read_store(directory: str | os.PathLike[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Read header and records of a store; no lock and no device is needed.

    Raises
    ------
    StoredFileError
        The directory holds no sweep, or a broken one.
    """
    return read_json(Path(directory) / HEADER, kind="sweep"), read_records(Path(directory))


def read_records(directory: Path) -> list[dict[str, Any]]:
    """Read all whole records; a torn last line is dropped, other broken lines are named."""
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
    records, broken = [], []
    for number, line in enumerate(lines, start=1):
        record = _parse(line)
        if record is None:
            broken.append(number)
        else:
            records.append(record)
    if broken:
        shown = ", ".join(map(str, broken[:10])) + (" …" if len(broken) > 10 else "")
        warnings.warn(
            f"{shorten(str(path))}: {len(broken)} of {len(lines) + bool(torn)} lines cannot be "
            f"read and are left out (line {shown}); the rest is kept.",
            HeteroLabWarning,
            stacklevel=3,
        )
    return records


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, _PRIVATE)


def _line(record: Mapping[str, Any]) -> str:
    text = json.dumps(record, ensure_ascii=True, allow_nan=False)
    return json.dumps({"crc": zlib.crc32(text.encode()), "record": record}, allow_nan=False) + "\n"


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        data = json.loads(line)
        text = json.dumps(data["record"], ensure_ascii=True, allow_nan=False)
        whole = zlib.crc32(text.encode()) == data["crc"] and isinstance(data["record"], dict)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return data["record"] if whole and "type" in data["record"] else None


def _check_same(old: Mapping[str, Any], new: Mapping[str, Any], path: Path) -> None:
    where = shorten(str(path.parent))
    fresh = "Take another store= directory, or delete this one."
    if "models" not in old or "entries" not in old or "environments" not in old:
        raise StoreError(f"{where} holds a damaged sweep. {fresh}")

    def prints(header: Mapping[str, Any]) -> dict[str, str]:
        return {name: model["fingerprint"] for name, model in header["models"].items()}

    if prints(old) != prints(new):
        raise StoreError(
            f"{where} holds a sweep of another model "
            f"({', '.join(shorten(m['name']) for m in old['models'].values())}). {fresh}"
        )
    if bool(old.get("fleet")) != bool(new.get("fleet")):
        kinds = ("one machine", "a fleet")
        raise StoreError(
            f"{where} holds a sweep over {kinds[bool(old.get('fleet'))]}, now it is "
            f"{kinds[bool(new.get('fleet'))]}. {fresh}"
        )
    # A fleet has versions and hosts of its own; where this process runs does not matter.
    of_here = (("openvino_version", "OpenVINO version"), ("host", "host"))
    for what, name in () if new.get("fleet") else of_here:
        before = old["environments"][-1].get(what)
        now = new["environments"][-1][what]
        if before != now:
            raise StoreError(
                f"{where} was measured with another {name}: {before}, now {now}. Numbers of the "
                f"two are not mixed; hetero_lab.compare(a, b) sets them side by side. {fresh}"
            )
    for what in ("emulated", "reference", "seed", "inputs_digest"):
        if old.get(what) != new.get(what):
            raise StoreError(
                f"{where} holds a sweep with other {what.replace('_', ' ')}: {old.get(what)!r}, "
                f"now {new.get(what)!r}. {fresh}"
            )


def known_keys(records: Iterable[Mapping[str, Any]], record_type: str) -> set[str]:
    """Return the keys of the entries that have a record of a type."""
    return {record["entry"] for record in records if record["type"] == record_type}
