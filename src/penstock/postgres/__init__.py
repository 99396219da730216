"""Everything that talks to Postgres; the only layer that imports its driver."""
