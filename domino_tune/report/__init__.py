"""Report: the page's data and its drawing. May import results and below."""
