"""The gRPC server for Danube clients."""
