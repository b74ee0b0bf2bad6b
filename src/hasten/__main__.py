"""`python -m hasten` and the `hasten` command."""


def main() -> None:
    """Run the command line."""
    from hasten.cli import main as run

    raise SystemExit(run())


if __name__ == "__main__":
    main()
