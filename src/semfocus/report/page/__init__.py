"""HTML pages that open offline: one file each, with their own data, style sheet and script, and nothing to load."""
