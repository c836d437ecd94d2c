"""tf.data service: one dispatcher and one worker (two threads) in a process of their own, for all jobs.

With its cross-trainer cache: jobs that name one job take batches from one pass. Whoever is slow misses some.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from bench.peers.contenders.endless import Endless
from bench.peers.contenders.lists import listed
from bench.peers.contenders.tf_data import Batches, pipeline

service = tf.data.experimental.service


def serve(config: dict[str, Any]) -> Any:
    """Starts dispatcher and worker; what is returned keeps them alive."""
    dispatcher = service.DispatchServer(service.DispatcherConfig(port=config["port"]))
    worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=dispatcher.target.split("://")[1]))
    return dispatcher, worker


def open_loader(config: dict[str, Any]) -> Iterable[Any]:
    dataset = pipeline(config).apply(
        service.distribute(
            processing_mode=service.ShardingPolicy.OFF, service=f"grpc://localhost:{config['port']}",
            job_name="shared", compression=None,
            cross_trainer_cache=service.CrossTrainerCache(trainer_id=f"job {config['number']}"),
        )
    )  # fmt: skip
    return Endless(Batches(dataset.prefetch(tf.data.AUTOTUNE)), len(listed(config["list"])) // config["batch"])
