"""Numbers in running text, and one way to write each number."""

from __future__ import annotations

import re
from fractions import Fraction

MAX_DIGITS = 40
"""Digit runs longer than this are no answer."""

_MAX_EXPONENT = 30
_NUMBER = re.compile(
    r"(?<![\w.])(?P<sign>[-+]?)\s?[$\u00a3\u20ac]?(?P<inner>[-+]?)"
    r"(?P<value>(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)"
    r"(?:[eE](?P<exponent>[-+]?\d{1,3})(?!\w))?"
    r"(?:\s?/\s?(?P<divisor>\d+)(?![\d/.]))?"
)
_FRACTION = re.compile(r"(-?)\s*\\[dt]?frac\s*\{\s*(-?\d+)\s*\}\s*\{\s*(\d+)\s*\}")
_SPACING = str.maketrans({"\u2212": "-", "\u00a0": " ", "\u202f": " ", "\\": " "})


def read_numbers(text: str) -> list[str]:
    r"""Return the numbers of a text in order, each in its one normal form.

    Read are signs, thousands separators, decimals, exponents, fractions (``3/4`` and LaTeX's) and currency signs;
    units and percent signs are left aside. A number glued to a word in front of it (``A4``) is none, nor is one of
    more than :data:`MAX_DIGITS` digits or a division by zero.

    Example:
        >>> read_numbers("She had $1,234.50, gave away 3/4, kept -2e1 and then 18.")
        ['1234.5', '0.75', '-20', '18']
        >>> read_numbers(r"\frac{2}{6}"), read_numbers("16-3 = 13")
        (['1/3'], ['16', '3', '13'])
    """
    plain = _FRACTION.sub(lambda found: f"{found[1]}{found[2]}/{found[3]}", text).translate(_SPACING)
    values = (_value(found) for found in _NUMBER.finditer(plain))
    return [write_number(value) for value in values if value is not None]


def write_number(value: Fraction) -> str:
    """Return a number as a decimal where that ends, otherwise as a reduced fraction.

    Example:
        >>> write_number(Fraction("18.50")), write_number(Fraction(2, 6))
        ('18.5', '1/3')
    """
    rest, places = value.denominator, 0
    while rest % 10 == 0 or rest % 2 == 0 or rest % 5 == 0:
        rest //= 10 if rest % 10 == 0 else 2 if rest % 2 == 0 else 5
        places += 1
    if rest != 1:
        return f"{value.numerator}/{value.denominator}"
    digits = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
    whole, fraction = digits[: len(digits) - places], digits[len(digits) - places :].rstrip("0")
    return ("-" if value < 0 else "") + whole + (f".{fraction}" if fraction else "")


def _value(found: re.Match[str]) -> Fraction | None:
    digits, divisor = found["value"].replace(",", ""), found["divisor"] or "1"
    exponent = int(found["exponent"] or "0")
    if max(len(digits), len(divisor)) > MAX_DIGITS or abs(exponent) > _MAX_EXPONENT or not int(divisor):
        return None
    negative = (found["sign"] == "-") != (found["inner"] == "-")
    return Fraction(digits) * Fraction(10) ** exponent / int(divisor) * (-1 if negative else 1)
