"""Changes of a file's content: by bytes, and by somebody who knows the format."""

from __future__ import annotations

import hashlib
import html
import io
import itertools
import json
import os
import random
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.proof.tampered import HOSTILE

_DEEP, _HUGE = "@deep@", "@huge@"  # what json.dumps does not write, put in afterwards
_RAW = {_DEEP: "[" * 5000 + "]" * 5000, _HUGE: "1e999"}
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 0.5, -0.0, 2**31, 2**63, -(2**63) - 1, 10**30, 10**400, 1e-320,
    1e300, -1e300, float("nan"), float("inf"), float("-inf"), _HUGE, _DEEP, "", " ", "x", "NaN",
    "1e999", "../../x", "/etc/passwd", "CPU", "HETERO:ACC,CPU", "\ud800", "\x00", "\u2028", HOSTILE,
    "y" * 100_000, [], {}, [[]], [[[[]]]], {"a": {"b": [1]}}, [None], [0] * 10_000, {"": ""},
)  # fmt: skip
_CHARACTERS = ("\x00", "\x1b[2J", "\r", "\u202e", "\ud800", "\ufeff", "\x85", "\u2028", HOSTILE)
_ENTITIES = (
    '<!DOCTYPE x [<!ENTITY a "lol">]>',
    "<!DOCTYPE x ["
    + '<!ENTITY a "lollollol">'
    + "".join(f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in itertools.pairwise("abcdefghi"))
    + '<!ENTITY z "&i;">]>',
    '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>',
    '<!DOCTYPE x SYSTEM "http://127.0.0.1:9/x.dtd">',
    '<!DOCTYPE x [<!ENTITY % p SYSTEM "file:///etc/passwd"> %p;]>',
)  # fmt: skip
_ENCODINGS = ("utf-16", "utf-7", "latin-1", "nope", "idna", "unicode_escape", "zlib")


def by_bytes(content: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    """Flip, cut, repeat, move or splice bytes."""
    data = bytearray(content)
    at, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    how = rng.randrange(9)
    if how == 0:
        for _ in range(rng.choice((1, 1, 4, 64))):
            if data:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif how == 1:
        del data[at:]
    elif how == 2:
        data[at:at] = data[at:end]
    elif how == 3:
        del data[at : min(end, at + rng.choice((1, 16, 1 << 20)))]
    elif how == 4:
        other = rng.choice(others)
        data[at:] = other[rng.randrange(len(other) + 1) :]
    elif how == 5:
        data[at:at] = rng.choice(_CHARACTERS).encode("utf-8", "surrogatepass")
    elif how == 6:
        data[at : at + 8] = rng.randbytes(8)
    elif how == 7:
        data[at:end] = bytes(end - at)
    else:
        data[:] = rng.choice((b"", bytes(1 << 16), b"\xff" * 99, data.decode("latin-1").encode()))
    return bytes(data)


def _paths(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = (
        data.items()
        if isinstance(data, dict)
        else enumerate(data)
        if isinstance(data, list)
        else ()
    )
    for key, value in items:
        yield from _paths(value, (*path, key))


def _at(data: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        data = data[key]
    return data


def _path(data: Any, rng: random.Random) -> tuple[Any, ...]:
    """Choose a place: at each level equally likely, so that a long list does not take all."""
    path: tuple[Any, ...] = ()
    while isinstance(data, dict | list) and data and rng.random() < 0.85:
        key = rng.choice(list(data)) if isinstance(data, dict) else rng.randrange(len(data))
        path, data = (*path, key), data[key]
    return path


def change_data(data: Any, rng: random.Random) -> Any:
    """Return plain data with a value of another type or size, or other keys or lengths."""
    path = _path(data, rng)
    value = _at(data, path)
    how = rng.random()
    if how < 0.45:
        new: Any = rng.choice(VALUES)
    elif how < 0.55:
        new = _at(data, _path(data, rng))
        new = json.loads(json.dumps(new))
    elif isinstance(value, bool) or value is None:
        new = rng.choice((True, False, None, 0, "true"))
    elif isinstance(value, int | float):
        try:
            new = rng.choice(
                (-value, value + 1, value * 1_000_000_007, value / 3, str(value), [value])
            )
        except OverflowError:
            new = -1
    elif isinstance(value, str):
        with_more = value + rng.choice(_CHARACTERS)
        new = rng.choice((with_more, value * 2, value[:-1], value.swapcase(), [value], {value: 0}))
    elif isinstance(value, list):
        new = list(value)
        step = rng.randrange(5)
        if step == 0 and new:
            del new[rng.randrange(len(new))]
        elif step == 1 and new:
            new.append(rng.choice(new))
        elif step == 2:
            new.reverse()
        elif step == 3:
            new = [*new, *new]
        else:
            new.insert(rng.randrange(len(new) + 1), rng.choice(VALUES))
    else:
        new = dict(value)
        step, key = rng.randrange(4), rng.choice(list(new) or [""])
        if step == 0:
            new.pop(key, None)
        elif step == 1:
            new[key + rng.choice(("_", *_CHARACTERS))] = new.pop(key, None)
        elif step == 2:
            new[rng.choice(("", "x", key.upper(), HOSTILE, "__class__"))] = rng.choice(VALUES)
        else:
            new[key] = new.get(rng.choice(list(new) or [""]))
    if not path:
        return new
    whole = json.loads(json.dumps(data))
    _at(whole, path[:-1])[path[-1]] = new
    return whole


def _text(data: Any, rng: random.Random) -> str:
    text = json.dumps(data, ensure_ascii=rng.random() < 0.7)
    for mark, raw in _RAW.items():
        text = text.replace(f'"{mark}"', raw)
    return text


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def json_(content: bytes, rng: random.Random) -> bytes:
    """Change a JSON file."""
    data = json.loads(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        data = change_data(data, rng)
    text = _text(data, rng)
    if isinstance(data, dict) and data and rng.random() < 0.05:  # a key that is there twice
        key = rng.choice(list(data))
        text = f"{text[:-1]}, {json.dumps(key)}: {_text(rng.choice(VALUES), rng)}}}"
    return _bytes(text)


def signed(content: bytes, rng: random.Random) -> bytes:
    """Change a contract, with a right digest."""
    data = json.loads(content)
    data.pop("digest", None)
    for _ in range(rng.choice((1, 1, 2))):
        data = change_data(data, rng)
    if not isinstance(data, dict):
        return _bytes(_text(data, rng))
    text = _text(data, rng)
    try:
        plain = json.dumps(json.loads(text), sort_keys=True)
    except (ValueError, RecursionError):
        return _bytes(text)
    digest = hashlib.sha256(plain.encode("utf-8", "surrogatepass")).hexdigest()
    return _bytes(f'{text[:-1]}, "digest": "{digest}"}}')


def lines(content: bytes, rng: random.Random) -> bytes:
    """Change records of a store, with right checksums."""
    every = content.splitlines(keepends=True)
    for _ in range(rng.choice((1, 1, 3))):
        at = rng.randrange(len(every))
        how = rng.random()
        if how < 0.1:
            every.insert(rng.randrange(len(every)), every[at])
        elif how < 0.2 and len(every) > 1:
            del every[at]
        else:
            record = change_data(json.loads(every[at])["record"], rng)
            text = _text(record, rng)
            try:
                plain = json.dumps(json.loads(text))
            except (ValueError, RecursionError):
                plain = ""
            crc = zlib.crc32(plain.encode("utf-8", "surrogatepass"))
            every[at] = _bytes(f'{{"crc": {crc}, "record": {text}}}\n')
            try:
                json.loads(every[at])
            except (ValueError, RecursionError):
                return b"".join(every)
    return b"".join(every)


class _Runs:
    """An object that runs a command when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, ("touch ran",)


def _arrays(rng: random.Random) -> Iterator[np.ndarray]:
    yield np.array([_Runs()], object)
    yield np.array([None, 1], object)
    yield np.full((1, 4), np.nan, np.float32)
    yield np.zeros(rng.choice(((), (0,), (0, 4), (1, 1, 1, 1, 1, 1), (7,), (100_000,))), np.float32)
    yield np.array([HOSTILE])
    yield np.array([b"\x00" * 9])
    yield np.zeros(3, [("a", "i4"), (HOSTILE, "O")] if rng.random() < 0.3 else [("a", "i4")])
    yield np.zeros(4, rng.choice(("c8", "M8[s]", "m8", "f2", ">f4", "u8", "?", "S9", "V3", "g")))
    yield np.full(4, np.inf)


def npz(content: bytes, rng: random.Random) -> bytes:
    """Change the members of an .npz: headers, types, objects, names, sizes."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    at = rng.randrange(len(members))
    name, data = members[at]
    how = rng.randrange(8)
    if how == 0:
        made = io.BytesIO()
        np.save(made, rng.choice(list(_arrays(rng))), allow_pickle=True)
        members[at] = name, made.getvalue()
    elif how == 1:
        made = io.BytesIO()
        shape = rng.choice(((1 << 40,), (-1,), (1 << 20,) * 3, (), (3, 0), (2**63,), ("a",)))
        descr = rng.choice(
            ("<f4", "|O", "|S2000000000", "nope", "|V0", ">c16", [("a", "<f4")], "<U9")
        )
        header = repr({"descr": descr, "fortran_order": rng.choice((True, 2)), "shape": shape})
        header = rng.choice(
            (header, header[:-3], f"__import__('os').system('touch ran') or {header}")
        )
        raw = header.encode().ljust(117) + b"\n"
        made.write(b"\x93NUMPY" + bytes([rng.choice((1, 1, 1, 2, 3, 9)), 0]))
        made.write(len(raw).to_bytes(rng.choice((2, 4)), "little") + raw + data[128:])
        members[at] = name, made.getvalue()
    elif how == 2:
        del members[at]
    elif how == 3:
        odd = rng.choice(
            (
                "x.npy",
                ".",
                "../ran.npy",
                "/tmp/ran.npy",
                "in9.9",
                "in.npy",
                f"{HOSTILE}.npy",
                "in-1.0.npy",
                "in0.x.npy",
                "inputs.npy",
                "out1e9.0.npy",
            )
        )
        members[at] = odd, data
    elif how == 4:
        members.append((name, data))
    elif how == 5:
        members[at] = name, data[: rng.randrange(len(data))]
    elif how == 6:
        members[at] = name, by_bytes(data, rng, [data])
    else:
        members[at] = name, data + bytes(rng.choice((1, 300 << 20)))
    packed = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        warnings.simplefilter("ignore")
        for each, raw in members:
            archive.writestr(each, raw)
    return packed.getvalue()


def xml(content: bytes, rng: random.Random) -> bytes:
    """Change entities, references, attributes, elements, the encoding, and a note in it."""
    text = content.decode("utf-8", "surrogateescape")
    attributes = list(re.finditer(r'[\w:]+="([^"]*)"', text))
    elements = [m.start() for m in re.finditer(r"<\w", text)]
    note = re.search(r'<placement value="([^"]*)"', text)
    how = rng.randrange(8)
    if note and rng.random() < 0.4:
        data = json.loads(html.unescape(note[1]))
        for _ in range(rng.choice((1, 1, 2))):
            data = change_data(data, rng)
        new = _xml_text(_text(data, rng), rng)
        return _bytes(text[: note.start(1)] + new + text[note.end(1) :])
    if how <= 2 and attributes:
        given = rng.choice(attributes)
        odd = [str(value) for value in VALUES if not isinstance(value, list | dict)]
        numbers = (
            "-1",
            "0",
            "99999999999",
            "1099511627776",
            "1,2",
            "-1,-1,3",
            "f64",
            "string",
            "u4",
        )
        new = rng.choice(
            (*odd, *numbers, rng.choice(attributes)[1], given[1] + rng.choice(_CHARACTERS))
        )
        text = text[: given.start(1)] + _xml_text(new, rng) + text[given.end(1) :]
    elif how == 3 and len(elements) > 1:
        at, end = sorted(rng.sample(elements, 2))
        text = (
            text[:at] + text[end:] if rng.random() < 0.5 else text[:end] + text[at:end] + text[end:]
        )
    elif how == 4:
        prolog = re.match(r"(<\?xml[^>]*\?>)?", text)
        assert prolog
        used = re.sub(r'="[^"]*"', '="&a;"', text[prolog.end() :], count=rng.choice((0, 1, 5)))
        used = used.replace("&a;", rng.choice(("&a;", "&z;", "&#0;", "&#x1b;", "&none;")))
        text = prolog[0] + rng.choice(_ENTITIES) + used
    elif how == 5:
        at = rng.choice(elements) if elements else 0
        depth = rng.choice((100, 20_000))
        text = text[:at] + "<a>" * depth + "</a>" * (depth - rng.choice((0, 1))) + text[at:]
    elif how == 6:
        text = re.sub(
            r"^(<\?xml[^>]*\?>)?",
            f'<?xml version="1.0" encoding="{rng.choice(_ENCODINGS)}"?>',
            text,
        )
    elif attributes:
        given = rng.choice(attributes)
        text = text[: given.start()] + text[given.end() :]
    return _bytes(text)


def _xml_text(text: str, rng: random.Random) -> str:
    return html.escape(text) if rng.random() < 0.8 else text


def table(content: bytes, rng: random.Random) -> bytes:
    """Change cells, rows and separators of a text of many lines."""
    rows = content.decode("utf-8", "surrogateescape").splitlines(keepends=True)
    at = rng.randrange(len(rows))
    how = rng.randrange(7)
    separator = ";" if ";" in rows[0] else ","
    cells = rows[at].rstrip("\r\n").split(separator)
    if how <= 1:
        odd = [str(value) for value in VALUES if not isinstance(value, list | dict)]
        cells[rng.randrange(len(cells))] = rng.choice(
            (*odd, '"', "=1+1", "'", "1,5", "12:00", "-5")
        )
        rows[at] = separator.join(cells) + "\n"
    elif how == 2:
        del rows[at]
    elif how == 3:
        rows.insert(rng.randrange(len(rows) + 1), rows[at])
    elif how == 4:
        rows[at] = separator.join(cells * 2 if rng.random() < 0.5 else cells[:-1]) + "\n"
    elif how == 5:
        spot = rng.randrange(len(rows[at]) + 1)
        rows[at] = (
            rows[at][:spot] + rng.choice((*_CHARACTERS, '"', separator * 9)) + rows[at][spot:]
        )
    else:
        text = "".join(rows)
        return rng.choice((
            text.encode("utf-16", "surrogatepass"), _bytes("\ufeff" + text), _bytes(text.upper()),
            _bytes(text.replace("\n", "\r")), _bytes(text.replace(separator, "\t")),
        ))  # fmt: skip
    return "".join(rows).encode(
        "utf-8", "surrogatepass" if "\ud800" in "".join(rows) else "surrogateescape"
    )


FORMS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "json": json_, "signed": signed, "lines": lines, "npz": npz, "xml": xml, "table": table,
}  # fmt: skip


def mutated(content: bytes, form: str, rng: random.Random, others: list[bytes]) -> bytes:
    """Return another content: two in three by the format, where it is known, the rest by bytes."""
    if form in FORMS and rng.random() < 0.7:
        return FORMS[form](content, rng)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        content = by_bytes(content, rng, others)
    return content
