"""Text from files reaches a terminal and the log of a CI as plain text."""

from __future__ import annotations

import pytest

from hetero_lab.errors import StoredFileError, shorten
from hetero_lab.result import Result
from hetero_lab.terminal import columns, one_line, pasted, plain_text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x07\x9b", " [31mred  "),
        ("a\u202eb\u2066c\u200f", "a b c "),
        ("a\rb\tc\x00", "a b c "),
        ("\ud800", " "),
        ("::error::owned", ": :error::owned"),
        ("x\n::set-output name=a::b", "x\n: :set-output name=a::b"),
        ("a ##[error]b ##vso[task.x]c", "a # #[error]b # #vso[task.x]c"),
        ("##teamcity[x]", "# #teamcity[x]"),
        ("aten::add, µs ± 3 % → é 你 #1 ## x", "aten::add, µs ± 3 % → é 你 #1 ## x"),
    ],
)
def test_nothing_that_a_terminal_or_a_log_obeys_is_left(text, shown):
    assert plain_text(text) == shown
    assert plain_text(shown) == shown


def test_names_stay_different_and_on_one_line_when_they_are_shortened():
    ops = [f"F0::If_0_then_branch__Inline_0__/encoder/layer.{n}/Conv" for n in range(3)]
    for short in (one_line, shorten):
        assert len({short(op, 40) for op in ops}) == 3
        assert {len(short(op, 40)) for op in ops} == {40}
    assert one_line(f"{'/a' * 40} (bf16, default)", 40).endswith("… (bf16, default)")
    assert one_line("a\n::b") == "a : :b"


@pytest.mark.parametrize(
    ("windows", "shown"),
    [
        (False, "advise 'C:\\my nets\\m.onnx' -d HETERO:ACC,CPU --fix '^head=CPU'"),
        # PowerShell divides a bare word at commas, and cmd takes ^ away.
        (True, 'advise "C:\\my nets\\m.onnx" -d "HETERO:ACC,CPU" --fix "^head=CPU"'),
    ],
)
def test_a_command_can_be_pasted(windows, shown):
    words = ("advise", r"C:\my nets\m.onnx", "-d", "HETERO:ACC,CPU", "--fix", "^head=CPU")
    assert pasted(words, windows) == shown


def test_errors_and_results_print_plainly():
    assert str(StoredFileError("a\x1b[0m\n::error::b")) == "a [0m\n: :error::b"

    class Hostile(Result):
        def __repr__(self) -> str:
            return "\x1b]0;owned\x07"

        def __str__(self) -> str:
            return "ok\n::error::owned"

    assert repr(Hostile()) == " ]0;owned "
    assert str(Hostile()) == "ok\n: :error::owned"


def test_a_table_wider_than_a_narrow_terminal_has_a_line_a_cell(monkeypatch):
    rows = [["NAME", "TASK"], ["one", "which digit a picture shows"], ["two", ""]]
    monkeypatch.setenv("COLUMNS", "80")
    assert columns(rows).splitlines()[0] == "NAME  TASK"
    assert columns([["x", "y"], ["1\n2", "3"]]) == "x    y\n1 2  3"
    monkeypatch.setenv("COLUMNS", "25")
    assert columns(rows) == "name: one\ntask: which digit a picture shows\n\nname: two\n"
