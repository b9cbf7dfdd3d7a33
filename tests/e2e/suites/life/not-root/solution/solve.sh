#!/bin/sh
test "$(id -u):$(id -un):$PWD" = 1234:dev:/home/dev && touch solved && ! touch /tests 2>/dev/null
