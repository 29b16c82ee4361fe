"""`python -m frazil`: the command line, also where its script is not on PATH."""

from frazil.cli.main import run

run()
