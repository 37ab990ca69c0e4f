"""Evidence about a lowered model: where its errors come from, and which override mends them."""
