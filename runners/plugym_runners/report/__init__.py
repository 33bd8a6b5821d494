"""`report.html`: a run on one page that needs nothing else - curves, findings, episodes, comparison of two steps.

`collect` gathers what the page shows, `episodes` puts episodes into few bytes, `decode` turns token ids into text,
`html` writes the page around the files in `page/`, `serve` shows it on the loopback interface.
"""

from plugym_runners.report.html import write_report

__all__ = ["write_report"]
