"""`python -m netsplit` and the script `netsplit`: the command `netsplit`."""

from netsplit.runners._interrupts import end_while_loading

__all__ = ["main"]


def main() -> None:
    end_while_loading()
    from netsplit.runners.cli import command

    command.main()


if __name__ == "__main__":
    main()
