"""The serving process: `frazil serve` runs a node with its protocols, metrics and a mover process."""

import os

# gRPC reads it when it is imported. By default it logs each failed handshake: anybody could fill the disk with lines.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
