"""The 48 contiguous states of the USA: names, postal codes, positions and common borders.

Borders are those of D. E. Knuth, The Stanford GraphBase (ACM Press, 1993), without the District
of Columbia. States that only touch in a corner, such as Arizona and Colorado, have no border.
"""

from typing import NamedTuple


class State(NamedTuple):
    """A state. Each border is listed by one of its two states."""

    name: str
    postal: str
    latitude: float  # of the centre, in degrees north
    longitude: float  # in degrees east
    borders: str  # postal codes of neighbours


# Alphabetical by name, which is the order of NOAA's state numbers 001 to 048.
STATES = (
    State("Alabama", "AL", 32.8, -86.8, "FL GA MS TN"),
    State("Arizona", "AZ", 34.3, -111.7, "CA NM NV UT"),
    State("Arkansas", "AR", 34.8, -92.4, "LA MO MS OK TN TX"),
    State("California", "CA", 37.2, -119.5, "NV OR"),
    State("Colorado", "CO", 39.0, -105.5, "KS NE NM OK UT WY"),
    State("Connecticut", "CT", 41.6, -72.7, "MA NY RI"),
    State("Delaware", "DE", 39.0, -75.5, "MD NJ PA"),
    State("Florida", "FL", 28.6, -82.4, "GA"),
    State("Georgia", "GA", 32.6, -83.4, "NC SC TN"),
    State("Idaho", "ID", 44.4, -114.6, "MT NV OR UT WA WY"),
    State("Illinois", "IL", 40.0, -89.2, "IN KY MO WI"),
    State("Indiana", "IN", 39.9, -86.3, "KY MI OH"),
    State("Iowa", "IA", 42.1, -93.5, "IL MN MO NE SD WI"),
    State("Kansas", "KS", 38.5, -98.4, "MO NE OK"),
    State("Kentucky", "KY", 37.5, -85.3, "MO OH TN VA WV"),
    State("Louisiana", "LA", 31.1, -92.0, "MS TX"),
    State("Maine", "ME", 45.4, -69.2, "NH"),
    State("Maryland", "MD", 39.0, -76.8, "PA VA WV"),
    State("Massachusetts", "MA", 42.3, -71.8, "NH NY RI VT"),
    State("Michigan", "MI", 44.3, -85.4, "OH WI"),
    State("Minnesota", "MN", 46.3, -94.3, "ND SD WI"),
    State("Mississippi", "MS", 32.7, -89.7, "TN"),
    State("Missouri", "MO", 38.4, -92.5, "NE OK TN"),
    State("Montana", "MT", 47.1, -109.6, "ND SD WY"),
    State("Nebraska", "NE", 41.5, -99.8, "SD WY"),
    State("Nevada", "NV", 39.3, -116.6, "OR UT"),
    State("New Hampshire", "NH", 43.7, -71.6, "VT"),
    State("New Jersey", "NJ", 40.2, -74.7, "NY PA"),
    State("New Mexico", "NM", 34.4, -106.1, "OK TX"),
    State("New York", "NY", 42.9, -75.5, "PA VT"),
    State("North Carolina", "NC", 35.6, -79.4, "SC TN VA"),
    State("North Dakota", "ND", 47.4, -100.5, "SD"),
    State("Ohio", "OH", 40.3, -82.8, "PA WV"),
    State("Oklahoma", "OK", 35.6, -97.5, "TX"),
    State("Oregon", "OR", 43.9, -120.6, "WA"),
    State("Pennsylvania", "PA", 40.9, -77.8, "WV"),
    State("Rhode Island", "RI", 41.7, -71.6, ""),
    State("South Carolina", "SC", 33.9, -80.9, ""),
    State("South Dakota", "SD", 44.4, -100.2, "WY"),
    State("Tennessee", "TN", 35.9, -86.4, "VA"),
    State("Texas", "TX", 31.5, -99.3, ""),
    State("Utah", "UT", 39.3, -111.7, "WY"),
    State("Vermont", "VT", 44.1, -72.7, ""),
    State("Virginia", "VA", 37.5, -78.8, "WV"),
    State("Washington", "WA", 47.4, -120.4, ""),
    State("West Virginia", "WV", 38.6, -80.6, ""),
    State("Wisconsin", "WI", 44.6, -90.0, ""),
    State("Wyoming", "WY", 43.0, -107.6, ""),
)


def _borders():
    index = {state.postal: i for i, state in enumerate(STATES)}
    return tuple((index[s.postal], index[other]) for s in STATES for other in s.borders.split())


BORDERS = _borders()  # 105 pairs of indices into STATES
