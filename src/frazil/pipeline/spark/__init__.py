"""The Spark session, and Spark as the runner of jobs."""
