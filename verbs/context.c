/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs backend: opening, progress, waiting. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "verbs.h"

/* Descriptors that are looked at together. */
#define EVENTS_MAX 32

/*
 * While somebody polls without a pause, the descriptors are looked at so often, since that is a
 * system call and what it tells is never urgent: rdma_cm's news. One look at the completion queues
 * in so many asks for the time.
 */
#define LOOK_EVERY MS
#define CLOCK_EVERY 4

/* So many idle links are polled like the others; beyond that, events tell which have something. */
#define ARMED_POLLED 16

int verbs_fail(struct backend_context *context, int error, const char *format, ...)
{
	va_list arguments;

	context->error = error;
	va_start(arguments, format);
	vsnprintf(context->why, sizeof(context->why), format, arguments);
	va_end(arguments);
	return haul_fail(context->engine, error, "%s", context->why);
}

/* ---- Opening ----------------------------------------------------------- */

/* Contexts of this process, and of its parent's when it was forked. */
static struct {
	pthread_mutex_t lock;
	pid_t owner;
	unsigned count;
} open_contexts = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void context_free(struct backend_context *context)
{
	struct device *device;

	while ((device = TAILQ_FIRST(&context->devices))) {
		TAILQ_REMOVE(&context->devices, device, all);
		device_free(device);
	}
	if (context->events)
		rdma_destroy_event_channel(context->events);
	if (context->epoll >= 0)
		close(context->epoll);
	if (context->wake >= 0)
		close(context->wake);
	if (context->mailbox)
		munmap(context->mailbox, (size_t)2 * MAILBOX_SIZE);
	free(context->found);
	if (context->counted) {
		pthread_mutex_lock(&open_contexts.lock);
		open_contexts.count--;
		pthread_mutex_unlock(&open_contexts.lock);
	}
	free(context);
}

int verbs_watch(struct backend_context *context, int fd, void *what)
{
	struct epoll_event event = {.events = EPOLLIN, .data.ptr = what};

	return epoll_ctl(context->epoll, EPOLL_CTL_ADD, fd, &event) ? -errno : 0;
}

int verbs_set_nonblocking(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) ? -errno : 0;
}

/* Libraries tell something else now and then. */
bool verbs_is_forbidden(const char *path)
{
	return faccessat(AT_FDCWD, path, R_OK | W_OK, AT_EACCESS) && errno == EACCES;
}

const char *verbs_lock_limit(char text[LOCK_LIMIT_ROOM])
{
	struct rlimit limit = {0};

	getrlimit(RLIMIT_MEMLOCK, &limit);
	if (limit.rlim_cur == RLIM_INFINITY)
		snprintf(text, LOCK_LIMIT_ROOM, "locked memory (RLIMIT_MEMLOCK) is not limited");
	else
		snprintf(text, LOCK_LIMIT_ROOM,
			 "the limit of locked memory (RLIMIT_MEMLOCK) is %llu KiB: `ulimit -l "
			 "unlimited`, or a line \"* - memlock unlimited\" in "
			 "/etc/security/limits.conf",
			 (unsigned long long)limit.rlim_cur / 1024);
	return text;
}

int verbs_no_descriptor(struct backend_context *context)
{
	return verbs_fail(
		context, -EMFILE,
		"no descriptor for the context: the limit of open files is %ld (ulimit -n "
		"shows and raises it)",
		sysconf(_SC_OPEN_MAX));
}

static int open_events(struct backend_context *context)
{
	int error;

	context->events = rdma_create_event_channel();
	if (!context->events && (errno == EMFILE || errno == ENFILE))
		return verbs_no_descriptor(context);
	if (!context->events) {
		error = -errno;
		/* Without an adapter rdma_cm is not there either, and not what is missing. */
		if (!device_is_any())
			return device_missing(context);
		if (verbs_is_forbidden("/dev/infiniband/rdma_cm"))
			error = -EACCES;
		return verbs_fail(
			context, error,
			"no RDMA connections can be made: %s; /dev/infiniband/rdma_cm has "
			"to be there (`modprobe rdma_ucm`), and this user has to be "
			"allowed to read and write it",
			haul_strerror(error));
	}
	error = verbs_set_nonblocking(context->events->fd);
	if (error)
		return error;
	context->epoll = haul_descriptor(epoll_create1(EPOLL_CLOEXEC));
	context->wake = haul_descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	if (context->epoll < 0 || context->wake < 0)
		return verbs_no_descriptor(context);
	error = verbs_watch(context, context->wake, NULL);
	return error ? error : verbs_watch(context, context->events->fd, context->events);
}

static int check_config(struct backend_context *context)
{
	const struct verbs_config *config = context->config;

	if (config->windows == WINDOWS_ON && config->qps != HAUL_OPTION_AUTO && config->qps > 1)
		return verbs_fail(context, -EINVAL,
				  "windows=on and qps=%llu: a window belongs to one queue pair, so "
				  "it is one of both",
				  (unsigned long long)config->qps);
	if (config->bind && config->gid != HAUL_OPTION_AUTO)
		return verbs_fail(context, -EINVAL,
				  "bind=%s and gid=%llu: both say which address is used, so give "
				  "one of them",
				  config->bind, (unsigned long long)config->gid);
	return 0;
}

/* librdmacm keeps one descriptor for each device, which a forked child shares with its parent. */
static int check_process(struct backend_context *context)
{
	bool foreign;

	pthread_mutex_lock(&open_contexts.lock);
	foreign = open_contexts.count > 0 && open_contexts.owner != getpid();
	if (!foreign) {
		open_contexts.owner = getpid();
		open_contexts.count++;
		context->counted = true;
	}
	pthread_mutex_unlock(&open_contexts.lock);
	if (!foreign)
		return 0;
	return verbs_fail(
		context, -ECHILD,
		"the process that this one was forked from has verbs open, and shares its "
		"devices: let the child execute a program, or open verbs after the fork only");
}

/*
 * From Linux 5.12 on, fork() copies pinned pages at once, and the parent's stay where adapters find
 * them. Before that libibverbs has to take registered pages away from children, with all else that
 * lies in them: a child may not even find the words for its execve().
 */
static bool kernel_needs_fork_init(void)
{
	struct utsname name;
	unsigned major, minor;

	if (uname(&name) || sscanf(name.release, "%u.%u", &major, &minor) != 2)
		return true;
	return major < 5 || (major == 5 && minor < 12);
}

static int verbs_open(haul_context *engine, const void *config, struct backend_context **out)
{
	struct backend_context *context = calloc(1, sizeof(*context));
	struct sockaddr_storage source;
	int error;

	if (!context)
		return -ENOMEM;
	context->engine = engine;
	context->config = config;
	context->traced = haul_is_traced(engine);
	context->next_timer = UINT64_MAX;
	context->epoll = context->wake = -1;
	TAILQ_INIT(&context->devices);
	TAILQ_INIT(&context->regions);
	TAILQ_INIT(&context->listeners);
	TAILQ_INIT(&context->links);
	if (kernel_needs_fork_init() && ibv_fork_init())
		haul_log(HAUL_LOG_WARNING, "memory may be torn by fork(): ibv_fork_init() failed");
	error = check_process(context);
	if (!error)
		error = check_config(context);
	if (!error)
		error = open_events(context);
	context->found = calloc(EVENTS_MAX, sizeof(struct epoll_event));
	context->mailbox = mmap(NULL, (size_t)2 * MAILBOX_SIZE, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (context->mailbox == MAP_FAILED)
		context->mailbox = NULL;
	if (!error && (!context->found || !context->mailbox))
		error = -ENOMEM;
	/* Mistakes of bind=, gid= and device= are told now, not with the first connection. */
	if (!error && !device_default(context))
		error = context->error;
	if (!error && (context->config->bind || context->config->gid != HAUL_OPTION_AUTO))
		error = device_source(context, AF_UNSPEC, &source);
	if (error) {
		context_free(context);
		return error;
	}
	*out = context;
	return 0;
}

static void verbs_close(struct backend_context *context)
{
	while (!TAILQ_EMPTY(&context->links))
		link_free(TAILQ_FIRST(&context->links));
	context_free(context);
}

/* A queue pair lives for as long as anybody holds its descriptors. */
static void verbs_close_in_child(struct backend_context *context)
{
	struct device *device;

	TAILQ_FOREACH (device, &context->devices, all) {
		close(device->events->fd);
		close(device->verbs->cmd_fd);
		close(device->verbs->async_fd);
	}
	close(context->events->fd);
	close(context->epoll);
	close(context->wake);
}

/* ---- Progress ---------------------------------------------------------- */

static void completion_events(struct device *device)
{
	struct ibv_cq *cq;
	void *user;

	while (ibv_get_cq_event(device->events, &cq, &user) == 0) {
		struct backend_link *link = user;

		ibv_ack_cq_events(cq, 1);
		if (!link->armed)
			continue;
		link->armed = false;
		link->context->armed--;
	}
}

static int take_events(struct backend_context *context)
{
	int count = context->event_count, done = 0;
	uint64_t value;
	ssize_t ignored;

	context->event_count = 0;
	for (int i = 0; i < count; i++) {
		void *what = context->found[i].data.ptr;

		if (!what) {
			ignored = read(context->wake, &value, sizeof(value));
			(void)ignored;
		} else if (what == context->events) {
			done += connect_events(context);
		} else {
			completion_events(what);
		}
	}
	return done;
}

/* `now`: 0 when nobody asked for the time. */
static void look(struct backend_context *context, uint64_t now)
{
	if (context->event_count)
		return;
	if (context->armed <= ARMED_POLLED && (!now || now - context->looked_at < LOOK_EVERY))
		return;
	context->looked_at = now;
	context->event_count = epoll_wait(context->epoll, context->found, EVENTS_MAX, 0);
	if (context->event_count < 0)
		context->event_count = 0;
}

static void report_errors(struct backend_context *context)
{
	struct backend_link *link, *next;

	for (link = TAILQ_FIRST(&context->links); link && context->errors; link = next) {
		next = TAILQ_NEXT(link, all);
		if (!link->error || link->lost || link->state == LINK_GONE)
			continue;
		link->lost = true;
		link_forget_error(link);
		if (link->endpoint) {
			/* The engine disconnects the link from within. */
			haul_on_lost(link->endpoint, link->error, link->why);
		} else {
			haul_log(HAUL_LOG_INFO, "%s was dropped: %s", link->address, link->why);
			link_gone(link);
		}
	}
}

static void run_timers(struct backend_context *context, uint64_t now)
{
	struct backend_link *link;

	context->next_timer = UINT64_MAX;
	TAILQ_FOREACH (link, &context->links, all)
		link_timers(link, now);
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

static int poll_links(struct backend_context *context)
{
	struct backend_link *link;
	int done = 0;

	TAILQ_FOREACH (link, &context->links, all) {
		if ((!link->armed || context->armed <= ARMED_POLLED) && !link->error &&
		    link->state != LINK_GONE)
			done += link_poll(link);
		if (link->state == LINK_LEAVING)
			link_leave(link);
	}
	return done;
}

static int verbs_progress(struct backend_context *context)
{
	uint64_t now = context->looks++ % CLOCK_EVERY ? 0 : haul_clock();
	int done;

	look(context, now);
	done = take_events(context);
	done += poll_links(context);
	if (now >= context->next_timer) {
		run_timers(context, now);
		done++;
	}
	if (context->errors) {
		report_errors(context);
		done++;
	}
	if (context->gone)
		free_gone(context);
	return done;
}

/* ---- Waiting ----------------------------------------------------------- */

static void verbs_wait(struct backend_context *context, int timeout_ms)
{
	int count;

	if (context->event_count)
		return;
	__atomic_store_n(&context->sleeping, true, __ATOMIC_RELAXED);
	count = epoll_wait(context->epoll, context->found, EVENTS_MAX, timeout_ms);
	__atomic_store_n(&context->sleeping, false, __ATOMIC_RELAXED);
	/* Other threads look at the count meanwhile, at the events only this one does. */
	__atomic_store_n(&context->event_count, count > 0 ? count : 0, __ATOMIC_RELAXED);
}

static void verbs_wake(struct backend_context *context)
{
	uint64_t value = 1;
	ssize_t ignored = write(context->wake, &value, sizeof(value));

	(void)ignored;
}

static int verbs_event_fd(struct backend_context *context)
{
	return context->epoll;
}

/* Somebody is about to sleep: ask every completion queue for an event. */
static uint64_t verbs_next_timer(struct backend_context *context)
{
	struct backend_link *link;
	bool found = false;

	TAILQ_FOREACH (link, &context->links, all) {
		if (!link->error && link->state != LINK_GONE)
			found = link_arm(link) || found;
	}
	if (found && __atomic_load_n(&context->sleeping, __ATOMIC_RELAXED))
		verbs_wake(context); /* another thread sleeps, and these raise no event */
	if (found || context->errors || context->gone ||
	    __atomic_load_n(&context->event_count, __ATOMIC_RELAXED))
		return 0;
	return context->next_timer;
}

/* ---- The backend ------------------------------------------------------- */

static const struct haul_context_ops context_ops = {
	.probe = verbs_probe,
	.describe = verbs_describe,
	.open = verbs_open,
	.close = verbs_close,
	.close_in_child = verbs_close_in_child,
	.progress = verbs_progress,
	.wait = verbs_wait,
	.wake = verbs_wake,
	.event_fd = verbs_event_fd,
	.next_timer = verbs_next_timer,
};

static const struct haul_link_ops link_ops = {
	.listen = verbs_listen,
	.unlisten = verbs_unlisten,
	.connect = verbs_connect,
	.disconnect = verbs_disconnect,
	.leaving = verbs_leaving,
	.control = verbs_control,
	.flush = verbs_flush,
	.statistics = verbs_statistics,
};

static const struct haul_data_ops data_ops = {
	.region_add = verbs_region_add,
	.region_add_dmabuf = verbs_region_add_dmabuf,
	.region_remove = verbs_region_remove,
	.slot_open = verbs_slot_open,
	.slot_close = verbs_slot_close,
	.push = verbs_push,
	.push_end = verbs_push_end,
};

__attribute__((visibility("default"))) const struct haul_backend haul_backend_verbs = {
	.version = HAUL_BACKEND_VERSION,
	.name = "verbs",
	.summary = "RDMA writes over InfiniBand, RoCE or iWARP",
	.options = verbs_options,
	.config_size = sizeof(struct verbs_config),
	.context = &context_ops,
	.link = &link_ops,
	.data = &data_ops,
};
