/* SPDX-License-Identifier: Apache-2.0 */
#include "port_world.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include "backend.h"

#define SOURCE (1u << 20)
#define SECONDS_MOST 20

struct haul_context *world_context;
char world_socket[64];
bool world_has_interfaces;

static char folder[48];
static uint8_t source[SOURCE];

/* ---- The world ------------------------------------------------------------- */

static bool write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	bool good = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

	if (fd >= 0)
		close(fd);
	return good;
}

/* A network of our own; without root in a user namespace of our own. */
static bool enter_network(void)
{
	char map[64];
	uid_t user = geteuid();

	if (unshare(CLONE_NEWNET) == 0)
		return true;
	if (unshare(CLONE_NEWUSER | CLONE_NEWNET))
		return false;
	snprintf(map, sizeof(map), "0 %u 1", (unsigned)user);
	write_file("/proc/self/setgroups", "deny");
	return write_file("/proc/self/uid_map", map);
}

void world_start(void)
{
	uint64_t state = 88172645463325252u;

	for (size_t i = 0; i < SOURCE; i++)
		source[i] = (uint8_t)unit_random(&state);
	snprintf(folder, sizeof(folder), "/tmp/haul-port-XXXXXX");
	if (!mkdtemp(folder))
		abort();
	snprintf(world_socket, sizeof(world_socket), "%s/m", folder);
	if (enter_network()) {
		world_run("ip link set lo up");
		world_run("ip link add va mtu 9000 type veth peer name vb mtu 9000");
		world_run("ip link set va up");
		world_run("ip link set vb up");
		world_has_interfaces = true;
	}
	if (haul_open("tcp", &world_context))
		abort();
}

void world_end(void)
{
	haul_close(world_context);
	unlink(world_socket);
	if (rmdir(folder))
		fprintf(stderr, "%s is not empty\n", folder);
}

void world_run(const char *format, ...)
{
	char command[512];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(command, sizeof(command), format, arguments);
	va_end(arguments);
	if (system(command))
		fail_msg("failed: %s", command);
}

/* ---- Ports -------------------------------------------------------------------- */

struct dpdk_config world_config(const char *port, const char *ip)
{
	return (struct dpdk_config){
		.port = (char *)port,
		.ip = (char *)ip,
		.queues = 1,
		.mtu = HAUL_OPTION_AUTO,
		.memory = 64 << 20,
		.hugepages = DPDK_HUGEPAGES_NO,
	};
}

static struct port *open_port(const char *text, unsigned end, uint64_t mtu)
{
	struct dpdk_config config;
	struct port *port = NULL;
	char ip[32];

	snprintf(ip, sizeof(ip), "10.9.0.%u/24", end);
	config = world_config(text, ip);
	config.mtu = mtu;
	if (port_open(world_context, &config, &port))
		fail_msg("%s: %s", text, haul_detail(world_context));
	assert_non_null(port);
	return port;
}

struct port *world_memif(const char *role, const char *extra, unsigned end, uint64_t mtu)
{
	char text[300];

	snprintf(text, sizeof(text), "net_memif,role=%s,id=0,socket=%s,socket-abstract=no%s", role,
		 world_socket, extra);
	return open_port(text, end, mtu);
}

struct port *world_port(const char *name, unsigned end, uint64_t mtu)
{
	return open_port(name, end, mtu);
}

bool world_wait_link(struct port *port, bool up, unsigned ms)
{
	uint64_t until = haul_clock() + ms * UINT64_C(1000000);

	while (port->link_up != up && haul_clock() < until) {
		port_watch(port, haul_clock());
		sched_yield();
	}
	return port->link_up == up;
}

/* ---- Packets -------------------------------------------------------------------- */

static uint32_t length_of(uint32_t number, uint32_t most)
{
	/* Short ones, and those of the greatest length, more often than by chance. */
	if (number % 4 == 0)
		return most;
	return number % 4 == 1 ? number % 64 + 1 : number * 2654435761u % most + 1;
}

static const uint8_t *bytes_of(uint32_t number)
{
	return source + number * 977u % (SOURCE - 16384);
}

struct rte_mbuf *world_packet(struct port *from, struct port *to, uint32_t number,
			      struct port_holder *holder)
{
	uint32_t length = length_of(number, RTE_MIN(from->payload, to->payload));
	struct rte_mbuf *packet = port_packet(from);
	struct frame_template head;
	struct frame_ends ends = {
		.source = from->ip,
		.target = to->ip,
		.source_port = (uint16_t)number,
		.target_port = (uint16_t)(number >> 16),
		.ttl = 64,
	};
	uint64_t sum = frame_sum(bytes_of(number), length, 0);
	size_t size;

	if (!packet)
		return NULL;
	memcpy(ends.source_mac, from->mac, FRAME_MAC);
	memcpy(ends.target_mac, to->mac, FRAME_MAC);
	frame_template_make(&head, &ends);
	size = frame_write(&head, rte_pktmbuf_mtod(packet, uint8_t *), length, &sum);
	packet->data_len = (uint16_t)size;
	packet->pkt_len = (uint32_t)size;
	if (holder) {
		if (port_attach(from, packet, bytes_of(number), length, holder))
			return packet;
		rte_pktmbuf_free(packet);
		return NULL;
	}
	memcpy(rte_pktmbuf_append(packet, (uint16_t)length), bytes_of(number), length);
	return packet;
}

/* Whether it is one of ours: before it has its filter, a port sees what the kernel sends. */
static bool compare(const struct port *port, const struct rte_mbuf *packet, uint32_t number)
{
	struct frame frame;
	bool bad;

	frame_read(rte_pktmbuf_mtod(packet, const uint8_t *), packet->data_len,
		   (struct frame_checked){0}, &frame, &bad);
	assert_false(bad);
	if (frame.kind != FRAME_IS_UDP)
		return false;
	assert_int_equal(frame.target, port->ip);
	assert_int_equal(frame.length, packet->pkt_len - FRAME_HEADERS + FRAME_TAG);
	assert_int_equal(frame.source_port | (uint32_t)frame.target_port << 16, number);
	assert_memory_equal(frame.payload, bytes_of(number), frame.length);
	return true;
}

unsigned world_take(struct port *port, uint32_t *next)
{
	struct rte_mbuf *packets[PORT_BURST];
	unsigned count = port_receive(port, 0, packets, PORT_BURST);

	for (unsigned i = 0; i < count; i++) {
		*next += compare(port, packets[i], *next);
		rte_pktmbuf_free(packets[i]);
	}
	return count;
}

void world_exchange(struct port *from, struct port *to, uint32_t first, uint32_t count,
		    struct port_holder *holder)
{
	uint64_t until = haul_clock() + SECONDS_MOST * UINT64_C(1000000000);
	struct rte_mbuf *packets[16];
	uint32_t made = first, next = first;
	unsigned ready = 0;

	while (next < first + count) {
		unsigned sent;

		while (ready < 16 && made < first + count) {
			packets[ready] = world_packet(from, to, made, holder);
			if (!packets[ready])
				break;
			ready++;
			made++;
		}
		sent = port_send(from, 0, packets, ready);
		memmove(packets, packets + sent, (ready - sent) * sizeof(packets[0]));
		ready -= sent;
		world_take(to, &next);
		if (haul_clock() > until)
			fail_msg("%u of %u packets arrived", next - first, count);
	}
	assert_int_equal(ready, 0);
}

/* ---- The process -------------------------------------------------------------------- */

static unsigned entries(const char *path)
{
	DIR *list = opendir(path);
	unsigned count = 0;

	while (list && readdir(list))
		count++;
	if (list)
		closedir(list);
	return count;
}

unsigned world_descriptors(void)
{
	return entries("/proc/self/fd");
}

unsigned world_threads(void)
{
	return entries("/proc/self/task");
}

unsigned long world_resident_kib(void)
{
	FILE *file = fopen("/proc/self/statm", "re");
	unsigned long pages = 0;

	if (!file || fscanf(file, "%*u %lu", &pages) != 1)
		abort();
	fclose(file);
	return pages * 4;
}
