"""Figures as SVG, PDF and PNG files, each in a light and a dark theme. The same runs give the same bytes."""
