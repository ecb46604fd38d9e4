/* SPDX-License-Identifier: Apache-2.0 */
#include "hub.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "frame.h"
#include "harness.h"
#include "memif_server.h"

#define BURST 64
#define NAP_MS 1

static const uint8_t ours[4] = {0x02, 0x00, 0x5e, 0x77};

static struct {
	int test; /* our end of the test's socket */
	struct memif_server *server;
	uint8_t macs[HUB_PORTS + 1][FRAME_MAC]; /* who was heard of there */
	uint8_t frame[HUB_FRAME_MOST];          /* of the test, that waits for the port */
	size_t length;
	bool holds;
} hub;

static char folder[64], path[80];
static int test_socket = -1;
static pid_t process;

void hub_mac(uint32_t ip, uint8_t mac[FRAME_MAC])
{
	memcpy(mac, ours, sizeof(ours));
	mac[4] = (uint8_t)(ip >> 8);
	mac[5] = (uint8_t)ip;
}

/* ---- The process ------------------------------------------------------- */

static size_t gather(const struct view *view, uint8_t *to)
{
	size_t length = 0;

	if (view->length > HUB_FRAME_MOST)
		return 0;
	for (unsigned i = 0; i < view->count; i++) {
		memcpy(to + length, view->pieces[i].bytes, view->pieces[i].length);
		length += view->pieces[i].length;
	}
	return length;
}

/* False: it has to be tried again. */
static bool give(unsigned id, const uint8_t *frame, size_t length)
{
	struct view view = {.count = 1, .length = length};

	view.pieces[0].bytes = frame;
	view.pieces[0].length = length;
	return memif_send(memif_server_port(hub.server, id), &view, 0) != MEMIF_FULL;
}

/* To the one that it names, or all but where it comes from. */
static bool forward(unsigned from, const uint8_t *frame, size_t length)
{
	bool taken = true;

	for (unsigned id = 1; id <= HUB_PORTS; id++) {
		if (!memcmp(hub.macs[id], frame, FRAME_MAC))
			return id == from || give(id, frame, length);
	}
	for (unsigned id = 1; id <= HUB_PORTS; id++) {
		if (id != from)
			taken = give(id, frame, length) && taken;
	}
	return taken;
}

static bool answer_arp(unsigned from, const uint8_t *bytes, size_t length)
{
	uint8_t answer[FRAME_LEAST + FRAME_TAG], mac[FRAME_MAC];
	struct frame frame;

	frame_read(bytes, length, (struct frame_checked){0}, &frame, NULL);
	if (frame.kind != FRAME_IS_ARP || !frame.arp_asks || frame.target < HUB_IP(1) ||
	    frame.target >> 16 != HUB_NET >> 16)
		return false;
	hub_mac(frame.target, mac);
	give(from, answer,
	     frame_write_arp(answer, mac, frame.target, 0, frame.arp_mac, frame.source));
	return true;
}

static void from_port(unsigned id, const uint8_t *frame, size_t length)
{
	if (length < FRAME_ETHERNET)
		return;
	memcpy(hub.macs[id], frame + FRAME_MAC, FRAME_MAC);
	if (!memcmp(frame, ours, sizeof(ours)))
		send(hub.test, frame, length, MSG_DONTWAIT | MSG_NOSIGNAL);
	else if (!answer_arp(id, frame, length))
		forward(id, frame, length);
}

static bool take_from_ports(void)
{
	static uint8_t frame[HUB_FRAME_MOST];
	struct view view;
	bool some = false;

	for (unsigned id = 1; id <= HUB_PORTS && !hub.holds; id++) {
		struct memif_port *port = memif_server_port(hub.server, id);

		for (unsigned i = 0; port->up && i < BURST; i++) {
			if (!memif_receive(port, 0, &view))
				break;
			some = true;
			from_port(id, frame, gather(&view, frame));
			memif_release(port, 0);
		}
	}
	return some;
}

/* False at the end of the test. */
static bool take_from_test(bool *some)
{
	for (unsigned i = 0; i < BURST; i++) {
		if (!hub.length) {
			ssize_t got = recv(hub.test, hub.frame, sizeof(hub.frame), MSG_DONTWAIT);

			if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
				return false;
			if (got < 0)
				return true;
			hub.length = (size_t)got;
		}
		/* Too short for a frame: it is for us. */
		if (hub.length == 1) {
			hub.holds = hub.frame[0];
			hub.length = 0;
			continue;
		}
		if (!forward(0, hub.frame, hub.length))
			return true;
		hub.length = 0;
		*some = true;
	}
	return true;
}

static void port_changed(struct memif_port *port)
{
	memset(hub.macs[port->id], 0, FRAME_MAC);
}

static void run(void)
{
	struct pollfd list[] = {{.fd = hub.test, .events = POLLIN},
				{.fd = memif_server_fd(hub.server), .events = POLLIN}};

	for (;;) {
		bool some = take_from_ports();

		if (!take_from_test(&some))
			return;
		for (unsigned id = 1; id <= HUB_PORTS; id++)
			memif_flush(memif_server_port(hub.server, id));
		memif_server_watch(hub.server, !some);
		if (!some && !take_from_ports())
			poll(list, hub.length ? 0 : 2, NAP_MS);
		memif_server_serve(hub.server);
	}
}

/* ---- The test's side --------------------------------------------------- */

static void start_process(int socket)
{
	static const struct memif_server_ops ops = {.up = port_changed, .down = port_changed};

	signal(SIGPIPE, SIG_IGN);
	hub.test = socket;
	if (memif_server_open(path, HUB_PORTS, &ops, &hub.server)) {
		rmdir(folder);
		_exit(1);
	}
	/* The test may go on. */
	if (send(socket, "", 1, 0) == 1)
		run();
	/* The test has ended, or died. */
	memif_server_close(hub.server);
	rmdir(folder);
	_exit(0);
}

const char *hub_start(void)
{
	int sockets[2], room = 4 << 20;
	char ready;

	snprintf(folder, sizeof(folder), "/tmp/hub-XXXXXX");
	if (!mkdtemp(folder) || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets)) {
		perror("hub");
		return NULL;
	}
	snprintf(path, sizeof(path), "%s/socket", folder);
	setsockopt(sockets[1], SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
	process = fork();
	if (process == 0) {
		close(sockets[0]);
		start_process(sockets[1]);
	}
	close(sockets[1]);
	test_socket = sockets[0];
	if (process < 0 || recv(test_socket, &ready, 1, 0) != 1) {
		hub_stop();
		return NULL;
	}
	return path;
}

void hub_stop(void)
{
	close(test_socket);
	if (process > 0)
		waitpid(process, NULL, 0);
}

void hub_send(const void *frame, size_t length)
{
	assert_int_equal(send(test_socket, frame, length, MSG_NOSIGNAL), length);
}

size_t hub_receive(uint8_t frame[HUB_FRAME_MOST], unsigned ms)
{
	struct pollfd list = {.fd = test_socket, .events = POLLIN};
	ssize_t got;

	if (poll(&list, 1, (int)ms) != 1)
		return 0;
	got = recv(test_socket, frame, HUB_FRAME_MOST, MSG_DONTWAIT);
	assert_true(got > 0);
	return (size_t)got;
}

void hub_hold(bool hold)
{
	uint8_t word = hold;

	hub_send(&word, 1);
}

void hub_forget(void)
{
	static uint8_t frame[HUB_FRAME_MOST];

	while (hub_receive(frame, 0))
		;
}
