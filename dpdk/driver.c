/* SPDX-License-Identifier: Apache-2.0 */
/* The drivers that are known, and those that need few words. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "port_private.h"

/* ---- Cards ----------------------------------------------------------------- */

/* What networks carry where nobody says more. */
#define CARD_MTU 1500

/* Drivers of the kernel's that leave a card to DPDK, or share it. */
bool driver_is_for_cards(const char *driver)
{
	static const char *const names[] = {"vfio-pci", "uio_pci_generic", "igb_uio", "mlx4_core",
					    "mlx5_core"};

	for (size_t i = 0; i < RTE_DIM(names); i++) {
		if (!strcmp(driver, names[i]))
			return true;
	}
	return false;
}

static int card_prepare(struct port_wish *wish)
{
	const char *name = wish->name;
	char path[128], link[256] = "", *driver;

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s", name);
	if (access(path, F_OK))
		return haul_fail(wish->engine, -ENODEV,
				 "port=%s: there is no such PCI device; `dpdk-devbind.py --status` "
				 "lists the cards",
				 name);
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/driver", name);
	if (readlink(path, link, sizeof(link) - 1) < 0)
		return haul_fail(wish->engine, -ENODEV,
				 "port=%s: no driver holds the card for DPDK; `modprobe vfio-pci; "
				 "dpdk-devbind.py --bind=vfio-pci %s` gives it one",
				 name, name);
	driver = strrchr(link, '/');
	driver = driver ? driver + 1 : link;
	if (!driver_is_for_cards(driver))
		return haul_fail(
			wish->engine, -EBUSY,
			"port=%s: the kernel's driver %s has the card; `modprobe vfio-pci; "
			"dpdk-devbind.py --bind=vfio-pci %s` takes it from the kernel",
			name, driver, name);
	return 0;
}

/* Its memory is reached by the card itself: DPDK's own, and what was registered. */
const struct driver driver_card = {
	.name = "card",
	.summary = "a network card of PCI, by its address",
	.memory = DRIVER_EAL,
	.registered = true,
	.keeps = true,
	.wire = true,
	.speed = true,
	.resizes = true,
	.prepare = card_prepare,
};

/* ---- Virtual machines ---------------------------------------------------------- */

#define VHOST_FRAME_MOST 9728
#define VIRTIO_HEAD 16 /* of each packet in a ring; 12 bytes, rounded up */

/* Where both sides meet. */
static int check_socket(struct port_wish *wish, const char *argument)
{
	char path[2];

	if (wish_argument(wish, argument, path, sizeof(path)) && path[0])
		return 0;
	return haul_fail(wish->engine, -EINVAL,
			 "port=%s: the argument %s= is missing, which is the path of the socket "
			 "where both sides meet: port={%s,%s=/run/vhost.sock}",
			 wish->config->port, argument, wish->driver->name, argument);
}

static int vhost_prepare(struct port_wish *wish)
{
	char text[16];

	if (!wish->mtu)
		wish->mtu = PORT_MTU_AUTO;
	if (wish_frame(wish) > VHOST_FRAME_MOST)
		return haul_fail(wish->engine, -EMSGSIZE,
				 "mtu=%u: valid are up to %d with the driver %s", wish->mtu,
				 VHOST_FRAME_MOST - FRAME_ETHERNET - FRAME_TAG, wish->driver->name);
	if (!wish_argument(wish, "queues", text, sizeof(text)))
		wish_add(wish, "queues=%u", wish->queues);
	return 0;
}

/* The rings are the guest's, whose card has 1024 places as a rule; they hold no packets of ours. */
static int vhost_server_prepare(struct port_wish *wish)
{
	int error = check_socket(wish, "iface");

	wish->ring = 1024;
	return error ? error : vhost_prepare(wish);
}

static int virtio_user_prepare(struct port_wish *wish)
{
	int error = check_socket(wish, "path");
	char text[16];

	if (error)
		return error;
	if (!wish_argument(wish, "queue_size", text, sizeof(text)))
		wish_add(wish, "queue_size=1024");
	error = vhost_prepare(wish);
	wish->room = wish_frame(wish) + VIRTIO_HEAD;
	return error;
}

static const struct driver driver_vhost = {
	.name = "net_vhost",
	.summary = "the host's side of a virtual machine's card",
	.memory = DRIVER_ANY,
	.external = true,
	.prepare = vhost_server_prepare,
};

/* The peer maps DPDK's memory, and nothing else. */
static const struct driver driver_virtio_user = {
	.name = "net_virtio_user",
	.summary = "the virtual machine's side of its card",
	.memory = DRIVER_EAL,
	.registered = true,
	.keeps = true,
	.eager = true,
	.resizes = true,
	.prepare = virtio_user_prepare,
};

/* ---- Others ----------------------------------------------------------------------- */

#define TAP_MTU_MOST 1500

static int tap_prepare(struct port_wish *wish)
{
	if (!wish->mtu)
		wish->mtu = TAP_MTU_MOST;
	if (wish->mtu > TAP_MTU_MOST)
		return haul_fail(wish->engine, -EMSGSIZE,
				 "mtu=%u: valid are up to %d with the driver net_tap", wish->mtu,
				 TAP_MTU_MOST);
	return 0;
}

static const struct driver driver_tap = {
	.name = "net_tap",
	.summary = "an interface of the kernel's that is made for it",
	.memory = DRIVER_ANY,
	.wire = true,
	.resizes = true,
	.prepare = tap_prepare,
};

const struct driver *const drivers[] = {
	&driver_memif,       &driver_af_packet, &driver_af_xdp, &driver_vhost,
	&driver_virtio_user, &driver_tap,       NULL,
};

const struct driver *driver_find(const char *name)
{
	for (size_t i = 0; drivers[i]; i++) {
		if (!strcmp(drivers[i]->name, name))
			return drivers[i];
	}
	return NULL;
}
