"""Real federations through Flower: `fedntd flower new DIR` writes an app that uses what is here."""
