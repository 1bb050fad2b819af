"""What happens when somebody clicks, types or drags in the affinity tweaker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetero_lab.errors import AffinityError, ArgumentError, HeteroLabError
from hetero_lab.widgets.tweaker.controls import EXPORTS

if TYPE_CHECKING:
    from hetero_lab.widgets.tweaker.tweaker import AffinityTweaker
    from hetero_lab.widgets.tweaker.view import Showing

_SUFFIXES = {"affinity, JSON": ".json", "affinity, CSV": ".csv", "history, CSV": ".csv"}


def connect(tweaker: AffinityTweaker, showing: Showing) -> None:
    """Let every control do what its Python method does; errors become messages."""
    controls = showing.controls

    def guarded(action: Callable[[], object]) -> None:
        with showing.lock:
            try:
                action()
            except Exception as error:  # whatever it is: nobody sees what a callback raises
                known = isinstance(error, HeteroLabError)
                controls.say(
                    str(error) if known else f"{type(error).__name__}: {error}", is_error=True
                )
                # A control may show what was refused: put everything back.
                tweaker.refresh()

    def on_click(button: Any, action: Callable[[], object]) -> None:
        button.on_click(lambda _button: guarded(action))

    def on_change(control: Any, name: str, action: Callable[[Any], object]) -> None:
        def handle(change: Any) -> None:
            if not showing.is_refreshing:
                guarded(lambda: action(change["new"]))

        control.observe(handle, names=name)

    def pick(control: Any, nothing: Any, select: Callable[[Any], object]) -> None:
        """Select by a dropdown, which then offers the same choice again."""

        def handle(value: Any) -> None:
            if value != nothing:
                try:
                    select(value)
                finally:
                    control.value = nothing

        on_change(control, "value", handle)

    def after() -> None:
        if not tweaker.selection:
            raise AffinityError("Select an op first: what comes after it is selected then.")
        tweaker.select(after=tweaker.selection[0])

    def by_pattern(_value: object = None) -> None:
        tweaker.select(pattern=controls.pattern.value)

    on_change(showing.board, "selected", lambda _: _take(tweaker, showing))
    on_change(controls.pattern, "value", by_pattern)
    on_click(controls.by_pattern, by_pattern)
    pick(controls.by_type, "", lambda op_type: tweaker.select(op_type=op_type))
    pick(controls.by_subgraph, -1, lambda index: tweaker.select(subgraph=index))
    on_click(controls.after, after)
    on_click(controls.clear, lambda: tweaker.select(ops=[]))
    for device, button in controls.devices.items():
        on_click(button, lambda device=device: tweaker.assign(device))
    on_click(controls.undo, tweaker.undo)
    on_click(controls.redo, tweaker.redo)
    on_change(controls.cut, "value", tweaker.cut)
    for control in (controls.before, controls.behind):
        on_change(control, "value", lambda _: tweaker.cut(controls.cut.value))
    on_click(controls.measure, lambda: tweaker.measure(wait=False))
    on_click(controls.cancel, tweaker.cancel)
    on_click(controls.suggest, lambda: tweaker.suggest(wait=False))
    on_click(controls.export, lambda: _export(tweaker, showing))
    on_click(controls.load, lambda: tweaker.load(_path(showing)))

    def on_panel(_panel: Any, message: Any, _buffers: Any) -> None:
        do, index = message.get("do"), message.get("index")
        if not isinstance(index, int):
            return
        if do in ("show", "fix") and showing.panel.is_looking:
            return  # the click was on findings of the placement before
        actions = {"show": tweaker.select_finding, "fix": tweaker.apply, "return": tweaker.go_to}
        if do in actions:
            guarded(lambda: actions[do](index))

    showing.panel.on_msg(on_panel)


def _take(tweaker: AffinityTweaker, showing: Showing) -> None:
    selected = showing.selected_ops()
    if set(selected) != set(tweaker.selection):
        tweaker.select(ops=selected)


def _path(showing: Showing) -> Path:
    text = showing.controls.path.value.strip()
    if not text:
        raise ArgumentError("Write a path into the field first.")
    return Path(text)


def _export(tweaker: AffinityTweaker, showing: Showing) -> None:
    kind, path = str(showing.controls.export_kind.value), _path(showing)
    if kind in _SUFFIXES:
        if path.name in ("", ".."):
            raise ArgumentError(f"{path} is a directory. Add the name of a file.")
        if not path.suffix:
            path = path.with_suffix(_SUFFIXES[kind])
    write = {
        EXPORTS[0]: tweaker.to_json,
        EXPORTS[1]: tweaker.to_csv,
        EXPORTS[2]: tweaker.freeze,
        EXPORTS[3]: tweaker.history_to_csv,
    }
    write[kind](path)
    showing.controls.say(f"Written: {path}")
