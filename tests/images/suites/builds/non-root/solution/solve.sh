#!/bin/bash
echo done > /tmp/done.txt
[ "$(id -u)" = 1234 ] || exit 3
