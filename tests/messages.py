"""Messages are matched by their facts, so that their words may be bettered without a test."""

__all__ = ["tells"]


def tells(text: object, *facts: object) -> bool:
    """Whether a text has all facts, in this order: names, numbers, keys, what to do."""
    rest = str(text)
    for fact in facts:
        _, there, rest = rest.partition(str(fact))
        if not there:
            return False
    return True
