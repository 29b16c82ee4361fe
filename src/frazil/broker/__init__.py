"""Topics with producers and subscriptions: who may publish, who gets which message, and how far everyone is.

It knows no protocol: doors like `frazil.doors.danube.door` speak for clients. Everything here runs on one event loop.
"""
