"""The 48 contiguous states of the USA: names, postal codes, positions and common borders.

Borders are those of D. E. Knuth, The Stanford GraphBase (ACM Press, 1993), without the District
of Columbia. States that only touch in a corner, such as Arizona and Colorado, have no border.
"""

# Name, postal code, and latitude and longitude of the state's centre in degrees north and east.
# Alphabetical by name, which is the order of NOAA's state numbers 001 to 048.
STATES = (
    ("Alabama", "AL", 32.8, -86.8),
    ("Arizona", "AZ", 34.3, -111.7),
    ("Arkansas", "AR", 34.8, -92.4),
    ("California", "CA", 37.2, -119.5),
    ("Colorado", "CO", 39.0, -105.5),
    ("Connecticut", "CT", 41.6, -72.7),
    ("Delaware", "DE", 39.0, -75.5),
    ("Florida", "FL", 28.6, -82.4),
    ("Georgia", "GA", 32.6, -83.4),
    ("Idaho", "ID", 44.4, -114.6),
    ("Illinois", "IL", 40.0, -89.2),
    ("Indiana", "IN", 39.9, -86.3),
    ("Iowa", "IA", 42.1, -93.5),
    ("Kansas", "KS", 38.5, -98.4),
    ("Kentucky", "KY", 37.5, -85.3),
    ("Louisiana", "LA", 31.1, -92.0),
    ("Maine", "ME", 45.4, -69.2),
    ("Maryland", "MD", 39.0, -76.8),
    ("Massachusetts", "MA", 42.3, -71.8),
    ("Michigan", "MI", 44.3, -85.4),
    ("Minnesota", "MN", 46.3, -94.3),
    ("Mississippi", "MS", 32.7, -89.7),
    ("Missouri", "MO", 38.4, -92.5),
    ("Montana", "MT", 47.1, -109.6),
    ("Nebraska", "NE", 41.5, -99.8),
    ("Nevada", "NV", 39.3, -116.6),
    ("New Hampshire", "NH", 43.7, -71.6),
    ("New Jersey", "NJ", 40.2, -74.7),
    ("New Mexico", "NM", 34.4, -106.1),
    ("New York", "NY", 42.9, -75.5),
    ("North Carolina", "NC", 35.6, -79.4),
    ("North Dakota", "ND", 47.4, -100.5),
    ("Ohio", "OH", 40.3, -82.8),
    ("Oklahoma", "OK", 35.6, -97.5),
    ("Oregon", "OR", 43.9, -120.6),
    ("Pennsylvania", "PA", 40.9, -77.8),
    ("Rhode Island", "RI", 41.7, -71.6),
    ("South Carolina", "SC", 33.9, -80.9),
    ("South Dakota", "SD", 44.4, -100.2),
    ("Tennessee", "TN", 35.9, -86.4),
    ("Texas", "TX", 31.5, -99.3),
    ("Utah", "UT", 39.3, -111.7),
    ("Vermont", "VT", 44.1, -72.7),
    ("Virginia", "VA", 37.5, -78.8),
    ("Washington", "WA", 47.4, -120.4),
    ("West Virginia", "WV", 38.6, -80.6),
    ("Wisconsin", "WI", 44.6, -90.0),
    ("Wyoming", "WY", 43.0, -107.6),
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
    index = {postal: i for i, (_, postal, *_) in enumerate(STATES)}
    rows = [line.split() for line in _BORDERS.strip().splitlines()]
    return tuple((index[state], index[next_to]) for state, *near in rows for next_to in near)


BORDERS = _borders()  # 105 pairs of indices into STATES; each border is listed once
