"""Groups whose coordinator says who gets what (KIP-848): the machine, and what it decides with."""
