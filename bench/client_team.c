/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One client works in this process. Several are a process each, so that they share nothing, as
 * clients on several hosts: a command goes to each over a socket pair, a result comes back.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client.h"

struct member {
	pid_t process;
	int fd;
};

struct team {
	unsigned size;
	struct worker *worker; /* the only one, or NULL */
	struct member *members;
	struct meter_live *live; /* two for each client, shared with its process */
	/* The thread that writes the live lines. */
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t over;
	const char *label;
	bool showing;
};

/* ---- Live lines ---- */

static void add_up(const struct team *team, uint64_t *bytes, uint64_t *tensors)
{
	*bytes = *tensors = 0;
	for (unsigned i = 0; i < 2 * team->size; i++) {
		*bytes += atomic_load_explicit(&team->live[i].bytes, memory_order_relaxed);
		*tensors += atomic_load_explicit(&team->live[i].tensors, memory_order_relaxed);
	}
}

static void print_line(const struct team *team, unsigned second, uint64_t bytes, uint64_t tensors)
{
	const char *what = strcmp(team->label, test_names[TEST_LATENCY]) == 0 ? "pings" : "tensors";

	printf("%-24s %4u s %10.3f Gb/s", team->label, second, (double)bytes * 8e-9);
	/* Plain TCP has none. */
	if (tensors)
		printf(" %10llu %s", (unsigned long long)tensors, what);
	putchar('\n');
	fflush(stdout);
}

static void *show_lines(void *argument)
{
	struct team *team = argument;
	uint64_t bytes, tensors, bytes_before = 0, tensors_before = 0;
	struct timespec due;
	unsigned second = 0;

	clock_gettime(CLOCK_MONOTONIC, &due);
	pthread_mutex_lock(&team->lock);
	while (team->showing) {
		due.tv_sec++;
		while (team->showing &&
		       pthread_cond_timedwait(&team->over, &team->lock, &due) != ETIMEDOUT)
			;
		if (!team->showing)
			break;
		add_up(team, &bytes, &tensors);
		print_line(team, ++second, bytes - bytes_before, tensors - tensors_before);
		bytes_before = bytes;
		tensors_before = tensors;
	}
	pthread_mutex_unlock(&team->lock);
	return NULL;
}

static void show(struct team *team, const char *label)
{
	if (!label)
		return;
	for (unsigned i = 0; i < 2 * team->size; i++) {
		atomic_store(&team->live[i].bytes, 0);
		atomic_store(&team->live[i].tensors, 0);
	}
	team->label = label;
	team->showing = true;
	if (pthread_create(&team->thread, NULL, show_lines, team))
		team->showing = false;
}

static void stop_showing(struct team *team)
{
	if (!team->showing)
		return;
	pthread_mutex_lock(&team->lock);
	team->showing = false;
	pthread_cond_signal(&team->over);
	pthread_mutex_unlock(&team->lock);
	pthread_join(team->thread, NULL);
}

/* ---- The processes ---- */

static bool send_all(int fd, const void *bytes, size_t length)
{
	const char *at = bytes;

	while (length) {
		ssize_t put = send(fd, at, length, MSG_NOSIGNAL);

		if (put < 0 && errno == EINTR)
			continue;
		if (put <= 0)
			return false;
		at += put;
		length -= (size_t)put;
	}
	return true;
}

static bool receive_all(int fd, void *bytes, size_t length)
{
	char *at = bytes;

	while (length) {
		ssize_t got = recv(fd, at, length, 0);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return false;
		at += got;
		length -= (size_t)got;
	}
	return true;
}

_Noreturn static void be_member(const struct client_options *options, unsigned number,
				struct meter_live *live, int fd)
{
	struct worker *worker = worker_new(options, number, live);
	struct result *result = malloc(sizeof(*result));
	struct command command;

	while (worker && result && receive_all(fd, &command, sizeof(command))) {
		worker_execute(worker, &command, result);
		if (!send_all(fd, result, sizeof(*result)))
			break;
	}
	worker_free(worker);
	free(result);
	/* The parent's standard streams are not flushed a second time. */
	_exit(0);
}

static bool fork_member(struct team *team, const struct client_options *options, unsigned number)
{
	struct member *member = &team->members[number];
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) {
		bench_complain("client %u: socketpair: %s", number, strerror(errno));
		return false;
	}
	member->process = fork();
	if (member->process == 0) {
		/* Otherwise a member would not notice that the parent is gone. */
		for (unsigned i = 0; i < number; i++)
			close(team->members[i].fd);
		close(pair[0]);
		be_member(options, number, team->live + 2 * (size_t)number, pair[1]);
	}
	close(pair[1]);
	member->fd = pair[0];
	if (member->process < 0)
		bench_complain("client %u: fork: %s", number, strerror(errno));
	return member->process > 0;
}

static bool fork_members(struct team *team, const struct client_options *options)
{
	team->members = calloc(team->size, sizeof(*team->members));
	if (!team->members)
		return false;
	for (unsigned i = 0; i < team->size; i++)
		team->members[i].fd = -1;
	for (unsigned i = 0; i < team->size; i++)
		if (!fork_member(team, options, i))
			return false;
	return true;
}

static size_t live_length(const struct team *team)
{
	return 2 * (size_t)team->size * sizeof(*team->live);
}

static void init_locks(struct team *team)
{
	pthread_condattr_t attributes;

	pthread_mutex_init(&team->lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&team->over, &attributes);
	pthread_condattr_destroy(&attributes);
}

struct team *team_new(const struct client_options *options)
{
	struct team *team = calloc(1, sizeof(*team));
	bool well;

	if (!team) {
		bench_complain("no memory");
		return NULL;
	}
	team->size = (unsigned)options->clients;
	init_locks(team);
	team->live = mmap(NULL, live_length(team), PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (team->live == MAP_FAILED) {
		bench_complain("no memory");
		team->live = NULL;
		team_free(team);
		return NULL;
	}
	if (team->size == 1) {
		team->worker = worker_new(options, 0, team->live);
		well = team->worker != NULL;
	} else {
		well = fork_members(team, options);
	}
	if (well)
		return team;
	team_free(team);
	return NULL;
}

unsigned team_size(const struct team *team)
{
	return team->size;
}

void team_free(struct team *team)
{
	if (!team)
		return;
	worker_free(team->worker);
	for (unsigned i = 0; team->members && i < team->size; i++)
		if (team->members[i].fd >= 0)
			close(team->members[i].fd);
	/* They end when their socket does. */
	for (unsigned i = 0; team->members && i < team->size; i++)
		if (team->members[i].process > 0)
			waitpid(team->members[i].process, NULL, 0);
	free(team->members);
	if (team->live)
		munmap(team->live, live_length(team));
	pthread_cond_destroy(&team->over);
	pthread_mutex_destroy(&team->lock);
	free(team);
}

/* ---- Commands ---- */

static void describe_end(struct member *member, struct result *result)
{
	int status = 0;

	waitpid(member->process, &status, 0);
	member->process = 0;
	if (WIFSIGNALED(status))
		result_fail(result, "its process was ended by signal %d (%s)", WTERMSIG(status),
			    strsignal(WTERMSIG(status)));
	else
		result_fail(result, "its process ended with status %d", WEXITSTATUS(status));
}

static bool complain(const struct team *team, unsigned number, const struct result *result)
{
	if (!result->failed)
		return true;
	if (team->size > 1)
		bench_complain("client %u: %s", number, result->error);
	else
		bench_complain("%s", result->error);
	return false;
}

/* The first `count` members, at the same time. */
static bool command_members(struct team *team, unsigned count, const struct command *command,
			    struct result *results)
{
	bool well = true;

	for (unsigned i = 0; i < count; i++)
		send_all(team->members[i].fd, command, sizeof(*command));
	for (unsigned i = 0; i < count; i++) {
		if (!receive_all(team->members[i].fd, &results[i], sizeof(results[i]))) {
			memset(&results[i], 0, sizeof(results[i]));
			describe_end(&team->members[i], &results[i]);
		}
		well = complain(team, i, &results[i]) && well;
	}
	return well;
}

static bool run(struct team *team, unsigned count, const struct command *command,
		struct result *results, const char *label)
{
	bool well;

	show(team, label);
	if (team->worker) {
		worker_execute(team->worker, command, results);
		stop_showing(team);
		return complain(team, 0, results);
	}
	well = command_members(team, count, command, results);
	stop_showing(team);
	return well;
}

bool team_all(struct team *team, const struct command *command, struct result *results,
	      const char *label)
{
	return run(team, team->size, command, results, label);
}

bool team_first(struct team *team, const struct command *command, struct result *result,
		const char *label)
{
	return run(team, 1, command, result, label);
}
