"""The commands for what runs in production: releases of winners, and whether winners still are the fastest."""
