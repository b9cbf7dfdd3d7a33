#!/bin/bash
# A reward of 1 only if the image is what the Dockerfile says.
if [ "$(cat /opt/word.txt)" = "built in stage one" ] && [ ! -e /out ] && [ "$(cat /tmp/done.txt)" = done ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
