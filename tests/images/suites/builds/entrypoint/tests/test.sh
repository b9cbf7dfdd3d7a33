#!/bin/bash
# A reward of 1 only if the image is what the Dockerfile says.
if [ "$(cat /tmp/entered)" = yes ] && [ "$(readlink /usr/bin/python)" = /usr/bin/python3 ] && python -c pass && [ "$(cat /tmp/done.txt)" = done ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
