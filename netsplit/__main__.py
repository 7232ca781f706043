"""`python -m netsplit`: the command `netsplit`."""

from netsplit.runners.cli.command import main

if __name__ == "__main__":
    main()
