"""The sections of the report's page."""
