"""The front ends of protocols: sessions and their handlers, one package per protocol."""
