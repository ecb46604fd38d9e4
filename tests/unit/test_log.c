/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend.h"
#include "engine/log.h"

struct record {
	unsigned count;
	enum haul_log_level level;
	char text[1024];
};

static void keep(void *user, enum haul_log_level level, const char *message)
{
	struct record *record = user;

	record->count++;
	record->level = level;
	snprintf(record->text, sizeof(record->text), "%s", message);
	errno = EXDEV;
}

static void levels(void **state)
{
	for (int limit = HAUL_LOG_ERROR; limit <= HAUL_LOG_DEBUG; limit++) {
		for (int level = HAUL_LOG_ERROR; level <= HAUL_LOG_DEBUG; level++) {
			struct record record = {0};

			haul_log_set(keep, &record, (enum haul_log_level)limit);
			haul_log((enum haul_log_level)level, "stream %d of %s", 3, "peer");
			assert_int_equal(record.count, level <= limit);
			if (level <= limit) {
				assert_int_equal(record.level, level);
				assert_string_equal(record.text, "stream 3 of peer");
			}
		}
	}
	haul_log_set(NULL, NULL, HAUL_LOG_DEBUG);
	haul_log(HAUL_LOG_ERROR, "nobody hears this");
}

static void messages_are_one_line_and_bounded(void **state)
{
	struct record record = {0};
	char text[2000];

	haul_log_set(keep, &record, HAUL_LOG_INFO);
	haul_log(HAUL_LOG_INFO, "peer says %s", "x\nforged\r\x7f\tend");
	assert_string_equal(record.text, "peer says x?forged???end");
	memset(text, 'y', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	errno = ENODEV;
	haul_log(HAUL_LOG_INFO, "%s", text);
	assert_int_equal(strlen(record.text), DETAIL_MAX - 1);
	assert_int_equal(errno, ENODEV);
	haul_log_set(NULL, NULL, HAUL_LOG_INFO);
}

/* ---- Threads ----------------------------------------------------------- */

static atomic_bool stop;
static atomic_uint heard;

/* `user` says whether the function may still be called. */
static void hear(void *user, enum haul_log_level level, const char *message)
{
	atomic_bool *alive = user;

	if (!atomic_load(alive))
		abort();
	atomic_fetch_add(&heard, 1);
}

static void *talk(void *argument)
{
	while (!atomic_load(&stop))
		haul_log(HAUL_LOG_ERROR, "talk");
	return NULL;
}

/* When haul_log_set() has returned, the function before it is never called again. */
static void set_waits_for_running_callbacks(void **state)
{
	static atomic_bool alive[200];
	pthread_t threads[2];

	atomic_store(&stop, false);
	for (size_t i = 0; i < COUNT(threads); i++)
		assert_int_equal(pthread_create(&threads[i], NULL, talk, NULL), 0);
	for (size_t i = 0; i < COUNT(alive); i++) {
		unsigned before = atomic_load(&heard);

		atomic_store(&alive[i], true);
		haul_log_set(hear, &alive[i], HAUL_LOG_ERROR);
		while (atomic_load(&heard) == before)
			sched_yield();
		haul_log_set(NULL, NULL, HAUL_LOG_ERROR);
		atomic_store(&alive[i], false);
	}
	atomic_store(&stop, true);
	for (size_t i = 0; i < COUNT(threads); i++)
		pthread_join(threads[i], NULL);
}

/* ---- Fork -------------------------------------------------------------- */

/* In a child: logging can be set and used, whatever the parent's threads were doing. */
static void use_log_in_child(void)
{
	struct record record = {0};

	alarm(20); /* instead of waiting for ever */
	haul_log_set(keep, &record, HAUL_LOG_ERROR);
	haul_log(HAUL_LOG_ERROR, "child");
	_exit(record.count == 1 ? 0 : 1);
}

static void assert_child_succeeds(pid_t child)
{
	int status;

	assert_true(child > 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

static int entered[2], leave[2];

static void stay(void *user, enum haul_log_level level, const char *message)
{
	char byte = 0;

	if (write(entered[1], &byte, 1) != 1 || read(leave[0], &byte, 1) != 1)
		abort();
}

static void *log_once(void *argument)
{
	haul_log(HAUL_LOG_ERROR, "once");
	return NULL;
}

static void fork_while_another_thread_logs(void **state)
{
	pthread_t thread;
	char byte;
	pid_t child;

	assert_int_equal(pipe(entered) | pipe(leave), 0);
	haul_log_set(stay, NULL, HAUL_LOG_ERROR);
	assert_int_equal(pthread_create(&thread, NULL, log_once, NULL), 0);
	assert_int_equal(read(entered[0], &byte, 1), 1);
	child = fork();
	if (!child)
		use_log_in_child();
	assert_child_succeeds(child);
	assert_int_equal(write(leave[1], &byte, 1), 1);
	pthread_join(thread, NULL);
	haul_log_set(NULL, NULL, HAUL_LOG_ERROR);
	for (int i = 0; i < 2; i++) {
		close(entered[i]);
		close(leave[i]);
	}
}

static void fork_here(void *user, enum haul_log_level level, const char *message)
{
	*(pid_t *)user = fork();
}

static void fork_within_the_callback(void **state)
{
	pid_t child = -1;

	haul_log_set(fork_here, &child, HAUL_LOG_ERROR);
	haul_log(HAUL_LOG_ERROR, "fork");
	if (!child)
		use_log_in_child();
	assert_child_succeeds(child);
	haul_log_set(NULL, NULL, HAUL_LOG_ERROR);
}

/* ---- Details ----------------------------------------------------------- */

static void *look_at_details(void *argument)
{
	return detail_of_last_open()[0] || detail_buffer() == argument ? argument : NULL;
}

static void details_belong_to_a_thread(void **state)
{
	pthread_t thread;
	void *result;

	assert_string_equal(detail_of_last_open(), "");
	assert_int_equal(detail_of_open(-EINVAL, "option %s=%d\n", "streams", 99), -EINVAL);
	assert_string_equal(detail_of_last_open(), "option streams=99?");
	assert_int_equal(detail_of_open(-EIO, "again: %s", detail_of_last_open()), -EIO);
	assert_string_equal(detail_of_last_open(), "again: option streams=99?");
	assert_int_equal(pthread_create(&thread, NULL, look_at_details, detail_buffer()), 0);
	pthread_join(thread, &result);
	assert_null(result);
	assert_true((const char *)detail_buffer() != detail_of_last_open());
	memset(detail_buffer(), 'x', DETAIL_MAX);
	assert_string_equal(detail_of_last_open(), "again: option streams=99?");
}

static void explanations(void **state)
{
	char why[8] = "#######";

	assert_int_equal(explain(NULL, 10, -EIO, "x"), -EIO);
	assert_int_equal(explain(why, 0, -EIO, "x"), -EIO);
	assert_string_equal(why, "#######");
	assert_int_equal(explain(why, 4, -EIO, "a\nbcdef"), -EIO);
	assert_string_equal(why, "a?b");
	assert_string_equal(why + 4, "###");
	/* UTF-8 is left alone. */
	assert_int_equal(explain(why, sizeof(why), 0, "\xc3\xa4"), 0);
	assert_string_equal(why, "\xc3\xa4");
}

/* ---- Errors, randomness, time ------------------------------------------ */

static void error_texts(void **state)
{
	static const int ours[] = {
		EINVAL,       ENOSYS,   ENOMEM,       EMFILE,    EADDRINUSE, EADDRNOTAVAIL,
		EACCES,       ENOENT,   ECONNREFUSED, ETIMEDOUT, EPROTO,     ENETUNREACH,
		EHOSTUNREACH, EBUSY,    EFAULT,       ENOTCONN,  ECANCELED,  ECONNRESET,
		EBADMSG,      EMSGSIZE, ECHILD,       EOVERFLOW,
	};

	for (size_t i = 0; i < COUNT(ours); i++) {
		assert_string_not_equal(haul_strerror(-ours[i]), "unknown error");
		assert_ptr_equal(haul_strerror(ours[i]), haul_strerror(-ours[i]));
	}
	for (int error = 0; error < 5000; error++)
		assert_true(strlen(haul_strerror(-error)) > 2);
	assert_string_equal(haul_strerror(0), "success");
	assert_contains(haul_strerror(-ECHILD), "parent");
	assert_contains(haul_strerror(-EMSGSIZE), "larger");
	assert_string_equal(haul_strerror(-ENOSPC), "No space left on device");
	assert_string_equal(haul_strerror(-4000), "unknown error");
	assert_string_equal(haul_strerror(INT_MIN), "unknown error");
	assert_string_equal(haul_strerror(INT_MAX), "unknown error");
}

static void randomness(void **state)
{
	uint8_t first[64] = {0}, second[64] = {0}, guard[66];

	assert_int_equal(haul_random(NULL, 0), 0);
	assert_int_equal(haul_random(first, sizeof(first)), 0);
	assert_int_equal(haul_random(second, sizeof(second)), 0);
	assert_memory_not_equal(first, second, sizeof(first));
	memset(guard, 0xa5, sizeof(guard));
	assert_int_equal(haul_random(guard + 1, 64), 0);
	assert_int_equal(guard[0], 0xa5);
	assert_int_equal(guard[65], 0xa5);
}

static void clock_runs_forward(void **state)
{
	uint64_t last = haul_clock(), start = last;

	assert_true(start > 0);
	while (haul_clock() < start + 1000000) {
		uint64_t now = haul_clock();

		assert_true(now >= last);
		last = now;
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(levels),
		cmocka_unit_test(messages_are_one_line_and_bounded),
		cmocka_unit_test(set_waits_for_running_callbacks),
		cmocka_unit_test(fork_while_another_thread_logs),
		cmocka_unit_test(fork_within_the_callback),
		cmocka_unit_test(details_belong_to_a_thread),
		cmocka_unit_test(explanations),
		cmocka_unit_test(error_texts),
		cmocka_unit_test(randomness),
		cmocka_unit_test(clock_runs_forward),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
