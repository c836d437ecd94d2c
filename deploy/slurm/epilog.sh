#!/bin/sh
# For Epilog= in slurm.conf: runs as root on each node of a job, after its last process. It revokes the access that
# prolog.sh gave, unless the user has another job on this node. Members of the group prepserver keep theirs.
set -u
socket=/run/prepserver/attach.sock
jobs=/run/prepserver-jobs

[ -d "$jobs" ] || exit 0
(
    flock 9
    rmdir "$jobs/$SLURM_JOB_UID/$SLURM_JOB_ID"
    # It is empty after the last job of the user.
    if rmdir "$jobs/$SLURM_JOB_UID" 2>/dev/null; then setfacl -x "u:$SLURM_JOB_UID" "$socket"; fi
) 9>"$jobs/lock" || exit 0
