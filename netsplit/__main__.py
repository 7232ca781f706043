"""`python -m netsplit` and the script `netsplit`: the command `netsplit`."""

from importlib import import_module

from netsplit.interrupts import end_while_loading

__all__ = ["main"]


def main() -> None:
    end_while_loading()
    import_module("netsplit.runners.cli.command").main()


if __name__ == "__main__":
    main()
