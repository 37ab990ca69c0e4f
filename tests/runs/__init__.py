"""Running models and commands, and comparing what they give."""
