"""What only costs can tell: ops on a slow device, subgraphs not worth their boundaries."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from hetero_lab.lint.context import WARNING, Draft, Situation, count_of

SLOW_DEVICE, DEAR_BOUNDARY = "slow-device", "dear-boundary"
SLOWER = 2.0  # times as slow as on the best device
SHARE = 0.01  # of the predicted latency that the better device would save


def slow_devices(at: Situation) -> Iterator[Draft]:
    """Find units much slower where they are than on another device that supports them."""
    assert at.costs is not None
    devices, index_of = at.costs.devices, at.graph.index_of
    for share in at.explained.units:
        times = at.costs.units[share.unit].time_us
        now = times[devices.index(share.device)]
        best_us, best = min((t, d) for t, d in zip(times, devices, strict=True) if t is not None)
        # A torn unit takes its share of both times.
        saved = share.us * (1.0 - best_us / now) if now else 0.0
        if not now or now < SLOWER * best_us or saved < SHARE * at.explained.predicted_us:
            continue
        nodes = tuple(sorted(index_of[op] for op in share.ops))
        homes = {at.partition.home[index] for index in nodes}
        whole = sorted({index for home in homes for index in at.members[home]} | set(nodes))
        yield Draft(
            rule=SLOW_DEVICE,
            severity=WARNING,
            nodes=nodes,
            finding=(
                f"{count_of(len(nodes), 'op')} ({at.named(nodes)}): {share.us:.1f} µs on "
                f"{share.device}, {share.us - saved:.1f} µs on {best}."
            ),
            options=(*at.moves(nodes, [best]), *at.moves(whole, [best])),
            gone=None,  # on the best device there is none better
            slack=None,
            weight=saved,
        )


def dear_boundaries(at: Situation, known: Collection[tuple[int, ...]]) -> Iterator[Draft]:
    """Find subgraphs that may be cheaper on a neighbour's device, but for those already known."""
    assert at.costs is not None
    number = {device: n for n, device in enumerate(at.costs.devices)}
    for subgraph, nodes, link in zip(at.partition.subgraphs, at.members, at.links, strict=True):
        if not nodes or nodes in known:
            continue
        options: list[tuple[float, dict[str, str]]] = []
        for device in link.bytes_with:
            remedy = at.move(nodes, device) if device != subgraph.device else {}
            # At best it saves all that the subgraph costs beside its ops, here and there.
            gain = at.overhead_us[subgraph.index]
            for op, to in remedy.items():
                here, there = (at.op_us[op][number[d]] for d in (at.affinity[op], to))
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
                f"({at.named(nodes)}) has {count_of(link.n_tensors, 'hand-over')} of "
                f"{link.n_bytes:,} bytes; to have it apart costs "
                f"{at.overhead_us[subgraph.index]:.1f} µs, more than it saves."
            ),
            options=tuple(remedy for _, remedy in options),
            gone=at.merged(nodes),
            slack=None,
            weight=options[0][0],
            must_save=True,
        )  # fmt: skip
