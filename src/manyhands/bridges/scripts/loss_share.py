"""How a loss was made, read from the end of its graph: divided by what, and a mean or a sum over samples."""

from __future__ import annotations

from typing import Any

SCALES = {"DivBackward0": -1, "MulBackward0": 1}
THROUGH = (
    "View",
    "Reshape",
    "ToCopy",
    "Clone",
    "Alias",
    "Squeeze",
    "Unsqueeze",
    "_DDPSink",
    "Neg",
    "Select",
    "Add",
    "Sub",
)
DEEPEST = 64
SUM = 2  # torch's own number for reduction="sum"


def share(loss: Any, rows: int) -> dict[str, Any]:
    """`factor`: what the mean (or sum) was multiplied with; `count`: how many samples (or tokens) it is over."""
    factor = 1.0
    node: Any = getattr(loss, "grad_fn", None)
    place = getattr(loss, "output_nr", 0)
    for _ in range(DEEPEST):
        if node is None:
            break
        name = node.name()
        inputs = [(one, number) for one, number in node.next_functions if one is not None]
        power = SCALES.get(name.rsplit(".", 1)[-1])
        if power is not None and len(inputs) == 1:
            factor *= _other(node) ** power
        elif not inputs or not name.startswith(THROUGH):
            break
        node, place = inputs[place if name.startswith("_DDPSink") and place < len(inputs) else 0]
    name = node.name() if node is not None else ""
    summed = name.startswith("Sum") or getattr(node, "_saved_reduction", 1) == SUM
    count = float(rows)
    if name.startswith("NllLoss"):  # over the targets that are not ignored
        count = float(node._saved_total_weight) or count
    return {"factor": abs(factor), "kind": "sum" if summed else "mean", "count": count, "made_by": name}


def _other(node: Any) -> float:
    """The number that a node multiplies with or divides by; torch keeps it, unless it is one."""
    for name in ("_saved_other", "_saved_self"):
        value = getattr(node, name, None)
        if value is not None and value.numel() == 1:
            return float(value) or 1.0
    return 1.0
