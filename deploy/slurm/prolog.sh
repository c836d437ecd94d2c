#!/bin/sh
# For Prolog= of slurm.conf: as root, on each node of a job, before its first step. It starts the node's daemon unless
# it runs, and lets the job's user connect, who then need not be in the group prepserver.
#
# A prolog that fails drains the node. So it never fails: without a daemon, the job's own error (NoServer) says so.
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
