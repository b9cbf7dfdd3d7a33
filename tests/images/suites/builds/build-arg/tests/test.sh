#!/bin/bash
# A reward of 1 only if the image is what the Dockerfile says.
if [ "$(cat /opt/greeting.txt)" = "hello from ARG" ] && [ "$GREETING_ENV" = "hello from ARG" ] && [ "$(cat /tmp/done.txt)" = done ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
