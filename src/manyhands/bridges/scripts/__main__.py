"""What a rank of a script starts with."""

from .rank import main

main()
