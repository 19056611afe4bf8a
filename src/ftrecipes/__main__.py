"""`python -m ftrecipes`: the same as the command `ftrecipes`."""

from ftrecipes.commands import main

main()
