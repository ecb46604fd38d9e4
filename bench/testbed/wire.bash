# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# The wire's two devices, one for each host: cable, rate, loss. All functions take
# the hosts' name from $name; the wire lives in the namespace $name-wire and its
# devices are called port-a and port-b.

# The class that throttled frames take, as tc writes it and as the kernel does.
slow_lane=1:2
slow_lane_number=0x10002

# As many bytes wait at a port of a small switch.
port_buffer_bytes=2500000

# Joins host $1, a or b, to the wire with MTU $2. Segmentation and receive offload are off on
# both ends, so that one frame lost is one packet lost.
lay_cable() {
	local host=$1 mtu=$2
	ip -n "$name-wire" link add "port-$host" mtu "$mtu" type veth \
		peer name eth0 mtu "$mtu" netns "$name-$host"
	ip netns exec "$name-wire" ethtool -K "port-$host" tso off gso off gro off
	ip netns exec "$name-$host" ethtool -K eth0 tso off gso off gro off
	ip -n "$name-wire" link set "port-$host" up
	ip -n "$name-$host" link set eth0 up
	tc -n "$name-wire" qdisc add dev "port-$host" clsact
}

# Each flow's frames take one core. Else those that a socket sends from two cores overtake each
# other, as they do in no switch, and TCP takes that for loss.
keep_order() {
	local cores mask host
	cores=$(nproc --all)
	mask=$(printf '%x' $(((1 << (cores < 32 ? cores : 32)) - 1)))
	for host in a b; do
		spread_flows "$name-wire" "port-$host" "$mask"
		spread_flows "$name-$host" eth0 "$mask"
	done
}

spread_flows() {
	ip netns exec "$1" sh -c "echo $3 >/sys/class/net/$2/queues/rx-0/rps_cpus"
}

set_carrier() {
	ip -n "$name-wire" link set port-a "$1"
	ip -n "$name-wire" link set port-b "$1"
}

# A token bucket holds the rate. Its depth is what arrives in 0.8 ms: a shallower
# one loses rate when the cores are busy. A real link spends 24 more bytes on a
# frame than tc sees: preamble, gap and checksum.
bucket_bytes() {
	awk -v rate="$1" 'BEGIN {
		split("kbit 1e3 mbit 1e6 gbit 1e9", unit, " ")
		for (i = 1; i < 6; i += 2)
			if (index(rate, unit[i]))
				bits = rate * unit[i + 1]
		bytes = bits / 8 * 0.0008
		printf "%d", bytes < 70000 ? 70000 : bytes
	}'
}

set_rate() {
	local rate port device
	rate=$(registry_get "$name" rate 10gbit)
	port=$(registry_get "$name" throttled_port 0)
	for device in port-a port-b; do
		tc -n "$name-wire" qdisc delete dev "$device" root 2>/dev/null || true
		if ((port)); then
			set_two_lanes "$device" "$rate" "$(registry_get "$name" throttled_rate 100mbit)"
		else
			tc -n "$name-wire" qdisc replace dev "$device" root tbf rate "$rate" \
				burst "$(bucket_bytes "$rate")" limit $port_buffer_bytes overhead 24
		fi
	done
}

set_two_lanes() {
	local device=$1 rate=$2 slow_rate=$3 class class_rate
	tc -n "$name-wire" qdisc add dev "$device" root handle 1: htb default 1
	for class in "1:1 $rate" "$slow_lane $slow_rate"; do
		read -r class class_rate <<<"$class"
		tc -n "$name-wire" class add dev "$device" parent 1: classid "$class" htb \
			rate "$class_rate" burst "$(bucket_bytes "$class_rate")" \
			cburst "$(bucket_bytes "$class_rate")" overhead 24 quantum 60000
		tc -n "$name-wire" qdisc add dev "$device" parent "$class" bfifo \
			limit $port_buffer_bytes
	done
}

device_index() {
	ip netns exec "$name-wire" cat "/sys/class/net/$1/ifindex"
}

# Compiles the wire for its present settings, and puts it in the old one's place.
load_wire() {
	local folder threshold device status=0
	threshold=$(awk -v loss="$(registry_get "$name" loss 0)" \
		'BEGIN { printf "%.0f", loss * 4294967296 }')
	folder=$(mktemp -d)
	for device in port-a port-b; do
		load_wire_at "$device" "$threshold" "$folder/wire.o" || status=$?
	done
	rm -rf "$folder"
	return "$status"
}

load_wire_at() {
	local device=$1 threshold=$2 object=$3 other="port-b" is_switch=0
	[[ $device == port-a ]] || other="port-a"
	[[ $(registry_get "$name" queue host) == host ]] || is_switch=1
	clang -O2 -g -Wall -Werror -target bpf -I"/usr/include/$(uname -m)-linux-gnu" \
		-DOTHER_DEVICE="$(device_index "$other")" -DLOSS_THRESHOLD="${threshold}ull" \
		-DTHROTTLED_PORT="$(registry_get "$name" throttled_port 0)" \
		-DSLOW_LANE=$slow_lane_number -DIS_SWITCH=$is_switch \
		-c "$here/wire.bpf.c" -o "$object" &&
		tc -n "$name-wire" filter replace dev "$device" ingress prio 1 handle 1 \
			bpf direct-action object-file "$object" section tc
}
