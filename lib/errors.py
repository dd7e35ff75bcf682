"""The one exception for everything a user can put right."""


class WorkbookError(Exception):
    """An expected failure, told in one line: what is wrong, what is allowed, what to do.

    Raised for bad parameters, missing or damaged data, packages that cannot be written, and the
    like. Anything else that escapes is a bug and keeps its traceback.
    """

    def _render_traceback_(self) -> list[str]:
        """Tell IPython (and so papermill's log) to print one line instead of a traceback."""
        return [f"{type(self).__name__}: {self}"]
