#!/bin/bash
# Sorts and drops, but leaves the names as they are: three of the four checks hold.
{ head -n 1 /app/people.csv; tail -n +2 /app/people.csv | grep -v ',$' | sort -f; } > /app/clean.csv
