"""From LaTeX, markdown, unicode and plain text to one spelling.

What belongs here: `normalize`, the first step for every answer. It unwraps ($...$, \\boxed, \\text, **bold**), turns
each operator and Greek letter into one character (`\\leq`, `<=` and `≤` are `≤`; `\\cdot` is `*`; `\\{` is `⦃`),
spells braces out (`\\frac12` is `\\frac{1}{2}`) and drops spaces that carry no meaning. `to_latex` is the way back,
for the algebra worker. Nothing here judges an answer.
"""

from __future__ import annotations

import re
import unicodedata

GREEK_NAMES = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi"
    " omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"
)
GREEK = dict(zip(GREEK_NAMES.split(), "αβγδεζηθικλμνξπρστυφχψωΓΔΘΛΞΠΣΦΨΩ", strict=True))
OPERATORS = {
    "le": "≤", "leq": "≤", "leqslant": "≤", "ge": "≥", "geq": "≥", "geqslant": "≥", "lt": "<", "gt": ">",
    "ne": "≠", "neq": "≠", "approx": "≈", "sim": "≈", "simeq": "≈", "cong": "≈", "equiv": "≡",
    "in": "∈", "notin": "∉", "cup": "∪", "cap": "∩", "setminus": "∖", "emptyset": "∅", "varnothing": "∅",
    "to": "→", "rightarrow": "→", "Rightarrow": "→", "implies": "→", "longrightarrow": "→", "iff": "→", "mapsto": "→",
    "lor": "∨", "vee": "∨", "land": "∧", "wedge": "∧", "lnot": "¬", "neg": "¬", "not": "¬",
    "pm": "±", "mp": "∓", "cdot": "*", "times": "*", "ast": "*", "div": "/", "infty": "∞",
    "ldots": "…", "dots": "…", "cdots": "…", "dotsc": "…", "circ": "°", "degree": "°",
    "lfloor": "⌊", "rfloor": "⌋", "lceil": "⌈", "rceil": "⌉", "lbrace": "⦃", "rbrace": "⦄",
    "lvert": "|", "rvert": "|", "vert": "|", "mid": "|", "lbrack": "[", "rbrack": "]", "pounds": "£", "euro": "€",
    "varepsilon": "ε", "vartheta": "θ", "varphi": "φ", "dollar": "$",
}  # fmt: skip
SPACES = ("quad", "qquad", "displaystyle", "textstyle", "nobreakspace", "enspace", "thinspace")
DROPPED = "left right middle big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr limits nolimits"
COMMANDS = (
    {f"\\{name}": char for name, char in (GREEK | OPERATORS).items()}
    | {f"\\{name}": " " for name in SPACES}
    | {f"\\{name}": "" for name in DROPPED.split()}
    | {"\\dfrac": "\\frac", "\\tfrac": "\\frac", "\\cfrac": "\\frac", "\\dbinom": "\\binom", "\\tbinom": "\\binom"}
)
SYMBOLS = {
    "\\\\": "⏎", "\\{": "⦃", "\\}": "⦄", "\\%": "%", "\\$": "$", "\\&": " and ", "\\!": "", "\\,": " ", "\\;": " ",
    "\\:": " ", "\\ ": " ", "\\>": " ", "\\(": "", "\\)": "", "\\[": "", "\\]": "", "\\|": "|", "\\#": "#", "\\_": " ",
    "\\\n": " ", "\\/": "",
}  # fmt: skip
PLAIN = {"<=": "≤", ">=": "≥", "!=": "≠", "==": "=", "=>": "→", "->": "→", "**": "^", "...": "…", "¬=": "≠", "¬∈": "∉"}
UNICODE = str.maketrans(
    {
        "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "﹣": "-", "×": "*", "⋅": "*", "·": "*", "∙": "*", "∗": "*",
        "÷": "/", "⁄": "/", "∕": "/", "⩽": "≤", "⩾": "≥", "≦": "≤", "≧": "≥", "∼": "≈", "≃": "≈", "≅": "≈", "⟹": "→",
        "⇒": "→", "⟶": "→", "↦": "→", "⇔": "→", "º": "°", "˚": "°", "√": "\\sqrt ", "∛": "\\sqrt[3]", "∜": "\\sqrt[4]",
        "’": "'", "‘": "'", "“": '"', "”": '"', "′": "'", "⋯": "…", "ℝ": "\\mathbb{R}", "ϕ": "φ", "ϵ": "ε", "，": ",",
        "；": ";", "∥": "|", "‖": "|", "¢": " cents ",
        **{v: f" {a}/{b}" for v, a, b in zip(
            "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒", (1, 1, 2, 1, 3, 1, 2, 3, 4, 1, 5, 1, 1, 3, 5, 7, 1, 1),
            (2, 3, 3, 4, 4, 5, 5, 5, 5, 6, 6, 7, 8, 8, 8, 8, 9, 10), strict=True)},
    }
)  # fmt: skip
UNIT_MARK = "¤"
UNIT_LETTERS = "mgshLlNJWVKCFtd"
KEPT = set(GREEK.values()) | set(OPERATORS.values()) | set("⏎⟦⟧¥…√")
SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿ", "0123456789+-()n")
SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉₊₋ₙ", "0123456789+-n")

_SUPER_RUN = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿ]+")
_SUB_RUN = re.compile("[₀₁₂₃₄₅₆₇₈₉₊₋ₙ]+")
_MATRIX = re.compile(r"\\(begin|end)\{(?:[pbB]|small)?matrix\}")
_COMMAND = re.compile(r"\\(?:[A-Za-z]+|[^A-Za-z])")
_PLAIN_OPERATOR = re.compile(r"<=|>=|!=|==|=>|->|\*\*|\.\.\.|¬=|¬∈")
_TEXT = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|mbox|hbox|mathrm|mathbf|mathit|mathsf|mathtt|operatorname|boxed|fbox|"
    r"bm|boldsymbol|emph|underline)\*?\s*\{([^{}]*)\}"
)
_BOXED = re.compile(r"\\f?box(?:ed)?\s*(\{.*\})", re.DOTALL)
_SHORT_FRAC = re.compile(r"\\frac\s*(?:(\{(?:[^{}]|\{[^{}]*\})*\})|([0-9A-Za-zπ]))\s*([0-9A-Za-zπ])")
_HALF_SHORT_FRAC = re.compile(r"\\frac\s*([0-9A-Za-zπ])\s*(?=\{)")
_DEGREE = re.compile(r"\^\s*(?:°|\{\s*°\s*\})")
_BRACED_COMMA = re.compile(r"(?<=\d)\{,\}(?=\d{3}(?!\d))")
_LEAD_IN = re.compile(
    r"(?i)^(?:so |thus |therefore,? |hence )?(?:the |my )?(?:final |correct )?answer\b\s*(?:is|:|=)?\s*:?\s*"
)
_ENDS_A_NUMBER = re.compile(r"[\d})](?:\s|~|\\[,;: ]|\\quad)*$")
_LOOSE_SPACE = re.compile(r" (?![^\W_])|(?<![^\W_]) ")


def normalize(text: str) -> str:
    """One spelling of an answer; never raises.

    >>> normalize(r"$\\dfrac12\\,\\text{cm}^2$")
    '\\\\frac{1}{2}cm^2'
    >>> normalize("x² ≤ ½")
    'x^{2}≤1/2'
    """
    text = _dollars(text)
    if not text.isascii():
        text = _from_unicode(text)
    text = text.strip()
    for mark in ("**", "__", "`", '"'):
        if len(text) > 2 * len(mark) and text.startswith(mark) and text.endswith(mark):
            text = text[len(mark) : -len(mark)].strip()
    if "\\" in text:
        text = _from_latex(text)
    text = _PLAIN_OPERATOR.sub(lambda m: PLAIN[m[0]], text)
    text = re.sub(r",\s+", ";", _BRACED_COMMA.sub("", text).replace("{,}", ","))
    text = _DEGREE.sub("°", text)
    text = _LEAD_IN.sub("", _LOOSE_SPACE.sub("", " ".join(text.replace("~", " ").split())))
    return _without_outer_braces(text.rstrip(".,;: ").lstrip(":; "))


def to_latex(text: str) -> str:
    """LaTeX for the algebra worker from normalised text."""
    for char, command in _BACK.items():
        text = text.replace(char, command)
    return _FUNCTION_WORD.sub(r"\\\1 ", text)


_BACK = {
    "∞": "\\infty ", "*": "\\cdot ", "°": "^{\\circ}", "⌊": "\\lfloor ", "⌋": "\\rfloor ", "⌈": "\\lceil ",
    "⌉": "\\rceil ", "→": "\\to ", ";": ",", "⦃": "\\{", "⦄": "\\}",
    **{char: f"\\{name} " for name, char in GREEK.items()},
}  # fmt: skip
_FUNCTION_WORD = re.compile(
    r"(?<![\\A-Za-z])(arcsin|arccos|arctan|sin|cos|tan|cot|sec|csc|ln|log|exp|sqrt)(?![A-Za-z])"
)


def _dollars(text: str) -> str:
    """Drop `$` that delimits mathematics; keep the one that is a currency."""
    if "$" not in text:
        return text
    text = text.replace("\\$", "\\dollar ")
    if text.count("$") % 2:
        return text
    return text.replace("$", " ").strip()


def _from_unicode(text: str) -> str:
    text = _SUPER_RUN.sub(lambda m: "^{" + m[0].translate(SUPERSCRIPTS) + "}", text)
    text = _SUB_RUN.sub(lambda m: "_{" + m[0].translate(SUBSCRIPTS) + "}", text)
    return "".join(_character(c) for c in text.translate(UNICODE))


def _character(c: str) -> str:
    """ASCII digits for any script's digits, compatibility forms resolved, invisible characters dropped."""
    if c < "\x7f" or c in KEPT:
        return c
    category = unicodedata.category(c)
    if category == "Nd":
        return str(unicodedata.decimal(c))
    if category[0] == "C":
        return ""
    return " " if category[0] == "Z" else unicodedata.normalize("NFKC", c)


def _from_latex(text: str) -> str:
    whole = _BOXED.fullmatch(text)
    if whole:
        text = whole[1]
    text = _MATRIX.sub(lambda m: "⟦" if m[1] == "begin" else "⟧", text)
    for _ in range(4):  # \text{\textbf{...}}: from the inside out
        text, found = _TEXT.subn(_plain_text, text)
        if not found:
            break
    text = _COMMAND.sub(_command, text)
    text = text.replace("\\mathbb{R}", "\\reals ").replace("\\mathbb R", "\\reals ")
    if "\\frac" in text:
        text = _SHORT_FRAC.sub(lambda m: f"\\frac{m[1] or '{' + m[2] + '}'}{{{m[3]}}}", text)
        text = _HALF_SHORT_FRAC.sub(r"\\frac{\1}", text)
    return text


def _plain_text(m: re.Match[str]) -> str:
    """The content of \\text{...}; a lone unit letter after a number is marked, for 5\\text{m} is not 5m."""
    content = m[1].strip()
    if len(content) == 1 and content in UNIT_LETTERS and _ENDS_A_NUMBER.search(m.string, 0, m.start()):
        return f" {UNIT_MARK}{content} "
    return f" {m[1]} "


def _command(m: re.Match[str]) -> str:
    name = m[0]
    return COMMANDS[name] if name in COMMANDS else SYMBOLS.get(name, name)


def _without_outer_braces(text: str) -> str:
    """`{5}` is 5, and so is a whole answer in one pair of braces."""
    while text.startswith("{") and text.endswith("}"):
        depth = 0
        for i, c in enumerate(text):
            depth += (c == "{") - (c == "}")
            if depth == 0 and i < len(text) - 1:
                return text
        if depth:
            return text
        text = text[1:-1].strip()
    return text
