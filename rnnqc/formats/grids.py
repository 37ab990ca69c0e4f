"""Former names of `rnnqc.formats.format_request` and `rnnqc.formats.scales`."""

__all__ = [
    *("HALF_RANGE", "LEVELS", "MAX_CODE", "MIN_CODE", "GridFormat", "check_range", "is_power_of_two"),
    *("multiplier_and_shift", "power_of_two_from"),
]
