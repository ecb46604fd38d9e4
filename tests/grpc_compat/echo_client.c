/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A gRPC client in plain C, for echo_server: makes calls and checks what comes back, byte by byte.
 *
 *   echo_client TARGET [WORD=VALUE...]      (the words are in struct wish)
 *
 * With small=N the first N calls have messages of 1 % of the bytes, with every=N all but each Nth.
 * With warm=1 it makes one call before all others.
 * With beside=TARGET it makes one call to another server before, and keeps the channel.
 * With step=1 it makes one call for each character on its standard input, and says its status; for
 * an "s" it calls Silent.
 * Its last line counts the calls by their status, as "0:12 4:3". It ends with 1 when a call that
 * ended with OK had other contents than it should.
 */
#include <grpc/grpc_security.h>
#include <grpc/support/time.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sys/wait.h>
#include <unistd.h>

#include "steps.h"

#define THREADS_MAX 256

static struct wish {
	const char *target, *method, *queue, *fork, *beside;
	unsigned long calls, messages, bytes, slices, threads, timeout_ms, random, limit, cancel,
		ahead, compress, seed, drop, memory, step, warm, small, every;
} wish = {.method = "Echo",
	  .queue = "next",
	  .fork = "never",
	  .calls = 1,
	  .messages = 1,
	  .bytes = 100,
	  .slices = 1,
	  .threads = 1,
	  .limit = -1};

static const struct word {
	const char *name;
	unsigned long *value;
} words[] = {
	{"calls", &wish.calls},   {"messages", &wish.messages}, {"bytes", &wish.bytes},
	{"slices", &wish.slices}, {"threads", &wish.threads},   {"timeout_ms", &wish.timeout_ms},
	{"random", &wish.random}, {"limit", &wish.limit},       {"cancel", &wish.cancel},
	{"ahead", &wish.ahead},   {"compress", &wish.compress}, {"seed", &wish.seed},
	{"drop", &wish.drop},     {"memory", &wish.memory},     {"step", &wish.step},
	{"warm", &wish.warm},     {"small", &wish.small},       {"every", &wish.every},
};

static grpc_channel *channel;
static atomic_ulong next_call;
static atomic_ulong statuses[32];
static atomic_ulong wrong;

/* One call and what it should be. */
struct calling {
	struct steps_queue *queue;
	grpc_call *call;
	grpc_channel *channel; /* of its own, with `drop` */
	uint64_t seed;
	unsigned long messages, bytes, slices, answers;
	bool cancels, has_deadline;
	struct steps_batch end;
	grpc_metadata_array initial, trailing;
	grpc_status_code status;
	grpc_slice details;
};

static uint64_t mixed(uint64_t number)
{
	number = (number ^ number >> 31) * UINT64_C(0x9e3779b97f4a7c15);
	return number ^ number >> 29;
}

static bool send(struct calling *calling, unsigned long number, bool last)
{
	grpc_byte_buffer *message =
		steps_message(calling->seed + number, calling->bytes, (unsigned)calling->slices);
	grpc_op ops[2] = {{.op = GRPC_OP_SEND_MESSAGE, .data.send_message = {message}},
			  {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT}};
	bool good = steps_run(calling->queue, calling->call, ops, last ? 2 : 1);

	grpc_byte_buffer_destroy(message);
	return good;
}

static grpc_channel *make_channel(const char *target)
{
	grpc_arg limit = {.type = GRPC_ARG_INTEGER, .key = GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH};
	grpc_channel_args args = {1, &limit};
	grpc_channel_credentials *credentials = grpc_insecure_credentials_create();
	grpc_channel *made;

	limit.value.integer = (int)wish.limit;
	made = grpc_channel_create(target, credentials, &args);
	grpc_channel_credentials_release(credentials);
	return made;
}

/* Its answer is a number, and not what was sent. */
static bool counts(void)
{
	return !strcmp(wish.method, "Count") || !strcmp(wish.method, "Slow");
}

static bool is_answer(const struct calling *calling, grpc_byte_buffer *answer)
{
	unsigned times = strcmp(wish.method, "Repeat") ? 1 : STEPS_REPEATS;

	return steps_is(answer, calling->seed + calling->answers, calling->bytes, times);
}

/* False at the end of the stream. */
static bool receive(struct calling *calling)
{
	grpc_byte_buffer *message = NULL;
	grpc_op op = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message = {&message}};
	bool good = steps_run(calling->queue, calling->call, &op, 1) && message;

	if (good && !counts()) {
		if (!is_answer(calling, message))
			wrong++;
	}
	calling->answers += good;
	if (message)
		grpc_byte_buffer_destroy(message);
	return good;
}

static void start(struct calling *calling)
{
	grpc_metadata compression = {
		.key = grpc_slice_from_static_string("grpc-internal-encoding-request"),
		.value = grpc_slice_from_static_string("gzip")};
	grpc_op ops[2] = {
		{.op = GRPC_OP_SEND_INITIAL_METADATA},
		{.op = GRPC_OP_RECV_STATUS_ON_CLIENT,
		 .data.recv_status_on_client = {.trailing_metadata = &calling->trailing,
						.status = &calling->status,
						.status_details = &calling->details}},
	};

	if (wish.compress) {
		ops[0].data.send_initial_metadata.count = 1;
		ops[0].data.send_initial_metadata.metadata = &compression;
	}
	steps_start(&calling->end, calling->queue, calling->call, &ops[1], 1);
	steps_run(calling->queue, calling->call, &ops[0], 1);
}

/* Messages go out one by one; with `ahead` all of them before the first answer is read. */
static void stream(struct calling *calling)
{
	grpc_op initial = {.op = GRPC_OP_RECV_INITIAL_METADATA,
			   .data.recv_initial_metadata = {&calling->initial}};
	struct steps_batch metadata;
	unsigned long sent = 0;
	bool good = true;

	start(calling);
	steps_start(&metadata, calling->queue, calling->call, &initial, 1);
	while (good && sent < calling->messages) {
		good = send(calling, sent, sent + 1 == calling->messages);
		sent++;
		if (calling->cancels && sent * 2 > calling->messages)
			grpc_call_cancel(calling->call, NULL);
		if (good && !wish.ahead && sent < calling->messages)
			good = receive(calling);
	}
	while (receive(calling))
		;
	steps_wait(&metadata);
	steps_wait(&calling->end);
}

/* All in one batch, as stubs of unary calls do it. */
static void unary(struct calling *calling)
{
	grpc_byte_buffer *message =
		steps_message(calling->seed, calling->bytes, (unsigned)calling->slices);
	grpc_byte_buffer *answer = NULL;
	grpc_op ops[6] = {
		{.op = GRPC_OP_SEND_INITIAL_METADATA},
		{.op = GRPC_OP_SEND_MESSAGE, .data.send_message = {message}},
		{.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT},
		{.op = GRPC_OP_RECV_INITIAL_METADATA,
		 .data.recv_initial_metadata = {&calling->initial}},
		{.op = GRPC_OP_RECV_MESSAGE, .data.recv_message = {&answer}},
		{.op = GRPC_OP_RECV_STATUS_ON_CLIENT,
		 .data.recv_status_on_client = {.trailing_metadata = &calling->trailing,
						.status = &calling->status,
						.status_details = &calling->details}},
	};

	steps_start(&calling->end, calling->queue, calling->call, ops, 6);
	if (calling->cancels)
		grpc_call_cancel(calling->call, NULL);
	if (calling->channel) { /* let go of all at once, in mid-message */
		grpc_channel_destroy(calling->channel);
		grpc_call_unref(calling->call);
		calling->call = NULL;
	}
	steps_wait(&calling->end);
	grpc_byte_buffer_destroy(message);
	if (calling->status == GRPC_STATUS_OK && !counts() && !is_answer(calling, answer))
		wrong++;
	calling->answers += answer != NULL;
	if (answer)
		grpc_byte_buffer_destroy(answer);
}

static void choose(struct calling *calling, unsigned long number, gpr_timespec *deadline)
{
	uint64_t chance = mixed(number + wish.seed * 1000003);
	unsigned long timeout_ms = wish.timeout_ms;

	calling->seed = number;
	calling->messages = wish.messages;
	calling->bytes = wish.bytes;
	if (number < wish.small || (wish.every && (number + 1) % wish.every))
		calling->bytes /= 100;
	calling->slices = wish.slices;
	calling->cancels = wish.cancel;
	if (wish.random) {
		calling->messages = 1 + chance % 4;
		calling->bytes = mixed(chance) % ((wish.bytes >> chance / 4 % 12) + 1) + 1;
		calling->slices = 1 + chance / 64 % 5;
		calling->cancels = chance / 512 % 8 == 0;
		timeout_ms = chance / 4096 % 8 ? 0 : 1 + chance / 32768 % 20;
	}
	calling->has_deadline = timeout_ms;
	*deadline = timeout_ms
			    ? gpr_time_add(gpr_now(GPR_CLOCK_REALTIME),
					   gpr_time_from_millis((int64_t)timeout_ms, GPR_TIMESPAN))
			    : gpr_inf_future(GPR_CLOCK_REALTIME);
}

/*
 * Whether a random call may end so: with OK, or with the status of what was done to it. In how many
 * of them the end comes first is up to the clock.
 */
static bool ends_well(const struct calling *calling)
{
	if (calling->status == GRPC_STATUS_CANCELLED)
		return calling->cancels;
	if (calling->status == GRPC_STATUS_DEADLINE_EXCEEDED)
		return calling->has_deadline;
	return calling->status == GRPC_STATUS_OK;
}

static void call_once(struct steps_queue *queue, unsigned long number, const char *name)
{
	struct calling calling = {.queue = queue, .status = GRPC_STATUS_UNKNOWN};
	gpr_timespec deadline;
	char method[64];

	snprintf(method, sizeof(method), "/test/%s", name);
	choose(&calling, number, &deadline);
	calling.details = grpc_empty_slice();
	grpc_metadata_array_init(&calling.initial);
	grpc_metadata_array_init(&calling.trailing);
	if (wish.drop)
		calling.channel = make_channel(wish.target);
	calling.call = grpc_channel_create_call(
		wish.drop ? calling.channel : channel, NULL, GRPC_PROPAGATE_DEFAULTS, queue->queue,
		grpc_slice_from_copied_string(method), NULL, deadline, NULL);
	if (calling.messages == 1 && strcmp(name, "Chat"))
		unary(&calling);
	else
		stream(&calling);
	if (calling.status == GRPC_STATUS_OK && !counts() && calling.answers != calling.messages)
		wrong++;
	if (!strcmp(name, "Sorry") && calling.answers != calling.messages)
		wrong++;
	statuses[(unsigned)calling.status % 32]++;
	if (wish.step) {
		printf("%d\n", calling.status);
		fflush(stdout);
	}
	if (wish.random && !ends_well(&calling)) {
		wrong++;
		fprintf(stderr, "call %lu ended with status %d%s%s: %.*s\n", number, calling.status,
			calling.cancels ? ", cancelled" : "",
			calling.has_deadline ? ", with a deadline" : "",
			(int)GRPC_SLICE_LENGTH(calling.details),
			GRPC_SLICE_START_PTR(calling.details));
	}
	if (calling.status && !wish.random)
		fprintf(stderr, "%.*s\n", (int)GRPC_SLICE_LENGTH(calling.details),
			GRPC_SLICE_START_PTR(calling.details));
	if (calling.call)
		grpc_call_unref(calling.call);
	grpc_slice_unref(calling.details);
	grpc_metadata_array_destroy(&calling.initial);
	grpc_metadata_array_destroy(&calling.trailing);
}

/* With a queue of its own. */
static void call_alone(void)
{
	struct steps_queue queue;

	steps_queue_open(&queue, steps_queue_type(wish.queue));
	call_once(&queue, 0, "Echo");
	steps_queue_close(&queue);
}

/* Resident memory, in KiB. */
static long memory_now(void)
{
	FILE *file = fopen("/proc/self/statm", "r");
	long pages = 0;

	if (!file || fscanf(file, "%*d %ld", &pages) != 1)
		abort();
	fclose(file);
	return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static void *run(void *unused)
{
	struct steps_queue queue;
	unsigned long number;
	int step = 0;

	steps_queue_open(&queue, steps_queue_type(wish.queue));
	while ((number = next_call++) < wish.calls) {
		if (wish.step)
			step = getchar();
		if (step == EOF)
			break;
		if (wish.memory && number == wish.calls / 2)
			fprintf(stderr, "memory in the middle: %ld KiB\n", memory_now());
		call_once(&queue, number, step == 's' ? "Silent" : wish.method);
	}
	steps_queue_close(&queue);
	return NULL;
}

/* CALLBACK queues don't poll: in a C program some other queue has to, here by watching the channel.
 */
static grpc_completion_queue *watching;

static void *watch(void *unused)
{
	gpr_timespec never = gpr_inf_future(GPR_CLOCK_REALTIME);
	grpc_event event;

	do {
		grpc_connectivity_state state = grpc_channel_check_connectivity_state(channel, 0);

		grpc_channel_watch_connectivity_state(channel, state, never, watching, &watching);
		event = grpc_completion_queue_next(watching, never, NULL);
	} while (event.type == GRPC_OP_COMPLETE && next_call < wish.calls + wish.threads);
	return NULL;
}

static bool take_word(char *text)
{
	char *value = strchr(text, '=');

	if (!value)
		return false;
	*value++ = 0;
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		if (!strcmp(words[i].name, text)) {
			*words[i].value = strtoul(value, NULL, 10);
			return true;
		}
	}
	if (!strcmp(text, "method"))
		wish.method = value;
	else if (!strcmp(text, "queue"))
		wish.queue = value;
	else if (!strcmp(text, "fork"))
		wish.fork = value;
	else if (!strcmp(text, "beside"))
		wish.beside = value;
	else
		return false;
	return true;
}

/*
 * One more call, that nothing is done to. What was given up before has come to its end when it has,
 * unless it was lost.
 */
static void settle(void)
{
	wish.random = wish.drop = wish.cancel = 0;
	call_alone();
}

/* A call to another server first, whose channel stays open. */
static grpc_channel *call_beside(void)
{
	if (!wish.beside)
		return NULL;
	channel = make_channel(wish.beside);
	call_alone();
	return channel;
}

static void call_all(void)
{
	grpc_channel *beside = call_beside();
	pthread_t threads[THREADS_MAX], watcher;

	next_call = 0;
	channel = make_channel(wish.target);
	if (wish.warm)
		call_alone();
	if (!strcmp(wish.queue, "callback")) {
		watching = grpc_completion_queue_create_for_next(NULL);
		pthread_create(&watcher, NULL, watch, NULL);
		pthread_detach(watcher);
	}
	for (unsigned long i = 0; i < wish.threads; i++)
		pthread_create(&threads[i], NULL, run, NULL);
	for (unsigned long i = 0; i < wish.threads; i++)
		pthread_join(threads[i], NULL);
	if (wish.random || wish.drop)
		settle();
	if (!watching) /* or else its thread goes on with it until the end */
		grpc_channel_destroy(channel);
	if (beside)
		grpc_channel_destroy(beside);
	if (wish.memory)
		fprintf(stderr, "memory in the end: %ld KiB\n", memory_now());
}

/* A child that ends at once, or makes the calls before its parent does it. */
static void run_child(bool calls)
{
	pid_t child = fork();
	int status;

	if (!child) {
		if (calls) {
			grpc_init();
			call_all();
			grpc_shutdown();
		}
		exit(wrong ? 1 : 0);
	}
	waitpid(child, &status, 0);
	if (status)
		wrong++;
}

/* fork=early: both use gRPC, and each for itself. fork=late: the child ends without it. */
int main(int count, char **arguments)
{
	wish.target = count > 1 ? arguments[1] : "";
	for (int i = 2; i < count; i++) {
		if (!take_word(arguments[i])) {
			fprintf(stderr, "echo_client: %s?\n", arguments[i]);
			return 2;
		}
	}
	if (!strcmp(wish.fork, "early"))
		run_child(true);
	grpc_init();
	if (!strcmp(wish.fork, "late")) {
		call_all();
		run_child(false);
	}
	call_all();
	if (!watching)
		grpc_shutdown();
	for (int i = 0; i < 32; i++) {
		if (statuses[i])
			printf("%d:%lu ", i, (unsigned long)statuses[i]);
	}
	printf("\n");
	return wrong ? 1 : 0;
}
