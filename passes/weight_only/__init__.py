"""Recurrent layers whose weights alone are stored in fewer bits."""
