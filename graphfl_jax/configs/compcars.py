"""CompCars: four body types of cars, one client per model year and viewpoint.

    graphfl run compcars
    graphfl run compcars:fedavg
    graphfl run compcars:panacea-full \\
        --config.model.weights=resnet18.safetensors

Without photographs, pictures of cars are generated, see docs/guide/data.md. The first two train
a small ResNet on pictures of 32 pixels in rounds of 10 steps, for a machine without an
accelerator. METHOD-full is the papers' protocol: ResNet-18 on pictures of 224 pixels, where a
hypernetwork generates what is added to pretrained weights. It needs a GPU of 80 GB.
"""

from graphfl_jax.configs import base

SETTINGS = {
    "model.name": "resnet18",
    "algorithm.output": "residual",
    "hparams.client_lr": 0.1,
    "rounds": 100,
    "eval_batch_size": 32,
    "clients_per_eval": 5,
}
SMALL = {
    "data.image_size": 32,
    "model.width": 8,
    "local_steps": 10,
    "batch_size": 32,
    "tuning.steps": 10,
}
FULL = {"data.image_size": 224}
SUFFIX = "-full"


def get_config(method="panacea"):
    """The configuration of a method of `base.methods`: small, or METHOD-full, the papers'."""
    name = method.removesuffix(SUFFIX)
    scale = SMALL if method == name else FULL
    return base.configure(
        name, "compcars", tuned=base.TUNED["compcars"], settings=SETTINGS | scale
    )
