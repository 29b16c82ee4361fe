"""The mover: plan, run a job, commit, report."""
