#!/bin/sh
test -z "$BASH_VERSION" && ! command -v bash && touch /app/solved
