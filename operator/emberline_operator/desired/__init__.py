"""One maker per kind of child object. Pure: equal inputs give equal objects; nothing is read or written."""
