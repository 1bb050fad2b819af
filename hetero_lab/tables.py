"""Tables on disk and on screen: safe CSV and JSON, written whole or not at all, and HTML.

Text that a spreadsheet would take for a formula gets one leading apostrophe when it is written
and loses it when it is read. Numbers stay numbers.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import json
import math
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hetero_lab.errors import (
    ArgumentError,
    HeteroLabError,
    OutputPathError,
    StoredFileError,
    reason,
    shorten,
    unknown,
)
from hetero_lab.terminal import columns, one_line

if TYPE_CHECKING:
    import pandas as pd

SCHEMA_VERSION = 1  # of stored JSON files that have one; a file of another one is refused
_FORMULA_STARTS = ("=", "+", "-", "@", "'", "\t", "\r")
_MOST_BYTES, _MOST_VALUES = 1 << 26, 1 << 23  # of a stored file, which grows as it is read
_MOST = 2**63  # of a whole number: so many bits hold it
# Keys of stored data whose text is the lab's or a device's; other names may be anything.
_WORDS = frozenset({
    "device", "device_properties", "devices", "emulated", "environment", "environments",
    "execution_devices", "executor", "host", "latency", "openvino_version", "precision",
    "properties", "status", "target", "verdict",
})  # fmt: skip
# Waits until a reader, or what looks for viruses, has closed a file.
_AGAIN_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
_TRIES = 20  # to make a directory that nobody takes for a leftover
_NO_ROOM = (errno.ENOSPC, errno.EROFS, getattr(errno, "EDQUOT", errno.ENOSPC))

# Columns that are text in every table: read as text even where every value looks like a number.
TEXT_COLUMNS = frozenset({
    "after", "agreement", "auto_way", "base", "before", "beside", "beside_way", "cause",
    "configuration", "consumer", "detail", "device", "devices", "element_type", "emulated_on",
    "exec_type", "finding", "from_device", "from_precision", "fused_ops", "fused_with",
    "group_leader", "handed_over_as", "host", "kind", "label", "labels", "leader",
    "measured_at", "model", "model_fingerprint", "node", "node_name", "node_type", "op",
    "op_type", "openvino_version", "ops", "output", "own_best_way", "partition", "placement",
    "precision", "precisions", "producer", "remedy", "rule", "same_as", "set", "severity",
    "shape", "source_device", "status", "target_devices", "targets", "tensor", "to_device",
    "to_precision", "type", "variant", "verdict", "way", "where",
})  # fmt: skip


class Tables(dict[str, "pd.DataFrame"]):
    """DataFrames by name; a name that is not there is an ArgumentError that says which are."""

    def __missing__(self, name: str) -> pd.DataFrame:
        raise ArgumentError(unknown("There is no table", name, self, "Tables", len(self)))


def frame_of(rows: Any, columns: list[str] | None = None) -> pd.DataFrame:
    """Return rows as a table; mappings name their own columns."""
    import pandas as pd  # here, so that a result without tables is quick

    return pd.DataFrame(rows, columns=columns)


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table as JSON holds them, see :func:`json_value`."""
    return [json_value(row) for row in frame.astype("object").to_dict("records")]


def json_value(value: Any) -> Any:
    """Return a value as JSON holds it: what is missing or no finite number is None."""
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [json_value(item) for item in value]
    value = value.item() if hasattr(value, "item") else value  # NumPy's
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return None if str(value) in ("<NA>", "NaT") else str(value)


def protect(text: str) -> str:
    """Put an apostrophe before text that a spreadsheet would run."""
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def unprotect(text: str) -> str:
    """Take away the apostrophe that :func:`protect` put there."""
    return text[1:] if text.startswith("'") and text[1:].startswith(_FORMULA_STARTS) else text


def write_csv(path: str | os.PathLike[str], frame: pd.DataFrame) -> None:
    """Write a table as CSV, whole or not at all."""
    write_text(path, csv_text(frame))


def csv_text(frame: pd.DataFrame) -> str:
    """Return a table as CSV."""
    safe = frame.copy()
    _change_text(safe, protect)
    # Asked again, as objects may turn out to be numbers.
    quoting = csv.QUOTE_NONNUMERIC if len(_text_columns(safe)) else csv.QUOTE_MINIMAL
    return safe.to_csv(index=False, lineterminator="\n", quoting=quoting)


def read_csv(path: str | os.PathLike[str]) -> pd.DataFrame:
    """Read a table that :func:`write_csv` wrote; StoredFileError if it is missing or broken."""
    try:
        return parse_csv(read_bytes(path).decode("utf-8-sig", "surrogatepass"))
    except (OSError, ValueError, csv.Error) as error:
        message = f"{shorten(os.fspath(path))} is not a CSV table: {unread(error)}."
        raise StoredFileError(message) from error


def parse_csv(text: str) -> pd.DataFrame:
    """Return the table of :func:`csv_text`; ValueError or csv.Error if the text is broken."""
    import pandas as pd

    # Before pandas 3.1 the default may be off in the last digit.
    version = [int(part) for part in pd.__version__.split(".")[:2]]
    exact: Any = {"float_precision": "round_trip"} if version < [3, 1] else {}
    header = next(csv.reader(io.StringIO(text, newline="")), [])
    # No line ending is named: spreadsheets on Windows end lines with a carriage return too.
    frame = pd.read_csv(
        io.StringIO(text, newline=""),
        dtype=dict.fromkeys(TEXT_COLUMNS, "str"),
        keep_default_na=False,
        na_values={name: ["", "nan"] for name in header if name not in TEXT_COLUMNS},
        encoding_errors="surrogatepass",
        **exact,
    )
    _change_text(frame, unprotect)
    return frame


def write_parquet(path: str | os.PathLike[str], frame: pd.DataFrame) -> None:
    """Write a table as Parquet, whole or not at all."""
    with whole_file(path) as temporary:
        frame.to_parquet(temporary, index=False, engine="pyarrow")


def write_tables(
    directory: str | os.PathLike[str], tables: Mapping[str, pd.DataFrame], format: str
) -> Path:
    """Write each table as ``NAME.csv`` or ``NAME.parquet``; return the directory."""
    writers = {"csv": write_csv, "parquet": write_parquet}
    if format not in writers:
        raise ArgumentError(f"format= is 'csv' or 'parquet', not {shorten(str(format))}.")
    target = make_directory(directory)
    for name, frame in tables.items():
        writers[format](target / f"{name}.{format}", frame)
    return target


def write_json(
    path: str | os.PathLike[str], data: Mapping[str, Any], *, private: bool = False
) -> None:
    """Write plain data as JSON, whole or not at all; ``private`` is for the user alone."""
    text = json.dumps(data, indent=1, ensure_ascii=True, allow_nan=False) + "\n"
    write_text(path, text, private=private)


def read_json(path: str | os.PathLike[str], kind: str) -> dict[str, Any]:
    """Read a JSON object of a ``kind``; StoredFileError if it is broken, another, or too new."""
    name = shorten(os.fspath(path))
    data = load_json(path, f"{name} cannot be read as a stored {kind}")
    if not isinstance(data, dict) or data.get("kind") != kind:
        raise StoredFileError(f"{name} is not a stored {kind}.")
    if (version := data.get("schema_version")) != SCHEMA_VERSION:
        raise StoredFileError(
            f"{name} has schema version {repr(version)[:20]}; "
            f"this release reads version {SCHEMA_VERSION}."
        )
    with reading(path, kind):
        check_values(data)
    return data


def check_values(data: Any, of_the_lab: bool = False) -> None:
    """Raise ValueError for what the lab cannot have stored: it neither prints nor counts."""
    if isinstance(data, dict):
        for key, value in data.items():
            check_values(key, of_the_lab)
            check_values(value, of_the_lab or key in _WORDS)
    elif isinstance(data, list):
        for value in data:
            check_values(value, of_the_lab)
    elif isinstance(data, str) and not data.isprintable():
        data.encode()  # raises for half a character, which no table holds
        if of_the_lab:
            raise ValueError(f"{shorten(data)} does not print")
    elif (isinstance(data, float) and not math.isfinite(data)) or (
        isinstance(data, int) and abs(data) >= _MOST
    ):
        raise ValueError(f"{str(data)[:20]} is no number that was stored")


@contextlib.contextmanager
def reading(path: str | os.PathLike[str], kind: str) -> Iterator[None]:
    """Turn any error in the data of a file into a StoredFileError that names the file."""
    try:
        yield
    except StoredFileError:
        raise
    except Exception as error:
        prefix = "" if isinstance(error, HeteroLabError) else f"{type(error).__name__}: "
        is_json = isinstance(error, json.JSONDecodeError)
        why = f"{unread(error)}." if is_json else f"{prefix}{reason(error)}"
        message = f"{shorten(os.fspath(path))} is not a whole {kind}: {why}"
        raise StoredFileError(message) from error


def load_json(path: str | os.PathLike[str], fault: str) -> Any:
    """Return the content of a JSON file; StoredFileError with the ``fault`` if it is broken."""
    try:
        return json.loads(read_bytes(path).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise StoredFileError(f"{fault}: {unread(error)}.") from error


def unread(error: Exception) -> str:
    """Say in words why a file could not be read, without its name and the number of the error."""
    if isinstance(error, json.JSONDecodeError):
        return f"it is cut off or no JSON (line {error.lineno}, column {error.colno})"
    if isinstance(error, UnicodeDecodeError):
        return "it is no text in UTF-8"
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return "there is no such file"
    cause = error.strerror if isinstance(error, OSError) else None
    return f"{cause[0].lower()}{cause[1:]}" if cause else reason(error)


def read_bytes(path: str | os.PathLike[str], most: int = _MOST_BYTES) -> bytes:
    """Return the content of a stored file; OSError or ValueError unless it is one, of sane size."""
    _check_file(path)
    with open(path, "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it is larger than {most >> 20} MiB")
    if sum(map(content.count, (b",", b"[", b"{", b"\n"))) > _MOST_VALUES:
        raise ValueError(f"it holds more than {_MOST_VALUES >> 20} million values")
    return content


def check_directory(directory: str | os.PathLike[str]) -> None:
    """Raise StoredFileError unless a directory holds files and directories of its own alone."""
    for parent, below, files in os.walk(directory):
        for name in (*below, *files):
            path = os.path.join(parent, name)
            try:
                if name in files or os.path.islink(path):
                    _check_file(path, os.fspath(directory))
            except (OSError, ValueError) as error:
                raise StoredFileError(f"{shorten(path)} cannot be trusted: {error}.") from error


def _check_file(path: str | os.PathLike[str], home: str | None = None) -> None:
    """Raise unless a path leads to a regular file that lies in ``home``, its own directory."""
    real = Path(os.path.realpath(path))
    if not stat.S_ISREG(real.stat().st_mode):
        raise ValueError("it is no regular file")
    if not real.is_relative_to(os.path.realpath(home or os.path.dirname(os.path.abspath(path)))):
        raise ValueError("it is a link that leads out of its directory")


def write_text(path: str | os.PathLike[str], text: str, *, private: bool = False) -> None:
    """Write a text file, whole or not at all."""
    options: dict[str, Any] = {"encoding": "utf-8", "newline": "", "errors": "surrogatepass"}
    with whole_file(path, private) as temporary, open(temporary, "w", **options) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str], private: bool = False) -> Iterator[Path]:
    """Give a temporary path whose content goes to ``path`` if the block succeeds.

    An ordinary file is replaced as a whole, through symbolic links. Anything else (a
    terminal, a pipe, ``/dev/null``) cannot be replaced and gets the content written to it. A new
    file has the usual mode, or is for the user alone if ``private``.
    """
    target = Path(path)
    check_writable(target)
    is_special = _is_special(target)
    try:
        place = None if is_special else Path(os.path.realpath(target)).parent
        with scratch_directory(place, ".hetero_lab-", target) as directory:
            temporary = directory / "content"
            # Made by hand, as tempfile makes files for the user alone and the mode that is usual
            # here cannot be asked for without changing it for all threads.
            mode = 0o600 if private else 0o666
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
            yield temporary
            if not is_special:
                move(temporary, Path(os.path.realpath(target)))
                return
            content = temporary.read_bytes()
        with _opened_special(target) as through:
            through.write(content)
    except OSError as error:
        raise OutputPathError(f"{shorten(str(path))} cannot be written: {error}") from error


def move(draft: Path, target: Path) -> None:
    """Put a file in the place of another, whole; OutputPathError if that is not possible.

    Windows refuses while a program has the other one open: a reader for a moment, a model that was
    read from it for as long as it lives.
    """
    for again_s in (*_AGAIN_S, None):
        try:
            os.replace(draft, target)
            return
        except PermissionError as error:
            if again_s is None:
                raise OutputPathError(
                    f"{shorten(str(target))} cannot be replaced: {error.strerror}. Close what has "
                    "it open, let go of a model that was read from it, or write elsewhere."
                ) from error
            time.sleep(again_s)


def _is_special(target: Path) -> bool:
    """Tell whether a file is a device, a pipe, or a stream of this process such as /dev/stdout."""
    # By its name too: the stream behind /dev/stdout may be an ordinary file that is open.
    streams = ("/dev/", "/proc/")
    return os.path.exists(target) and (
        not os.path.isfile(target) or os.path.abspath(target).startswith(streams)
    )


def _opened_special(target: Path) -> IO[bytes]:
    """Open a file that cannot be replaced; a stream of this process continues where it is."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            descriptor = stream.fileno()
            ours, there = os.fstat(descriptor), os.stat(target)
            if there.st_ino and os.path.samestat(ours, there):  # 0: a console or NUL of Windows
                stream.flush()
                return os.fdopen(os.dup(descriptor), "wb")
    return open(target, "ab")


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise OutputPathError unless a file can be made at ``path``; parents are not made."""
    target = Path(path)
    # os.path says False where Path raises, for instance of a name that is too long.
    if os.path.isdir(target):
        raise OutputPathError(f"{shorten(str(target))} is a directory; name a file.")
    if _is_special(target):
        if not os.access(target, os.W_OK):
            raise OutputPathError(f"{shorten(str(target))} cannot be written.")
        return
    parent = Path(os.path.realpath(target)).parent
    if not os.path.isdir(parent):
        raise OutputPathError(f"The directory {shorten(str(parent))} does not exist.")
    _try_to_write(parent)


def make_directory(path: str | os.PathLike[str], *, private: bool = False) -> Path:
    """Make a directory or take the one that is there; OutputPathError if it cannot be written.

    A new one is for the user alone if ``private``; one that is there keeps its mode.
    """
    directory = Path(path)
    try:
        directory.mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)
    except OSError as error:
        raise OutputPathError(
            f"The directory {shorten(str(directory))} cannot be made: {error}"
        ) from error
    _try_to_write(directory)
    return directory


@contextlib.contextmanager
def scratch_directory(
    inside: str | os.PathLike[str] | None = None,
    prefix: str = "hetero_lab-",
    target: Path | None = None,
) -> Iterator[Path]:
    """Give a directory that is removed again, by default in TMPDIR.

    OutputPathError, of the ``target`` that it is made for, if there is no room.
    """
    place = Path(inside) if inside is not None else Path(tempfile.gettempdir())
    prefix += "scratch-"
    for leftover in place.glob(f"{prefix}*"):
        with _locked(leftover) as is_dead:
            if is_dead:
                shutil.rmtree(leftover, ignore_errors=True)
    try:
        for tries_left in reversed(range(_TRIES)):
            temp = tempfile.TemporaryDirectory(prefix=prefix, dir=place, ignore_cleanup_errors=True)
            with temp as name, _locked(name) as is_ours:
                # Before it is locked, somebody else may take it for a leftover and remove it. Where
                # nothing can be locked, nobody does.
                if (is_ours and os.path.isdir(name)) or not tries_left:
                    yield Path(name)
                    return
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        out = "" if inside is not None else " TMPDIR names another place for temporary files."
        raise OutputPathError(
            f"{shorten(str(target or place))} cannot be written: {error.strerror}.{out}"
        ) from error


@contextlib.contextmanager
def _locked(directory: str | os.PathLike[str]) -> Iterator[bool]:
    """Lock a directory in a block; tell whether that was possible: no other process has."""
    with contextlib.ExitStack() as stack:
        is_locked = False
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            assert sys.platform != "win32"
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_locked = True
        yield is_locked


def _try_to_write(directory: Path) -> None:
    try:
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise OutputPathError(
            f"The directory {shorten(str(directory))} cannot be written: {error.strerror}."
        ) from error


def html_table(frame: pd.DataFrame, caption: str = "", most: int = 60) -> str:
    """Return the first ``most`` rows of :func:`readable`, escaped; long texts are shortened."""
    return str(template("result.html").module.table(table_cells(frame, caption, most)))


def table_cells(frame: pd.DataFrame, caption: str = "", most: int = 60) -> dict[str, Any]:
    """Return what the templates show of a table; a cell tells whether it is a number."""
    texts_by_heading = readable(frame.head(most))
    cells: list[list[tuple[str, bool]]] = []
    for texts in texts_by_heading.values():
        is_number = any(texts) and all(_NUMERIC.match(text) for text in texts if text)
        cells.append([(one_line(t, _LONG) if len(t) > _LONG else t, is_number) for t in texts])
    return {
        "caption": caption,
        "headings": list(texts_by_heading),
        "rows": list(zip(*cells, strict=True)),
        "n_more": len(frame) - most,
    }


@cache
def template(name: str) -> Any:
    """Return a template of HTML; what is put into it is escaped."""
    import jinja2  # not above: only HTML needs it

    loader = jinja2.FileSystemLoader(Path(__file__).with_name("templates"))
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.keep_trailing_newline = True
    return environment.get_template(name)


_LONG = 200  # characters in a cell: more would push the other columns out of sight
# A number with its unit and its interval.
_NUMERIC = re.compile(r"[-−≈ ]*[\d.,∞]+( (µs|ms|s|B|KB|MB|GB)|%)?(\s+\[.*)?$")
_HEADERS = {
    "label": "placement", "configuration": "placement", "judgement": "vs best",
    "median_us": "latency", "cost_us": "saves", "p90_us": "90 % within", "p99_us": "99 % within",
    "throughput_per_s": "per second", "execution_devices": "ran on", "verdict": "outputs",
    "boundary_bytes": "crosses", "first_inference_ms": "first inference", "gain_us": "gain",
    "regret_us": "against the plan", "margin_us": "may be off by",
}  # fmt: skip


def readable(frame: pd.DataFrame) -> dict[str, list[str]]:
    """Return the columns of a table as text for people, by heading.

    A cell has its unit and the interval of its value. Columns without any value are left out, and
    those that would say a thing twice: the label beside the configuration, raw latencies.
    """
    whole = frame.astype("object").where(frame.notna(), None)  # of NaN, None and NA just None
    raw = {str(name): whole[name].tolist() for name in whole.columns}
    lows = [name for name in raw if re.search("_low(_|$)", f"_{name}")]
    ends = {value: low for low in lows if (value := estimate_of(low, raw))}
    inside = {end for low in ends.values() for end in (low, low.replace("low", "high"))}
    texts: dict[str, list[str]] = {}
    for name, values in raw.items():
        is_twice = name.startswith("raw_") or (name == "label" and "configuration" in raw)
        if is_twice or name in inside or (values and all(v in (None, "") for v in values)):
            continue
        cells = [_value_text(name, value) for value in values]
        heading = heading_of(name)
        if name in ends:
            bounds = (raw[ends[name].replace("low", end)] for end in ("low", "high"))
            write = partial(_value_text, name)
            rows = zip(values, *bounds, strict=True)
            cells = [interval_text(value, low, high, write) for value, low, high in rows]
            heading += "  [95 %]" if "ci95" in ends[name] else "  [90 %]"
        texts[heading if heading not in texts else name.replace("_", " ")] = cells
    return texts


def text_table(frame: pd.DataFrame) -> str:
    """Return :func:`readable` for a terminal."""
    texts = readable(frame)
    return columns([[heading.upper() for heading in texts], *zip(*texts.values(), strict=True)])


def estimate_of(low: str, columns: Collection[str]) -> str:
    """Return the column of the values whose intervals begin in the column ``low``, if any."""
    names = [low.replace("_ci95_low", ""), low.replace("ci95_low", "median"), "time_per_result_us"]
    names = names if "ci95" in low else [low.replace("_low", "")]
    return next((name for name in names if name in columns and name != low), "")


def heading_of(name: str) -> str:
    """Return what stands above a column, in the words of people: ``latency``."""
    if name in _HEADERS:
        return _HEADERS[name]
    stem, _, unit = name.rpartition("_")
    words = stem if stem and unit in ("us", "ms", "s") and not stem.endswith("per") else name
    words += " time" if unit == "us" and not stem.endswith("time") else ""
    return words.removeprefix("n_").replace("_", " ")


def _value_text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return "" if value is None else str(value)
    for suffix, scale in (("_us", 1.0), ("_ms", 1e3), ("_s", 1e6)):
        if name.endswith(suffix) and not name.endswith("per_s"):
            return time_text(scale * value)
    if name.endswith("bytes"):
        return bytes_text(round(value))
    if name.startswith("accuracy"):
        return f"{value:.2%}"
    if name.endswith(("share", "missed")):
        return f"{value:.1%}"
    if name.startswith("ratio") and math.isfinite(value):
        return f"{value:.3f}"
    if name.startswith("n_"):  # a float where some row has none
        return f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else number(value)


def interval_text(value: Any, low: Any, high: Any, write: Callable[[Any], str]) -> str:
    """Write a value with its unit, and its interval; an end in the same unit does without."""
    text = write(value)
    if not text or low is None or low == high:
        return text
    if math.isinf(low) and math.isinf(high):
        return f"{text}  [unknown]"
    unit = text.partition(" ")[2]
    ends = [write(end) for end in (low, high)]
    if all(end.endswith(f" {unit}") for end in ends):
        ends = [end.removesuffix(f" {unit}") for end in ends]
    return f"{text}  [{', '.join(ends)}]"


def time_text(time_us: float) -> str:
    """Write a time with three digits; 0 is too short for counters, which are whole µs."""
    if time_us == 0:
        return "≈ 0 µs"
    if not math.isfinite(time_us):
        return number(time_us)
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if abs(time_us) >= 0.9995 * size:
            return f"{number(time_us / size)} {unit}"
    return f"{time_us:.0f} µs" if abs(time_us) >= 99.5 else f"{time_us:.3g} µs"


def bytes_text(n_bytes: int | None) -> str:
    """Write a number of bytes for people, in powers of 1000: ``1.5 MB``."""
    if n_bytes is None:
        return "size not known"
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if n_bytes >= size:
            return f"{n_bytes / size:.3g} {unit}"
    return f"{n_bytes} B"


def number(value: float) -> str:
    """Write a number for people: no exponent, three significant digits or all of its whole part."""
    if value != value:
        return ""
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    digits = max(0, 3 - len(str(int(abs(value))))) if abs(value) >= 1 else 4
    return f"{value:,.{digits}f}"


def _change_text(frame: pd.DataFrame, change: Callable[[str], str]) -> None:
    for column in _text_columns(frame):
        frame[column] = [change(v) if isinstance(v, str) else v for v in frame[column]]
    frame.columns = [change(str(column)) for column in frame.columns]


def _text_columns(frame: pd.DataFrame) -> pd.Index:
    return frame.select_dtypes(["object", "string"]).columns
