"""What all tests share."""

import hypothesis

# The same examples every time, and no failure because a machine is slow.
hypothesis.settings.register_profile("workbook", derandomize=True, deadline=None)
hypothesis.settings.load_profile("workbook")
