/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: opening, progress, waiting. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "dpdk.h"

/* Nobody looked for so long: packets may have been lost here, and silence says nothing. */
#define LONG_PAUSE (100 * MS)

/* Packets that waited for so long at the port tell nothing about the path. */
#define AWAY (1 * MS)

/* The clock and the timers are looked at with each so many looks at the port. */
#define LOOKS 8

/* A closing context's last words may wait so long for the port. */
#define CLOSE_PATIENCE (20 * MS)

#define SWEEP_EVERY (20 * MS)

/* Packets that still wait for the port when the peer was silent for so long are dropped, when their
 * pushes have ended. */
#define STALLED (100 * MS)

/* Messages that were queued while packets were taken wait for the program's answer, to share a
 * packet with it: at most so many bytes. */
#define BATCH_MOST 1024

/* How long wait() sleeps between two looks at the port, at first and later. */
#define NAP_FIRST (5 * US)
#define NAP_LONGEST (50 * US)
#define NAP_IDLE (500 * US)
#define IDLE_AFTER (20 * MS)

/* The longest sleep of one that the port will wake. */
#define LISTEN_MOST (10 * SECOND)

/* ---- Opening and closing ----------------------------------------------- */

static void context_free(struct backend_context *context)
{
	if (context->port) {
		for (unsigned i = 0; i < context->held_count; i++)
			rte_pktmbuf_free(context->held[i]);
		for (uint32_t i = 0; i < context->kept_count; i++)
			rte_pktmbuf_free(context->kept[i]);
		output_free(context);
		port_close(context->port);
	}
	neighbours_free(context);
	timers_free(&context->timers);
	if (context->wake_fd >= 0)
		close(context->wake_fd);
	free(context->kept);
	free(context->names);
	free(context);
}

/* Between two processes there is no network to crowd, and a delay only says who was scheduled. */
static const struct congestion_ops *choose_congestion(const struct backend_context *context)
{
	unsigned choice = context->config->congestion;

	if (choice)
		return congestion_all[choice - 1];
	return context->port->wire ? &congestion_swift : &congestion_fixed;
}

static int dpdk_open(haul_context *engine, const void *config, struct backend_context **out)
{
	struct backend_context *context = calloc(1, sizeof(*context));
	int error;

	if (!context)
		return -ENOMEM;
	context->engine = engine;
	context->config = config;
	context->traced = haul_is_traced(engine);
	context->keeper_fd = context->wake_fd = -1;
	context->neighbour_at = UINT64_MAX;
	context->now = context->input_at = context->looked_at = haul_clock();
	TAILQ_INIT(&context->links);
	TAILQ_INIT(&context->ready);
	TAILQ_INIT(&context->hearing);
	TAILQ_INIT(&context->listeners);
	LIST_INIT(&context->neighbours);
	error = haul_random(context->secret, sizeof(context->secret));
	if (!error)
		error = haul_random(&context->incarnation, sizeof(context->incarnation));
	if (!error)
		error = haul_random(&context->peer_factor, sizeof(context->peer_factor));
	context->peer_factor |= 1;
	if (error)
		goto failed;
	context->wake_fd = haul_descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	if (context->wake_fd < 0) {
		error = haul_fail(
			engine, -errno,
			"no descriptor for the context: %s (ulimit -n shows and raises the limit)",
			haul_strerror(errno));
		goto failed;
	}
	error = port_open(engine, context->config, &context->port);
	if (error)
		goto failed;
	context->kept_room = context->port->ring;
	context->kept = calloc(context->kept_room, sizeof(struct rte_mbuf *));
	if (!context->kept) {
		error = -ENOMEM;
		goto failed;
	}
	context->sums = context->config->sums == DPDK_SUMS_YES ||
			(context->config->sums == DPDK_SUMS_AUTO && context->port->wire);
	context->congestion = choose_congestion(context);
	neighbours_announce(context);
	output_flush(context);
	error = keeper_start(context);
	if (error)
		goto failed;
	*out = context;
	return 0;
failed:
	keeper_stop(context);
	context_free(context);
	return error;
}

static bool any_out(const struct backend_context *context)
{
	for (unsigned i = 0; i < context->port->queues; i++) {
		if (context->out[i].count)
			return true;
	}
	return false;
}

/* What is queued leaves, unless the port takes nothing for CLOSE_PATIENCE. */
static void flush_all(struct backend_context *context)
{
	const struct timespec pause = {.tv_nsec = 100 * 1000};
	uint64_t until = haul_clock() + CLOSE_PATIENCE;

	output_flush(context);
	while (any_out(context) && haul_clock() < until) {
		nanosleep(&pause, NULL);
		output_flush(context);
	}
}

static void dpdk_close(struct backend_context *context)
{
	struct backend_link *link;

	keeper_stop(context);
	/* Nobody will answer for those that could not leave in time: this is their last word. */
	TAILQ_FOREACH (link, &context->links, all)
		link_say_over(link);
	flush_all(context);
	while (!TAILQ_EMPTY(&context->links))
		link_free(TAILQ_FIRST(&context->links));
	context_free(context);
}

static void dpdk_close_in_child(struct backend_context *context)
{
	close(context->wake_fd);
	close(context->keeper_fd);
	port_close_in_child(context->port);
}

/* A clock that is set while the context lives does no harm: it only says when to look. */
static uint64_t time_of_day(void)
{
	struct timespec time;

	clock_gettime(CLOCK_REALTIME, &time);
	return (uint64_t)time.tv_sec * SECOND + (uint64_t)time.tv_nsec;
}

/* ---- Progress ---------------------------------------------------------- */

static int report_errors(struct backend_context *context)
{
	struct backend_link *link, *next;
	int done = 0;

	for (link = TAILQ_FIRST(&context->links); link && context->errors; link = next) {
		next = TAILQ_NEXT(link, all);
		if (!link->error || link->lost || link->state == LINK_GONE)
			continue;
		done++;
		transfers_forget(link);
		link->lost = true;
		context->errors--;
		if (link->endpoint) {
			/* The engine disconnects the link from within. */
			haul_on_lost(link->endpoint, link->error == LINK_ENDED ? 0 : link->error,
				     link->why);
		} else {
			link_gone(link);
		}
	}
	return done;
}

static void free_gone(struct backend_context *context)
{
	struct backend_link *link, *next;

	context->gone = false;
	for (link = TAILQ_FIRST(&context->links); link; link = next) {
		next = TAILQ_NEXT(link, all);
		if (link->state == LINK_GONE)
			link_free(link);
	}
}

static int run_timers(struct backend_context *context)
{
	/* Those that are due again at once have to wait for what comes and leaves meanwhile. */
	uint32_t most = context->timers.count;
	struct backend_link *link;
	uint32_t done = 0;

	while (done < most && (link = timers_due(&context->timers, context->now))) {
		link_run(link);
		done++;
	}
	return (int)done;
}

static void note_time(struct backend_context *context)
{
	uint64_t now = haul_now(context->engine);

	context->away = context->keeping && pthread_equal(pthread_self(), context->keeper);
	context->pause = now - context->input_at;
	if (context->pause > LONG_PAUSE)
		context->awake_at = now;
	context->now = context->input_at = now;
	context->seen_at = context->pause < AWAY ? now : 0;
	if (!context->away)
		__atomic_store_n(&context->looked_at, now, __ATOMIC_RELAXED);
}

static void sweep(struct backend_context *context)
{
	struct backend_link *link;

	context->sweep_at = context->now + SWEEP_EVERY;
	context->day = time_of_day() - haul_clock();
	receive_sweep(context);
	if (!port_watch(context->port, context->now))
		return;
	haul_log(HAUL_LOG_INFO, "the link of port=%s is %s", context->config->port,
		 context->port->link_up ? "up" : "down");
	if (!context->port->link_up)
		return;
	neighbours_announce(context);
	/* What was sent meanwhile is lost: no need to find that out slowly. */
	TAILQ_FOREACH (link, &context->links, all) {
		if (!link_talks(link))
			continue;
		recovery_lose_all(&link->recovery);
		link_ready(link);
	}
}

/* Pushes that have ended, but whose bytes the driver has not let go of. */
static int reclaim(struct backend_context *context)
{
	struct backend_link *link;
	int done = 0;

	TAILQ_FOREACH (link, &context->links, all) {
		uint64_t silent = context->now - link->heard_at;

		if (!link->returning || !link->endpoint || link->error)
			continue;
		/* A port that takes nothing any more has nothing to give back. */
		if (silent > STALLED)
			output_drop(context, link->queue);
		port_reclaim(context->port, silent > MS);
		transfer_reclaimed(link);
		done++;
	}
	return done;
}

static void drain_wake(struct backend_context *context)
{
	uint64_t value;
	ssize_t ignored;

	if (!__atomic_exchange_n(&context->woken, false, __ATOMIC_ACQUIRE))
		return;
	ignored = read(context->wake_fd, &value, sizeof(value));
	(void)ignored;
}

static void dpdk_wake(struct backend_context *context)
{
	uint64_t value = 1;
	ssize_t ignored = write(context->wake_fd, &value, sizeof(value));

	(void)ignored;
	/* Afterwards: whoever sees it finds something to read. */
	__atomic_store_n(&context->woken, true, __ATOMIC_RELEASE);
}

/* Something can be done at once. What waits for a full port is another matter. */
static bool has_work(const struct backend_context *context)
{
	return !TAILQ_EMPTY(&context->ready) || context->loop.count || context->errors ||
	       context->gone || context->returning;
}

/* Take what is there, for progress(). */
static bool look(struct backend_context *context)
{
	for (unsigned i = 0; i < context->port->queues && !context->held_count; i++)
		context->held_count = port_receive(context->port, i, context->held, PORT_BURST);
	return context->held_count > 0;
}

/*
 * Nothing came, and nothing waits. Whoever polls without a pause need not ask for the time with
 * each look, which costs more than the look.
 */
static bool is_quiet(struct backend_context *context)
{
	if (context->keeping && pthread_equal(pthread_self(), context->keeper))
		return false;
	return !look(context) && !context->kept_count && !has_work(context) && !any_out(context) &&
	       !__atomic_load_n(&context->woken, __ATOMIC_RELAXED) && ++context->looks % LOOKS;
}

static int dpdk_progress(struct backend_context *context)
{
	uint32_t kept;
	int done;

	if (is_quiet(context))
		return 0;
	note_time(context);
	if (!context->away) {
		drain_wake(context);
		if (context->kept_count)
			input_kept(context);
	}
	kept = context->kept_count;
	done = input_run(context);
	if (context->away && context->kept_count != kept)
		dpdk_wake(context);
	if (timers_next(&context->timers) <= context->now)
		done += run_timers(context);
	if (context->neighbour_at <= context->now)
		neighbours_run(context);
	if (context->sweep_at <= context->now)
		sweep(context);
	if (context->errors)
		done += report_errors(context);
	if (context->returning)
		done += reclaim(context);
	if (!TAILQ_EMPTY(&context->ready))
		done += output_run(context);
	output_flush(context);
	if (context->gone)
		free_gone(context);
	return done;
}

/* ---- Waiting ----------------------------------------------------------- */

/*
 * wait() looks at the time by itself, and so does the keeper for an owner that sleeps elsewhere:
 * the engine's clock would only wake it for nothing.
 */
static uint64_t dpdk_next_timer(struct backend_context *context)
{
	uint64_t at = timers_next(&context->timers);

	if (context->neighbour_at < at)
		at = context->neighbour_at;
	if (context->sweep_at < at && context->active)
		at = context->sweep_at;
	if (any_out(context) && output_offer_at(context) < at)
		at = output_offer_at(context);
	if (has_work(context))
		at = 0;
	__atomic_store_n(&context->due_at, at, __ATOMIC_RELAXED);
	/* It may be about to sleep elsewhere than in wait(). */
	if (context->watched && at && !context->away)
		keeper_wake(context);
	return at ? UINT64_MAX : 0;
}

/* Sleep, at most so long; with `port` until packets come to a port that can tell of them: true. */
static bool nap(struct backend_context *context, uint64_t ns, bool port)
{
	struct pollfd events[1 + PORT_QUEUES_MAX] = {{.fd = context->wake_fd, .events = POLLIN}};
	struct timespec time = {.tv_sec = (time_t)(ns / SECOND), .tv_nsec = (long)(ns % SECOND)};
	unsigned count = 1;
	bool came = false;

	if (port)
		count += port_events(context->port, events + 1);
	__atomic_store_n(&context->listens, count > 1, __ATOMIC_RELAXED);
	ppoll(events, count, &time, NULL);
	__atomic_store_n(&context->listens, false, __ATOMIC_RELAXED);
	for (unsigned i = 1; i < count; i++)
		came |= events[i].revents != 0;
	return came;
}

static bool is_idle(const struct backend_context *context, uint64_t now)
{
	return now - __atomic_load_n(&context->busy_at, __ATOMIC_RELAXED) > IDLE_AFTER;
}

/*
 * A port that can tell of packets wakes this thread; at others short naps between looks have to do.
 * The first one is right for the packets of tensors, too: to wake up for each of them costs more.
 */
static void dpdk_wait(struct backend_context *context, int timeout_ms)
{
	struct pollfd events[PORT_QUEUES_MAX];
	bool tells = port_events(context->port, events) > 0;
	bool listening = tells && !context->active;
	uint64_t start = haul_clock(), now = start;
	uint64_t rest = !tells && is_idle(context, now) ? NAP_IDLE : NAP_FIRST;
	uint64_t until = timeout_ms < 0 ? UINT64_MAX : start + (uint64_t)timeout_ms * MS;

	while (!look(context) && !__atomic_load_n(&context->woken, __ATOMIC_ACQUIRE)) {
		uint64_t due = __atomic_load_n(&context->due_at, __ATOMIC_RELAXED);

		if (due > until)
			due = until;
		if (now >= due)
			break;
		if (listening) {
			/* When what it tells of can't be had, a nap is better than asking again. */
			listening = !nap(context, RTE_MIN(due - now, LISTEN_MOST), true);
		} else {
			nap(context, RTE_MIN(due - now, rest), false);
			listening = tells;
		}
		now = context->input_at = haul_clock();
		__atomic_store_n(&context->looked_at, now, __ATOMIC_RELAXED);
		rest = RTE_MIN(2 * rest, NAP_LONGEST);
		if (!tells && is_idle(context, now))
			rest = NAP_IDLE;
	}
}

static int dpdk_event_fd(struct backend_context *context)
{
	context->watched = true;
	return context->wake_fd;
}

/* ---- The backend ------------------------------------------------------- */

/* What is queued need not wait for the end of its batch. */
static void leave(struct backend_link *link)
{
	stream_flush(&link->stream);
	link_ready(link);
}

static int dpdk_control(struct backend_link *link, const uint8_t *message, size_t length)
{
	const struct packet_record record = {.message = message,
					     .message_length = (uint16_t)length};
	int error = stream_append(&link->stream, &record);

	note_busy(link->context);
	if (stream_held(&link->stream) >= BATCH_MOST)
		leave(link);
	return error;
}

static int dpdk_push(struct backend_link *link, struct haul_push *push)
{
	int error = transfer_push(link, push);

	if (push->backend || stream_held(&link->stream) >= BATCH_MOST)
		leave(link);
	return error;
}

static void dpdk_flush(struct backend_link *link)
{
	struct backend_context *context = link->context;

	context->now = haul_now(context->engine);
	stream_flush(&link->stream);
	output_link(link);
	output_flush(context);
}

static int dpdk_region_add(struct backend_context *context, void *base, size_t length, unsigned use,
			   void **region)
{
	*region = NULL;
	return port_register(context->port, base, length, region);
}

static void dpdk_region_remove(struct backend_context *context, void *region)
{
	if (region)
		port_unregister(context->port, region);
}

static void *dpdk_memory_allocate(struct backend_context *context, size_t length)
{
	return port_memory(context->port, length);
}

static void dpdk_memory_free(struct backend_context *context, void *base, size_t length)
{
	port_memory_free(context->port, base);
}

static const struct haul_context_ops context_ops = {
	.probe = port_probe,
	.describe = port_describe,
	.open = dpdk_open,
	.close = dpdk_close,
	.close_in_child = dpdk_close_in_child,
	.progress = dpdk_progress,
	.wait = dpdk_wait,
	.wake = dpdk_wake,
	.event_fd = dpdk_event_fd,
	.next_timer = dpdk_next_timer,
};

static const struct haul_link_ops link_ops = {
	.listen = listen_open,
	.unlisten = listen_close,
	.connect = opening_connect,
	.disconnect = link_disconnect,
	.leaving = links_leaving,
	.control = dpdk_control,
	.flush = dpdk_flush,
	.statistics = link_statistics,
};

static const struct haul_data_ops data_ops = {
	.region_add = dpdk_region_add,
	.region_remove = dpdk_region_remove,
	.memory_allocate = dpdk_memory_allocate,
	.memory_free = dpdk_memory_free,
	.push = dpdk_push,
	.push_end = transfer_push_end,
};

__attribute__((visibility("default"))) const struct haul_backend haul_backend_dpdk = {
	.version = HAUL_BACKEND_VERSION,
	.name = "dpdk",
	.summary = "packets built here, over any DPDK port",
	.options = dpdk_options,
	.config_size = sizeof(struct dpdk_config),
	.context = &context_ops,
	.link = &link_ops,
	.data = &data_ops,
};
