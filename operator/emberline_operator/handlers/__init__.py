"""kopf's handlers: each puts what a watch told into a cache and says which endpoints it concerns. No decisions here."""
