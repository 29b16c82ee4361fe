"""Danube's admin service (`danube_admin`), over the same operations as HTTP and the command line.

A server that is alone is one broker, and the leader of a cluster of one. Calls about Raft or roles are refused as
UNIMPLEMENTED, with the reason.
"""

from frazil.doors.danube_admin.door import AdminDoor as AdminDoor
