"""A cell with integer operands becomes nodes: integer Scan, fused node with its function body, or unrolled steps."""
