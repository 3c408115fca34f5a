"""Find clusters in points that are spread over all ranks, with MPI and NumPy alone.

    shanty run -n 4 examples/kmeans.py --clusters 5

k-means (Lloyd 1957, published 1982): give every point to its nearest centre, move every centre
to the mean of its points, and so on until nothing moves. No rank ever sees another's points: all
that crosses the network in a step are one sum and one count for each cluster.
`python examples/kmeans.py` runs it on one process, unchanged; so does `--data points.npy` on
your own points, an array of shape (points, dimensions).
"""

import argparse

import numpy as np
from mpi4py import MPI

import shanty

comm = MPI.COMM_WORLD


def my_points(options: argparse.Namespace) -> np.ndarray:
    """This rank's share of the points, shape (points, dimensions)."""
    if options.data:
        every = np.load(options.data, mmap_mode="r")  # each rank reads its own rows only
        return np.array(every[comm.rank :: comm.size], dtype=float)
    # Without data: normal clouds around the same true centres on every rank.
    centres = np.random.default_rng(options.seed).uniform(-10, 10, (options.clusters, 2))
    generator = np.random.default_rng([options.seed, comm.rank])
    cloud = generator.integers(options.clusters, size=options.points // comm.size)
    return centres[cloud] + generator.normal(size=(len(cloud), 2))


def first_centres(points: np.ndarray, clusters: int) -> np.ndarray:
    """Centres far apart: each next one is the point farthest from those chosen (Gonzalez 1985)."""
    centres = comm.bcast(points[:1], root=0)
    while len(centres) < clusters:
        away = distances(points, centres).min(axis=1)
        candidates = comm.allgather((away.max(), points[away.argmax()]))
        farthest = max(candidates, key=lambda candidate: candidate[0])[1]
        centres = np.vstack([centres, farthest])
    return centres


def distances(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Squared distances, shape (points, centres)."""
    return np.square(points[:, None, :] - centres[None, :, :]).sum(axis=2)


def step(points: np.ndarray, centres: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """One round: new centres, points in each cluster, mean squared distance to the old ones."""
    away = distances(points, centres)
    nearest = away.argmin(axis=1)
    sums = np.zeros_like(centres)
    np.add.at(sums, nearest, points)
    counts = np.bincount(nearest, minlength=len(centres)).astype(float)
    error = np.array([away.min(axis=1).sum()])
    for part in (sums, counts, error):
        comm.Allreduce(MPI.IN_PLACE, part)  # from here on every rank holds the same numbers
    filled = counts > 0
    moved = centres.copy()
    moved[filled] = sums[filled] / counts[filled, None]
    return moved, counts, error[0] / counts.sum()


def main() -> None:
    """Cluster, log, save, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clusters", type=int, default=4)
    parser.add_argument("--points", type=int, default=200_000, help="points to make, on all ranks")
    parser.add_argument("--data", help="a .npy file with points, instead of making some")
    parser.add_argument("--steps", type=int, default=100, help="at most so many rounds")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    points = my_points(options)
    centres = first_centres(points, options.clusters)
    for number in range(1, options.steps + 1):
        before = centres
        centres, counts, error = step(points, before)
        if comm.rank == 0:
            shanty.log(step=number, error=error)
        if np.abs(centres - before).max() < 1e-6:
            break

    if comm.rank == 0:
        np.save(shanty.artifacts() / "centres.npy", centres)
        print(f"{comm.size} ranks, {int(counts.sum())} points, {number} steps")
        for centre, count in sorted(zip(centres.tolist(), counts, strict=True)):
            print(f"{int(count):8d} points around", " ".join(f"{x:8.3f}" for x in centre))
        print(f"mean squared distance {error:.4f}")


if __name__ == "__main__":
    main()
