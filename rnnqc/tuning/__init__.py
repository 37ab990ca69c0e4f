"""The search behind `rnnqc tune`: how good and how dear a lowered model is, and which one to try next."""
