"""What all processes of a job must have alike before anything begins: the config, and the directory of the run."""

from __future__ import annotations

import asyncio
import json

from rw.errors import ConfigError, WorkdirError
from rw.learner.checkpoint import config_changes
from rw.processes import Processes
from rw.questions import recorded_config
from rw.run_config import RunConfig
from rw.workdir import Workdir

SEEN_AFTER_S = 30  # network file systems show a new file late


async def check_same_config(config: RunConfig, processes: Processes) -> None:
    """Raises ConfigError where the processes of a job were started with different configs."""
    configs = await processes.exchange(json.dumps(recorded_config(config)))
    for index, other in enumerate(configs):
        if changes := config_changes(json.loads(configs[0]), json.loads(other)):
            raise ConfigError(
                f"process {index} was started with another config than process 0: {'; '.join(changes)}; give all "
                "processes of a job the same command"
            )


async def check_same_workdir(workdir: Workdir, processes: Processes) -> None:
    """Raises WorkdirError where a process has another directory than the first, for whose files it would wait."""
    if not processes.is_alone:
        mark, waited_s = await processes.of_first(workdir.mark), 0
        while not workdir.is_marked(mark):
            if waited_s == SEEN_AFTER_S:
                raise WorkdirError(
                    f"process {processes.index} does not see what process 0 writes to workdir "
                    f"{str(workdir.path.absolute())!r}; give all one that all hosts share"
                )
            await asyncio.sleep(1)
            waited_s += 1
