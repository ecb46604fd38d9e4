/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire - a switch between memif ports, with faults.
 *
 *   wire [NAME=VALUE...]
 *
 * DPDK programs connect to its ports 1..N as memif clients, in any order, whenever they like. It
 * forwards Ethernet frames by the addresses that it has learned, and to all when it knows none. It
 * prints "ready SOCKET" when they may come, and ends when its standard input does, or by SIGTERM.
 *
 *   socket=PATH   where clients connect; default: in a new folder of its own
 *   ports=N       1 to 254 (32)
 *   seed=N        of the faults (1)
 *   spin_us=N     how long it looks for frames before it sleeps (20)
 *
 * These can change while it runs, by lines of NAME=VALUE... on the standard input. It answers each
 * line with one line:
 *
 *   loss= duplicate= reorder= truncate= corrupt=   percent of the frames (0)
 *   reorder_by=N            frames that may overtake one, at most (8)
 *   corrupt_kind=N          0: 1 to 3 bits within 15, 1: 1 to 8 bytes anywhere (0)
 *   corrupt_from=N          the first byte of a frame that may be damaged (0)
 *   delay_us=N              each way (0)
 *   rate=N queue=N ecn=N    of each port's link: Mb/s (0: no limit), bytes that may wait (1000000),
 *                           bytes that wait from which on frames are marked (0: never)
 *   cut=1, cut=0            all frames are dropped, or none
 *   stats                   answers with counters; reset sets them to 0
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "wire_link.h"

#define PORTS_MAX 254
#define BURST 32
#define MAC 6
#define FRAME_LEAST 14
#define NS_PER_MS 1000000
/* How long it sleeps at most: a client that sends in the moment of falling asleep may be missed. */
#define NAP_NS (1 * NS_PER_MS)
#define LONG_NAP_NS (20 * NS_PER_MS)
#define QUIET_NS (200 * NS_PER_MS)

static struct {
	char *path, *folder; /* folder: "" when the socket is not in one of our own */
	uint64_t ports, seed, spin_us;
	struct memif_server *server;
	struct link links[PORTS_MAX + 1];
	unsigned up; /* ports with a client */
} me = {.ports = 32, .seed = 1, .spin_us = 20};

static struct wire wire = {.faults = {.reorder_by = 8, .queue = 1000000}};
static volatile sig_atomic_t ended;

static uint64_t clock_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* ---- Settings ---------------------------------------------------------- */

static const struct {
	const char *name;
	uint64_t *value;
	double *percent;
	uint64_t low, high;
	bool at_start;
} settings[] = {
	{"ports", &me.ports, NULL, 1, PORTS_MAX, true},
	{"seed", &me.seed, NULL, 1, UINT32_MAX, true},
	{"spin_us", &me.spin_us, NULL, 0, 1000000, true},
	{"loss", NULL, &wire.faults.loss, 0, 100, false},
	{"duplicate", NULL, &wire.faults.duplicate, 0, 100, false},
	{"reorder", NULL, &wire.faults.reorder, 0, 100, false},
	{"truncate", NULL, &wire.faults.truncate, 0, 100, false},
	{"corrupt", NULL, &wire.faults.corrupt, 0, 100, false},
	{"reorder_by", &wire.faults.reorder_by, NULL, 1, 1000, false},
	{"corrupt_kind", &wire.faults.corrupt_kind, NULL, CORRUPT_BITS, CORRUPT_BYTES, false},
	{"corrupt_from", &wire.faults.corrupt_from, NULL, 0, 65535, false},
	{"delay_us", &wire.faults.delay_us, NULL, 0, 10000000, false},
	{"rate", &wire.faults.rate, NULL, 0, 1000000, false},
	{"queue", &wire.faults.queue, NULL, 1600, UINT32_MAX, false},
	{"ecn", &wire.faults.ecn, NULL, 0, UINT32_MAX, false},
	{"cut", &wire.faults.cut, NULL, 0, 1, false},
};

/* False: there is no such setting, or it doesn't take this value. */
static bool set(char *word, bool at_start)
{
	char *text = strchr(word, '='), *end;
	double value;

	if (!text)
		return false;
	*text++ = '\0';
	if (!strcmp(word, "socket") && at_start) {
		me.path = strdup(text);
		return me.path;
	}
	errno = 0;
	value = strtod(text, &end);
	for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
		if (strcmp(settings[i].name, word) || (settings[i].at_start && !at_start))
			continue;
		if (end == text || *end || errno || !(value >= (double)settings[i].low) ||
		    value > (double)settings[i].high)
			return false;
		if (settings[i].percent)
			*settings[i].percent = value;
		else
			*settings[i].value = (uint64_t)value;
		return true;
	}
	return false;
}

static void print_counts(void)
{
	const struct counts *counts = &wire.counts;

	printf("stats frames=%llu bytes=%llu sent=%llu lost=%llu duplicated=%llu reordered=%llu "
	       "truncated=%llu corrupted=%llu marked=%llu cut_off=%llu queue_full=%llu "
	       "client_full=%llu flooded=%llu bad=%llu up=%u\n",
	       (unsigned long long)counts->frames, (unsigned long long)counts->bytes,
	       (unsigned long long)counts->sent, (unsigned long long)counts->lost,
	       (unsigned long long)counts->duplicated, (unsigned long long)counts->reordered,
	       (unsigned long long)counts->truncated, (unsigned long long)counts->corrupted,
	       (unsigned long long)counts->marked, (unsigned long long)counts->cut_off,
	       (unsigned long long)counts->queue_full, (unsigned long long)counts->client_full,
	       (unsigned long long)counts->flooded, (unsigned long long)counts->bad, me.up);
}

static void do_line(char *line)
{
	char *state = NULL;

	if (!strcmp(line, "stats")) {
		print_counts();
		return;
	}
	if (!strcmp(line, "reset")) {
		memset(&wire.counts, 0, sizeof(wire.counts));
		puts("ok");
		return;
	}
	for (char *word = strtok_r(line, " ", &state); word; word = strtok_r(NULL, " ", &state)) {
		if (!set(word, false)) {
			printf("error: %s\n", word);
			return;
		}
	}
	puts("ok");
}

static void read_lines(void)
{
	static char buffer[4096];
	static size_t used;
	ssize_t got = read(STDIN_FILENO, buffer + used, sizeof(buffer) - 1 - used);
	char *end;

	if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
		ended = 1;
		return;
	}
	used += got > 0 ? (size_t)got : 0;
	buffer[used] = '\0';
	while ((end = strchr(buffer, '\n'))) {
		*end++ = '\0';
		do_line(buffer);
		used -= (size_t)(end - buffer);
		memmove(buffer, end, used + 1);
	}
	fflush(stdout);
}

/* ---- Addresses --------------------------------------------------------- */

#define ADDRESSES 4096 /* a power of two */

static struct {
	uint64_t mac;  /* 0: free */
	unsigned port; /* 0: whose it was is gone */
} addresses[ADDRESSES];
static unsigned addresses_used;

static uint64_t mac_at(const uint8_t *bytes)
{
	uint64_t mac = 0;

	memcpy(&mac, bytes, MAC);
	return mac;
}

static unsigned address_place(uint64_t mac)
{
	unsigned place = (unsigned)((mac * UINT64_C(0x9e3779b97f4a7c15)) >> 52);

	while (addresses[place].mac && addresses[place].mac != mac)
		place = (place + 1) % ADDRESSES;
	return place;
}

static void address_learn(uint64_t mac, unsigned port)
{
	unsigned place = address_place(mac);

	if (!addresses[place].mac && ++addresses_used > ADDRESSES / 2) {
		memset(addresses, 0, sizeof(addresses));
		addresses_used = 1;
		place = address_place(mac);
	}
	addresses[place].mac = mac;
	addresses[place].port = port;
}

/* ---- The switch -------------------------------------------------------- */

/* Packets of one flow get the same queue of a client. */
static uint32_t flow_hash(const uint8_t *head, size_t length)
{
	uint64_t hash = 0;
	uint32_t words[3];

	if (length < 38 || head[12] != 8 || head[13] != 0)
		return 0;
	memcpy(words, head + 26, sizeof(words)); /* addresses and ports */
	for (unsigned i = 0; i < 3; i++)
		hash = (hash ^ words[i]) * UINT64_C(0x9e3779b97f4a7c15);
	return (uint32_t)(hash >> 32);
}

static void forward(unsigned from, const struct view *frame, uint64_t now)
{
	uint8_t head[64];
	size_t length = view_copy(frame, head, sizeof(head));
	uint32_t hash;
	unsigned to;

	wire.counts.frames++;
	wire.counts.bytes += frame->length;
	if (length < FRAME_LEAST || head[MAC] & 1) {
		wire.counts.bad++;
		return;
	}
	hash = flow_hash(head, length);
	address_learn(mac_at(head + MAC), from);
	to = head[0] & 1 ? 0 : addresses[address_place(mac_at(head))].port;
	if (to == from)
		return;
	if (to) {
		link_enter(&wire, &me.links[to], frame, hash, now);
		return;
	}
	wire.counts.flooded++;
	for (to = 1; to <= me.ports; to++) {
		if (to != from && me.links[to].port->up)
			link_enter(&wire, &me.links[to], frame, hash, now);
	}
}

static unsigned port_run(unsigned id, uint64_t now)
{
	struct memif_port *port = me.links[id].port;
	struct view frame;
	unsigned taken = 0;

	for (unsigned queue = 0; queue < port->to_server_count; queue++) {
		unsigned before = taken;

		while (taken < before + BURST && memif_receive(port, queue, &frame)) {
			forward(id, &frame, now);
			taken++;
		}
		if (taken > before)
			memif_release(port, queue);
	}
	return taken;
}

/* Look at all ports once; gives how many frames came, and when something is due. */
static unsigned look_around(uint64_t now, uint64_t *due)
{
	unsigned taken = 0;

	*due = UINT64_MAX;
	for (unsigned id = 1; id <= me.ports; id++) {
		if (me.links[id].port->up)
			taken += port_run(id, now);
	}
	for (unsigned id = 1; id <= me.ports; id++) {
		uint64_t next;

		if (!me.links[id].port->up)
			continue;
		next = link_run(&wire, &me.links[id], now);
		*due = next < *due ? next : *due;
		memif_flush(me.links[id].port);
	}
	return taken;
}

static void port_up(struct memif_port *port)
{
	me.up++;
}

static void port_down(struct memif_port *port)
{
	me.up--;
	link_clear(&wire, &me.links[port->id]);
	for (unsigned i = 0; i < ADDRESSES; i++) {
		if (addresses[i].port == port->id)
			addresses[i].port = 0;
	}
}

/* ---- Running ----------------------------------------------------------- */

static void rest(uint64_t now, uint64_t due, uint64_t quiet_since)
{
	struct pollfd list[2] = {
		{.fd = memif_server_fd(me.server), .events = POLLIN},
		{.fd = STDIN_FILENO, .events = POLLIN},
	};
	uint64_t nap = now - quiet_since > QUIET_NS ? LONG_NAP_NS : NAP_NS;
	struct timespec time = {0};

	memif_server_watch(me.server, true);
	if (look_around(now, &due) == 0) {
		if (due < now + nap)
			nap = due > now ? due - now : 0;
		time.tv_nsec = (long)nap;
		ppoll(list, 2, &time, NULL);
	}
	memif_server_watch(me.server, false);
	memif_server_serve(me.server);
	read_lines();
}

static void run(void)
{
	uint64_t busy_at = clock_ns(), served_at = 0, due;

	while (!ended) {
		uint64_t now = clock_ns();

		if (look_around(now, &due)) {
			busy_at = now;
		} else if (now - busy_at >= me.spin_us * 1000 &&
			   (due == UINT64_MAX || due > now + 20000)) {
			rest(now, due, busy_at);
			served_at = now;
		}
		if (now - served_at > NS_PER_MS) {
			memif_server_serve(me.server);
			read_lines();
			served_at = now;
		}
	}
}

/*
 * Programs that poll share the processors with us, and would keep one for milliseconds: let the
 * kernel (6.12 and later) run us for short slices, and at once. Where it can't, we are slower.
 */
static void hurry(void)
{
	struct {
		uint32_t size, policy;
		uint64_t flags;
		int32_t nice;
		uint32_t priority;
		uint64_t runtime, deadline, period;
	} wish = {.size = sizeof(wish), .runtime = 100000};

	syscall(SYS_sched_setattr, 0, &wish, 0);
}

static void on_signal(int number)
{
	ended = 1;
}

/* A socket of our own, in a folder of our own. */
static bool make_path(void)
{
	const char *temporary = getenv("TMPDIR");

	if (asprintf(&me.folder, "%s/wire-XXXXXX", temporary ? temporary : "/tmp") < 0)
		return false;
	if (!mkdtemp(me.folder)) {
		free(me.folder);
		me.folder = NULL;
		return false;
	}
	/* DPDK's driver wants to be able to write there, even as a client. */
	return !chmod(me.folder, 01777) && asprintf(&me.path, "%s/wire.sock", me.folder) > 0;
}

static int start(void)
{
	static const struct memif_server_ops ops = {.up = port_up, .down = port_down};
	struct sigaction action = {.sa_handler = on_signal};
	int error;

	if (!me.path && !make_path())
		return -errno;
	error = memif_server_open(me.path, (unsigned)me.ports, &ops, &me.server);
	if (error)
		return error;
	for (unsigned id = 1; id <= me.ports; id++)
		link_start(&me.links[id], memif_server_port(me.server, id));
	wire.random = me.seed * UINT64_C(0x9e3779b97f4a7c15);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	signal(SIGPIPE, SIG_IGN);
	prctl(PR_SET_TIMERSLACK, 1000);
	hurry();
	fcntl(STDIN_FILENO, F_SETFL, fcntl(STDIN_FILENO, F_GETFL) | O_NONBLOCK);
	return 0;
}

int main(int count, char **arguments)
{
	int error;

	for (int i = 1; i < count; i++) {
		if (!set(arguments[i], true)) {
			fprintf(stderr, "wire: %s: no such setting, or no such value\n",
				arguments[i]);
			return 2;
		}
	}
	error = start();
	if (error) {
		fprintf(stderr, "wire: %s: %s\n", me.path ? me.path : "folder", strerror(-error));
	} else {
		printf("ready %s\n", me.path);
		fflush(stdout);
		run();
		memif_server_close(me.server);
	}
	if (me.folder)
		rmdir(me.folder);
	free(me.folder);
	free(me.path);
	return error ? 1 : 0;
}
