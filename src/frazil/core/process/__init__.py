"""Processes: start children, bind objects to a process, and check whether a process runs."""
