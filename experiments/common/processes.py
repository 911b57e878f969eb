"""Flags that join several processes into one federation, and how a process leaves them."""

import contextlib
import os
import socket
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator

import jax
from absl import flags

from experiments.common.command_line import FLAGS, complain
from graphfl_jax.runs.multihost import AgreedError, is_first

flags.DEFINE_bool("distributed", False, "Split cohorts over the devices of several processes.")
flags.DEFINE_string("coordinator", None, "HOST:PORT on which process 0 is to be found.")
flags.DEFINE_integer("num_processes", None, "Processes in all.", lower_bound=1)
flags.DEFINE_integer("process_id", None, "Which of them this is, from 0 on.", lower_bound=0)
flags.DEFINE_integer("join_timeout", 300, "Seconds to wait for all processes.", lower_bound=1)
GIVEN = ("coordinator", "num_processes", "process_id")


@contextlib.contextmanager
def joined() -> Iterator[None]:
    """Joins the other processes, if flags ask for it, before the first use of a device.

    Without --coordinator and its companions JAX asks the cluster (SLURM, Open MPI and others).
    Afterwards the first process alone prints, and an error that all have agreed upon ends all
    with the status of `refuse`. A process that fails alone ends at once with status 3, since
    the others cannot go on without it and a proper farewell would wait for them.
    """
    _check_flags()
    if not FLAGS.distributed:
        yield
        return
    _join()
    try:
        _check_devices()
        if not is_first():
            warnings.simplefilter("ignore")
        yield
    except AgreedError:
        if is_first():
            raise
        sys.exit(2)
    except (OSError, ValueError, RuntimeError) as error:
        if FLAGS.debug:
            traceback.print_exc()
        _leave(
            f"process {jax.process_index()} failed alone or lost another ({error}); "
            f"start all of them again, with --resume",
            3,
        )
    except BaseException:
        traceback.print_exc()
        _leave("", 3)


def _check_flags():
    given = [name for name in GIVEN if FLAGS[name].value is not None]
    missing = [name for name in GIVEN if name not in given]
    if given and not FLAGS.distributed:
        raise ValueError(f"{given[0]}={FLAGS[given[0]].value} needs --distributed; add it")
    if not given:
        return
    if missing:
        raise ValueError(
            f"{given[0]}={FLAGS[given[0]].value} needs --{missing[0]} too; give all of "
            f"--coordinator=HOST:PORT --num_processes=N --process_id=I, or none on a cluster"
        )
    if FLAGS.process_id >= FLAGS.num_processes:
        raise ValueError(
            f"process_id={FLAGS.process_id} is not below num_processes={FLAGS.num_processes}; "
            f"set --process_id in 0 to {FLAGS.num_processes - 1}"
        )
    host, _, port = FLAGS.coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ValueError(f"coordinator={FLAGS.coordinator} is not HOST:PORT; give both")


def _join():
    """Joins, or exits with status 2: JAX itself would abort the process."""
    if FLAGS.process_id == 0:
        _check_port(int(FLAGS.coordinator.rpartition(":")[2]))
    where = FLAGS.coordinator or "the cluster's"
    late = threading.Timer(
        FLAGS.join_timeout,
        _leave,
        (
            f"coordinator={where}: after {FLAGS.join_timeout} s not all processes are there; "
            f"start each with the same --coordinator and --num_processes and with its own "
            f"--process_id, or raise --join_timeout",
            2,
        ),
    )
    late.daemon = True
    late.start()
    # Nothing here heeds a notice of preemption, and its handler would swallow SIGTERM.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            FLAGS.coordinator,
            FLAGS.num_processes,
            FLAGS.process_id,
            initialization_timeout=FLAGS.join_timeout + 60,
        )
    except (RuntimeError, ValueError) as error:
        if FLAGS.coordinator is None:
            raise ValueError(
                f"distributed=True finds no cluster ({error}); "
                f"add --coordinator=HOST:PORT --num_processes=N --process_id=I"
            ) from error
        raise ValueError(f"coordinator={where}: {error}; choose another address") from error
    finally:
        late.cancel()
    _divert_stdout()


def _check_port(port):
    """Refuses a port that is taken, which JAX 0.12 does not survive."""
    try:
        socket.create_server(("", port)).close()
    except OSError as error:
        raise ValueError(
            f"coordinator={FLAGS.coordinator}: {error.strerror}; choose another port"
        ) from error


def _check_devices():
    counts = [len(jax.local_devices(process_index=i)) for i in range(jax.process_count())]
    if len(set(counts)) > 1:
        raise AgreedError(
            f"the processes have {', '.join(map(str, counts))} devices; give all as many"
        )


def _divert_stdout():
    """Keeps standard output for this program: Gloo, beneath JAX, tells of connections there."""
    sys.stdout.flush()
    sys.stdout = os.fdopen(os.dup(1), "w", buffering=1, encoding=sys.stdout.encoding)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def _leave(message, status):
    """Ends this process without a farewell to the others."""
    if message:
        complain(message)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
