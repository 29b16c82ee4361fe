"""Danube's admin service (`danube_admin`): its calls over the operations that HTTP and the command line use, too.

A Frazil server is one broker, and the leader of a cluster of one. What needs other brokers, Raft or roles is refused as
UNIMPLEMENTED, with the reason.
"""

from frazil.serve.grpc_admin.door import AdminDoor as AdminDoor
