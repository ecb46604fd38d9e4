# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# The hosts that exist, so that a later run can remove what a crashed run left:
# one folder for each, with the files
#
#   owner      "PID START": the process whose end makes the hosts stale
#   processes  one "PID START" for each program that was run on the hosts
#   rate, loss, throttled_port, throttled_rate
#              how the wire is set
#
# START is when the process started, in the kernel's ticks since boot: it tells a
# process from a later one that got the same number.

registry=/run/tensorhaul/testbed
registry_lock_file=/run/tensorhaul/testbed.lock

registry_lock() {
	[[ -z ${registry_lock_descriptor:-} ]] || return 0
	mkdir -p "$registry"
	exec {registry_lock_descriptor}>"$registry_lock_file"
	flock "$registry_lock_descriptor"
}

registry_unlock() {
	exec {registry_lock_descriptor}>&-
	unset registry_lock_descriptor
}

# Prints nothing when there is no such process.
process_start() {
	local stat
	{ stat=$(<"/proc/$1/stat"); } 2>/dev/null || return 0
	# The program's name, in parentheses, may hold blanks.
	read -ra stat <<<"${stat##*) }"
	# A zombie has ended.
	[[ ${stat[0]} == Z ]] || echo "${stat[19]}"
}

# Is this "PID START" still the same process?
is_alive() {
	[[ -n $2 && $(process_start "$1") == "$2" ]]
}

registry_new_name() {
	printf 'haul-%d-%04x' "$$" "$RANDOM"
}

registry_has() {
	[[ $1 != */* && -f $registry/$1/owner ]]
}

registry_add() {
	mkdir "$registry/$1"
	echo "$2 $(process_start "$2")" >"$registry/$1/owner"
}

registry_forget() {
	rm -rf "${registry:?}/$1"
}

registry_stale() {
	local folder pid start
	for folder in "$registry"/*/; do
		[[ -d $folder ]] || continue
		pid='' start=''
		# A folder without an owner is one whose maker died at once.
		[[ ! -f $folder/owner ]] || read -r pid start <"$folder/owner" || true
		is_alive "${pid:-0}" "$start" || basename "$folder"
	done
}

registry_set() {
	echo "$3" >"$registry/$1/$2"
}

# Prints a setting, or $3 when it was never made.
registry_get() {
	cat "$registry/$1/$2" 2>/dev/null || echo "$3"
}

registry_add_process() {
	echo "$2 $(process_start "$2")" >>"$registry/$1/processes"
}

registry_end_processes() {
	local pid start
	[[ -f $registry/$1/processes ]] || return 0
	while read -r pid start; do
		is_alive "$pid" "$start" || continue
		kill -KILL "$pid" 2>/dev/null || true
		timeout 5 tail --pid="$pid" --sleep-interval=0.01 -f /dev/null || true
	done <"$registry/$1/processes"
}
