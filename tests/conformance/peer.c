/* SPDX-License-Identifier: Apache-2.0 */
#include "peer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* In the forked child, before exec: nothing here takes a lock or memory. */
static void become_peer(char *const arguments[], const int commands[2], const int answers[2],
			pid_t parent, unsigned descriptors)
{
	struct rlimit limit = {descriptors, descriptors};

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
	dup2(commands[0], STDIN_FILENO);
	dup2(answers[1], STDOUT_FILENO);
	if (descriptors)
		setrlimit(RLIMIT_NOFILE, &limit);
	alarm(0);
	execv("/proc/self/exe", arguments);
	_exit(127);
}

struct peer *peer_start_limited(struct world *world, const char *options, unsigned descriptors)
{
	struct peer *peer = calloc(1, sizeof(*peer));
	char *arguments[5] = {"conformance", "--peer"};
	int commands[2], answers[2];
	pid_t parent = getpid();
	char *spec;

	assert_non_null(peer);
	spec = spec_numbered(spec_with(world, settings.peer_transport, options), &peer->number);
	arguments[2] = world_text(world, "--transport=%s", spec);
	free(spec);
	arguments[3] = world_text(world, "--listen-host=%s", settings.listen_host);
	assert_int_equal(pipe2(commands, O_CLOEXEC), 0);
	assert_int_equal(pipe2(answers, O_CLOEXEC), 0);
	peer->pid = fork();
	assert_true(peer->pid >= 0);
	if (!peer->pid)
		become_peer(arguments, commands, answers, parent, descriptors);
	close(commands[0]);
	close(answers[1]);
	fcntl(answers[0], F_SETFL, O_NONBLOCK);
	peer->commands = commands[1];
	peer->answers = answers[0];
	peer->world = world;
	peer->next = world->peers;
	world->peers = peer;
	return peer;
}

struct peer *peer_start(struct world *world, const char *options)
{
	return peer_start_limited(world, options, 0);
}

/* ---- Commands ---------------------------------------------------------- */

static void peer_write(struct peer *peer, const char *format, va_list arguments)
{
	char line[1024];
	int length = vsnprintf(line, sizeof(line) - 1, format, arguments);

	assert_in_range(length, 1, sizeof(line) - 2);
	line[length++] = '\n';
	assert_int_equal(write(peer->commands, line, (size_t)length), length);
}

void peer_say(struct peer *peer, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	peer_write(peer, format, arguments);
	va_end(arguments);
}

const char *peer_answer(struct peer *peer)
{
	char *end;
	ssize_t got =
		read(peer->answers, peer->line + peer->used, sizeof(peer->line) - 1 - peer->used);

	if (got > 0)
		peer->used += (size_t)got;
	peer->line[peer->used] = '\0';
	end = strchr(peer->line, '\n');
	if (!end) {
		if (got == 0)
			fail_msg("peer %d has ended", (int)peer->pid);
		return NULL;
	}
	*end++ = '\0';
	memcpy(peer->answer, peer->line, (size_t)(end - peer->line));
	peer->used -= (size_t)(end - peer->line);
	memmove(peer->line, end, peer->used);
	return peer->answer;
}

static const char *peer_await(struct peer *peer)
{
	uint64_t until = now_ms() + PATIENCE_MS;
	const char *answer;

	while (!(answer = peer_answer(peer)))
		world_step(peer->world, until, "a peer's answer");
	return answer;
}

const char *peer_try(struct peer *peer, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	peer_write(peer, format, arguments);
	va_end(arguments);
	return peer_await(peer);
}

const char *peer_ask(struct peer *peer, const char *format, ...)
{
	va_list arguments;
	const char *answer;

	va_start(arguments, format);
	peer_write(peer, format, arguments);
	va_end(arguments);
	answer = peer_await(peer);
	if (strncmp(answer, "ok", 2))
		fail_msg("peer: %s", answer);
	return answer[2] ? answer + 3 : answer + 2;
}

void peer_wait_accepted(struct peer *peer, unsigned count)
{
	uint64_t until = now_ms() + PATIENCE_MS;
	unsigned accepted = 0;

	for (;;) {
		sscanf(peer_ask(peer, "count"), "%*u %*u %*u %u", &accepted);
		if (accepted >= count)
			return;
		if (now_ms() >= until)
			fail_msg("the peer has accepted %u of %u", accepted, count);
		world_run_for(peer->world, 1);
	}
}

/* ---- Life and death ---------------------------------------------------- */

static void peer_close(struct peer *peer)
{
	close(peer->commands);
	close(peer->answers);
	peer->commands = peer->answers = -1;
	peer->pid = 0;
	number_give_back(peer->number);
}

void peer_succeed(const struct peer *peer)
{
	number_again(peer->number);
}

/* A killed process may hang in its kernel, which then can tell where. */
static void print_stack(pid_t pid)
{
	char path[40], line[200];
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/stack", (int)pid);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file))
		print_error("%s", line);
	if (file)
		fclose(file);
}

void peer_kill(struct peer *peer)
{
	struct pollfd end = {.fd = pidfd_open(peer->pid, 0), .events = POLLIN};

	/* One that has been waited for has no descriptor any more. */
	if (end.fd >= 0) {
		kill(peer->pid, SIGKILL);
		if (poll(&end, 1, PATIENCE_MS) != 1) {
			print_stack(peer->pid);
			fail_msg("peer %d was killed and does not end", (int)peer->pid);
		}
		close(end.fd);
		waitpid(peer->pid, NULL, 0);
	}
	peer_close(peer);
}

void peer_stop(struct peer *peer)
{
	int status;

	assert_int_equal(kill(peer->pid, SIGSTOP), 0);
	assert_int_equal(waitpid(peer->pid, &status, WUNTRACED), peer->pid);
	assert_true(WIFSTOPPED(status));
}

void peer_continue(struct peer *peer)
{
	assert_int_equal(kill(peer->pid, SIGCONT), 0);
}

/* Its context may need ours to close in order, so the world runs meanwhile. */
void peer_exit(struct peer *peer)
{
	uint64_t until = now_ms() + PATIENCE_MS;
	int status;
	pid_t gone;

	peer_ask(peer, "exit");
	close(peer->answers);
	peer->answers = -1;
	while ((gone = waitpid(peer->pid, &status, WNOHANG)) == 0) {
		if (now_ms() >= until)
			fail_msg("peer %d does not exit", (int)peer->pid);
		world_run_for(peer->world, 2);
	}
	assert_int_equal(gone, peer->pid);
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		fail_msg("peer %d ended with status %#x", (int)peer->pid, status);
	peer_close(peer);
}

void peers_end(struct world *world)
{
	struct peer *peer;

	while ((peer = world->peers)) {
		world->peers = peer->next;
		if (peer->pid)
			peer_kill(peer);
		free(peer);
	}
}

void peer_connect(struct peer *peer, struct side *side, const char *address, struct way *up,
		  struct way *down)
{
	struct entry *connected;

	if (!address)
		address = connect_address(side->world, peer_ask(peer, "listen"));
	connected = post_connect(side, address);
	wait_result(connected, 0);
	memset(up, 0, sizeof(*up));
	memset(down, 0, sizeof(*down));
	up->from = down->to = side;
	up->out = down->in = connected->endpoint;
}
