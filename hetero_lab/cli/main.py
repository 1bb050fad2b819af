"""The command line ``hetero-lab``: parse, call, print."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import sys
import traceback
from collections.abc import Sequence
from errno import EINVAL
from importlib import metadata

import hetero_lab as hl
from hetero_lab.cli import calls, texts
from hetero_lab.cli.commands import BROKEN_PIPE, COMMANDS, ERROR, INTERRUPTED, parser
from hetero_lab.cli.options import spelled
from hetero_lab.errors import ArgumentError, HeteroLabError, did_you_mean
from hetero_lab.interrupts import deferred, sigterm_as_ctrl_c
from hetero_lab.terminal import plain_text


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code, one of ``EXIT_CODES``."""
    _print_anything()
    words, aside = sys.argv[1:] if arguments is None else list(arguments), list[str]()

    def say(text: str) -> None:
        aside.append(text.removeprefix("Note: "))
        _say_aside(text)

    try:
        with sigterm_as_ctrl_c(), calls.warnings_to(say):
            return _run(words, aside)
    except HeteroLabError as error:
        return _failed(words, ERROR, f"Error: {' '.join(str(error).split())}", error)
    except KeyboardInterrupt as stop:
        return _failed(words, INTERRUPTED, f"Interrupted. {stop}".rstrip(), stop)
    except OSError as error:
        # The interpreter must not try to write the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # The reader has gone (`| head`), which Windows calls an invalid argument.
        if isinstance(error, BrokenPipeError) or (error.errno, error.filename) == (EINVAL, None):
            return BROKEN_PIPE
        _say_aside(f"Error: {error.filename or 'The standard output'}: {error.strerror}")
        return ERROR
    except Exception as error:  # else Python's exit code, 1, would be taken for a verdict
        text = f"Error in hetero-lab itself: {''.join(traceback.format_exception(error))}"
        return _failed(words, ERROR, text, error)


def _failed(words: Sequence[str], code: int, text: str, error: BaseException) -> int:
    """Say why a command has no result; as JSON too, if that was asked for."""
    _say_aside(text)
    if "--json" in words:
        problem = {"type": type(error).__name__, "message": plain_text(_spelled(str(error)))}
        with contextlib.suppress(OSError):
            stopped = code == INTERRUPTED
            print(texts.as_json(words[0], code, error=problem, interrupted=stopped), flush=True)
    return code


def _print_whole(text: str) -> None:
    """Print a text whole, although Ctrl-C comes.

    Where Python does not buffer (PYTHONUNBUFFERED), the rest of a text is lost if a signal comes
    while it is written, so the signal waits.
    """
    mask = getattr(signal, "pthread_sigmask", lambda *_: ())
    with deferred(goes_on=True):
        before = mask(getattr(signal, "SIG_BLOCK", 0), {signal.SIGINT})
        try:
            print(text, flush=True)
        finally:
            mask(getattr(signal, "SIG_SETMASK", 0), before)


def _run(arguments: Sequence[str], aside: Sequence[str]) -> int:
    first, *rest = arguments = arguments or ["-h"]
    if first not in COMMANDS:
        if not first.startswith("-"):
            raise ArgumentError(
                f"There is no command {first}.{did_you_mean(first, COMMANDS)} "
                "hetero-lab -h lists them."
            )
        parser().parse_args(arguments)  # -h, or --version
        print(f"hetero-lab {hl.__version__}, OpenVINO {metadata.version('openvino')}", flush=True)
        return 0
    command = COMMANDS[first]
    args = command.parser().parse_args(rest)
    args.words = rest
    args.options_of = {name: command.options for name, command in COMMANDS.items()}
    with contextlib.redirect_stdout(sys.stderr) if args.json else contextlib.nullcontext():
        result = command.result(args)
        with deferred(goes_on=True) as came:  # what is known is said
            text = plain_text(_spelled(command.text(args, result).rstrip("\n")))
            code = command.exit_code(args, result) if command.exit_code else 0
    code = INTERRUPTED if came() or getattr(result, "interrupted", False) else code
    # What took minutes is printed before writing can fail, and written although printing failed.
    with contextlib.ExitStack() as last:
        last.callback(calls.write, args, result, text)
        if args.json:
            with deferred(goes_on=True) as came:
                content = texts.content_of(args, first, result, text)
                content["verdict"] = _spelled(content.get("verdict", text.partition("\n\n")[0]))
                content["notes"] = [*map(_spelled, [*content.get("notes", []), *aside])]
            code = INTERRUPTED if came() else code
            content["interrupted"] = code == INTERRUPTED
            _print_whole(texts.as_json(first, code, **content))
        elif text and not vars(args).get("quiet"):
            print(text, flush=True)
    return code


def _print_anything() -> None:
    # An op's name may have characters that the terminal's encoding lacks.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _say_aside(text: str) -> None:
    with contextlib.suppress(OSError):
        print(f"hetero-lab: {plain_text(_spelled(text))}", file=sys.stderr)


def _spelled(text: str) -> str:
    """Write calls of public functions as commands, and their arguments as options."""

    def command(match: re.Match[str]) -> str:
        name = match[1].replace("_", "-")
        return f"hetero-lab {name}" if name in COMMANDS else match[0]

    return spelled(re.sub(r"\bhetero_lab\.(\w+)\([^()]*\)", command, text))
