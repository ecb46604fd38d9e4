/* SPDX-License-Identifier: Apache-2.0 */
/* Worlds: what a test made, and that nothing of it is left behind. */
#include "harness.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ledger.h"
#include "peer.h"

/* How long world_sleep() trusts the event descriptors before it polls the sides anyway. */
#define SLICE_MS 773

/* From here on memory is mapped, so that pages are only taken when they are touched. */
#define MAPPED_FROM ((size_t)1 << 16)

struct allocation {
	struct allocation *next;
	void *base;
	size_t bytes; /* mapped; 0: from calloc() */
};

/* ---- Memory and files -------------------------------------------------- */

void *world_memory(struct world *world, size_t bytes)
{
	struct allocation *allocation = calloc(1, sizeof(*allocation));

	assert_non_null(allocation);
	if (bytes < MAPPED_FROM) {
		allocation->base = calloc(1, bytes ? bytes : 1);
		assert_non_null(allocation->base);
	} else {
		allocation->base = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
					MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		assert_ptr_not_equal(allocation->base, MAP_FAILED);
		allocation->bytes = bytes;
	}
	allocation->next = world->memory;
	world->memory = allocation;
	return allocation->base;
}

static void memory_free(struct world *world)
{
	struct allocation *allocation;

	while ((allocation = world->memory)) {
		world->memory = allocation->next;
		if (allocation->bytes)
			munmap(allocation->base, allocation->bytes);
		else
			free(allocation->base);
		free(allocation);
	}
}

char *world_text(struct world *world, const char *format, ...)
{
	va_list arguments;
	char *text;
	int length;

	va_start(arguments, format);
	length = vsnprintf(NULL, 0, format, arguments);
	va_end(arguments);
	text = world_memory(world, (size_t)length + 1);
	va_start(arguments, format);
	vsnprintf(text, (size_t)length + 1, format, arguments);
	va_end(arguments);
	return text;
}

char *world_file(struct world *world, const char *name, const void *bytes, size_t length,
		 unsigned mode)
{
	const char *temporary = getenv("TMPDIR");
	char *path;
	int file;

	if (!world->folder[0]) {
		snprintf(world->folder, sizeof(world->folder), "%s/conformance-XXXXXX",
			 temporary && strlen(temporary) < 40 ? temporary : "/tmp");
		assert_non_null(mkdtemp(world->folder));
	}
	path = world_text(world, "%s/%s", world->folder, name);
	file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	assert_true(file >= 0);
	assert_int_equal(write(file, bytes, length), (ssize_t)length);
	assert_int_equal(fchmod(file, mode), 0);
	close(file);
	return path;
}

static int remove_visited(const char *path, const struct stat *status, int kind, struct FTW *where)
{
	return remove(path);
}

/* ---- Specs ------------------------------------------------------------- */

/* The length of the first part of a spec, up to a comma that is in no braces. */
static size_t part_length(const char *spec)
{
	size_t i;
	int depth = 0;

	for (i = 0; spec[i] && (depth || spec[i] != ','); i++) {
		if (spec[i] == '{')
			depth++;
		else if (spec[i] == '}')
			depth--;
	}
	return i;
}

/* Whether `options` sets the option that `part` ("name=value") sets. */
static bool sets_same(const char *options, const char *part)
{
	size_t name = strcspn(part, "=") + 1;

	while (options && *options) {
		size_t length = part_length(options);

		if (length >= name && !strncmp(options, part, name))
			return true;
		options += length;
		options += *options == ',';
	}
	return false;
}

char *spec_with(struct world *world, const char *spec, const char *options)
{
	char *text = world_memory(world, strlen(spec) + (options ? strlen(options) : 0) + 2);
	size_t used = part_length(spec);

	memcpy(text, spec, used);
	for (const char *part = spec + used; *part; part += part_length(part)) {
		part++; /* the comma */
		if (sets_same(options, part))
			continue;
		text[used++] = ',';
		memcpy(text + used, part, part_length(part));
		used += part_length(part);
	}
	if (options && *options) {
		text[used++] = ',';
		strcpy(text + used, options);
	}
	return text;
}

/* ---- Worlds ------------------------------------------------------------ */

struct world *world_new(void *parameter)
{
	struct world *world = calloc(1, sizeof(*world));

	if (!world)
		return NULL;
	world->parameter = parameter;
	world->descriptors = descriptors_open();
	/* The thread sanitizer starts one of its own when it likes to. */
	world->threads = threads_running() + (thread_sanitized() ? 1 : 0);
	return world;
}

/* A thread of the transport's may close some a moment later. */
static int descriptors_over(int allowed)
{
	const uint64_t until = now_ms() + 3000;
	const struct timespec pause = {.tv_nsec = 1000000};

	while (descriptors_open() > allowed && now_ms() < until)
		nanosleep(&pause, NULL);
	return descriptors_open() - allowed;
}

static int world_check_left(const struct world *world)
{
	int descriptors = descriptors_over(world->descriptors);
	int threads = threads_over(world->threads);

	if (descriptors)
		print_error("%+d descriptors after the test (F29)\n", descriptors);
	if (threads > 0)
		print_error("%d threads are left after the test\n", threads);
	if (world->late_wakeups > 1)
		print_error("haul_event_fd() did not tell of completions %lu times\n",
			    world->late_wakeups);
	return descriptors || threads > 0 || world->late_wakeups > 1 ? -1 : 0;
}

static void *close_in_thread(void *side)
{
	side_free(side);
	return NULL;
}

/* All at once: each waits a while for the others to take its last messages. */
static void sides_close(struct world *world)
{
	pthread_t threads[SIDES_MAX];
	unsigned count = 0;

	for (unsigned i = 0; i < world->side_count; i++) {
		struct side *side = world->sides[i];

		world->sides[i] = NULL;
		if (side && !pthread_create(&threads[count], NULL, close_in_thread, side))
			count++;
	}
	while (count)
		pthread_join(threads[--count], NULL);
}

int world_free(struct world *world)
{
	int result;

	peers_end(world);
	sides_close(world);
	numbers_give_back(world);
	memory_free(world);
	if (world->folder[0])
		nftw(world->folder, remove_visited, 4, FTW_DEPTH | FTW_PHYS);
	result = world_check_left(world);
	free(world);
	return result;
}

int world_setup(void **state)
{
	struct world *world = world_new(*state);

	*state = world;
	alarm(settings.full || sanitized() ? 1200 : 120); /* a call that never comes back */
	return world ? 0 : -1;
}

int world_teardown(void **state)
{
	int result = world_free(*state);

	alarm(0);
	return result;
}

/* ---- Running ----------------------------------------------------------- */

/* Fill in the descriptors of the sides that are awake, and of the peers. */
static nfds_t world_descriptors(struct world *world, struct pollfd *list, nfds_t room)
{
	nfds_t count = 0;

	for (unsigned i = 0; i < world->side_count && count < room; i++) {
		struct side *side = world->sides[i];

		if (!side || side->asleep)
			continue;
		list[count].fd = haul_event_fd(side->context);
		list[count++].events = POLLIN;
	}
	for (struct peer *peer = world->peers; peer && count < room; peer = peer->next) {
		if (peer->answers < 0)
			continue;
		list[count].fd = peer->answers;
		list[count++].events = POLLIN;
	}
	return count;
}

/* The time is over, and neither the library nor we were told of anything. */
static bool slept_through(struct world *world, uint64_t until)
{
	struct pollfd list[SIDES_MAX + 16];
	nfds_t count = world_descriptors(world, list, SIDES_MAX + 16);
	uint64_t now = now_ms();
	int slice = until > now ? (int)(until - now) : 0;

	if (slice > SLICE_MS)
		slice = SLICE_MS;
	return poll(list, count, slice) == 0 && poll(list, count, 0) == 0;
}

void world_sleep(struct world *world, uint64_t until)
{
	bool late = false;

	if (!slept_through(world, until) || now_ms() >= until)
		return;
	for (unsigned i = 0; i < world->side_count; i++) {
		struct side *side = world->sides[i];

		if (!side || side->asleep || side_poll(side) == 0)
			continue;
		/* A thread of the library's may have done it just now, while it held the lock. */
		if (!strstr(haul_spec(side->context), "progress=thread"))
			late = true;
	}
	world->late_wakeups += late;
}

static bool world_poll(struct world *world)
{
	bool moved = false;

	for (unsigned i = 0; i < world->side_count; i++) {
		if (world->sides[i] && !world->sides[i]->asleep)
			moved |= side_poll(world->sides[i]) > 0;
	}
	return moved;
}

static void world_tell(struct world *world)
{
	for (unsigned i = 0; i < world->side_count; i++) {
		struct side *side = world->sides[i];

		if (side)
			print_error("side %c: %lu operations started, %lu ended, %u accepted, %u "
				    "lost\n",
				    side->name, side->started, side->finished, side->accepted_count,
				    side->lost_count);
	}
}

void world_step(struct world *world, uint64_t until, const char *what)
{
	if (world_poll(world))
		return;
	if (now_ms() >= until) {
		world_tell(world);
		fail_msg("waited too long for %s", what);
	}
	world_sleep(world, until);
}

void world_run_for(struct world *world, unsigned ms)
{
	uint64_t until = now_ms() + ms;

	while (now_ms() < until) {
		if (!world_poll(world))
			world_sleep(world, until);
	}
}

void wait_until(struct world *world, bool (*ready)(void *user), void *user, const char *what)
{
	uint64_t until = now_ms() + PATIENCE_MS;

	while (!ready(user))
		world_step(world, until, what);
}
