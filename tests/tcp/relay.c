/* SPDX-License-Identifier: Apache-2.0 */
#include "relay.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define FLOWS_MAX 256
#define BUFFER_SIZE 65536

/* One direction of a connection. */
struct lane {
	uint8_t bytes[BUFFER_SIZE];
	size_t start, end;
	bool ended;  /* nothing more comes */
	bool closed; /* the end was passed on */
	uint64_t passed;
};

struct flow {
	int fd[2];           /* the connecting side's, the listening side's */
	struct lane lane[2]; /* from fd[i] to fd[1 - i] */
	uint8_t head[6];     /* of the preamble */
	unsigned kind;       /* RELAY_CONTROL...; 0: not known yet */
	bool armed, stalled;
	enum relay_cut how;
	uint64_t left; /* armed: bytes until the cut */
};

struct relay {
	pthread_mutex_t lock;
	pthread_t thread;
	int listener, wake;
	struct sockaddr_in target;
	char address[32];
	struct flow *flows[FLOWS_MAX]; /* the oldest first */
	unsigned count, cuts;
	bool stopping;
};

/* ---- Connections ------------------------------------------------------- */

static void flow_free(struct flow *flow)
{
	for (int i = 0; i < 2; i++) {
		if (flow->fd[i] >= 0)
			close(flow->fd[i]);
	}
	free(flow);
}

static void set_quick(int fd)
{
	int one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

/* Both are on this host: connect() does not wait for anybody. */
static void accept_one(struct relay *relay)
{
	int fd = accept4(relay->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	struct flow *flow;

	if (fd < 0)
		return;
	flow = calloc(1, sizeof(*flow));
	if (!flow || relay->count == FLOWS_MAX) {
		free(flow);
		close(fd);
		return;
	}
	flow->fd[0] = fd;
	flow->fd[1] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (flow->fd[1] < 0 ||
	    connect(flow->fd[1], (struct sockaddr *)&relay->target, sizeof(relay->target)) ||
	    fcntl(flow->fd[1], F_SETFL, O_NONBLOCK)) {
		flow_free(flow);
		return;
	}
	set_quick(flow->fd[0]);
	set_quick(flow->fd[1]);
	relay->flows[relay->count++] = flow;
}

/* What the first bytes of the connecting side say. */
static void learn_kind(struct flow *flow, const struct lane *lane, size_t got)
{
	uint64_t before = lane->passed + (lane->end - lane->start);

	for (size_t i = 0; i < got && before + i < sizeof(flow->head); i++)
		flow->head[before + i] = lane->bytes[lane->end + i];
	if (flow->kind || before + got < sizeof(flow->head))
		return;
	flow->kind = flow->head[5] == PREAMBLE_PULSE    ? RELAY_PULSE
		     : flow->head[5] == PREAMBLE_STREAM ? RELAY_STREAM
							: RELAY_CONTROL;
}

/* False: the connection is broken. */
static bool take_in(struct flow *flow, int from)
{
	struct lane *lane = &flow->lane[from];
	ssize_t got;

	if (lane->start == lane->end)
		lane->start = lane->end = 0;
	if (lane->ended || lane->end == BUFFER_SIZE)
		return true;
	got = recv(flow->fd[from], lane->bytes + lane->end, BUFFER_SIZE - lane->end, 0);
	if (got < 0)
		return errno == EAGAIN || errno == EINTR;
	if (got == 0)
		lane->ended = true;
	if (from == 0)
		learn_kind(flow, lane, (size_t)got);
	lane->end += (size_t)got;
	return true;
}

/* False: the connection is broken. */
static bool put_out(struct flow *flow, int from)
{
	struct lane *lane = &flow->lane[from];
	size_t length = lane->end - lane->start;
	ssize_t sent;

	if (flow->armed && length > flow->left)
		length = (size_t)flow->left;
	if (length) {
		sent = send(flow->fd[1 - from], lane->bytes + lane->start, length, MSG_NOSIGNAL);
		if (sent < 0)
			return errno == EAGAIN || errno == EINTR;
		lane->start += (size_t)sent;
		lane->passed += (uint64_t)sent;
		if (flow->armed)
			flow->left -= (uint64_t)sent;
	}
	if (lane->ended && lane->start == lane->end && !lane->closed) {
		lane->closed = true;
		shutdown(flow->fd[1 - from], SHUT_WR);
	}
	return true;
}

/* The armed flow has come to its byte. False: it is over. */
static bool cut_now(struct relay *relay, struct flow *flow)
{
	struct linger reset = {.l_onoff = 1};

	relay->cuts++;
	flow->armed = false;
	if (flow->how == RELAY_HALF) {
		flow->lane[0].ended = flow->lane[0].closed = true;
		flow->lane[0].start = flow->lane[0].end = 0;
		shutdown(flow->fd[1], SHUT_WR);
		return true;
	}
	if (flow->how == RELAY_RESET) {
		setsockopt(flow->fd[0], SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
		setsockopt(flow->fd[1], SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	}
	return false;
}

/* False: it is over. */
static bool serve(struct relay *relay, struct flow *flow)
{
	if (flow->stalled)
		return true;
	for (int from = 0; from < 2; from++) {
		if (!take_in(flow, from) || !put_out(flow, from))
			return false;
	}
	if (flow->armed && flow->left == 0)
		return cut_now(relay, flow);
	return !(flow->lane[0].closed && flow->lane[1].closed);
}

/* ---- The thread -------------------------------------------------------- */

static nfds_t what_to_wait_for(struct relay *relay, struct pollfd *list)
{
	nfds_t count = 2;

	list[0] = (struct pollfd){.fd = relay->wake, .events = POLLIN};
	list[1] = (struct pollfd){.fd = relay->listener, .events = POLLIN};
	for (unsigned i = 0; i < relay->count; i++) {
		struct flow *flow = relay->flows[i];

		for (int from = 0; from < 2; from++) {
			const struct lane *in = &flow->lane[from], *out = &flow->lane[1 - from];
			short events = 0;

			if (!in->ended && in->end < BUFFER_SIZE)
				events |= POLLIN;
			if (out->end > out->start)
				events |= POLLOUT;
			list[count++] = (struct pollfd){
				.fd = flow->stalled || !events ? -1 : flow->fd[from],
				.events = events,
			};
		}
	}
	return count;
}

static void *run(void *argument)
{
	static struct pollfd list[2 + 2 * FLOWS_MAX];
	struct relay *relay = argument;
	uint64_t value;

	pthread_mutex_lock(&relay->lock);
	while (!relay->stopping) {
		nfds_t count = what_to_wait_for(relay, list);
		unsigned kept = 0;

		pthread_mutex_unlock(&relay->lock);
		poll(list, count, -1);
		pthread_mutex_lock(&relay->lock);
		if (list[0].revents)
			(void)!read(relay->wake, &value, sizeof(value));
		if (list[1].revents)
			accept_one(relay);
		for (unsigned i = 0; i < relay->count; i++) {
			if (serve(relay, relay->flows[i]))
				relay->flows[kept++] = relay->flows[i];
			else
				flow_free(relay->flows[i]);
		}
		relay->count = kept;
	}
	pthread_mutex_unlock(&relay->lock);
	return NULL;
}

static void wake(struct relay *relay)
{
	uint64_t value = 1;

	(void)!write(relay->wake, &value, sizeof(value));
}

/* ---- What tests call --------------------------------------------------- */

struct relay *relay_start(const char *target)
{
	struct relay *relay = calloc(1, sizeof(*relay));
	struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof(own);

	assert_non_null(relay);
	assert_memory_equal(target, "127.0.0.1:", 10);
	relay->target = own;
	relay->target.sin_port = htons((uint16_t)atoi(target + 10));
	relay->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	relay->wake = eventfd(0, EFD_CLOEXEC);
	assert_true(relay->listener >= 0 && relay->wake >= 0);
	assert_int_equal(bind(relay->listener, (struct sockaddr *)&own, size), 0);
	assert_int_equal(listen(relay->listener, 128), 0);
	assert_int_equal(getsockname(relay->listener, (struct sockaddr *)&own, &size), 0);
	snprintf(relay->address, sizeof(relay->address), "127.0.0.1:%u", ntohs(own.sin_port));
	pthread_mutex_init(&relay->lock, NULL);
	assert_int_equal(pthread_create(&relay->thread, NULL, run, relay), 0);
	return relay;
}

void relay_free(struct relay *relay)
{
	pthread_mutex_lock(&relay->lock);
	relay->stopping = true;
	pthread_mutex_unlock(&relay->lock);
	wake(relay);
	pthread_join(relay->thread, NULL);
	while (relay->count)
		flow_free(relay->flows[--relay->count]);
	close(relay->listener);
	close(relay->wake);
	pthread_mutex_destroy(&relay->lock);
	free(relay);
}

const char *relay_address(const struct relay *relay)
{
	return relay->address;
}

void relay_listen_no_more(struct relay *relay)
{
	pthread_mutex_lock(&relay->lock);
	shutdown(relay->listener, SHUT_RDWR);
	pthread_mutex_unlock(&relay->lock);
	wake(relay);
}

/* It is what it should be, both have greeted, and nothing was done to it yet. */
static bool whole(const struct flow *flow, unsigned kinds)
{
	return (flow->kind & kinds) && flow->lane[0].passed >= PREAMBLE_SIZE &&
	       flow->lane[1].passed >= PREAMBLE_SIZE && !flow->armed && !flow->lane[0].ended &&
	       !flow->lane[1].ended;
}

/* It has carried nothing so far: it would never come to a byte to be cut at. */
static bool idle(const struct flow *flow)
{
	return flow->lane[0].passed + flow->lane[1].passed == 2 * PREAMBLE_SIZE;
}

unsigned relay_cut(struct relay *relay, unsigned kinds, unsigned most, enum relay_cut how,
		   uint64_t after)
{
	unsigned count = 0;

	pthread_mutex_lock(&relay->lock);
	for (unsigned i = 0; i < relay->count && count < most; i++) {
		struct flow *flow = relay->flows[i];

		if (!whole(flow, kinds) || (after && idle(flow)))
			continue;
		flow->armed = true;
		flow->stalled = false;
		flow->how = how;
		flow->left = after;
		count++;
	}
	pthread_mutex_unlock(&relay->lock);
	wake(relay);
	return count;
}

unsigned relay_stall(struct relay *relay, unsigned kinds, unsigned most, bool stalled)
{
	unsigned count = 0;

	pthread_mutex_lock(&relay->lock);
	for (unsigned i = 0; i < relay->count && count < most; i++) {
		struct flow *flow = relay->flows[i];

		if (!whole(flow, kinds) || idle(flow) || flow->stalled == stalled)
			continue;
		flow->stalled = stalled;
		count++;
	}
	pthread_mutex_unlock(&relay->lock);
	wake(relay);
	return count;
}

unsigned relay_cuts(struct relay *relay)
{
	unsigned cuts;

	pthread_mutex_lock(&relay->lock);
	cuts = relay->cuts;
	pthread_mutex_unlock(&relay->lock);
	return cuts;
}

unsigned relay_count(struct relay *relay, unsigned kinds)
{
	unsigned count = 0;

	pthread_mutex_lock(&relay->lock);
	for (unsigned i = 0; i < relay->count; i++)
		count += whole(relay->flows[i], kinds) && !relay->flows[i]->stalled;
	pthread_mutex_unlock(&relay->lock);
	return count;
}
