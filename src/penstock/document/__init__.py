"""Documents: what one looks like, which rows touch it, and how Postgres assembles it."""
