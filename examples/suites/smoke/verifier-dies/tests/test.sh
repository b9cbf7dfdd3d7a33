#!/bin/bash
# Dies before it writes a reward, as a broken grader does. The trial is errored; it has no score, and it is not 0.
set -eu
echo "about to read a file that does not exist"
cat /tests/expected.txt
echo 1 > /logs/verifier/reward.txt
