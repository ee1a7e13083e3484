"""Every strategy behind one contract: the table, and how a string becomes a strategy.

torch is loaded with the first strategy that is made: the names alone are needed by `import manyhands`, and a misspelt one
is answered at once.
"""

from __future__ import annotations

import types
import typing
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import BadInput, did_you_mean
from .declared import Declared, read

if TYPE_CHECKING:
    from .contract import Strategy

# One line per strategy: its name (and that of its file), its class, its short name.
TABLE: dict[str, tuple[str, str | None]] = {
    "single": ("Single", None),
    "data_parallel": ("DataParallel", "dp"),
    "balanced_data_parallel": ("BalancedDataParallel", "bdp"),
    "ddp": ("DDP", None),
    "model_parallel": ("ModelParallel", "mp"),
    "pipeline": ("Pipeline", "pp"),
    "hybrid": ("Hybrid", None),
    "locked": ("Locked", None),
    "hogwild": ("Hogwild", None),
    "parameter_server": ("ParameterServer", "ps"),
    "fsdp": ("FSDP", None),
    "local_sgd": ("LocalSGD", None),
}
HANDFUL = ("single", "ddp", "hogwild", "parameter_server")  # what a comparison runs unless told otherwise
SHORT = {short: name for name, (_, short) in TABLE.items() if short}


def full_name(name: str) -> str:
    """The name in the table for a name or short name."""
    name = SHORT.get(name, name)
    if name not in TABLE:
        raise BadInput(f'no strategy named "{name}"{did_you_mean(name, TABLE)}')
    return name


def strategy_class(name: str) -> type[Strategy]:
    """The class behind a name or short name."""
    name = full_name(name)
    kind: type[Strategy] = getattr(import_module(f".{name}", __package__), TABLE[name][0])
    return kind


def declared_strategy(name: str) -> Declared:
    """What a strategy's file says of it; torch is not needed."""
    name = full_name(name)
    return read(name, *TABLE[name])


def check_names(spec: str) -> None:
    """Refuse a strategy, or an option of one, that does not exist; torch is not needed."""
    name, _, text = spec.partition(":")
    found = declared_strategy(name)
    known = [option.name for option in found.options]
    for part in filter(None, text.split(",")):
        key = part.partition("=")[0]
        if key not in known:
            raise BadInput(f'{found.name} has no option "{key}"{did_you_mean(key, known)}')


def make_strategy(spec: str | Strategy, ranks: int | None = None) -> Strategy:
    """A strategy from `ddp` or `pipeline:chunks=8,schedule=gpipe`; the same in Python and on the command line."""
    if isinstance(spec, str):
        check_names(spec)  # before torch is imported
    from .contract import Strategy

    if isinstance(spec, Strategy):
        if ranks is not None and ranks != spec.ranks:
            raise BadInput(f"{spec} has {spec.ranks} ranks but ranks={ranks} was asked for; give one of the two")
        return spec
    if not isinstance(spec, str):
        raise BadInput(f"a strategy is a name or a manyhands strategy (found {type(spec).__name__})")
    if ranks is not None and (isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1):
        raise BadInput(f"ranks must be a whole number of at least 1 (found {ranks!r})")
    name, _, text = spec.partition(":")
    kind = strategy_class(name)
    options = _parse_options(kind, text)
    if ranks is not None:
        if options.get("ranks", ranks) != ranks:
            raise BadInput(f"{spec} has {options['ranks']} ranks but ranks={ranks} was asked for; give one of the two")
        options["ranks"] = ranks
    return kind(**options)


def _parse_options(kind: type[Strategy], text: str) -> dict[str, Any]:
    """`chunks=8,schedule=gpipe` by the types of the strategy's fields."""
    hints = typing.get_type_hints(kind)
    options: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        key, given, value = part.partition("=")
        options[key] = _convert(kind.name, key, value if given else "true", hints[key])
    return options


IN_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}


def _convert(strategy: str, key: str, text: str, wanted: Any) -> Any:
    """A string as the type a field wants; lists are written 3+2+4."""
    union = typing.get_args(wanted) if typing.get_origin(wanted) in (typing.Union, types.UnionType) else (wanted,)
    alternatives = [item for item in union if item is not type(None)]
    if type(None) in union and text.lower() == "none":
        return None
    for kind in alternatives:
        try:
            if kind is bool:
                return {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}[text.lower()]
            if kind in (int, float, str):
                return kind(text)
            if typing.get_origin(kind) is tuple:
                item = typing.get_args(kind)[0]
                return tuple(item(piece) for piece in text.split("+"))
        except (ValueError, KeyError):
            continue
    names = " or ".join(IN_WORDS.get(kind, "a list such as 3+2") for kind in alternatives)
    raise BadInput(f"{strategy}:{key} must be {names} (found {text!r})")
