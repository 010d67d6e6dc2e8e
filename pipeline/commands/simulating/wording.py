"""The table of simulated runs."""

from collections.abc import Iterator, Sequence

from pipeline.commands.simulating.rows import Row


def table(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each scaling, batch and number of GPUs: all ways' throughput, and the time and cost of the fastest."""
    ways = list(dict.fromkeys(row.way for row in rows))
    head = ["scaling", "batch", "GPUs", *(f"{way}: images/s" for way in ways), "fastest", "hours", "GPU hours", "cost"]
    lines = [head]
    groups: dict[tuple[str, int, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.scaling, row.global_batch if row.scaling == "strong" else 0, row.gpus), []).append(row)
    for (scaling, _, gpus), same in sorted(groups.items(), key=lambda item: (item[0][0] == "strong", item[0])):
        fastest = min(same, key=lambda row: row.hours)
        rates = [f"{row.images_per_second:,.0f} {row.efficiency:4.0%}" for row in same]
        cost = "" if fastest.cost is None else f"{fastest.cost:,.0f}"
        amounts = [f"{fastest.hours:,.3g}", f"{fastest.gpu_hours:,.0f}", cost]
        lines.append([scaling, f"{fastest.global_batch:,}", f"{gpus:,}", *rates, fastest.way, *amounts])
    if not any(line[-1] for line in lines[1:]):
        lines = [line[:-1] for line in lines]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        yield "  ".join(f"{text:>{width}}" for text, width in zip(line, widths, strict=True)).rstrip()


def undivided_lines(rows: Sequence[Row], batch_sizes: Sequence[int]) -> Iterator[str]:
    """A line for each batch of strong scaling that has no row."""
    shared = {row.global_batch for row in rows if row.scaling == "strong"}
    for batch_size in sorted(set(batch_sizes) - shared):
        yield f"no strong scaling of batch {batch_size:,}: it divides among none of these numbers of GPUs"
