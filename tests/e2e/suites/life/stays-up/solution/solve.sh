#!/bin/sh
test -e /app/started && touch /app/solved
