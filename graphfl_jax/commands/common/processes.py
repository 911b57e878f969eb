"""Several processes that run one federation: the flags, joining, and ending together."""

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

from graphfl_jax.commands.common.command_line import FLAGS
from graphfl_jax.commands.common.help_text import complain
from graphfl_jax.runs.multihost import AgreedError, is_first

flags.DEFINE_bool("distributed", False, "Split cohorts over the devices of several processes.")
flags.DEFINE_string("coordinator", None, "Address of process 0, HOST:PORT.")
flags.DEFINE_integer("num_processes", None, "Number of processes.", lower_bound=1)
flags.DEFINE_integer(
    "process_id", None, "Number of this process; the first is 0.", lower_bound=0
)
flags.DEFINE_integer("join_timeout", 300, "Seconds to wait for all processes.", lower_bound=1)
ADDRESS_FLAGS = ("coordinator", "num_processes", "process_id")


@contextlib.contextmanager
def join_processes() -> Iterator[None]:
    """Joins the other processes if --distributed is set. Enter it before a device is used.

    Without --coordinator, --num_processes and --process_id, JAX takes them from the cluster
    (SLURM, Open MPI and others). Afterwards only the first process prints. An `AgreedError`
    ends all processes with status 2. A process that fails alone ends at once with status 3: the
    others cannot continue without it, and an orderly shutdown would wait for them.
    """
    _check_flags()
    if not FLAGS.distributed:
        yield
        return
    _join()
    try:
        counts = [len(jax.local_devices(process_index=i)) for i in range(jax.process_count())]
        if len(set(counts)) > 1:
            raise AgreedError(
                f"num_processes={len(counts)}: the processes have "
                f"{', '.join(map(str, counts))} devices; give all the same number"
            )
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
        _exit_now(
            f"process {jax.process_index()} failed alone or lost another ({error}); "
            f"start all processes again with --resume",
            3,
        )
    except BaseException:
        traceback.print_exc()
        _exit_now("", 3)


def _check_flags():
    typed = [name for name in ADDRESS_FLAGS if FLAGS[name].value is not None]
    missing = [name for name in ADDRESS_FLAGS if name not in typed]
    only = [*typed, *["join_timeout"] * FLAGS["join_timeout"].present]
    if only and not FLAGS.distributed:
        raise ValueError(
            f"{only[0]}={FLAGS[only[0]].value} is not read without --distributed; add it"
        )
    if not typed:
        return
    if missing:
        raise ValueError(
            f"{typed[0]}={FLAGS[typed[0]].value} needs --{missing[0]} too; give all of "
            f"--coordinator=HOST:PORT --num_processes=N --process_id=I, or none on a cluster"
        )
    if FLAGS.process_id >= FLAGS.num_processes:
        raise ValueError(
            f"process_id={FLAGS.process_id} is not below num_processes={FLAGS.num_processes}; "
            f"set --process_id to a value in [0, {FLAGS.num_processes - 1}]"
        )
    host, _, port = FLAGS.coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ValueError(
            f"coordinator={FLAGS.coordinator} is not HOST:PORT; set --coordinator=HOST:PORT"
        )


def _join():
    """Joins the other processes, or exits with status 2, where JAX would abort the process."""
    if FLAGS.process_id == 0:
        try:
            socket.create_server(("", int(FLAGS.coordinator.rpartition(":")[2]))).close()
        except OSError as error:
            raise ValueError(
                f"coordinator={FLAGS.coordinator} cannot be opened ({error.strerror}); choose "
                f"another port"
            ) from error
    where = FLAGS.coordinator or "(of the cluster)"
    late = threading.Timer(
        FLAGS.join_timeout,
        _exit_now,
        (
            f"coordinator={where}: after {FLAGS.join_timeout} s not all processes have joined; "
            f"start each with the same --coordinator and --num_processes and with its own "
            f"--process_id, or raise --join_timeout",
            2,
        ),
    )
    late.daemon = True
    late.start()
    # The preemption service is not used here, and its handler would ignore SIGTERM.
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
                f"distributed=True: no cluster is found ({error}); "
                f"add --coordinator=HOST:PORT --num_processes=N --process_id=I"
            ) from error
        raise ValueError(
            f"coordinator={where} cannot be joined ({error}); choose another address"
        ) from error
    finally:
        late.cancel()
    _divert_stdout()


def _divert_stdout():
    """Keeps messages of Gloo, which JAX uses, out of the standard output of this program."""
    sys.stdout.flush()
    sys.stdout = os.fdopen(os.dup(1), "w", buffering=1, encoding=sys.stdout.encoding)
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.close(devnull)


def _exit_now(message, status):
    """Ends this process without JAX's shutdown, which would wait for the others."""
    if message:
        complain(message)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
