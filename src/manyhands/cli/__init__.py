"""The command line, with the codes its commands end with."""

import atexit
import os
import sys

DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


def main() -> None:
    """Run the command line as a program: its process ends with it, and at once."""
    code = FAILED

    def end(process: int = os.getpid()) -> None:
        """Else Python takes torch apart first, module by module and library by library: up to half a second."""
        if os.getpid() == process:
            written = _written(sys.stdout), _written(sys.stderr)
            os._exit(code or (DONE if all(written) else FAILED))

    atexit.register(end)  # the first that is registered is the last to run
    try:
        from .app import main as run

        run()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else FAILED
        raise
    except KeyboardInterrupt:  # before or after the command itself
        print("manyhands: interrupted", file=sys.stderr)
        code = INTERRUPTED


def _written(stream: object) -> bool:
    """Whether what was printed has reached whoever reads it; said where it can be."""
    try:
        if stream is not None:
            stream.flush()  # type: ignore[attr-defined]
    except BrokenPipeError:  # `| head` has seen enough
        return False
    except (OSError, ValueError) as problem:
        if stream is sys.stdout:
            print(f"manyhands: the output could not be written: {problem}", file=sys.stderr)
        return False
    return True
