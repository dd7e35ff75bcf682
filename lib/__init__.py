"""The small library under the notebooks: flat modules, each named after what it knows."""
