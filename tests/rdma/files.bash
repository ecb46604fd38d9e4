# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# Puts files of this machine into a folder that becomes the guest's file system.

library_folder=usr/lib/x86_64-linux-gnu

# Where each file that was put came from.
declare -A origins=()

# Puts file $3 to $2 in the root $1. Two that differ can't have one place.
put_file() {
	local target=$1/$2
	case ${origins[$target]:-} in
	"$3") return 0 ;;
	'') ;;
	*)
		cmp -s "$3" "$target" && return 0
		echo "vm: $3 and ${origins[$target]} differ, and both would be the guest's /$2" >&2
		return 1
		;;
	esac
	cp -L --remove-destination "$3" "$target"
	origins[$target]=$3
}

# Puts the shared libraries that file $2 needs into the root $1. They all go to one folder,
# where the loader looks anyway: what the file says of build folders is not there.
put_libraries_of() {
	local root=$1 file=$2 listed library
	# A script needs none.
	listed=$(ldd "$file" 2>/dev/null) || return 0
	if [[ $listed == *'not found'* ]]; then
		printf 'vm: %s misses libraries:\n%s\n' "$file" "$(grep 'not found' <<<"$listed")" >&2
		return 1
	fi
	while IFS= read -r library; do
		put_file "$root" "$library_folder/${library##*/}" "$library"
	done < <(awk '$2 == "=>" && $3 ~ "^/" { print $3 }' <<<"$listed")
}

put_program() {
	put_file "$1" "bin/${2##*/}" "$2"
	chmod 755 "$1/bin/${2##*/}"
	put_libraries_of "$1" "$2"
}

# Prints the folder as the archive that the kernel makes its first file system from. It takes
# several of them one after the other.
pack() {
	(cd "$1" && find . -mindepth 1 | busybox cpio -o -H newc -R 0:0) 2>"$1.log" || {
		cat "$1.log" >&2
		return 1
	}
}
