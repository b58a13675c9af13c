"""HOW it is shown: tables in, figures out."""
