"""The log: rows with one continuous offset, durable before they are acknowledged."""
