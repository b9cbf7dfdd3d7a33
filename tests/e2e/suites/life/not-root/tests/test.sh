#!/bin/sh
[ "$(id -un)" = dev ] && [ -e solved ] && [ ! -w /tests ] && echo 1 > /logs/verifier/reward.txt
