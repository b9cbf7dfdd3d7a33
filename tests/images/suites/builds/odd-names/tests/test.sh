#!/bin/bash
# A reward of 1 only if the image is what the Dockerfile says.
if [ "$(cat "/opt/odd/a file with spaces.txt")" = spaces ] && [ "$(cat /opt/odd/x.data)" = x ] && [ "$(cat /opt/odd/tree/deep/ümlaut.txt)" = u ] && [ "$(cat /opt/odd/hidden)" = h ] && [ ! -e /opt/odd/tree/left-out.log ] && [ "$(cat /tmp/done.txt)" = done ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
