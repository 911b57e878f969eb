"""The flag of commands that use results again: whether results of other code are used."""

from absl import flags

from graphfl_jax.commands.common.command_line import FLAGS

flags.DEFINE_bool(
    "accept_changes",
    False,
    "Use results in --out although the package, the configuration file or your own code has "
    "changed since. Both digests are recorded.",
)


def changes_accepted() -> bool:
    """Whether --accept_changes is set.

    Raises:
      ValueError: it is set, and the command has --resume, which is not.
    """
    if FLAGS.accept_changes and "resume" in FLAGS and not FLAGS.resume:
        raise ValueError(
            "accept_changes=True is not read without --resume; add --resume, or leave it out"
        )
    return FLAGS.accept_changes
