"""Reading dumps and report pages."""
