"""Publishing to topics: schema checks, append, traces."""
