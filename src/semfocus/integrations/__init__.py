"""semfocus inside other libraries."""
