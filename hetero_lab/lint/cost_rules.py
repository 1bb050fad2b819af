"""Rules that need costs: ops on a slow device, subgraphs not worth their boundaries."""

from __future__ import annotations

from collections.abc import Iterator

from hetero_lab.lint.context import WARNING, Draft, LintContext
from hetero_lab.terminal import count_of

SLOW_DEVICE, DEAR_BOUNDARY = "slow-device", "dear-boundary"
SLOWER = 2.0  # times as slow as on the best device
SHARE = 0.01  # of the predicted latency that the better device would save


def slow_devices(context: LintContext) -> Iterator[Draft]:
    """Find units much slower where they are than on another device that supports them."""
    if context.costs is None:
        return
    devices, index_of = context.costs.devices, context.graph.index_of
    for share in context.explained.units:
        times = context.costs.units[share.unit].time_us
        now = times[devices.index(share.device)]
        best_us, best = min((t, d) for t, d in zip(times, devices, strict=True) if t is not None)
        # A torn unit takes its share of both times.
        saved = share.us * (1.0 - best_us / now) if now else 0.0
        if not now or now < SLOWER * best_us or saved < SHARE * context.explained.predicted_us:
            continue
        nodes = tuple(sorted(index_of[op] for op in share.ops))
        homes = {context.partition.home[index] for index in nodes}
        whole = sorted({index for home in homes for index in context.members[home]} | set(nodes))
        yield Draft(
            rule=SLOW_DEVICE,
            severity=WARNING,
            nodes=nodes,
            finding=(
                f"{count_of(len(nodes), 'op')} ({context.named(nodes)}): {share.us:.1f} µs on "
                f"{share.device}, {share.us - saved:.1f} µs on {best}."
            ),
            options=(*context.moves(nodes, [best]), *context.moves(whole, [best])),
            gone=None,  # on the best device there is none better
            slack=None,
            weight=saved,
        )


def expensive_boundaries(context: LintContext) -> Iterator[Draft]:
    """Find subgraphs that may be cheaper on a neighbour's device."""
    if context.costs is None:
        return
    number = {device: n for n, device in enumerate(context.costs.devices)}
    for subgraph, nodes, link in context.subgraphs():
        if not nodes:
            continue
        options: list[tuple[float, dict[str, str]]] = []
        for device in link.bytes_with:
            remedy = context.move(nodes, device) if device != subgraph.device else {}
            # At best it saves all that the subgraph costs beside its ops, here and there.
            gain = context.overhead_us[subgraph.index]
            for op, to in remedy.items():
                here, there = (context.op_us[op][number[d]] for d in (context.affinity[op], to))
                gain += (here or 0.0) - (there or 0.0)
            if remedy and gain > 0.0:
                options.append((gain, remedy))
        if not options:
            continue
        options.sort(key=lambda option: -option[0])
        yield Draft(
            rule=DEAR_BOUNDARY,
            severity=WARNING,
            nodes=nodes,
            finding=(
                f"A subgraph of {subgraph.device} with {count_of(len(nodes), 'op')} "
                f"({context.named(nodes)}) has {count_of(link.n_tensors, 'boundary')} of "
                f"{link.n_bytes:,} bytes; to have it apart costs "
                f"{context.overhead_us[subgraph.index]:.1f} µs, more than it saves."
            ),
            options=tuple(remedy for _, remedy in options),
            gone=context.merged(nodes),
            slack=None,
            weight=options[0][0],
            must_save=True,
        )  # fmt: skip


COST_RULES = (slow_devices, expensive_boundaries)
