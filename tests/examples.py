"""How many examples a property is tried on.

A property that takes long is tried on a third of its examples by `make test`, and on all of them where the
slow tests are asked for too (`make test-all`), which draws others in each run; `make test` draws the same.
"""

__all__ = ["all_asked_for", "ask_for_all", "tried"]

_asked: set[str] = set()


def ask_for_all() -> None:
    """From now on `tried` leaves out none."""
    _asked.add("all")


def all_asked_for() -> bool:
    """Whether this run leaves out none."""
    return bool(_asked)


def tried(examples: int) -> int:
    """The number of examples of this run, of so many."""
    return examples if all_asked_for() else -(-examples // 3)
