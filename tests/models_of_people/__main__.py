"""`python -m tests.models_of_people [words of names]`: what comes of each case, one line each.

With `--write-known`, what is not as its file expects goes into `known.py`: tests then expect it to fail.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from tests.models_of_people.cases import all_cases
from tests.models_of_people.harness import as_expected, judge

HEAD = '''"""Cases that do not come out yet as their files say, with what comes of them instead."""

from __future__ import annotations

__all__ = ["KNOWN"]

KNOWN: dict[str, str] = {
'''


def main(arguments: list[str]) -> None:
    torch.set_num_threads(1)
    words = [each for each in arguments if not each.startswith("--")]
    known = {}
    for case in all_cases().values():
        if words and not any(word in case.name for word in words):
            continue
        outcome = judge(case)
        amiss = as_expected(case, outcome)
        sys.stdout.write(
            f"{'BAD' if amiss else 'ok '} {outcome.kind:8} {case.name}: {outcome.message[:150]}\n"
        )
        if amiss:
            known[case.name] = outcome.kind if outcome.kind != "equal" else "is not refused"
    if "--write-known" in arguments and not words:
        rows = "".join(f'    "{name}": "{kind}",\n' for name, kind in known.items())
        (Path(__file__).parent / "known.py").write_text(f"{HEAD}{rows}}}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
