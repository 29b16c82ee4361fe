"""This broker as a member of a cluster: it joins, and opens, moves and closes its topics."""
