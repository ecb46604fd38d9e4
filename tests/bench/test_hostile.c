/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client that does not keep to the benchmark's protocol: haul-bench-server answers with an error
 * or drops it, and goes on serving others. The server's path is in $HAUL_BENCH_SERVER.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <tensorhaul/haul.h>
#include <unistd.h>

#include "protocol.h"

#define WAIT_MS 20000

static pid_t server;
static char address[256];
static haul_context *context;
static haul_endpoint *endpoint;
static struct answer answer;

/* ---- The server, one for all tests ---- */

_Noreturn static void be_server(int ready)
{
	const char *path = getenv("HAUL_BENCH_SERVER");
	char option[32];

	snprintf(option, sizeof(option), "--ready-fd=%d", ready);
	execl(path, path, "--listen=127.0.0.1:0", "--memory=8MiB", option, (char *)NULL);
	_exit(127);
}

static int start_server(void **state)
{
	int ready[2];
	FILE *file;

	(void)state;
	assert_non_null(getenv("HAUL_BENCH_SERVER"));
	assert_int_equal(pipe(ready), 0);
	server = fork();
	if (server == 0) {
		close(ready[0]);
		be_server(ready[1]);
	}
	close(ready[1]);
	file = fdopen(ready[0], "r");
	assert_non_null(fgets(address, sizeof(address), file));
	fclose(file);
	address[strcspn(address, "\n")] = '\0';
	return 0;
}

/*
 * After all that it still ends in order. The thread sanitizer of GCC 12 loses about one signal in a
 * hundred that comes early, so there it is sent until it works.
 */
static int stop_server(void **state)
{
	int status, options = 0;
	pid_t ended;

	(void)state;
#ifdef __SANITIZE_THREAD__
	options = WNOHANG;
#endif
	do {
		kill(server, SIGTERM);
		ended = waitpid(server, &status, options);
	} while (ended == 0 && usleep(100000) == 0);
	assert_int_equal(ended, server);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	return 0;
}

static int connect_client(void **state)
{
	(void)state;
	assert_int_equal(haul_open("tcp", &context), 0);
	assert_int_equal(haul_connect_wait(context, address, WAIT_MS, &endpoint), 0);
	return 0;
}

static int disconnect_client(void **state)
{
	(void)state;
	haul_disconnect(endpoint);
	haul_close(context);
	return 0;
}

/* ---- Requests ---- */

static DLTensor bytes_of(void *bytes, int64_t *length)
{
	return haul_tensor(bytes, (DLDataType){kDLUInt, 8, 1}, 1, length);
}

static int send_bytes(const char *key, const void *bytes, size_t length)
{
	int64_t shape[1] = {(int64_t)length};
	DLTensor tensor = bytes_of((void *)(uintptr_t)bytes, shape);

	return haul_send_wait(endpoint, haul_key(key), &tensor, NULL, WAIT_MS);
}

static void take_answer(void)
{
	static char text[PROTOCOL_TEXT_MAX];
	int64_t shape[1] = {PROTOCOL_TEXT_MAX};
	DLTensor tensor = bytes_of(text, shape);
	struct haul_tensor_info info;
	char why[128];

	assert_int_equal(haul_recv_wait(endpoint, haul_key(PROTOCOL_ANSWER_KEY), &tensor, NULL,
					WAIT_MS, &info),
			 0);
	assert_int_equal(protocol_read_answer(text, info.bytes, &answer, why, sizeof(why)), 0);
}

static void ask_text(const char *text)
{
	assert_int_equal(send_bytes(PROTOCOL_REQUEST_KEY, text, strlen(text)), 0);
	take_answer();
}

static void ask(const struct request *request)
{
	char text[PROTOCOL_TEXT_MAX];

	assert_true(protocol_write_request(request, text) > 0);
	ask_text(text);
}

static const struct request hello = {.kind = REQUEST_HELLO}, finish = {.kind = REQUEST_FINISH};

static struct request start_of(enum round_kind kind, uint64_t size, uint32_t concurrency)
{
	return (struct request){
		.kind = REQUEST_START,
		.round = {.kind = kind, .number = 1, .size = size, .concurrency = concurrency},
	};
}

/* ---- Tests ---- */

static void garbage_is_answered_with_an_error(void **state)
{
	static const char *const garbage[] = {
		"",
		"{",
		"\xff\xff\xff",
		"{\"version\":1}",
		"{\"version\":9,\"request\":\"hello\"}",
		"{\"version\":1,\"request\":\"start\"}",
		"{\"version\":1,\"request\":\"start\",\"kind\":\"stream\",\"direction\":\"send\","
		"\"number\":1,\"size\":-1,\"concurrency\":1,\"seed\":1,\"verify\":true,"
		"\"poll\":false}",
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(garbage); i++) {
		ask_text(garbage[i]);
		assert_string_not_equal(answer.error, "");
	}
	ask(&hello);
	assert_string_equal(answer.error, "");
	assert_int_equal(answer.memory, 8 << 20);
}

static void a_request_that_is_too_long_ends_the_client(void **state)
{
	static char text[PROTOCOL_TEXT_MAX + 1];
	int result;

	(void)state;
	memset(text, ' ', sizeof(text));
	result = send_bytes(PROTOCOL_REQUEST_KEY, text, sizeof(text));
	assert_true(result == -ECONNRESET || result == -ECANCELED);
}

static void memory_is_limited(void **state)
{
	static const struct {
		uint64_t size;
		uint32_t concurrency;
	} much[] = {{8 << 20, 1},
		    {1, 65536},
		    {64, 65536},
		    {UINT64_C(1) << 53, 65536},
		    {UINT64_C(1) << 47, 1 << 16}};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(much); i++) {
		struct request start = start_of(ROUND_STREAM, much[i].size, much[i].concurrency);

		ask(&start);
		assert_string_not_equal(answer.error, "");
		start.round.direction = DIRECTION_BOTH;
		ask(&start);
		assert_string_not_equal(answer.error, "");
		start.round.kind = ROUND_PINGS;
		ask(&start);
		assert_string_not_equal(answer.error, "");
	}
	/* What was refused takes nothing away from the next one. */
	for (int i = 0; i < 3; i++) {
		struct request start = start_of(ROUND_STREAM, 3 << 20, 2);

		ask(&start);
		assert_string_equal(answer.error, "");
		ask(&finish);
		assert_string_equal(answer.error, "");
	}
}

static void requests_out_of_order_are_errors(void **state)
{
	struct request start = start_of(ROUND_STREAM, 4096, 2);

	(void)state;
	ask(&finish);
	assert_string_not_equal(answer.error, "");
	ask(&start);
	assert_string_equal(answer.error, "");
	ask(&start);
	assert_string_not_equal(answer.error, "");
	ask(&finish);
	assert_string_equal(answer.error, "");
	ask(&finish);
	assert_string_not_equal(answer.error, "");
}

static void a_tensor_of_another_size_is_told(void **state)
{
	struct request start = start_of(ROUND_STREAM, 4096, 2);
	char byte = 0;

	(void)state;
	ask(&start);
	assert_int_equal(send_bytes("data.1", &byte, 1), 0);
	ask(&finish);
	assert_string_not_equal(answer.error, "");
	ask(&hello);
	assert_string_equal(answer.error, "");
}

static void leaving_in_mid_round_frees_its_memory(void **state)
{
	(void)state;
	for (int i = 0; i < 10; i++) {
		struct request start = start_of(ROUND_STREAM, 3 << 20, 2);

		assert_int_equal(connect_client(NULL), 0);
		/* The server may not have noticed yet that the one before is gone. */
		do {
			ask(&start);
		} while (strstr(answer.error, "need more"));
		assert_string_equal(answer.error, "");
		disconnect_client(NULL);
	}
}

static void others_are_served_meanwhile(void **state)
{
	struct request start = start_of(ROUND_PINGS, 64, 1);
	haul_endpoint *first = endpoint, *second;

	(void)state;
	ask(&start);
	assert_int_equal(haul_connect_wait(context, address, WAIT_MS, &second), 0);
	endpoint = second;
	ask(&start);
	assert_string_equal(answer.error, "");
	haul_disconnect(second);
	endpoint = first;
	ask(&finish);
	assert_string_equal(answer.error, "");
}

#define with_client(function)                                                                      \
	cmocka_unit_test_setup_teardown(function, connect_client, disconnect_client)

int main(void)
{
	const struct CMUnitTest tests[] = {
		with_client(garbage_is_answered_with_an_error),
		with_client(a_request_that_is_too_long_ends_the_client),
		with_client(memory_is_limited),
		with_client(requests_out_of_order_are_errors),
		with_client(a_tensor_of_another_size_is_told),
		cmocka_unit_test(leaving_in_mid_round_frees_its_memory),
		with_client(others_are_served_meanwhile),
	};

	return cmocka_run_group_tests(tests, start_server, stop_server);
}
