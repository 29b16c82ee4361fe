"""Tables: schema, token, field ids, and the rows that each holds of its logs."""
