"""The command line, with the codes its commands end with."""

DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


def main() -> None:
    """Run the command line."""
    from .app import main as run

    run()
