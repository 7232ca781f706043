"""`python -m reproduce experiment=<name>`."""

from reproduce.command import main

if __name__ == "__main__":
    main()
