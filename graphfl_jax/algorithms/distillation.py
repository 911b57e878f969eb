"""Distillation: FedAvg trains one teacher, and each client a student of its own architecture.

The baseline without a graph of Litany, Maron, Acuna, Kautz, Chechik, Fidler. Federated Learning
with Heterogeneous Architectures using Graph HyperNetworks. 2022.
https://arxiv.org/abs/2201.08459

With the teacher w, of one architecture for all clients, and the student theta_i of client i,

    w       by FedAvg
    theta_i <- K_c steps of SGD on (1 - alpha) CE(s, y) + alpha 2 T^2 KL(t_T || s_T)

where s are the student's outputs, s_T = softmax(s / T), and t_T likewise of the teacher. In the
second line, w is the model that client i received in this round. The factor is the paper's
2 T^2; it is usually T^2.

The teacher has the first architecture of the federation. G, L and P are the client's student.

Departures:
  * Teacher and students take steps in every round. In the paper, the students begin when the
    teacher has been trained. With two phases, the students would not be trained in most
    evaluations of a run, and their number of steps would depend on a second number of rounds.
    Here a run of any length has trained both with as many steps as FedAvg and local training,
    and in the last rounds the teacher changes little if the learning rate falls.
  * Both have the same learning rate and schedule; the paper has 0.1 for the teacher and 0.01
    for the students.
  * With batch normalisation, the teacher computes with the statistics of the batch.
  * The paper does not state the teacher's architecture.
"""

import dataclasses
from typing import Annotated

import jax

from graphfl_jax.algorithms.fedavg import averaging_server
from graphfl_jax.algorithms.fml import divergence
from graphfl_jax.algorithms.method import facts
from graphfl_jax.core import Algorithm, Array, Client, ClientModel, Needs, Predictor
from graphfl_jax.settings import Real
from graphfl_jax.trainers import Train

NEEDS = Needs(labels=True)


@facts(needs=NEEDS)
def distillation(
    models: tuple[ClientModel, ...],
    train: Train,
    *,
    unseen: tuple[ClientModel, ...] = (),
    distillation_alpha: Annotated[
        Array,
        Real("Weight alpha of the teacher in distillation; 0 is local training.", high=1.0),
    ] = 0.7,
    distillation_temperature: Annotated[
        Array, Real("Temperature T of the outputs in distillation.", low=1e-6)
    ] = 20.0,
) -> Algorithm:
    """Builds distillation. Server state, message and upload are the teacher.

    The memory of a client is its student.

    Args:
      models: of each architecture; their outputs are logits.
      train: trains the teacher, and then the student.
      unseen: of the architectures that only new clients have.
      distillation_alpha: alpha.
      distillation_temperature: T.
    """
    teacher, temperature = models[0], distillation_temperature

    def client(model):
        def local(w, theta, data, key):
            key_teacher, key_student = jax.random.split(key)
            w_i, _ = train(teacher.objective, w, data.train, key_teacher)

            def with_teacher(params, batch, key):
                return model.forward(params, batch, key), teacher.forward(w, batch, key)

            def distill(outputs, y):
                student, taught = outputs
                apart = divergence(taught / temperature, student / temperature)
                labels = (1.0 - distillation_alpha) * model.task.loss(student, y)
                return labels + distillation_alpha * 2.0 * temperature**2 * apart

            task = model.task._replace(loss=distill)
            student = dataclasses.replace(model, task=task, train_forward=with_teacher)
            theta, metrics = train(student.objective, theta, data.train, key_student)
            return theta, w_i, metrics

        return Client(
            model,
            local,
            enroll=lambda w, key: model.init(key),
            deploy=lambda w, theta, data: Predictor(theta),
        )

    return Algorithm(
        averaging_server(teacher),
        tuple(map(client, (*models, *unseen))),
        needs=NEEDS,
        averages=True,
    )
