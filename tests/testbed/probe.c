/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One end of a connection, for the testbed tests: reads commands from its standard input, one
 * a line, and answers each with one line, "ok ..." or "error ...".
 *
 *   listen ADDRESS                   ok ADDRESS
 *   accept                           ok PEER; waits for a peer
 *   connect ADDRESS                  ok PEER | error NAME DETAIL
 *   send KEY BYTES COUNT TIMEOUT_MS  ok; COUNT tensors with contents that tell their order
 *   recv KEY BYTES COUNT TIMEOUT_MS  ok
 *   results                          waits until all of these have ended:
 *                                    ok SUCCEEDED FAILED WRONG FIRST_MS LAST_MS ERROR=COUNT...
 *   lost                             ok NAME MS; waits until the peer is lost
 *   statistics                       ok streams=N replaced=N chunks=N again=N sent=N received=N
 *   sleep MS                         ok; the process does nothing meanwhile, as if it computed
 *
 * Times count from the first operation after `results`, or from its beginning for `lost`.
 * At the end of the input it closes the context and ends.
 */
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tensorhaul/haul.h"

#define ERRORS_MAX 8

struct operation {
	bool receive;
	size_t bytes;
	unsigned number;
	int64_t shape[1];
	DLTensor tensor;
	uint64_t *words;
	struct operation *next;
};

enum waiting { FOR_NOTHING, FOR_ACCEPT, FOR_CONNECT, FOR_RESULTS, FOR_LOSS };

static struct {
	haul_context *context;
	haul_listener *listener;
	haul_endpoint *endpoint;
	enum waiting waiting;
	bool accepted, connected;
	int connect_result;
	char connect_detail[512];
	unsigned open, succeeded, failed;
	struct operation *arrived; /* checked when the results are asked for */
	uint64_t begin_ms, first_ms, last_ms, wait_begin_ms, lost_ms;
	struct {
		int error;
		unsigned count;
	} errors[ERRORS_MAX];
	bool lost;
	int lost_result;
} probe;

static uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static const char *error_name(int error)
{
	const char *name = error ? strerrorname_np(-error) : "0";

	return name ? name : "unknown";
}

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

/* ---- Tensors ---- */

/* A word that tells where it is and of which tensor. Fast: the process does not poll meanwhile. */
static uint64_t word_at(unsigned number, size_t position)
{
	return (position + 1) * 0x9e3779b97f4a7c15u ^ number;
}

/* The sanitizers have nothing to find in these two, and would make them slow. */
#define UNSANITIZED __attribute__((no_sanitize("address", "thread", "undefined")))

UNSANITIZED static void fill(struct operation *operation)
{
	for (size_t i = 0; i < operation->bytes / 8; i++)
		operation->words[i] = word_at(operation->number, i);
	memset(operation->words + operation->bytes / 8, 0x5a, operation->bytes % 8);
}

UNSANITIZED static bool is_right(const struct operation *operation)
{
	const uint8_t *rest = (const uint8_t *)(operation->words + operation->bytes / 8);
	uint64_t difference = 0;

	for (size_t i = 0; i < operation->bytes / 8; i++)
		difference |= operation->words[i] ^ word_at(operation->number, i);
	for (size_t i = 0; i < operation->bytes % 8; i++)
		difference |= rest[i] ^ 0x5a;
	return difference == 0;
}

static void operation_free(struct operation *operation)
{
	if (operation)
		free(operation->words);
	free(operation);
}

static struct operation *operation_new(bool receive, size_t bytes, unsigned number)
{
	struct operation *operation = calloc(1, sizeof(*operation));

	if (!operation)
		return NULL;
	operation->words = malloc(bytes + 8);
	if (!operation->words) {
		free(operation);
		return NULL;
	}
	operation->receive = receive;
	operation->bytes = bytes;
	operation->number = number;
	operation->shape[0] = (int64_t)bytes;
	operation->tensor =
		haul_tensor(operation->words, (DLDataType){kDLUInt, 8, 1}, 1, operation->shape);
	if (!receive)
		fill(operation);
	return operation;
}

static int start(struct operation *operation, const char *key, uint64_t timeout_ms)
{
	struct haul_op op = HAUL_OP_INIT;

	op.cookie = operation;
	op.timeout_ms = timeout_ms;
	if (operation->receive)
		return haul_recv(probe.endpoint, haul_key(key), &operation->tensor, NULL, &op);
	return haul_send(probe.endpoint, haul_key(key), &operation->tensor, NULL, &op);
}

/* ---- Commands ---- */

static void do_listen(const char *address)
{
	int result = haul_listen(probe.context, address, NULL, &probe.listener);

	if (result)
		answer("error %s %s", error_name(result), haul_detail(probe.context));
	else
		answer("ok %s", haul_listener_address(probe.listener));
}

static void do_connect(const char *address)
{
	int result = haul_connect(probe.context, address, NULL);

	if (result)
		answer("error %s %s", error_name(result), haul_detail(probe.context));
	else
		probe.waiting = FOR_CONNECT;
}

/* Start `count` operations, given as a list so that all are filled before the first one starts. */
static void start_all(struct operation *list, const char *key, unsigned timeout_ms)
{
	int result = 0;

	if (!probe.open)
		probe.begin_ms = now_ms();
	while (list) {
		struct operation *next = list->next;

		if (!result)
			result = start(list, key, timeout_ms);
		if (result)
			operation_free(list);
		else
			probe.open++;
		list = next;
	}
	if (result)
		answer("error %s %s", error_name(result), haul_detail(probe.context));
	else
		answer("ok");
}

static void do_start(bool receive, const char *arguments)
{
	struct operation *list = NULL, **end = &list;
	unsigned count, timeout_ms;
	char key[64];
	size_t bytes;

	if (sscanf(arguments, "%63s %zu %u %u", key, &bytes, &count, &timeout_ms) != 4) {
		answer("error EINVAL %s", arguments);
		return;
	}
	for (unsigned i = 0; i < count; i++) {
		*end = operation_new(receive, bytes, i);
		if (!*end)
			abort();
		end = &(*end)->next;
	}
	start_all(list, key, timeout_ms);
}

static void do_statistics(void)
{
	struct haul_statistics now = {.size = sizeof(now)};
	int result = haul_endpoint_statistics(probe.endpoint, &now);

	if (result) {
		answer("error %s", error_name(result));
		return;
	}
	answer("ok streams=%llu replaced=%llu chunks=%llu again=%llu sent=%llu received=%llu",
	       (unsigned long long)now.streams, (unsigned long long)now.streams_replaced,
	       (unsigned long long)now.chunks_sent, (unsigned long long)now.chunks_again,
	       (unsigned long long)now.bytes_sent, (unsigned long long)now.bytes_received);
}

static void do_sleep(unsigned ms)
{
	struct timespec time = {ms / 1000, (long)(ms % 1000) * 1000000};

	nanosleep(&time, NULL);
	answer("ok");
}

static void do_command(const char *line)
{
	char word[16] = "";
	int used = 0;

	sscanf(line, "%15s %n", word, &used);
	line += used;
	if (!strcmp(word, "listen"))
		do_listen(line);
	else if (!strcmp(word, "connect"))
		do_connect(line);
	else if (!strcmp(word, "accept"))
		probe.waiting = FOR_ACCEPT;
	else if (!strcmp(word, "send") || !strcmp(word, "recv"))
		do_start(word[0] == 'r', line);
	else if (!strcmp(word, "results"))
		probe.waiting = FOR_RESULTS;
	else if (!strcmp(word, "lost"))
		probe.waiting = FOR_LOSS;
	else if (!strcmp(word, "statistics"))
		do_statistics();
	else if (!strcmp(word, "sleep"))
		do_sleep((unsigned)strtoul(line, NULL, 10));
	else
		answer("error EINVAL %s", word);
	probe.wait_begin_ms = now_ms();
}

/* ---- Completions ---- */

static void count_error(int error)
{
	for (unsigned i = 0; i < ERRORS_MAX; i++) {
		if (probe.errors[i].error != error && probe.errors[i].error)
			continue;
		probe.errors[i].error = error;
		probe.errors[i].count++;
		return;
	}
}

static void take_operation(const struct haul_completion *completion)
{
	struct operation *operation = completion->cookie;

	probe.last_ms = now_ms() - probe.begin_ms;
	if (!probe.succeeded && !probe.failed)
		probe.first_ms = probe.last_ms;
	probe.open--;
	if (completion->result) {
		probe.failed++;
		count_error(completion->result);
	} else {
		probe.succeeded++;
	}
	if (!completion->result && operation->receive) {
		operation->next = probe.arrived;
		probe.arrived = operation;
	} else {
		operation_free(operation);
	}
}

static void take_completion(const struct haul_completion *completion)
{
	switch (completion->event) {
	case HAUL_ACCEPTED:
		probe.endpoint = completion->endpoint;
		probe.accepted = true;
		break;
	case HAUL_CONNECTED:
		probe.endpoint = completion->endpoint;
		probe.connected = true;
		probe.connect_result = completion->result;
		snprintf(probe.connect_detail, sizeof(probe.connect_detail), "%s",
			 completion->detail ? completion->detail : "");
		break;
	case HAUL_LOST:
		probe.lost = true;
		probe.lost_result = completion->result;
		probe.lost_ms = now_ms();
		break;
	case HAUL_SENT:
	case HAUL_RECEIVED:
		take_operation(completion);
		break;
	default:
		break;
	}
}

static unsigned count_wrong(void)
{
	struct operation *operation;
	unsigned wrong = 0;

	while ((operation = probe.arrived)) {
		probe.arrived = operation->next;
		wrong += !is_right(operation);
		operation_free(operation);
	}
	return wrong;
}

static void answer_results(void)
{
	unsigned wrong = count_wrong();
	char errors[256] = "";
	size_t used = 0;

	for (unsigned i = 0; i < ERRORS_MAX && probe.errors[i].error; i++)
		used += (size_t)snprintf(errors + used, sizeof(errors) - used, " %s=%u",
					 error_name(probe.errors[i].error), probe.errors[i].count);
	answer("ok %u %u %u %llu %llu%s", probe.succeeded, probe.failed, wrong,
	       (unsigned long long)probe.first_ms, (unsigned long long)probe.last_ms, errors);
	probe.succeeded = probe.failed = 0;
	memset(probe.errors, 0, sizeof(probe.errors));
}

static void answer_connect(void)
{
	if (probe.connect_result)
		answer("error %s %s", error_name(probe.connect_result), probe.connect_detail);
	else
		answer("ok %s", haul_endpoint_address(probe.endpoint));
}

static uint64_t loss_delay_ms(void)
{
	return probe.lost_ms > probe.wait_begin_ms ? probe.lost_ms - probe.wait_begin_ms : 0;
}

/* Answer the command that waits, when what it waits for is there. */
static void answer_waiting(void)
{
	if (probe.waiting == FOR_ACCEPT && probe.accepted) {
		answer("ok %s", haul_endpoint_address(probe.endpoint));
	} else if (probe.waiting == FOR_CONNECT && probe.connected) {
		answer_connect();
		probe.connected = false;
	} else if (probe.waiting == FOR_RESULTS && !probe.open) {
		answer_results();
	} else if (probe.waiting == FOR_LOSS && probe.lost) {
		answer("ok %s %llu", error_name(probe.lost_result),
		       (unsigned long long)loss_delay_ms());
	} else {
		return;
	}
	probe.waiting = FOR_NOTHING;
}

static void poll_context(void)
{
	struct haul_completion completions[64];
	int count;

	while ((count = haul_poll(probe.context, completions, 64, 0)) > 0)
		for (int i = 0; i < count; i++)
			take_completion(&completions[i]);
}

/* Do each whole line of the input; false at its end. */
static bool read_commands(void)
{
	static char buffer[1024];
	static size_t used;
	ssize_t got = read(STDIN_FILENO, buffer + used, sizeof(buffer) - 1 - used);
	char *end;

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

int main(int argc, char **argv)
{
	struct pollfd list[2] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.events = POLLIN}};
	int result = haul_open(argc > 1 ? argv[1] : NULL, &probe.context);

	if (result) {
		answer("error %s %s", error_name(result), haul_detail(NULL));
		return 1;
	}
	answer("ok %s", haul_spec(probe.context));
	list[1].fd = haul_event_fd(probe.context);
	do {
		poll_context();
		answer_waiting();
		poll(list, 2, -1);
	} while (!list[0].revents || read_commands());
	haul_close(probe.context);
	return 0;
}
