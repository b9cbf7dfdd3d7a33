#!/bin/bash
answer=$(python3 -c 'import urllib.request; print(urllib.request.urlopen("http://127.0.0.1:8099/answer", timeout=10).read().decode())')
if [ "$answer" = "42" ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
