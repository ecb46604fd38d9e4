/* SPDX-License-Identifier: Apache-2.0 */
#include "proxy.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PIPES_MAX = 256, BUFFER = 65536 };

/* One direction of a connection. */
struct flow {
	int from, to;
	uint8_t bytes[BUFFER];
	size_t start, end;
	uint64_t spent; /* of the rate, since it was set */
	bool ended;     /* nothing more comes */
	bool shut;      /* ... and the other side was told */
};

struct pipe_of_two {
	bool open;
	enum preamble_kind kind; /* 0: not seen yet */
	uint8_t preamble[8];
	size_t seen;
	uint64_t rate, rate_since; /* bytes a second; 0: without limit */
	struct flow up, down;
};

struct proxy {
	pthread_t thread;
	pthread_mutex_t lock;
	int listener;
	int wake[2];
	char address[64], target[64];
	bool stop, refuse;
	unsigned most; /* dribble */
	uint64_t random;
	struct pipe_of_two *pipes[PIPES_MAX];
};

/* ---- Connections ------------------------------------------------------- */

static void small_buffers(int fd)
{
	int size = 64 * 1024, one = 1;

	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

static void pipe_close(struct pipe_of_two *pipe, bool reset)
{
	struct linger linger = {.l_onoff = reset};

	setsockopt(pipe->up.from, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
	setsockopt(pipe->down.from, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
	close(pipe->up.from);
	close(pipe->down.from);
	pipe->open = false;
}

static int dial(const struct proxy *proxy)
{
	struct sockaddr_in to = {.sin_family = AF_INET};
	const char *colon = strrchr(proxy->target, ':');
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	to.sin_port = htons((uint16_t)atoi(colon + 1));
	if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof(to))) {
		close(fd);
		return -1;
	}
	return fd;
}

static void proxy_accept(struct proxy *proxy)
{
	struct linger reset = {.l_onoff = 1};
	int in = accept4(proxy->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	int out = in >= 0 && !proxy->refuse ? dial(proxy) : -1;
	struct pipe_of_two *pipe;
	unsigned place = 0;

	while (place < PIPES_MAX && proxy->pipes[place] && proxy->pipes[place]->open)
		place++;
	if (in < 0)
		return;
	if (out < 0 || place == PIPES_MAX) {
		setsockopt(in, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
		close(in);
		if (out >= 0)
			close(out);
		return;
	}
	free(proxy->pipes[place]);
	pipe = calloc(1, sizeof(*pipe));
	if (!pipe)
		abort();
	proxy->pipes[place] = pipe;
	small_buffers(in);
	small_buffers(out);
	pipe->open = true;
	pipe->up.from = pipe->down.to = in;
	pipe->up.to = pipe->down.from = out;
}

/* The first bytes of the connecting side tell what it is. */
static void look_at_preamble(struct pipe_of_two *pipe, const uint8_t *bytes, size_t length)
{
	for (size_t i = 0; i < length && pipe->seen < sizeof(pipe->preamble); i++)
		pipe->preamble[pipe->seen++] = bytes[i];
	if (pipe->seen == sizeof(pipe->preamble))
		pipe->kind =
			pipe->preamble[5] == PREAMBLE_OPEN ? PREAMBLE_CONTROL : pipe->preamble[5];
}

/* ---- Forwarding -------------------------------------------------------- */

static size_t allowance(const struct proxy *proxy, const struct pipe_of_two *pipe,
			const struct flow *flow)
{
	size_t most = flow->end - flow->start;
	uint64_t earned;

	if (proxy->most && most > proxy->most)
		most = proxy->most;
	if (!pipe->rate)
		return most;
	earned = (now_us() - pipe->rate_since) * pipe->rate / 1000000;
	if (earned <= flow->spent)
		return 0;
	return earned - flow->spent < most ? earned - flow->spent : most;
}

/* False: the connection has broken. */
static bool take(struct pipe_of_two *pipe, struct flow *flow)
{
	ssize_t got;

	if (flow->ended || flow->end == BUFFER)
		return true;
	got = recv(flow->from, flow->bytes + flow->end, BUFFER - flow->end, MSG_DONTWAIT);
	if (got < 0)
		return errno == EAGAIN;
	if (got == 0)
		flow->ended = true;
	else if (flow == &pipe->up)
		look_at_preamble(pipe, flow->bytes + flow->end, (size_t)got);
	flow->end += (size_t)got;
	return true;
}

static bool give(struct proxy *proxy, struct pipe_of_two *pipe, struct flow *flow)
{
	size_t most = allowance(proxy, pipe, flow);
	ssize_t sent;

	if (flow->start == flow->end && flow->ended && !flow->shut) {
		shutdown(flow->to, SHUT_WR);
		flow->shut = true;
	}
	if (most == 0)
		return true;
	if (proxy->most)
		most = 1 + random_below(&proxy->random, (unsigned)most);
	sent = send(flow->to, flow->bytes + flow->start, most, MSG_DONTWAIT | MSG_NOSIGNAL);
	if (sent < 0)
		return errno == EAGAIN;
	flow->start += (size_t)sent;
	flow->spent += (size_t)sent;
	if (flow->start == flow->end)
		flow->start = flow->end = 0;
	return true;
}

static void forward(struct proxy *proxy, struct pipe_of_two *pipe)
{
	bool fine = take(pipe, &pipe->up) && take(pipe, &pipe->down) &&
		    give(proxy, pipe, &pipe->up) && give(proxy, pipe, &pipe->down);

	if (!fine || (pipe->up.shut && pipe->down.shut))
		pipe_close(pipe, !fine);
}

/* ---- The thread -------------------------------------------------------- */

static short wishes(const struct pipe_of_two *pipe, const struct flow *in, const struct flow *out)
{
	short events = 0;

	if (!in->ended && in->end < BUFFER)
		events |= POLLIN;
	if (out->start < out->end && !pipe->rate)
		events |= POLLOUT;
	return events;
}

/* With the lock held. Gives how long poll() may sleep: not long when something is throttled. */
static int watch(struct proxy *proxy, struct pollfd *list, nfds_t *count)
{
	int timeout = -1;

	*count = 2;
	list[0] = (struct pollfd){.fd = proxy->listener, .events = POLLIN};
	list[1] = (struct pollfd){.fd = proxy->wake[0], .events = POLLIN};
	for (unsigned i = 0; i < PIPES_MAX; i++) {
		struct pipe_of_two *pipe = proxy->pipes[i];

		if (!pipe || !pipe->open)
			continue;
		list[(*count)++] = (struct pollfd){.fd = pipe->up.from,
						   .events = wishes(pipe, &pipe->up, &pipe->down)};
		list[(*count)++] = (struct pollfd){.fd = pipe->down.from,
						   .events = wishes(pipe, &pipe->down, &pipe->up)};
		if (pipe->rate)
			timeout = 1;
	}
	return timeout;
}

static void *proxy_run(void *user)
{
	static _Thread_local struct pollfd list[2 + 2 * PIPES_MAX];
	struct proxy *proxy = user;
	char scrap[64];

	pthread_mutex_lock(&proxy->lock);
	while (!proxy->stop) {
		nfds_t count;
		int timeout = watch(proxy, list, &count);

		pthread_mutex_unlock(&proxy->lock);
		poll(list, count, timeout);
		pthread_mutex_lock(&proxy->lock);
		if (list[1].revents)
			(void)!read(proxy->wake[0], scrap, sizeof(scrap));
		if (list[0].revents)
			proxy_accept(proxy);
		for (unsigned i = 0; i < PIPES_MAX; i++) {
			if (proxy->pipes[i] && proxy->pipes[i]->open)
				forward(proxy, proxy->pipes[i]);
		}
	}
	pthread_mutex_unlock(&proxy->lock);
	return NULL;
}

struct proxy *proxy_start(const char *address)
{
	struct proxy *proxy = calloc(1, sizeof(*proxy));
	struct sockaddr_in bound = {.sin_family = AF_INET};
	socklen_t size = sizeof(bound);

	assert_non_null(proxy);
	snprintf(proxy->target, sizeof(proxy->target), "%s", address);
	proxy->random = 1;
	bound.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	proxy->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	assert_int_equal(bind(proxy->listener, (struct sockaddr *)&bound, sizeof(bound)), 0);
	assert_int_equal(listen(proxy->listener, 64), 0);
	getsockname(proxy->listener, (struct sockaddr *)&bound, &size);
	snprintf(proxy->address, sizeof(proxy->address), "127.0.0.1:%u", ntohs(bound.sin_port));
	assert_int_equal(pipe2(proxy->wake, O_CLOEXEC | O_NONBLOCK), 0);
	pthread_mutex_init(&proxy->lock, NULL);
	assert_int_equal(pthread_create(&proxy->thread, NULL, proxy_run, proxy), 0);
	return proxy;
}

static void wake(struct proxy *proxy)
{
	(void)!write(proxy->wake[1], "", 1);
}

void proxy_stop(struct proxy *proxy)
{
	pthread_mutex_lock(&proxy->lock);
	proxy->stop = true;
	wake(proxy);
	pthread_mutex_unlock(&proxy->lock);
	pthread_join(proxy->thread, NULL);
	for (unsigned i = 0; i < PIPES_MAX; i++) {
		if (proxy->pipes[i] && proxy->pipes[i]->open)
			pipe_close(proxy->pipes[i], true);
		free(proxy->pipes[i]);
	}
	close(proxy->listener);
	close(proxy->wake[0]);
	close(proxy->wake[1]);
	pthread_mutex_destroy(&proxy->lock);
	free(proxy);
}

/* ---- What tests ask for ------------------------------------------------ */

const char *proxy_address(const struct proxy *proxy)
{
	return proxy->address;
}

static struct pipe_of_two *find(struct proxy *proxy, enum preamble_kind kind, unsigned number)
{
	for (unsigned i = 0; i < PIPES_MAX; i++) {
		struct pipe_of_two *pipe = proxy->pipes[i];

		if (pipe && pipe->open && pipe->kind == kind && number-- == 0)
			return pipe;
	}
	return NULL;
}

unsigned proxy_count(struct proxy *proxy, enum preamble_kind kind)
{
	unsigned count = 0;

	pthread_mutex_lock(&proxy->lock);
	while (find(proxy, kind, count))
		count++;
	pthread_mutex_unlock(&proxy->lock);
	return count;
}

bool proxy_cut(struct proxy *proxy, enum preamble_kind kind, unsigned number, bool reset)
{
	struct pipe_of_two *pipe;

	pthread_mutex_lock(&proxy->lock);
	pipe = find(proxy, kind, number);
	if (pipe)
		pipe_close(pipe, reset);
	wake(proxy);
	pthread_mutex_unlock(&proxy->lock);
	return pipe != NULL;
}

void proxy_refuse(struct proxy *proxy, bool refuse)
{
	pthread_mutex_lock(&proxy->lock);
	proxy->refuse = refuse;
	pthread_mutex_unlock(&proxy->lock);
}

bool proxy_throttle(struct proxy *proxy, enum preamble_kind kind, unsigned number, uint64_t rate)
{
	struct pipe_of_two *pipe;

	pthread_mutex_lock(&proxy->lock);
	pipe = find(proxy, kind, number);
	if (pipe) {
		pipe->rate = rate;
		pipe->rate_since = now_us();
		pipe->up.spent = pipe->down.spent = 0;
	}
	wake(proxy);
	pthread_mutex_unlock(&proxy->lock);
	return pipe != NULL;
}

void proxy_dribble(struct proxy *proxy, unsigned most)
{
	pthread_mutex_lock(&proxy->lock);
	proxy->most = most;
	wake(proxy);
	pthread_mutex_unlock(&proxy->lock);
}
