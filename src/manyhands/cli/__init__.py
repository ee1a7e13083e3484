"""The command line, with the codes its commands end with."""

DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
