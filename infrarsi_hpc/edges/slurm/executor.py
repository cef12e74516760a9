"""submitit's Slurm executor with our own script, for single jobs and for arrays.

submitit writes the submission file, calls sbatch and makes the jobs. What differs: the script is a rendered template
(submitit builds a plain executor by name for arrays, which would lose it); it starts our agent, whose input lies on
disk before sbatch is called (submitit renames its pickles into place only after sbatch has answered, so that a head
killed in between leaves jobs without input); sbatch is waited for no longer than the site allows; and its answer is
read with banners, wrappers and cluster names in mind.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from submitit.core import core, utils
from submitit.slurm.slurm import SlurmExecutor, SlurmJob

from infrarsi_hpc.domain.job import JobId
from infrarsi_hpc.edges.slurm.commands import Answer, SlurmCommands
from infrarsi_hpc.edges.slurm.sbatch_text import parse_submission


class SubmitFailed(Exception):
    """sbatch did not answer with a job's number; `answer` is what it said."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.stderr)
        self.answer = answer


class TemplateExecutor(SlurmExecutor):
    """An executor whose submissions all run one script, as many array tasks as there are submissions.

    `render` gets the number of array tasks (none for a single job) and gives the whole script. The functions that are
    submitted are not pickled: the script knows what to do for its task.
    """

    def __init__(self, folder: Path, commands: SlurmCommands, render: Callable[[int | None], str]) -> None:
        self.commands, self.render = commands, render
        self.submitted: JobId | None = None
        super().__init__(folder=folder)

    @classmethod
    def name(cls) -> str:
        """submitit's name for what this is to its jobs."""
        return "slurm"

    @classmethod
    def affinity(cls) -> int:
        """Usable wherever it is asked for: whether Slurm is there shows when sbatch is called."""
        return 2

    def _internal_process_submissions(
        self, delayed_submissions: Sequence[utils.DelayedSubmission]
    ) -> list[core.Job[Any]]:
        num = len(delayed_submissions)
        self.parameters["map_count"] = num if num > 1 else None
        utils.JobPaths.get_first_id_independent_folder(self.folder).mkdir(parents=True, exist_ok=True)
        first = self._submit_command("")
        if num == 1:
            return [first]
        return [SlurmJob(folder=self.folder, job_id=f"{first.job_id}_{task}", tasks=[0]) for task in range(num)]

    def _submit_command(self, command: str) -> core.Job[Any]:
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # submitit prints what sbatch complains of
                return super()._submit_command(command)
        except utils.FailedJobError as error:
            cause = error.__cause__
            if not isinstance(cause, subprocess.CalledProcessError):
                raise SubmitFailed(Answer(None, "", str(error))) from error
            raise SubmitFailed(Answer(_code(cause.returncode), cause.output or "", cause.stderr or "")) from error
        except OSError as error:
            raise SubmitFailed(Answer(127, "", f"sbatch cannot be started: {error.strerror}")) from error

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        del command, uid
        return self.render(self.parameters.get("map_count"))

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        wanted = self.commands.variables()
        removed = [part for name in os.environ if name not in wanted for part in ("-u", name)]
        seconds = f"{self.commands.site.limits.command_seconds:g}"
        self.commands.num_calls["sbatch"] = self.commands.num_calls.get("sbatch", 0) + 1
        sbatch = self.commands.argv("sbatch", "--parsable", str(submission_file_path))
        return ["env", *removed, "timeout", "--kill-after=5", seconds, *sbatch]

    def _get_job_id_from_submission_command(  # type: ignore[override]  # static there; the cluster is kept here
        self, string: bytes | str
    ) -> str:
        text = string if isinstance(string, str) else string.decode("utf-8", "replace")
        self.submitted = parse_submission(text)
        if self.submitted is None:
            raise SubmitFailed(Answer(0, text, f"no job's number in {text[:300]!r}"))
        return str(self.submitted.number)


def _code(returncode: int) -> int | None:
    """None where `timeout` ended sbatch: it may have been understood all the same."""
    return None if returncode in (124, 137, -9) else returncode
