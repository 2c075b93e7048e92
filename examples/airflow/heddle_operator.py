"""Trains a Heddle job on a YARN cluster as an Airflow task, see docs/schedulers.md."""
import hashlib
import json
import os
import subprocess
import time

from airflow.exceptions import AirflowException, AirflowFailException
from airflow.models import BaseOperator

# A retry changes nothing: wrong command line, refused, denied, wrong input, damaged checkpoint.
NOT_RETRIED = {2, 4, 5, 7, 8}


class HeddleOperator(BaseOperator):
    """Submits `job`; a retry follows the application that an earlier worker left, if it still runs."""
    template_fields = ("job", "arguments", "env")

    def __init__(self, *, job, arguments=(), env=None, heddle="heddle", kill_timeout=330, **kwargs):
        super().__init__(**kwargs)
        self.job, self.arguments, self.env, self.heddle = job, list(arguments), env or {}, heddle
        self.kill_timeout, self.process, self.tag = kill_timeout, None, ""

    def _start(self, *arguments, **options):
        # With HEDDLE_LAUNCHER the program ends with this worker, however that ends; the application continues.
        variables = {**os.environ, **self.env, "HEDDLE_LAUNCHER": str(os.getpid())}
        return subprocess.Popen([self.heddle, *arguments], env=variables, start_new_session=True, **options)

    def _running(self):
        listing = self._start("list", "--json", "--tag", self.tag, stdout=subprocess.PIPE, text=True)
        lines = [json.loads(line) for line in listing.communicate()[0].splitlines()]
        if listing.returncode:
            raise AirflowException(f"heddle list ended with exit code {listing.returncode}")
        return [line["application"] for line in lines if line["state"] in ("waiting", "running")]

    def execute(self, context):
        task = context["task_instance"]
        name = f"{task.dag_id}/{task.task_id}/{task.run_id}/{task.map_index}"
        self.tag = "airflow-" + hashlib.sha256(name.encode()).hexdigest()[:32]
        running = self._running()
        submit = ["submit", self.job, "--tags", self.tag, *self.arguments]
        self.process = self._start(*(["attach", running[0]] if running else submit))
        # Not wait(), which on_kill would interrupt: it runs in a signal handler of this thread, and waits itself.
        while self.process.poll() is None:
            time.sleep(0.5)
        code = self.process.returncode
        if code:
            kind = AirflowFailException if code in NOT_RETRIED else AirflowException
            raise kind(f"heddle ended with exit code {code}")

    def on_kill(self):
        """Saves a checkpoint and ends the application; without an answer in time, ends it at once."""
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(self.kill_timeout)
            except subprocess.TimeoutExpired:
                self.process.kill()
                for application in self._running():
                    self._start("kill", application).wait()
