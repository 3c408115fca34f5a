# What a program that starts ranks itself says in a rank; its name is that of the file ($0).
# It is started all the same, where it is installed, in a run of one rank and where each rank is to
# start one node of a world: there is one world then.
name=${0##*/}
own=${0%/*}
nodes=1
before=
for word; do
    case "$word" in --nnodes=* | --num_machines=* | --num-machines=*) nodes=${word#*=} ;; esac
    case "$before" in --nnodes | --num_machines | --num-machines) nodes=$word ;; esac
    before=$word
done
one=no
[ "${WORLD_SIZE-1}" = 1 ] || [ "${WORLD_SIZE-1}" = "$nodes" ] && one=yes
[ "$name" = accelerate ] && [ "${1-}" != launch ] && one=yes # that starts no ranks
case "$name ${1-}" in mpi*" --version" | mpi*" -V" | mpi*" --help" | mpi*" -h") one=yes ;; esac
if [ "$one" = yes ]; then
    IFS=:
    for folder in $PATH; do
        case "$folder" in "$own" | "${SHANTY_RUN_DIR-}/bin") continue ;; esac
        [ -x "$folder/$name" ] && [ ! -d "$folder/$name" ] && exec "$folder/$name" "$@"
    done
    unset IFS
fi
line=
case "$name" in
    torchrun | deepspeed | accelerate | accelerate-launch | mpirun | mpiexec) line="$name $*" ;;
    torch.distributed.launch) line="python -m $name $*" ;;
esac
cat >&2 <<TEXT
shanty: $name: this is a rank of a run, and $name starts ranks itself
  why: it would be started as often as the run has ranks
  fix: give the script to the run as its line: shanty run --raw bash x.sh${line:+
       or this line: shanty run -- $line}
TEXT
exit 2
