/* SPDX-License-Identifier: Apache-2.0 */
/* The recorder of traces: its ring, its file, its JSON, as cJSON reads it. */
#include "unit.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend.h"
#include "engine/trace.h"

#define SMALLEST (64 * 1024)

static char folder[] = "/tmp/test_trace.XXXXXX";
static char path[64], path_2[80];

static int make_folder(void **state)
{
	if (!mkdtemp(folder))
		return -1;
	snprintf(path, sizeof(path), "%s/trace", folder);
	snprintf(path_2, sizeof(path_2), "%s.2", path);
	return 0;
}

static int remove_folder(void **state)
{
	return rmdir(folder);
}

static struct haul_trace *begin(uint64_t bytes)
{
	struct haul_trace *trace = NULL;
	char why[512] = "";

	if (trace_open(path, bytes, "tcp,trace=\"x\"", 77, &trace, why, sizeof(why)))
		fail_msg("%s", why);
	return trace;
}

static char *read_text(const char *name)
{
	FILE *file = fopen(name, "re");
	size_t room = 1 << 24;
	char *text = malloc(room);

	assert_non_null(file);
	assert_non_null(text);
	text[fread(text, 1, room - 1, file)] = '\0';
	fclose(file);
	return text;
}

/* The events of a whole file; the file is gone then. */
static cJSON *events_of(const char *name)
{
	char *text = read_text(name);
	cJSON *events = cJSON_Parse(text);

	if (!cJSON_IsArray(events))
		fail_msg("no JSON: %.2000s", text);
	free(text);
	unlink(name);
	return events;
}

static const cJSON *find(const cJSON *events, const char *name)
{
	const cJSON *event;

	cJSON_ArrayForEach(event, events)
	{
		const char *found = cJSON_GetStringValue(cJSON_GetObjectItem(event, "name"));

		if (found && strcmp(found, name) == 0)
			return event;
	}
	fail_msg("there is no event \"%s\"", name);
	return NULL;
}

static double value(const cJSON *event, const char *name)
{
	const cJSON *values = cJSON_GetObjectItem(event, "args");
	const cJSON *item = cJSON_GetObjectItem(values, name);

	assert_true(cJSON_IsNumber(item));
	return item->valuedouble;
}

static double when(const cJSON *event)
{
	return cJSON_GetObjectItem(event, "ts")->valuedouble;
}

static struct trace_record a_send(void)
{
	struct trace_record record = {
		.kind = TRACE_OPERATION, .link = 1, .link_id = 0xabc, .connector = true};
	struct trace_operation *operation = &record.operation;

	operation->send = true;
	operation->at[TRACE_CALLED] = 1000000;
	operation->at[TRACE_MET] = 1001000;
	operation->at[TRACE_DONE] = 1007000;
	operation->handed = 1007500;
	operation->bytes = 4096;
	operation->slot = 5;
	operation->copied = 250;
	operation->key_length = 6;
	memcpy(operation->key, "a\"\\\n\xff\x01", 6);
	return record;
}

static struct trace_record a_span(const char *name)
{
	struct trace_record record = {.kind = TRACE_SPAN};

	record.span.begin = 5000;
	record.span.end = 6000;
	record.span.thread = 3;
	snprintf(record.span.name, sizeof(record.span.name), "%s", name);
	return record;
}

/* ---- JSON -------------------------------------------------------------- */

static void check_send(const cJSON *events)
{
	const cJSON *send = find(events, "send"), *step = find(events, "wait for the receive");
	const cJSON *values = cJSON_GetObjectItem(send, "args");

	assert_true(when(send) == 1000);
	assert_true(when(step) == 1000);
	assert_true(when(find(events, "move")) == 1001);
	assert_true(when(find(events, "complete")) == 1007);
	assert_true(value(send, "wait_us") == 1);
	assert_true(value(send, "move_us") == 6);
	assert_true(value(send, "complete_us") == 0.5);
	assert_true(value(send, "copy_us") == 0.25);
	assert_true(value(send, "bytes") == 4096);
	assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(values, "to")), "acceptor");
	assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(values, "peer")),
			    "10.0.0.2:7000");
	assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(values, "key")),
			    "a\"\\\n\xc3\xbf\x01");
}

static void each_kind_of_record_is_json(void **state)
{
	struct haul_trace *trace = begin(SMALLEST);
	struct trace_record link = {.kind = TRACE_LINK, .link = 1, .link_id = 0xabc};
	struct trace_record share = {.kind = TRACE_SHARE, .link = 1, .link_id = 0xabc};
	struct trace_record clock = {.kind = TRACE_CLOCK, .link = 1, .link_id = 0xabc};
	struct trace_record send = a_send(), span = a_span("assign");
	cJSON *events;

	strcpy(link.to.address, "10.0.0.2:7000");
	share.share = (struct trace_share){
		.begin = 2500, .end = 3501, .bytes = 9, .slot = 5, .lane = 3, .out = true};
	clock.clock = (struct trace_clock){.at = 7, .offset = INT64_MIN, .uncertainty = 12};
	trace_record(trace, &link);
	trace_record(trace, &share);
	trace_record(trace, &clock);
	trace_record(trace, &send);
	trace_record(trace, &span);
	trace_close(trace);
	events = events_of(path);
	check_send(events);
	assert_true(when(find(events, "out")) == 2.5);
	assert_true(cJSON_GetObjectItem(find(events, "out"), "dur")->valuedouble == 1.001);
	assert_string_equal(
		cJSON_GetStringValue(cJSON_GetObjectItem(
			cJSON_GetObjectItem(find(events, "clock offset"), "args"), "offset_ns")),
		"-9223372036854775808");
	assert_true(when(find(events, "assign")) == 5);
	assert_true(value(find(events, "tensorhaul_end"), "written") == 5);
	assert_true(value(find(events, "tensorhaul_end"), "lost") == 0);
	cJSON_Delete(events);
}

/* Points of an operation in any order, keys of any bytes and length: still JSON, never negative. */
static void odd_operations_are_json(void **state)
{
	struct haul_trace *trace = begin(1 << 20);
	uint64_t seed = 31;
	cJSON *events, *event;

	for (unsigned i = 0; i < 1000; i++) {
		struct trace_record record = a_send();
		struct trace_operation *operation = &record.operation;

		for (unsigned point = 0; point < TRACE_POINTS; point++)
			operation->at[point] = unit_random(&seed) % 4 * 1000;
		for (unsigned byte = 0; byte < TRACE_KEY_MAX; byte++)
			operation->key[byte] = (uint8_t)unit_random(&seed);
		operation->key_length = (uint8_t)unit_random(&seed);
		operation->send = i % 2;
		operation->result = i % 3 ? 0 : -110;
		trace_record(trace, &record);
	}
	trace_close(trace);
	events = events_of(path);
	cJSON_ArrayForEach(event, events)
	{
		if (!cJSON_GetObjectItem(event, "id") || !cJSON_GetObjectItem(event, "args"))
			continue;
		assert_true(value(event, "wait_us") >= 0 && value(event, "move_us") >= 0);
		assert_true(value(event, "complete_us") >= 0 && value(event, "complete_us") < 1e6);
	}
	cJSON_Delete(events);
}

/* ---- The ring ---------------------------------------------------------- */

/* Whoever reads the pipe does not read: the ring fills, and recording goes on without waiting. */
static void a_full_ring_drops_and_counts(void **state)
{
	struct haul_trace *trace = NULL;
	struct trace_record span = a_span("span");
	struct trace_record link = {.kind = TRACE_LINK, .link = 1};
	const unsigned many = 100000;
	char why[512], name[64];
	uint64_t lost;
	int ends[2];
	pid_t reader;
	int status;

	assert_int_equal(pipe(ends), 0);
	snprintf(name, sizeof(name), "/proc/self/fd/%d", ends[1]);
	assert_int_equal(trace_open(name, SMALLEST, "tcp", 1, &trace, why, sizeof(why)), 0);
	for (unsigned i = 0; i < many; i++)
		trace_record(trace, &span);
	lost = trace_lost(trace);
	assert_true(lost > many / 2);
	assert_true(lost < many);
	/* What the rest can't be understood without still finds room. */
	trace_record(trace, &link);
	assert_int_equal(trace_lost(trace), lost);
	reader = fork();
	assert_true(reader >= 0);
	if (reader == 0) {
		char bytes[4096];

		close(ends[1]);
		trace_close_in_child(trace);
		while (read(ends[0], bytes, sizeof(bytes)) > 0)
			;
		_exit(0);
	}
	close(ends[0]);
	trace_close(trace);
	close(ends[1]);
	assert_int_equal(waitpid(reader, &status, 0), reader);
	assert_int_equal(status, 0);
}

#define THREADS 4
#define EACH 5000

static void *record_many(void *trace)
{
	struct trace_record span = a_span("span");

	for (unsigned i = 0; i < EACH; i++)
		trace_record(trace, &span);
	return NULL;
}

static void threads_lose_nothing_that_is_not_counted(void **state)
{
	struct haul_trace *trace = begin(SMALLEST);
	pthread_t threads[THREADS];
	unsigned spans = 0;
	cJSON *events, *event;
	double lost;

	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, record_many, trace), 0);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	trace_close(trace);
	events = events_of(path);
	cJSON_ArrayForEach(event, events) spans +=
		!strcmp(cJSON_GetObjectItem(event, "name")->valuestring, "span");
	lost = value(find(events, "tensorhaul_end"), "lost");
	assert_true(spans + lost == THREADS * EACH);
	assert_true(value(find(events, "tensorhaul_end"), "written") == spans);
	if (lost > 0)
		find(events, "events were lost");
	cJSON_Delete(events);
}

/* ---- The file ---------------------------------------------------------- */

static int try_open(const char *name, char *why, size_t room)
{
	struct haul_trace *trace = NULL;
	int error = trace_open(name, SMALLEST, "tcp", 1, &trace, why, room);

	if (!error)
		trace_close(trace);
	return error;
}

static void files_that_cant_be_written(void **state)
{
	char why[512], name[160];

	assert_int_equal(try_open("/dev/full", why, sizeof(why)), -ENOSPC);
	assert_contains(why, "trace=/dev/full");
	assert_int_equal(try_open(folder, why, sizeof(why)), -EISDIR);
	assert_contains(why, folder);
	snprintf(name, sizeof(name), "%s/none/trace", folder);
	assert_int_equal(try_open(name, why, sizeof(why)), -ENOENT);
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_int_equal(try_open(path, why, sizeof(why)), -ENXIO); /* nobody reads it */
	unlink(path);
	assert_int_equal(try_open("/dev/null", why, sizeof(why)), 0);
}

/* The file may grow to some size only, as on a full disk: what is there is whole, the rest counted.
 */
static void a_full_disk_is_counted(void **state)
{
	const struct rlimit little = {16 * 1024, RLIM_INFINITY};
	struct trace_record span = a_span("span");
	struct haul_trace *trace;
	struct rlimit before;
	char *text, *end;
	cJSON *events;
	uint64_t lost;

	signal(SIGXFSZ, SIG_IGN);
	trace = begin(SMALLEST);
	getrlimit(RLIMIT_FSIZE, &before);
	setrlimit(RLIMIT_FSIZE, &little);
	/* More than the file takes and less than the ring does. */
	for (unsigned i = 0; i < 180; i++)
		trace_record(trace, &span);
	while (!(lost = trace_lost(trace)))
		;
	trace_close(trace);
	setrlimit(RLIMIT_FSIZE, &before);
	assert_true(lost > 0 && lost <= 180);
	text = read_text(path);
	/* Only the bracket may be missing. */
	end = text + strlen(text);
	if (end[-2] != ']')
		strcpy(end, "]");
	events = cJSON_Parse(text);
	assert_true(cJSON_IsArray(events));
	cJSON_Delete(events);
	free(text);
	unlink(path);
}

static void a_file_that_is_being_written_is_left_alone(void **state)
{
	struct haul_trace *first = begin(SMALLEST), *second = begin(SMALLEST);
	struct trace_record one = a_span("one"), two = a_span("two");
	cJSON *events;

	trace_record(first, &one);
	trace_record(second, &two);
	trace_close(first);
	trace_close(second);
	events = events_of(path);
	find(events, "one");
	cJSON_Delete(events);
	events = events_of(path_2);
	find(events, "two");
	cJSON_Delete(events);
	/* Nobody writes it any more. */
	trace_close(begin(SMALLEST));
	assert_int_equal(access(path_2, F_OK), -1);
	unlink(path);
}

/* A child that lives on neither writes nor keeps the file locked. */
static void a_forked_child_leaves_it_alone(void **state)
{
	struct haul_trace *trace = begin(SMALLEST);
	struct trace_record span = a_span("parent");
	int ends[2], status;
	char byte;
	pid_t child;
	cJSON *events;

	assert_int_equal(pipe(ends), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		close(ends[1]);
		/* Until the parent has closed its trace. */
		_exit(read(ends[0], &byte, 1) != 0);
	}
	trace_record(trace, &span);
	trace_close(trace);
	trace_close(begin(SMALLEST));
	assert_int_equal(access(path_2, F_OK), -1);
	close(ends[0]);
	close(ends[1]);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	events = events_of(path);
	find(events, "tensorhaul_end");
	cJSON_Delete(events);
}

/* It ends in order, but without closing its context. */
static void a_process_that_ends_leaves_all_that_it_recorded(void **state)
{
	int status;
	pid_t child = fork();
	char *text;

	assert_true(child >= 0);
	if (child == 0) {
		struct trace_record span = a_span("last words");

		trace_record(begin(SMALLEST), &span);
		exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	text = read_text(path);
	assert_non_null(strstr(text, "last words"));
	assert_null(strstr(text, "tensorhaul_end"));
	free(text);
	unlink(path);
}

/* It costs records, and raises no signal in the program. */
static void a_pipe_whose_reader_leaves(void **state)
{
	struct trace_record span = a_span("unheard");
	struct haul_trace *trace;
	int reader;

	assert_int_equal(mkfifo(path, 0600), 0);
	reader = open(path, O_RDONLY | O_NONBLOCK);
	assert_true(reader >= 0);
	trace = begin(SMALLEST);
	close(reader);
	trace_record(trace, &span);
	trace_close(trace);
	unlink(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_kind_of_record_is_json),
		cmocka_unit_test(odd_operations_are_json),
		cmocka_unit_test(a_full_ring_drops_and_counts),
		cmocka_unit_test(threads_lose_nothing_that_is_not_counted),
		cmocka_unit_test(files_that_cant_be_written),
		cmocka_unit_test(a_full_disk_is_counted),
		cmocka_unit_test(a_file_that_is_being_written_is_left_alone),
		cmocka_unit_test(a_forked_child_leaves_it_alone),
		cmocka_unit_test(a_pipe_whose_reader_leaves),
		cmocka_unit_test(a_process_that_ends_leaves_all_that_it_recorded),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
