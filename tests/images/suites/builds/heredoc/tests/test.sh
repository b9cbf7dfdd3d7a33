#!/bin/bash
# A reward of 1 only if the image is what the Dockerfile says.
if [ "$(cat /opt/lines.txt /opt/copied.txt /opt/python.txt | tr '\n' ,)" = "one,two,three,four," ] && [ "$(cat /tmp/done.txt)" = done ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
