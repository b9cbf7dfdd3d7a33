#!/bin/sh
touch /app/now; sleep 1000
