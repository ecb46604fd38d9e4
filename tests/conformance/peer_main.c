/* SPDX-License-Identifier: Apache-2.0 */
/* The peer's process: reads commands from its standard input and does them. See peer.h. */
#include "peer.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "load.h"

static struct {
	struct world *world;
	struct side *side;
	haul_endpoint *endpoints[ENDPOINTS_MAX];
	unsigned count;
	unsigned adopted; /* of side->accepted */
	unsigned long succeeded, failed, open;
	bool load;
	size_t load_bytes;
	unsigned load_depth;
	bool waiting; /* `wait` is still to be answered */
	struct entry *connecting;
} me;

static void answer(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void answer(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	putchar('\n');
	fflush(stdout);
}

static void operation_done(struct entry *entry)
{
	struct block *block = entry->user;

	if (entry->result == 0 && entry->event == HAUL_RECEIVED &&
	    entry->tensor.bytes == block->bytes && !block_holds(block, entry->number)) {
		fprintf(stderr, "peer: tensor %llu is wrong\n", (unsigned long long)entry->number);
		exit(1);
	}
	if (entry->result)
		me.failed++;
	else
		me.succeeded++;
	me.open--;
	entry_recycle(entry);
}

static void post_many(enum haul_event event, const char *key, size_t bytes, unsigned count,
		      unsigned timeout_ms)
{
	struct extra extra = {.hook = operation_done, .timeout_ms = timeout_ms};
	struct block *shared = count > 64 ? block_new(me.world, bytes) : NULL;
	int error;

	for (unsigned i = 0; i < count; i++) {
		/* Very many share one tensor, and then only its size and arrival say something. */
		struct block *block = shared ? shared : block_new(me.world, bytes);

		extra.user = block;
		extra.number = shared ? 0 : i;
		if (event == HAUL_SENT)
			block_fill(block, extra.number);
		if (!try_post(me.side, me.endpoints[me.count - 1], event, haul_key(key),
			      &block->tensor, &extra, &error)) {
			answer("error %d %s", error, haul_detail(me.side->context));
			return;
		}
		me.open++;
	}
	answer("ok");
}

static void do_listen(const char *where)
{
	int error;

	if (!*where) {
		answer("ok %s", side_listen(me.side));
		return;
	}
	error = haul_listen(me.side->context, where, me.side, &me.side->listener);
	if (error)
		answer("error %d %s", error, haul_detail(me.side->context));
	else
		answer("ok %s", haul_listener_address(me.side->listener));
}

/* Endpoints that came since the last time. */
static void adopt(haul_endpoint *endpoint)
{
	me.endpoints[me.count++] = endpoint;
	if (me.load)
		load_start(me.side, endpoint, false, me.load_bytes, me.load_depth);
}

static void do_command(char *line)
{
	char word[16] = "", key[64];
	size_t bytes;
	unsigned count, ms;
	int used = 0;

	sscanf(line, "%15s %n", word, &used);
	if (!strcmp(word, "listen")) {
		do_listen(line + used);
	} else if (!strcmp(word, "connect")) {
		me.connecting = post_connect(me.side, line + used);
	} else if (!strcmp(word, "load") && sscanf(line + used, "%zu %u", &bytes, &count) == 2) {
		me.load = true;
		me.load_bytes = bytes;
		me.load_depth = count;
		for (unsigned i = 0; i < me.count; i++)
			load_start(me.side, me.endpoints[i], false, bytes, count);
		answer("ok");
	} else if (sscanf(line + used, "%63s %zu %u %u", key, &bytes, &count, &ms) == 4) {
		post_many(!strcmp(word, "send") ? HAUL_SENT : HAUL_RECEIVED, key, bytes, count, ms);
	} else if (!strcmp(word, "wait")) {
		me.waiting = true;
	} else if (!strcmp(word, "count")) {
		answer("ok %lu %lu %lu %u %u", me.succeeded, me.failed, me.open,
		       me.side->accepted_count, me.side->lost_count);
	} else if (!strcmp(word, "drop") && sscanf(line + used, "%u", &count) == 1) {
		haul_disconnect(me.endpoints[count]);
		answer("ok");
	} else if (!strcmp(word, "exit")) {
		answer("ok");
		exit(world_free(me.world) ? 1 : 0);
	} else {
		answer("error 22 unknown command: %s", line);
	}
}

/* What changed since the last look. */
static void look_around(void)
{
	while (me.adopted < me.side->accepted_count)
		adopt(me.side->accepted[me.adopted++]);
	if (me.connecting && me.connecting->done) {
		if (me.connecting->result) {
			answer("error %d %s", me.connecting->result, me.connecting->detail);
		} else {
			adopt(me.connecting->endpoint);
			answer("ok");
		}
		me.connecting = NULL;
	}
	if (me.waiting && !me.open) {
		me.waiting = false;
		answer("ok %lu %lu", me.succeeded, me.failed);
	}
}

/* Read what there is and do each whole line. Gives false at the end of the input. */
static bool read_commands(void)
{
	static char buffer[4096];
	static size_t used;
	char *end;
	ssize_t got = read(STDIN_FILENO, buffer + used, sizeof(buffer) - 1 - used);

	if (got <= 0)
		return false;
	used += (size_t)got;
	buffer[used] = '\0';
	while ((end = strchr(buffer, '\n'))) {
		*end++ = '\0';
		do_command(buffer);
		used -= (size_t)(end - buffer);
		memmove(buffer, end, used + 1);
	}
	return true;
}

int peer_main(void)
{
	struct pollfd list[2] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.events = POLLIN}};
	int status = suite_prepare();

	if (status)
		return status;
	me.world = world_new(NULL);
	me.side = side_open(me.world, NULL);
	list[1].fd = haul_event_fd(me.side->context);
	for (;;) {
		while (side_poll(me.side) > 0)
			look_around();
		look_around();
		poll(list, 2, -1);
		if (list[0].revents && !read_commands())
			return 0;
	}
}
