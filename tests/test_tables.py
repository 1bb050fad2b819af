from __future__ import annotations

import math
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from html_outline import Outline
from hypothesis import given, settings, strategies as st
from small_models import NASTY_NAMES

from hetero_lab import tables
from hetero_lab.errors import ArgumentError, OutputPathError, StoredFileError
from hetero_lab.tables import (
    SCHEMA_VERSION,
    Tables,
    _opened_special,
    check_writable,
    html_table,
    make_directory,
    number,
    protect,
    read_csv,
    read_json,
    readable,
    unprotect,
    whole_file,
    write_csv,
    write_json,
    write_parquet,
    write_text,
)
from hetero_lab.terminal import one_line

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
FORMULA = st.builds(str.__add__, st.sampled_from(["=", "+", "-", "@", "'", "\t", "\r", "''"]), TEXT)


def left_over(directory: Path) -> list[str]:
    return [path.name for path in directory.rglob("*hetero_lab-*")]


@given(TEXT | FORMULA)
def test_protection_comes_off_again(text):
    assert unprotect(protect(text)) == text
    assert not protect(text).startswith(("=", "+", "-", "@", "\t", "\r"))
    for ordinary in ("conv1", "a=b", "1-2", "", " =x"):
        assert protect(ordinary) == ordinary
    assert unprotect("'tis") == "'tis"


@given(names=st.lists(TEXT | FORMULA, min_size=1, max_size=8), data=st.data())
@settings(max_examples=30)
def test_csv_there_and_back(tmp_path_factory, names, data):
    n = len(names)
    floats = data.draw(
        st.lists(st.floats(allow_subnormal=False, allow_infinity=False), min_size=n, max_size=n)
    )
    frame = pd.DataFrame(
        {
            "op": pd.array(names, dtype="str"),
            "n_bytes": data.draw(st.lists(st.integers(-(2**62), 2**62), min_size=n, max_size=n)),
            "time_us": floats,
            "emulated": data.draw(st.lists(st.booleans(), min_size=n, max_size=n)),
            "ops": pd.array(["\n".join(names)] * n, dtype="str"),
        }
    )
    path = tmp_path_factory.mktemp("csv") / "table.csv"
    write_csv(path, frame)
    back = read_csv(path)
    assert back.columns.tolist() == frame.columns.tolist()
    assert back["op"].tolist() == names
    assert back["ops"].tolist() == frame["ops"].tolist()
    assert back["n_bytes"].tolist() == frame["n_bytes"].tolist()
    assert back["emulated"].tolist() == frame["emulated"].tolist()
    np.testing.assert_array_equal(back["time_us"].to_numpy(dtype=float), floats)


def test_formulas_are_protected_numbers_and_text_stay_and_a_hole_is_no_zero(tmp_path):
    names = ["=1+1", "@x", "-2", "1", "1.50", "nan", "NA", "", "None", "True", "1e5", "007"]
    times = [-1.5, -2.0, None, 0.0, *range(8)]
    write_csv(tmp_path / "t.csv", pd.DataFrame({"op": names, "time_us": times}))
    lines = (tmp_path / "t.csv").read_text().splitlines()
    assert lines[1:4] == ['"\'=1+1",-1.5', '"\'@x",-2.0', '"\'-2",""']
    back = read_csv(tmp_path / "t.csv")
    assert back["op"].tolist() == names
    np.testing.assert_array_equal(back["time_us"], np.array(times, float))


@pytest.mark.parametrize(
    "edit",
    [
        lambda raw: raw.replace(b"\n", b"\r\n"),
        lambda raw: b"\xef\xbb\xbf" + raw,
        lambda raw: b"\xef\xbb\xbf" + raw.replace(b'"', b"").replace(b"\n", b"\r\n"),
    ],
    ids=["carriage returns", "byte order mark", "both, unquoted"],
)
def test_what_a_spreadsheet_saved(tmp_path, edit):
    path = tmp_path / "t.csv"
    frame = pd.DataFrame(
        {"op": ["a", "=b", "c d"], "time_us": [1.0, 2.5, 3.0], "leader": list("abc")}
    )
    write_csv(path, frame)
    path.write_bytes(edit(path.read_bytes()))
    back = read_csv(path)
    assert back.columns.tolist() == frame.columns.tolist()
    assert back.to_numpy().tolist() == frame.to_numpy().tolist()


@pytest.mark.parametrize(
    "content", [None, b"", b"\xff\xfe\x00bad", b'a,b\n1,"2\n', b"a,b\n1,2,3\n1\n1,2,3,4\n", "."]
)
def test_a_file_that_is_no_table(tmp_path, content):
    path = tmp_path / "broken.csv"
    if content == ".":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(StoredFileError, match=r"broken.csv' is not a CSV table"):
        read_csv(path)


# -- JSON ------------------------------------------------------------------------------------


def test_json_there_and_back(tmp_path):
    values = np.random.default_rng(0).random(100).tolist()
    data = {"kind": "thing", "schema_version": SCHEMA_VERSION, "names": list(NASTY_NAMES)}
    data["values"] = values  # to the last digit
    write_json(tmp_path / "t.json", data)
    assert read_json(tmp_path / "t.json", "thing") == data
    assert (tmp_path / "t.json").read_bytes().isascii()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read as a stored thing: there is no such file."),
        (b"", "stored thing: it is cut off or no JSON (line 1, column 1)."),
        (b"{", "stored thing: it is cut off or no JSON (line 1, column 2)."),
        (b"\xff\xfe", "cannot be read as a stored thing: it is no text in UTF-8."),
        (b"[" * 100_000, "cannot be read as a stored thing"),
        (b"[]", "is not a stored thing"),
        (b"5", "is not a stored thing"),
        (b"null", "is not a stored thing"),
        (b'{"kind": "other", "schema_version": 1}', "is not a stored thing"),
        (b'{"kind": "thing"}', "schema version None"),
        (b'{"kind": "thing", "schema_version": 99}', "schema version 99"),
    ],
)
def test_json_that_is_not_what_it_should_be(tmp_path, content, says):
    path = tmp_path / "broken.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StoredFileError) as caught:
        read_json(path, "thing")
    assert says in str(caught.value)
    assert "broken.json" in str(caught.value)


def test_json_takes_no_nan(tmp_path):
    with pytest.raises(ValueError, match="nan"):
        write_json(tmp_path / "t.json", {"x": math.nan})
    assert list(tmp_path.iterdir()) == []


# -- whole or not at all -----------------------------------------------------------------------


class Broken:
    def __str__(self) -> str:
        raise RuntimeError("power cut")


def test_a_failure_in_the_middle_leaves_the_old_file(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("old")
    with pytest.raises(RuntimeError, match="power cut"), whole_file(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError("power cut")
    with pytest.raises(RuntimeError, match="power cut"):
        write_csv(path, pd.DataFrame({"op": ["a", Broken()]}))
    assert path.read_text() == "old"
    assert left_over(tmp_path) == []


def test_readers_never_see_half_a_file(tmp_path):
    path = tmp_path / "t.txt"
    write_text(path, "0" * 200_000)
    stop, torn = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            text = path.read_text()
            if len(text) != 200_000 or len(set(text)) != 1:
                torn.append(text[:5])
            time.sleep(0.002)  # Windows replaces no file that is always open

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for digit in "123456789" * 3:
            write_text(path, digit * 200_000)
    finally:
        stop.set()
        reader.join()
    assert torn == []


@pytest.mark.skipif(os.name != "posix", reason="file modes of POSIX")
@pytest.mark.parametrize("umask", [0o022, 0o027])
def test_a_written_file_has_the_usual_mode(tmp_path, umask):
    # Asking for the mask means changing it, for all threads, so nothing here may ask.
    code = (
        f"import os, sys; os.umask({umask}); os.umask = None\n"
        "from hetero_lab.tables import write_json, write_text\n"
        "write_text('t.txt', 'x'); write_json('own.json', {}, private=True)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    assert stat.S_IMODE((tmp_path / "t.txt").stat().st_mode) == 0o666 & ~umask
    assert stat.S_IMODE((tmp_path / "own.json").stat().st_mode) == 0o600


# -- what is no ordinary file ------------------------------------------------------------------

TABLE = pd.DataFrame({"op": ["conv1", "=cmd"], "n": [1, 2]})
TABLE_TEXT = '"op","n"\n"conv1",1\n"\'=cmd",2\n'


@pytest.mark.skipif(os.name != "posix", reason="special files of POSIX")
def test_a_pipe_and_a_device_are_written_through_and_stay(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    check_writable(pipe)  # without waiting for a reader
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_csv(pipe, TABLE)
    reader.join()
    assert read == [TABLE_TEXT]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert left_over(tmp_path) == []
    write_csv("/dev/null", TABLE)
    write_parquet("/dev/null", TABLE)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_file_without_a_number_is_no_stream_of_this_process(tmp_path, monkeypatch, capfd):
    """To Windows, the console and NUL have the same number, 0."""
    unknown = os.stat_result((stat.S_IFCHR, *[0] * 9))
    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", lambda _: unknown)
        patched.setattr(os, "stat", lambda *_, **__: unknown)
        through = _opened_special(tmp_path / "t.csv")
    with through:
        through.write(b"x")
    assert (tmp_path / "t.csv").read_bytes() == b"x"
    assert capfd.readouterr().out == ""


def test_a_file_in_use_is_replaced_as_soon_as_it_is_free(tmp_path, monkeypatch):
    (tmp_path / "t.csv").write_text("old")
    replace, refusals = os.replace, [PermissionError(13, "Access is denied")] * 2

    def busy(*paths: Any) -> None:
        if refusals:
            raise refusals.pop()
        replace(*paths)

    monkeypatch.setattr(os, "replace", busy)
    write_text(tmp_path / "t.csv", "new")
    assert (tmp_path / "t.csv").read_text() == "new"
    refusals.extend([PermissionError(13, "Access is denied")] * 9)
    with pytest.raises(OutputPathError, match=r"cannot be replaced: Access is denied\. Close what"):
        write_text(tmp_path / "t.csv", "newer")
    assert (tmp_path / "t.csv").read_text() == "new"
    assert left_over(tmp_path) == []


@pytest.mark.skipif(not os.path.exists("/dev/stdout"), reason="streams as files")
@pytest.mark.parametrize("to_file", [False, True])
def test_a_table_on_standard_output(tmp_path, to_file):
    code = (
        "from hetero_lab.tables import write_text\nprint('before')\n"
        "write_text('/dev/stdout', 'text\\n')\nprint('after')"
    )
    with open(tmp_path / "out.txt", "w+") as file:
        stdout = file if to_file else subprocess.PIPE
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=stdout, text=True, check=True, cwd=tmp_path
        )
        text = (tmp_path / "out.txt").read_text() if to_file else done.stdout
    assert text == "before\ntext\nafter\n"
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]


@pytest.mark.skipif(os.name != "posix", reason="symbolic links")
@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_followed_and_stays(tmp_path, there):
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "t.csv", tmp_path / "link.csv"
    if there:
        target.write_text("old")
    link.symlink_to(Path("elsewhere") / "t.csv")
    write_csv(link, TABLE)
    assert link.is_symlink()
    assert target.read_text() == TABLE_TEXT
    assert left_over(tmp_path) == []
    (tmp_path / "astray.csv").symlink_to(tmp_path / "missing" / "t.csv")
    with pytest.raises(OutputPathError, match="does not exist"):
        write_csv(tmp_path / "astray.csv", TABLE)


def test_places_where_no_file_can_be(tmp_path):
    (tmp_path / "file").write_text("x")
    places = [
        (tmp_path / "file" / "below.csv", "does not exist"),
        (tmp_path / "missing" / "t.csv", "does not exist"),
        (tmp_path, "is a directory; name a file"),
        (tmp_path / ("n" * 300), "cannot be written"),
    ]
    if sys.platform == "linux":
        places.append((Path("/proc/t.csv"), "cannot be written"))
    for path, says in places:
        for write, content in ((write_csv, TABLE), (write_json, {"a": 1}), (write_text, "a")):
            with pytest.raises(OutputPathError, match=says):
                write(path, content)
        if "n" * 300 not in path.name:
            with pytest.raises(OutputPathError):
                check_writable(path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_directories(tmp_path):
    made = make_directory(tmp_path / "a" / "b")
    assert made.is_dir()
    assert make_directory(made) == made
    (tmp_path / "file").write_text("x")
    places = [tmp_path / "file", tmp_path / "file" / "below"]
    if sys.platform == "linux":
        places.append(Path("/proc/hetero_lab_test"))
        with pytest.raises(OutputPathError, match="'/proc' cannot be written"):
            make_directory("/proc")
    for place in places:
        with pytest.raises(OutputPathError, match=f"{place.name}' cannot be made"):
            make_directory(place)


# -- HTML ------------------------------------------------------------------------------------


def test_html_escapes_cells_headings_and_caption():
    frame = pd.DataFrame({"<b>op</b>": list(NASTY_NAMES)})
    table = html_table(frame, caption="<script>alert(1)</script>")
    found = Outline(table)
    assert set(found.tags) == {"table", "caption", "tr", "th", "td"}
    assert found.cells[0] == "<b>op</b>"
    for cell, name in zip(found.cells[1:], NASTY_NAMES, strict=True):
        assert cell == (name if len(name) <= 200 else one_line(name, 200))
    assert "<script" not in table
    first = html_table(pd.DataFrame({"n": range(100)}), most=60)
    assert Outline(first).cells[-1].startswith("59")
    assert "… 40 more rows" in first


@given(TEXT.filter(bool))
@settings(max_examples=30)
def test_html_of_any_text_is_one_cell(text):
    found = Outline(html_table(pd.DataFrame({"op": [text]})))
    assert found.tags == ["table", "tr", "th", "tr", "td"]


def test_a_table_that_is_not_there():
    tables = Tables(boundaries=pd.DataFrame(), summary=pd.DataFrame())
    with pytest.raises(ArgumentError, match="Did you mean 'boundaries'.*Tables: .*'summary'"):
        tables["boundary"]
    assert "boundary" not in tables
    assert tables.get("boundary") is None


def test_a_table_for_people_has_units_and_intervals():
    frame = pd.DataFrame(
        {
            "label": ["CPU", "ACC"], "median_us": [26_443.0, math.nan],
            "ci95_low_us": [980.0, math.nan], "ci95_high_us": [math.inf, math.nan],
            "ratio": [1.0, 1.25], "ratio_ci95_low": [1.0, 1.1], "ratio_ci95_high": [1.0, 1.4],
            "compile_ms": [2_747.0, 0.5], "boundary_bytes": [30_448, 0], "detail": ["", ""],
            "time_us": [0.0, 12.34], "accuracy": [0.993, None], "gain_us": [-11_300.0, 5.0],
            "gain_low_us": [-math.inf, 1.0], "gain_high_us": [math.inf, 9.0],
        }
    )  # fmt: skip
    assert readable(frame) == {
        "placement": ["CPU", "ACC"], "latency  [95 %]": ["26.4 ms  [980 µs, ∞]", ""],
        "ratio  [95 %]": ["1.000", "1.250  [1.100, 1.400]"], "compile": ["2.75 s", "500 µs"],
        "crosses": ["30.4 KB", "0 B"], "time": ["≈ 0 µs", "12.3 µs"], "accuracy": ["99.30%", ""],
        "gain  [90 %]": ["-11.3 ms  [unknown]", "5 µs  [1, 9]"],
    }  # fmt: skip


def test_numbers_for_people():
    for value, shown in (
        (1234567.0, "1,234,567"), (12.3456, "12.3"), (1.23456, "1.23"), (0.12345, "0.1235"),
        (0.0, "0.0000"), (-5.0, "-5.00"), (math.nan, ""), (math.inf, "∞"), (-math.inf, "−∞"),
    ):  # fmt: skip
        assert number(value) == shown
    frame = pd.DataFrame(
        {"a": [1.5, math.nan, math.inf], "b": [None, 3, "x"], "c": [True, False, True]}
    )
    assert Outline(html_table(frame)).cells[3:] == [
        "1.50", "", "yes", "", "3", "no", "∞", "x", "yes",
    ]  # fmt: skip


@pytest.mark.skipif(os.name != "posix", reason="links and pipes are POSIX's")
def test_a_stored_file_is_a_regular_one_of_its_directory(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "victim").write_text("{}")
    (home / "inside").write_text("{}")
    (home / "link").symlink_to("inside")
    assert tables.read_bytes(home / "link") == b"{}"
    tables.check_directory(home)
    for name, make in {
        "pipe": os.mkfifo,
        "zero": lambda path: path.symlink_to("/dev/zero"),
        "outside": lambda path: path.symlink_to(tmp_path / "victim"),
        "directory": lambda path: path.symlink_to(tmp_path),
        "gone": lambda path: path.symlink_to("nothing"),
    }.items():
        make(home / name)
        with pytest.raises((OSError, ValueError), match="regular|leads out|No such file"):
            tables.read_bytes(home / name)
        with pytest.raises(StoredFileError, match=f"{name}' cannot be trusted"):
            tables.check_directory(home)
        (home / name).unlink()


def test_a_stored_file_has_a_sane_size(tmp_path):
    file = tmp_path / "a.json"
    with open(file, "wb") as zeros:
        zeros.truncate(1 << 33)  # takes no room on the disk
    with pytest.raises(StoredFileError, match="larger than 64 MiB"):
        tables.load_json(file, "no")
    file.write_text("[" + "[]," * (1 << 22) + "0]")
    with pytest.raises(StoredFileError, match="more than 8 million values"):
        tables.load_json(file, "no")


def test_text_of_the_lab_and_of_devices_prints(tmp_path):
    file = tmp_path / "a.json"
    good = {"kind": "x", "schema_version": 1, "names": ["a\nb"], "label": "\x1b"}
    tables.write_json(file, good)
    assert tables.read_json(file, "x") == good
    for bad in (
        {"status": "a\n"},
        {"a": [{"devices": {"\x1b": ""}}]},
        {"environment": {"host": "\u202e"}},
        {"b": {"emulated": [["x", "\x00"]]}},
    ):
        tables.write_json(file, good | bad)
        with pytest.raises(StoredFileError, match="does not print"):
            tables.read_json(file, "x")
