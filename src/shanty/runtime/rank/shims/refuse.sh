# What a program that starts ranks itself says in a rank; its name is that of the file ($0).
name=${0##*/}
cat >&2 <<END
shanty: $name: this is a rank of a run, and $name starts ranks itself
  why: it would be started as often as the run has ranks
  fix: give the script to the run as its line: shanty run --raw bash x.sh
END
exit 2
