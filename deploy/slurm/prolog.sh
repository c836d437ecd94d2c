#!/bin/sh
# For Prolog= in slurm.conf: runs as root on each node of a job, before its first step. It starts the node's daemon if
# it is not running, and lets the job's user connect without being in the group prepserver.
#
# A prolog that fails drains the node, so this one never fails: without a daemon, the job gets an error (NoServer).
set -u
socket=/run/prepserver/attach.sock
jobs=/run/prepserver-jobs

systemctl start prepserver.socket prepserver.service || exit 0
mkdir -p "$jobs" && chmod 700 "$jobs"
(
    flock 9
    mkdir -p "$jobs/$SLURM_JOB_UID/$SLURM_JOB_ID"
    setfacl -m "u:$SLURM_JOB_UID:rw" "$socket"
) 9>"$jobs/lock" || exit 0
