"""Real servers for tests, each started on a free port of the loopback and ended by its own process id.

`make parts` installs them. A part that is missing is an error with that advice, never a skipped test.
"""
