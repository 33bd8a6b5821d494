"""Units: what "5 meters", "5 cm^2", "$18.90", "60 km/h", "45°", "50%" and "18 eggs" say beside the number.

What belongs here: the table of units, reading a unit from its text, splitting it off a number. A unit is a map of
dimensions plus a factor, so 500 cm equals 5 m and 5 m does not equal 5 ft; an unknown noun is a dimension of its
own. An omitted unit is always accepted (the convention of the MATH data set); a different one never is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from .hedge import is_label
from .normalize import UNIT_MARK


class Unit(NamedTuple):
    """Dimensions with their exponents and the factor to the base unit; `percent` is its own kind."""

    dimensions: frozenset[tuple[str, int]]
    factor: Fraction

    @property
    def is_label(self) -> bool:
        """Whether it is a counted noun rather than a known unit."""
        return any(name.startswith("label ") for name, _ in self.dimensions)


PERCENT = Unit(frozenset([("percent", 1)]), Fraction(1))
NEUTRAL = Unit(frozenset(), Fraction(1))


def _table() -> Iterator[tuple[str, tuple[str, int, Fraction]]]:
    for dimension, rows in {
        "length": "m meter metre=1; km kilometer kilometre=1000; cm centimeter centimetre=1/100; "
        "mm millimeter millimetre=1/1000; in inch inches=127/5000; ft foot feet=381/1250; yd yard=1143/1250; "
        "mi mile=201168/125; nm nanometer=1/1000000000; μm micrometer micron=1/1000000; dm decimeter=1/10",
        "mass": "g gram gramme=1; kg kilogram kilo=1000; mg milligram=1/1000; t tonne=1000000; "
        "lb lbs pound=45359237/100000; oz ounce=45359237/1600000",
        "time": "s sec second=1; min minute=60; h hr hour=3600; d day=86400; wk week=604800; ms millisecond=1/1000",
        "month": "month=1; yr year=12; decade=120; century centuries=1200",
        "angle": "° deg degree=1",
        "radian": "rad radian=1",
        "dollar": "$ dollar usd buck=1; cent=1/100",
        "euro": "€ euro eur=1",
        "british pound": "£ gbp=1",
        "yen": "¥ yen jpy=1",
        "rupee": "rs inr rupee=1",
        "celsius": "c celsius °c=1",
        "fahrenheit": "f fahrenheit °f=1",
        "kelvin": "k kelvin=1",
        "newton": "n newton=1; kn kilonewton=1000",
        "joule": "j joule=1; kj kilojoule=1000; mj megajoule=1000000",
        "watt": "w watt=1; kw kilowatt=1000; mw megawatt=1000000",
        "volt": "v volt=1",
        "ampere": "amp ampere=1",
        "mole": "mol mole=1",
        "hertz": "hz hertz=1; khz kilohertz=1000",
        "pascal": "pa pascal=1; kpa kilopascal=1000",
        "byte": "byte=1; kb kilobyte=1000; mb megabyte=1000000; gb gigabyte=1000000000",
        "bit": "bit=1",
        "percent": "% percent pct percentage=1",
    }.items():
        for row in rows.split("; "):
            names, factor = row.split("=")
            for name in names.split():
                yield name, (dimension, 1, Fraction(factor))
    for name in ("l", "liter", "litre"):
        yield name, ("length", 3, Fraction(1, 1000))
    for name in ("ml", "milliliter", "millilitre"):
        yield name, ("length", 3, Fraction(1, 1_000_000))
    yield "gallon", ("length", 3, Fraction(473176473, 125000000000))
    yield "acre", ("length", 2, Fraction(316160658, 78125))
    yield "hectare", ("length", 2, Fraction(10000))


UNITS = dict(_table())
PLAIN_COMPOUNDS = ("m/s", "m/s^2", "m/s^{2}")
COMPOUND = {"mph": "mi/h", "kph": "km/h", "kmh": "km/h"}
SILENT = ("unit", "units", "total", "each", "apiece", "exactly", "altogether")
MAX_LABEL_WORDS = 3

_PART = re.compile(r"([a-zμ°%$€£¥]+)\.?(?:\^\{?(-?\d)\}?)?|([/*])|\s+")
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_ONE = r"(?:°[CF]?|%|¤?[A-Za-zμ]+\.?)(?:\^\{?-?\d\}?)?"
_TAIL = re.compile(rf"(?<=[\d}})\]π°⌋|]) ?({_ONE}(?:(?: ?[/*-] ?| ){_ONE})*)$")
_TRIGONOMETRY = re.compile(r"sin|cos|tan|cot|sec|csc")
_LETTERS_ONLY = re.compile(r"[A-Za-z](?:\^\{?-?\d\}?)?(?:[ */][A-Za-z](?:\^\{?-?\d\}?)?)*")
_LOOSE = re.compile(r"([-+]?\d[\d.,]*) ([mgshLl](?:\^\{?[23]\}?)?)")
_PLAIN_NUMBER = re.compile(r"[-+]?[\d.,]*\d(?:/\d+)?|[-+]?\d+ \d+/\d+|-?\d*\\frac\{\d+\}\{\d+\}")


@lru_cache(maxsize=4096)
def read_unit(text: str) -> Unit | None:
    """The unit a text names, or None when it names none.

    >>> read_unit("square meters") == read_unit("m^2")
    True
    >>> read_unit("is wrong") is None
    True
    """
    lowered = COMPOUND.get(text.lower().strip(), text.lower().strip())
    dimensions: dict[str, int] = {}
    factor, labels, position, below, pending = Fraction(1), [], 0, False, 1
    while position < len(lowered):
        part = _PART.match(lowered, position)
        if part is None:
            return None
        position = part.end()
        word, power, operator = part[1], int(part[2] or 1), part[3]
        if operator == "/" or word == "per":
            below = True
        elif word in _POWERS:
            pending = _POWERS[word]
        elif word:
            known = UNITS.get(word) or UNITS.get(word.removesuffix("s")) or UNITS.get(word.removesuffix("es"))
            if known:
                name, exponent, size = known
                exponent *= power * pending * (-1 if below else 1)
                factor *= size ** (power * pending * (-1 if below else 1))
                dimensions[name] = dimensions.get(name, 0) + exponent
                pending = 1
            elif word not in SILENT:
                if not is_label(word) or (dimensions and not below):
                    return None
                labels.append(word)
    if len(labels) > MAX_LABEL_WORDS:
        return None
    if labels:  # the head noun carries the meaning: "red apples" are apples
        dimensions["label " + singular(labels[-1])] = 1
    return Unit(frozenset((k, v) for k, v in dimensions.items() if v), factor)


def singular(word: str) -> str:
    """A noun without its plural ending."""
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("ches", "shes", "xes", "sses")):
        return word[:-2]
    return word.removesuffix("s") if not word.endswith("ss") else word


def split_unit(text: str) -> tuple[str, Unit | None]:
    """A normalised text as (number part, unit); the unit is None where none is written.

    >>> split_unit("5 feet")[0], split_unit("3x")
    ('5', ('3x', None))
    """
    sign = "-" if text[:1] == "-" else ""
    if text[len(sign) : len(sign) + 1] in CURRENCIES:
        amount, per = _split_tail(sign + text[len(sign) + 1 :].strip())
        currency = UNITS_OF_CURRENCY[text[len(sign)]]
        if per is None or per == currency:
            return amount, currency
        return amount, Unit(currency.dimensions | per.dimensions, currency.factor * per.factor)
    if text[-1:] in CURRENCIES:
        return text[:-1].strip(), UNITS_OF_CURRENCY[text[-1]]
    return _split_tail(text)


def loose_unit(text: str) -> tuple[str, Unit] | None:
    """The second reading of "5 m": five metres, where the first is five times the variable m."""
    loose = _LOOSE.fullmatch(text)
    unit = read_unit(loose[2]) if loose else None
    return (loose[1], unit) if loose and unit else None


def _split_tail(text: str) -> tuple[str, Unit | None]:
    tail = _TAIL.search(text)
    if tail is None:
        return text, None
    name, amount = tail[1], text[: tail.start()].strip()
    if _LETTERS_ONLY.fullmatch(name) and name not in PLAIN_COMPOUNDS:
        return text, None  # a product of variables, or loose_unit
    unit = read_unit(name.replace(UNIT_MARK, ""))
    if unit is None or (unit.is_label and not _PLAIN_NUMBER.fullmatch(amount)):
        return text, None
    if name[0] == "°" and _TRIGONOMETRY.search(amount):  # the angle of \\sin 30°, not a unit of the whole
        return text, None
    return amount, unit


CURRENCIES = tuple("$€£¥")
UNITS_OF_CURRENCY = {sign: Unit(frozenset([(UNITS[sign][0], 1)]), Fraction(1)) for sign in CURRENCIES}
