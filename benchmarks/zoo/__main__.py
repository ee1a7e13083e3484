"""Ask a tool what is wrong with each plant of the zoo, and with its healthy twin, and print what it got right.

    python -m benchmarks.zoo [speed|correctness] [NAME...] [--healthy] [--apply] [--beside-burner]
                             [--tool "CMD"] [--seconds 600] [--json FILE]

Exit 0 where every answer is right, 1 where one is wrong or missing, 2 where the command line is.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from .asking import Answer, ask, beside_burner
from .judging import judge, show
from .plants import KINDS, plants


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.zoo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="speed, correctness, or names of plants (default: all)")
    parser.add_argument("--tool", help="command that gets FILE[:healthy] STRATEGY OPTIONS --json (default: manyhands)")
    parser.add_argument(
        "--healthy", action="store_true", help="the healthy twins too; alone they are asked with --only"
    )
    parser.add_argument("--only", choices=("planted", "healthy"), help="one side alone")
    parser.add_argument("--apply", action="store_true", help="speed: let the tool apply its first advice")
    parser.add_argument("--beside-burner", action="store_true", help="beside a process that keeps one core busy")
    parser.add_argument("--repeat", type=int, default=1, help="ask each plant this often")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long one answer may take")
    parser.add_argument("--json", type=Path, help="keep every answer in this file")
    options = parser.parse_args()
    kinds = [name for name in options.names if name in KINDS] or list(KINDS)
    try:
        chosen = plants(kinds, [name for name in options.names if name not in KINDS])
    except ValueError as wrong:
        print(f"zoo: {wrong}", file=sys.stderr)
        return 2
    sides = {"planted": [False], "healthy": [True], None: [False, True] if options.healthy else [False]}[options.only]
    answers: list[Answer] = []
    with beside_burner(options.beside_burner):
        for plant in chosen:
            for healthy in sides * options.repeat:
                answer = ask(plant, healthy, options.tool, options.apply, options.seconds)
                answers.append(answer)
                print(judge(answer).line(), flush=True)
                if options.json:  # after each: an interrupted hour is not lost
                    options.json.write_text(json.dumps([one.plain() for one in answers], indent=1))
    verdicts = [judge(answer) for answer in answers]
    show(verdicts)
    return 0 if all(verdict.right for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
