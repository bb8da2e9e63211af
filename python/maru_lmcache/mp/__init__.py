"""LMCache's server mode on a pool of marud. docs/python/lmcache-server.md says how to use it.

`maru-lmcache-server`, or `python3 -m maru_lmcache.mp`, starts LMCache's own server with MaruL1Manager as its first tier. A
server of LMCache that is not changed can have the pool as its second tier instead: maru_lmcache.l2.
"""
