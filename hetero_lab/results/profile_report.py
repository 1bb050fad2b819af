"""A Profile as text; counters as in the ``-pc`` output of OpenVINO's samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hetero_lab.arguments import HETERO
from hetero_lab.placement.partition import boundary_size
from hetero_lab.results.environment import busy_note
from hetero_lab.results.profile_data import Generation, ProfileData
from hetero_lab.results.profile_tables import build_tables, tally, time_parts, transitions
from hetero_lab.runtime.counters import Counter, executed_precisions, reorders_us
from hetero_lab.runtime.inputs import GENERATED
from hetero_lab.runtime.reference import VERDICTS, agreement_notes, large_roundings
from hetero_lab.tables import bytes_text, interval_text, number, text_table, time_text
from hetero_lab.terminal import count_of, one_line

if TYPE_CHECKING:
    import pandas as pd

_WIDTH = 30  # of a name, as in OpenVINO's samples
_WIDEST = 120  # of a name in a cell of a table, as in messages
_MOST_ROWS = 20  # of a table in a report, about a screen
_MOST_NAMED = 3  # ops, and boundaries, which share a line of the summary
_MUCH = 0.25  # the least share of the latency that is worth a sentence
_SOME = 0.1  # and half a sentence
_BEYOND = 1.05  # of the latency: two compiles differ by that much


def text(profile: ProfileData, *, tables: bool = True, counters: bool = True) -> str:
    """Return a profile as text; names in lines of counters are cut."""
    blocks = [summary(profile)]
    if tables and profile.partition.n_subgraphs > 1:
        frames = build_tables(profile)
        blocks += [_subgraphs(frames["subgraphs"]), _boundaries(frames["boundaries"])]
        if profile.as_predicted is False:
            blocks[1] += "\nThese subgraphs are predicted; the runtime compiled other ones."
    if counters and profile.counters:
        lines = counter_lines(profile.counters, hetero=bool(profile.partition.wiring))
        blocks.append("\n".join(["Performance counts for 0-th infer request", *lines]))
    return "\n\n".join(blocks) + "\n"


def summary(profile: ProfileData) -> str:
    """Summarise a profile in at most 13 lines, the answer first."""
    partition, latency = profile.partition, profile.latency
    on = "on" if any(d in profile.label for d in profile.affinity.devices) else "with"
    lines = [
        f"{one_line(profile.graph.name, 60)} takes {time_text(latency.median_us)}"
        f"{'' if profile.generation is None else ' a further token'} {on} "
        f"{one_line(profile.configuration, 80)}; {_outputs_verdict(profile)}.",
        f"Latency:    median {_interval(latency.median_us, latency.ci95_us)}, p90 "
        f"{time_text(latency.p90_us)}, {count_of(len(latency), 'inference')}",
        f"Placement:  {', '.join(_ops_by_device(profile))}"
        + ("" if profile.executor == HETERO else f"; {profile.executor} executor"),
        f"Partition:  {count_of(partition.n_subgraphs, 'subgraph')}, "
        f"{count_of(len(partition.boundaries), 'boundary')}, "
        f"{boundary_size(partition, bytes_text(partition.boundary_bytes))} "
        f"({'observed' if partition.observed else 'predicted'})",
        *_line("Subgraphs:", profile.few_subgraphs),
        *_longest(profile),
        *_line("Caution:", " ".join(cautions(profile))),
        *_line("Cause:", cause(profile)),
    ]
    if profile.generation is not None:
        lines[1:2] = _generation_lines(profile.generation)
    if profile.agreement:
        lines.append(f"Outputs:    {_worst_output(profile)}")
    if profile.counters:
        precision = executed_precisions(profile.counters)
        n = len(list(transitions(profile)))
        pairs = f"; it changes between {count_of(n, 'pair')} of ops" if n else ""
        lines.append(f"Precision:  {tally(precision.values()) or 'not in the counters'}{pairs}")
    lines.append(
        f"Start:      compile {_ms_text(profile.compile_ms)}, first inference "
        f"{_ms_text(profile.first_inference_ms)}"
    )
    for row in profile.throughput:
        exclusive = {True: ", exclusive", False: ", not exclusive", None: ""}[row.exclusive]
        between = _interval(row.between.median_us, row.between.ci95_us)
        lines.append(
            f"In flight:  {row.n_requests} requests, {row.executor}{exclusive}: a result every "
            f"{between}, {number(1e6 / row.between.median_us)} a second; latency of one "
            f"{time_text(row.latency.median_us)}"
        )
    if profile.interrupted:
        lines.append("The measurement was interrupted; the numbers are those of its turns so far.")
    return "\n".join(lines)


def _line(label: str, sentence: str) -> list[str]:
    return [f"{label:<12}{sentence}"] if sentence else []


def cause(profile: ProfileData) -> str:
    """Say in a sentence which part takes most of the latency; empty if the counters do not tell.

    They do not where they add up to more, or where devices work at the same time.
    """
    if not profile.counters or profile.spans or counted_beyond(profile):
        return ""
    us = profile.latency.median_us
    beside_us, what = _beside_ops(profile)
    much = f"; {time_text(beside_us)} {what}" if beside_us >= _SOME * us else ""
    ops_us = time_parts(profile.counters, us)["ops_us"]
    return overhead(profile) or _share(profile, ops_us, f"are ops{much}")


def overhead(profile: ProfileData) -> str:
    """Say as :func:`cause` which part beside the ops takes most; empty if that is little."""
    if not profile.counters or profile.spans or counted_beyond(profile):
        return ""
    us, what = _beside_ops(profile)
    return _share(profile, us, what) if us >= _MUCH * profile.latency.median_us else ""


def _beside_ops(profile: ProfileData) -> tuple[float, str]:
    """Return the part beside the ops that takes most, in µs, and what it is."""
    parts = time_parts(profile.counters, profile.latency.median_us)
    reorders, rest = parts["reorders_us"], parts["rest_us"]
    what = "are the runtime's, neither ops nor reorders"
    most = rest
    if crossed := len(profile.partition.boundaries):
        reorders = sum(reorders_us(profile.counters, profile.partition).values())
        most = reorders + rest
        what = (
            f"are spent at {count_of(crossed, 'boundary')}: reorders there {time_text(reorders)}, "
            f"hand-overs and the runtime {time_text(rest)}"
        )
    elif reorders > rest:
        most, what = reorders, "are reorders"
    return most, what


def _share(profile: ProfileData, part_us: float, what: str) -> str:
    return f"{time_text(part_us)} of {time_text(profile.latency.median_us)} {what}."


def cautions(profile: ProfileData) -> Iterator[str]:
    """Say what the outputs do not prove, what disturbed, and what the counters do not tell."""
    yield from agreement_notes(profile.agreement)
    yield from filter(None, [busy_note(profile.foreign_cpus), counted_beyond(profile)])


def counted_beyond(profile: ProfileData) -> str:
    """Say that the counters add up to clearly more than the latency, if they do."""
    counted_us = sum(counter.real_time_us for counter in profile.counters)
    if counted_us <= _BEYOND * profile.latency.median_us:
        return ""
    return (
        f"The times of ops add up to {time_text(counted_us)}, more than the latency: take them as "
        "shares. The machine was busy meanwhile, or ops ran at the same time."
    )


def differing(one: ProfileData, other: ProfileData) -> str:
    """Name the known conditions in which two measurements of one placement differ."""

    def conditions(profile: ProfileData) -> dict[str, Any]:
        return {
            "precision": profile.chosen.precisions,
            "streams": profile.chosen.n_streams,
            "properties": profile.device_properties,
            "executor": profile.executor,
            "inputs": profile.inputs_digest,
            "scenario": profile.generation and profile.generation.scenario,
            "OpenVINO": profile.environment.openvino_version,
            "host": profile.environment.host,
        }

    ours, theirs = conditions(one), conditions(other)
    return ", ".join(n for n in ours if ours[n] and theirs[n] and ours[n] != theirs[n])


def _interval(us: float, ends: tuple[float, float], write: Callable[..., str] = time_text) -> str:
    return interval_text(us, *ends, write).replace("  [", ", 95 % [")


def _ms_text(time_ms: float) -> str:
    return time_text(1e3 * time_ms)


def _generation_lines(generation: Generation) -> list[str]:
    scenario = generation.scenario
    first = _interval(generation.ttft_ms, generation.ttft_ci95_ms, _ms_text)
    further = _interval(generation.tpot_ms, generation.tpot_ci95_ms, _ms_text)
    sequences = f" of {scenario.batch} sequences" if scenario.batch > 1 else ""
    return [
        f"First token: {first}, after a prompt of {scenario.prompt_tokens} tokens{sequences}",
        f"Further:    {further} a token, {count_of(len(generation.ttft), 'generation')} of "
        f"{scenario.new_tokens} tokens",
        f"Tokens/s:   {_interval(generation.tokens_per_s, generation.tokens_per_s_ci95, number)}",
    ]


def _ops_by_device(profile: ProfileData) -> Iterator[str]:
    emulated = dict(profile.environment.emulated)
    for device, n_ops in profile.affinity.counts().items():
        base = f" (emulated on {emulated[device]})" if device in emulated else ""
        yield f"{count_of(n_ops, 'op')} on {device}{base}"


def _outputs_verdict(profile: ProfileData) -> str:
    verdicts = [agreement.verdict for agreement in profile.agreement]
    if not verdicts:
        return "its outputs were not compared"
    outputs = count_of(len(verdicts), "output")
    wrong = sum(agreement.is_wrong for agreement in profile.agreement)
    if wrong:
        return f"{wrong} of {outputs} wrong"
    if "undecided" in verdicts:
        return f"{verdicts.count('undecided')} of {outputs} undecided"
    if much := max(large_roundings(profile.agreement), default=0.0):
        return f"rounding changes its outputs by up to {much:.0%}"
    return "outputs within rounding" if "rounding" in verdicts else "outputs equal to the reference"


def _worst_output(profile: ProfileData) -> str:
    worst = max(profile.agreement, key=lambda a: (VERDICTS.index(a.verdict), a.relative_error))
    compared = f"{count_of(len(profile.agreement), 'output')} compared with the f32 reference"
    sentence = f"{compared}; worst {one_line(worst.output, 40)}: {worst.verdict}"
    if worst.verdict != "undecided":
        error = f"relative error {worst.relative_error:.2g}"
        sentence += f" ({worst.detail or error}, in {worst.precision})"
    return f"{sentence}. {GENERATED}" if profile.generated else sentence


def _longest(profile: ProfileData) -> Iterator[str]:
    """Name the ops that take longest and the boundaries with the most bytes."""
    slow = sorted(profile.counters, key=lambda c: -c.real_time_us)[:_MOST_NAMED]
    slowest = [
        f"{one_line(c.op or c.tensor or c.node_name, 40)} ({c.node_type}, {c.device}) "
        f"{time_text(c.real_time_us)}"
        for c in slow
        if c.real_time_us
    ]
    if slowest:
        yield f"Slowest:    {'; '.join(slowest)}"
    devices = [s.device for s in profile.partition.subgraphs]
    largest = sorted(profile.partition.boundaries, key=lambda b: -(b.n_bytes or 0))
    crossings = [
        f"{one_line(b.tensor, 40)} {devices[b.source]} → "
        f"{', '.join(dict.fromkeys(devices[t] for t in b.targets))} {bytes_text(b.n_bytes)}"
        for b in largest[:_MOST_NAMED]
    ]
    if crossings:
        yield f"Boundaries: {'; '.join(crossings)}"


def _subgraphs(table: pd.DataFrame) -> str:
    names = [ops.split("\n") for ops in table["ops"]]
    ends = [[first, *rest[-1:]] for first, *rest in names]
    spans = [" … ".join(one_line(name, _WIDEST) for name in pair) for pair in ends]
    return _first_rows(table[["subgraph", "device", "n_ops"]].assign(from_to=spans))


def _boundaries(table: pd.DataFrame) -> str:
    table = table.sort_values("n_bytes", ascending=False, kind="stable")
    names = ["tensor", "source", "source_device", "targets", "target_devices", "n_bytes"]
    tensors = [one_line(tensor, _WIDEST) for tensor in table["tensor"]]
    return _first_rows(table[names].assign(tensor=tensors))


def _first_rows(table: pd.DataFrame) -> str:
    more = f"\n… {len(table) - _MOST_ROWS:,} more" if len(table) > _MOST_ROWS else ""
    return text_table(table.head(_MOST_ROWS)) + more


def counter_lines(counters: Sequence[Counter], *, hetero: bool) -> Iterator[str]:
    """Yield a line per counter and the totals; ``hetero`` puts the subgraph before each name."""
    for counter in counters:
        prefix = f"subgraph{counter.subgraph}: " if hetero else ""
        yield (
            f"{_cell(prefix + counter.node_name)} {counter.status:<14}"
            f"layerType: {_cell(counter.node_type, 20)} "
            f"execType: {_cell(counter.exec_type)} "
            f"realTime (ms): {counter.real_time_us / 1e3:<10.3f} "
            f"cpuTime (ms): {counter.cpu_time_us / 1e3:<10.3f}"
        )
    real_ms = sum(c.real_time_us for c in counters) / 1e3
    cpu_ms = sum(c.cpu_time_us for c in counters) / 1e3
    yield f"Total time:     {real_ms:.3f} milliseconds"
    yield f"Total CPU time: {cpu_ms:.3f} milliseconds"


def _cell(value: str, width: int = _WIDTH) -> str:
    return one_line(value, width).ljust(width)
