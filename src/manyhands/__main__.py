"""`python -m manyhands`, which is also what torchrun starts."""

from .cli import main

main()
