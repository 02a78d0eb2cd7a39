"""Contests: the best handcrafted routers, chosen on other episodes, against learned ones."""
