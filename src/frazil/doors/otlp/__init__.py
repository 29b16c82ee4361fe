"""OTLP: export requests of OpenTelemetry over gRPC and over HTTP, into the topics of tenants.

door.py        opens both
grpc_door.py   OTLP/gRPC: the services and their statuses
http_door.py   OTLP/HTTP: paths, content types, encodings; http_server.py listens
intake.py      one request of either: the tenant, the count of its items, the append
statuses.py    errors as `google.rpc.Status`
"""
