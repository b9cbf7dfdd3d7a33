#!/bin/bash
# Wrong on purpose: it counts the lines instead of adding them. The suite needs a trial that scores 0.
wc -l < /app/numbers.txt > /app/sum.txt
