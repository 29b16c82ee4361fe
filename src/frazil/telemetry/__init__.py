"""OpenTelemetry data: the signals, their requests in the log, and the rows of their tables."""
