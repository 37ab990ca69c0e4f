"""The folder of a dump: what is written to it, and how it differs from that of another implementation."""
