"""A figure that a notebook shows without any setting of its own."""

from __future__ import annotations

import io

from matplotlib.figure import Figure

from semfocus.report.figures.drawing import drawing


class ShownFigure(Figure):
    """A matplotlib figure with a picture of itself."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        with drawing():
            self.savefig(buffer, format="png", dpi=110)
        return buffer.getvalue()
