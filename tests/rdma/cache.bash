# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# What every virtual machine of tests/rdma/vm boots from, made once: Debian's kernel, and
# a file system with the RDMA modules and tools. Sourced by vm.

# Ends the set-up because this machine can't do it. A cache with an older kernel, when there is
# one, does as well.
cannot() {
	echo "vm: $*" >&2
	[[ -z ${cache:-} ]] || exit 0
	exit "$cannot_status"
}

step() {
	echo "vm: $*" >&2
}

cache_root() {
	echo "${TENSORHAUL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tensorhaul}/rdma-vm"
}

# The name of a cache ends with this: other versions of these files make other ones.
cache_version() {
	cat "$here"/{cache,files}.bash | sha256sum | head -c 12
}

# The newest cache that this version made, or nothing. Which kernel it holds does not
# matter here, so a run asks nobody for a newer one.
newest_cache() {
	local root
	root=$(cache_root)
	[[ -d $root ]] || return 0
	find "$root" -mindepth 1 -maxdepth 1 -name "[0-9]*-$(cache_version)" |
		sort --version-sort | tail -n 1
}

require_packages() {
	command -v apt-get >/dev/null || cannot "apt-get is missing: the kernel comes from Debian"
	[[ $(dpkg --print-architecture) == amd64 ]] || cannot "it is made for amd64 only"
	"$here/../../.ci/install-packages" --no-install rdma ||
		cannot "packages are missing: sudo .ci/install-packages rdma"
}

# The version that linux-image-amd64 stands for, as in 6.1.0-57-amd64. Nothing, where the lists
# of packages don't name it.
kernel_version() {
	{ apt-cache "${apt_options[@]}" depends linux-image-amd64 2>/dev/null || true; } |
		awk '$1 == "Depends:" && sub("^linux-image-", "", $2) { print $2 }'
}

# Some machines never asked for the lists of packages, and lists that are old name files
# that are gone. These are for this set-up alone, which needs no root.
fetch_lists() {
	local lists=$work/lists
	step "fetching Debian's lists of packages"
	mkdir -p "$lists/partial"
	apt_options=(-o "Dir::State::lists=$lists" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=)
	apt-get "${apt_options[@]}" update >"$work/log" 2>&1 || {
		cat "$work/log" >&2
		cannot "Debian's lists of packages can't be fetched"
	}
}

# Downloads, and installs nothing: none of this may change the machine's own kernel.
download_packages() {
	mkdir -p "$work/packages"
	(
		cd "$work/packages"
		apt-get "${apt_options[@]}" download "linux-image-$kernel" linux-source-6.1 \
			"linux-headers-$kernel" "linux-headers-${kernel%-amd64}-common" linux-kbuild-6.1
	) >"$work/log" 2>&1
}

# Prints the files of a downloaded package as a tar archive.
package_files() {
	dpkg-deb --fsys-tarfile "$work/packages/$1"_*.deb
}

# The kernel as an ELF file: QEMU starts that at once, while the packed one would have to
# unpack itself in the emulation. Where the packed bytes are is told by the header that
# Linux' Documentation/arch/x86/boot.rst describes.
unpack_kernel() {
	local packed=$work/kernel/boot/vmlinuz-$kernel sectors offset length
	mkdir -p "$work/kernel"
	package_files "linux-image-$kernel" | tar -x -C "$work/kernel" "./boot/vmlinuz-$kernel" \
		"./lib/modules/$kernel"/modules.{builtin,order} \
		"./lib/modules/$kernel"/kernel/{crypto,lib,net,fs/{9p,configfs,fscache,netfs}} \
		"./lib/modules/$kernel"/kernel/drivers/{char,infiniband,net/veth.ko,virtio}
	sectors=$(od -An -tu1 -j 0x1f1 -N 1 "$packed")
	read -r offset length < <(od -An -tu4 -j 0x248 -N 8 "$packed")
	dd "if=$packed" bs=1M iflag=skip_bytes,count_bytes status=none \
		skip=$(((sectors + 1) * 512 + offset)) count="$length" |
		xz --decompress --stdout --single-stream >"$work/cache/vmlinux"
	if [[ $(head -c 4 "$work/cache/vmlinux") != $'\x7fELF' ]]; then
		echo "vm: no kernel was found in $packed" >&2
		return 1
	fi
}

# siw is iWARP over TCP. Debian's kernel is built without it.
build_siw() {
	local source=linux-source-6.1/drivers/infiniband/sw/siw package
	local headers=$work/headers/usr/src/linux-headers-$kernel
	mkdir -p "$work/headers"
	for package in "linux-headers-$kernel" "linux-headers-${kernel%-amd64}-common" \
		linux-kbuild-6.1; do
		package_files "$package" | tar -x -C "$work/headers"
	done
	sed -i "s#/usr/src/#$work/headers/usr/src/#" "$headers/Makefile"
	# Of 1.3 GB, tar reads up to the last of these files; then what feeds it is stopped by
	# a signal.
	(
		set +o pipefail
		package_files linux-source-6.1 |
			tar -x --to-stdout ./usr/src/linux-source-6.1.tar.xz |
			xz --decompress --stdout --threads=0 |
			tar -x -C "$work" --occurrence "$source"/{Makefile,iwarp.h,siw.h} \
				"$source"/siw_{cm,mem,verbs}.h \
				"$source"/siw_{cm,cq,main,mem,qp,qp_rx,qp_tx,verbs}.c
	) 2>"$work/log"
	make -s -j"$(nproc)" -C "$headers" "M=$work/$source" CONFIG_RDMA_SIW=m KCFLAGS=-g0 \
		modules >"$work/log" 2>&1 || {
		cat "$work/log" >&2
		return 1
	}
	mkdir -p "$work/kernel/lib/modules/$kernel/extra"
	mv "$work/$source/siw.ko" "$work/kernel/lib/modules/$kernel/extra"
}

# Copies modules, and those that they need, into the guest. Without their type information and
# their signatures, which go with it: to read those takes most of a second of each boot.
put_modules() {
	local modules=lib/modules/$kernel name file
	busybox depmod -b "$work/kernel" "$kernel"
	for name in "$@"; do
		grep -E "/${name}\.ko:" "$work/kernel/$modules/modules.dep" | tr -d :
	done | tr ' ' '\n' | sort -u | while IFS= read -r file; do
		mkdir -p "$work/root/$modules/${file%/*}"
		objcopy --remove-section=.BTF "$work/kernel/$modules/$file" "$work/root/$modules/$file"
	done
	cp "$work/kernel/$modules"/modules.{builtin,order} "$work/root/$modules"
	busybox depmod -b "$work/root" "$kernel"
}

put_tools() {
	local root=$work/root driver tool
	mkdir -p "$root"/{bin,dev,etc/libibverbs.d,host,lib/tensorhaul,lib64,proc,root,run,sys,tmp}
	mkdir -p "$root/$library_folder/libibverbs"
	chmod 1777 "$root/tmp"
	ln -s bin "$root/sbin"
	ln -s ../bin "$root/usr/bin"
	ln -s ../bin "$root/usr/sbin"
	ln -s "../$library_folder" "$root/lib"
	cp -L /lib64/ld-linux-x86-64.so.2 "$root/lib64"
	cp "$(command -v busybox)" "$root/bin"
	busybox --install -s "$root/bin"
	# What of these busybox has too is replaced: the real ones can do more.
	for tool in bash date timeout prlimit setpriv setarch ip ss tc rdma ping rping ucmatose \
		ibv_devices ibv_devinfo ibv_{rc,uc,ud,srq}_pingpong ib_{send,write,read,atomic}_{bw,lat}; do
		put_program "$root" "$(command -v "$tool")"
	done
	for driver in rxe siw; do
		cp "/etc/libibverbs.d/$driver.driver" "$root/etc/libibverbs.d"
		cp -L "/usr/lib/x86_64-linux-gnu/libibverbs/lib$driver"-rdmav*.so \
			"$root/$library_folder/libibverbs"
	done
	# pthread_exit() and pthread_cancel() load it when they are called.
	cp -L /lib/x86_64-linux-gnu/libgcc_s.so.1 "$root/$library_folder"
	printf '%s\n' root:x:0:0:root:/root:/bin/bash nobody:x:65534:65534:nobody:/tmp:/bin/bash \
		>"$root/etc/passwd"
	printf '%s\n' root:x:0: nogroup:x:65534: >"$root/etc/group"
	echo 'hosts: files' >"$root/etc/nsswitch.conf"
	printf '%s\n' '127.0.0.1 localhost' '::1 localhost' >"$root/etc/hosts"
}

make_cache() {
	step "unpacking Debian's kernel $kernel"
	mkdir -p "$work/cache"
	unpack_kernel
	step "building siw.ko"
	build_siw
	step "packing the guest's file system"
	put_modules rdma_rxe siw rdma_ucm veth sch_netem crc32_generic crc32c_generic \
		virtio_pci virtio_console 9p 9pnet_virtio
	put_tools
	pack "$work/root" >"$work/cache/base.cpio"
}

# Makes the cache in $work, and moves it to its place when it is whole.
set_up_locked() {
	local root=$1 kernel apt_options=() version
	version=$(cache_version)
	# What an earlier set-up left when it was killed, and caches that nothing uses any more.
	find "$root" -mindepth 1 -maxdepth 1 \
		\( -name 'new.*' -o -name '[0-9]*' -mtime +30 \) -exec rm -rf {} +
	kernel=$(kernel_version)
	if [[ -n $kernel && -d $root/$kernel-$version ]]; then
		touch "$root/$kernel-$version/asked"
		return 0
	fi

	work=$(mktemp -d "$root/new.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	if [[ -z $kernel ]]; then
		fetch_lists
		kernel=$(kernel_version)
	fi
	step "downloading Debian's kernel $kernel and its source"
	if ! download_packages; then
		fetch_lists
		kernel=$(kernel_version)
		download_packages || {
			cat "$work/log" >&2
			cannot "Debian's kernel can't be downloaded"
		}
	fi
	if [[ ! -d $root/$kernel-$version ]]; then
		make_cache
		# In one step: there is a whole cache, or none.
		mv -T "$work/cache" "$root/$kernel-$version"
	fi
	touch "$root/$kernel-$version/asked"
	step "$root/$kernel-$version is ready"
}

# Makes the cache unless it is there; only one process at a time does. Whether Debian has a
# newer kernel is asked once a day: apt takes seconds to tell.
set_up() {
	local root lock cache
	require_packages
	cache=$(newest_cache)
	[[ -z $cache || -z $(find "$cache" -name asked -mtime -1) ]] || return 0
	root=$(cache_root)
	mkdir -p "$root"
	exec {lock}>"$root/lock"
	flock "$lock"
	set_up_locked "$root"
}
