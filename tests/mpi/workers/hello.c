/* Says its rank; with an argument it stays that many seconds first.
   BEFORE: seconds before it calls MPI for the first time. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int rank, size;
    if (getenv("BEFORE"))
        sleep(atoi(getenv("BEFORE")));
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc > 1)
        sleep(atoi(argv[1]));
    printf("rank %d of %d\n", rank, size);
    MPI_Finalize();
    return 0;
}
