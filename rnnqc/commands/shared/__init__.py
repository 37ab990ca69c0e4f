"""Shared by the commands: options and the format of JSON, the terminal, and the schemas of JSON output."""
