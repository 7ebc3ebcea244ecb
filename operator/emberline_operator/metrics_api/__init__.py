"""The APIServices and the certificate of the gateways' metrics API, for as long as something scales by it."""
