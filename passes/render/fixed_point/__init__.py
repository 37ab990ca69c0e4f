"""The fixed-point arithmetic in standard operators: every value on its grid."""
