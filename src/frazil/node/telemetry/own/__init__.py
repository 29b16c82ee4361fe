"""Frazil's own log records, metrics and spans, in the tenant `_frazil`.

queues.py    what waits to be appended, bounded
handler.py   a handler of Python's logging
exporter.py  appends what waits, now and then, and at the end
"""
