"""What the benchmarks' command lines have in common."""

import argparse

__all__ = ["command_parser"]


def command_parser(name: str, text: str | None) -> argparse.ArgumentParser:
    """The parser of ``python -m benchmarks.NAME``, with a module's text as it stands for its description."""
    return argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
