# A container engine in a rank: what starts a container is looked at, all else is the engine's own.
name=${0##*/}
own=${0%/*}
for word; do
    case "$word" in
        run | exec | start | up | shell)
            exec "${SHANTY_RANK_PYTHON:-python3}" -I -S "${own%/rank/shims/engines/*}/boot.py" rank.container_line \
                "$name" "$@"
            ;;
    esac
done
IFS=:
for folder in $PATH; do
    case "$folder" in "$own") continue ;; esac
    [ -x "$folder/$name" ] && [ ! -d "$folder/$name" ] && exec "$folder/$name" "$@"
done
echo "$name: command not found" >&2
exit 127
