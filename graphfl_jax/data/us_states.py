"""The 48 contiguous states of the USA: names, postal codes, latitudes and common borders.

Borders are those of D. E. Knuth, The Stanford GraphBase (ACM Press, 1993), without the District
of Columbia. States that only touch in a corner, such as Arizona and Colorado, have no border.
"""

# Name, postal code, and latitude of the state's centre in degrees north. Alphabetical by name,
# which is the order of NOAA's state numbers 001 to 048.
STATES = (
    ("Alabama", "AL", 32.8),
    ("Arizona", "AZ", 34.3),
    ("Arkansas", "AR", 34.8),
    ("California", "CA", 37.2),
    ("Colorado", "CO", 39.0),
    ("Connecticut", "CT", 41.6),
    ("Delaware", "DE", 39.0),
    ("Florida", "FL", 28.6),
    ("Georgia", "GA", 32.6),
    ("Idaho", "ID", 44.4),
    ("Illinois", "IL", 40.0),
    ("Indiana", "IN", 39.9),
    ("Iowa", "IA", 42.1),
    ("Kansas", "KS", 38.5),
    ("Kentucky", "KY", 37.5),
    ("Louisiana", "LA", 31.1),
    ("Maine", "ME", 45.4),
    ("Maryland", "MD", 39.0),
    ("Massachusetts", "MA", 42.3),
    ("Michigan", "MI", 44.3),
    ("Minnesota", "MN", 46.3),
    ("Mississippi", "MS", 32.7),
    ("Missouri", "MO", 38.4),
    ("Montana", "MT", 47.1),
    ("Nebraska", "NE", 41.5),
    ("Nevada", "NV", 39.3),
    ("New Hampshire", "NH", 43.7),
    ("New Jersey", "NJ", 40.2),
    ("New Mexico", "NM", 34.4),
    ("New York", "NY", 42.9),
    ("North Carolina", "NC", 35.6),
    ("North Dakota", "ND", 47.4),
    ("Ohio", "OH", 40.3),
    ("Oklahoma", "OK", 35.6),
    ("Oregon", "OR", 43.9),
    ("Pennsylvania", "PA", 40.9),
    ("Rhode Island", "RI", 41.7),
    ("South Carolina", "SC", 33.9),
    ("South Dakota", "SD", 44.4),
    ("Tennessee", "TN", 35.9),
    ("Texas", "TX", 31.5),
    ("Utah", "UT", 39.3),
    ("Vermont", "VT", 44.1),
    ("Virginia", "VA", 37.5),
    ("Washington", "WA", 47.4),
    ("West Virginia", "WV", 38.6),
    ("Wisconsin", "WI", 44.6),
    ("Wyoming", "WY", 43.0),
)

# Each line is a state and its neighbours, without the borders that an earlier line lists.
_BORDERS = """
AL FL GA MS TN
AR LA MO MS OK TN TX
AZ CA NM NV UT
CA NV OR
CO KS NE NM OK UT WY
CT MA NY RI
DE MD NJ PA
FL GA
GA NC SC TN
IA IL MN MO NE SD WI
ID MT NV OR UT WA WY
IL IN KY MO WI
IN KY MI OH
KS MO NE OK
KY MO OH TN VA WV
LA MS TX
MA NH NY RI VT
MD PA VA WV
ME NH
MI OH WI
MN ND SD WI
MO NE OK TN
MS TN
MT ND SD WY
NC SC TN VA
ND SD
NE SD WY
NH VT
NJ NY PA
NM OK TX
NV OR UT
NY PA VT
OH PA WV
OK TX
OR WA
PA WV
SD WY
TN VA
UT WY
VA WV
"""


def _borders():
    index = {postal: i for i, (_, postal, _) in enumerate(STATES)}
    rows = [line.split() for line in _BORDERS.strip().splitlines()]
    return tuple((index[state], index[other]) for state, *others in rows for other in others)


BORDERS = _borders()  # 105 pairs of indices into STATES; each border is listed once
