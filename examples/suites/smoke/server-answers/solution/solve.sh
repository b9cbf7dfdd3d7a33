#!/bin/bash
set -euo pipefail
mkdir -p /app/www
printf '42' > /app/www/answer
# setsid: the server lives in a session of its own, so it outlives this script.
setsid python3 -m http.server 8099 --bind 127.0.0.1 --directory /app/www > /app/server.log 2>&1 < /dev/null &
for _ in $(seq 50); do
  python3 -c 'import socket; socket.create_connection(("127.0.0.1", 8099), 1)' 2>/dev/null && exit 0
  sleep 0.1
done
exit 1
