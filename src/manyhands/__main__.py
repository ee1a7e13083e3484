"""`python -m manyhands`, which is also what torchrun starts."""

from .cli.app import main

main()
