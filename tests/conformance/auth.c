/* SPDX-License-Identifier: Apache-2.0 */
/* auth=psk:FILE: who has the key gets in, and nobody else; each refusal says why. */
#include "harness.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char right[] = "a key of more than sixteen bytes\n";
static const char wrong[] = "another key of more than 16 bytes\n";

static char *auth_with(struct world *world, const char *name, const char *key)
{
	return world_text(world, "auth=psk:%s", world_file(world, name, key, strlen(key), 0600));
}

/* Tensors flow once both have the key. The file is not needed after haul_open(). */
static void test_right_key(void **state)
{
	struct world *world = *state;
	char *options = auth_with(world, "key", right);
	struct block *source = block_new(world, 3 << 20), *target = block_new(world, 3 << 20);
	struct pair pair;
	struct way up, down;

	pair_open(world, options, &pair);
	assert_int_equal(unlink(strchr(options, ':') + 1), 0);
	connect_sides(pair.a, pair.b, &up, &down); /* the other one listens */
	block_fill(source, 1);
	post_send(&pair.up, haul_key("k"), &source->tensor);
	post_recv(&pair.up, haul_key("k"), &target->tensor);
	wait_all(world);
	block_check(target, 1);
	check_alive(&pair);
	check_way_alive(&up);
}

/* A trailing newline is no part of the key. */
static void test_newline_is_no_part_of_the_key(void **state)
{
	struct world *world = *state;
	struct side *a = side_open(world, auth_with(world, "with", "0123456789abcdef\n"));
	struct side *b = side_open(world, auth_with(world, "without", "0123456789abcdef"));
	struct way up, down;

	connect_sides(b, a, &up, &down);
	check_way_alive(&up);
}

/* `a` listens, `b` connects; it gets `result`, and nobody is accepted. */
static void refused(struct world *world, const char *a_options, const char *b_options, int result,
		    const char *word)
{
	struct side *a = side_open(world, a_options), *b = side_open(world, b_options);
	const char *words[] = {word, NULL};
	struct entry *connect = post_connect(b, side_listen(a));

	wait_done(connect);
	if (connect->result != result)
		fail_msg("the connect ended with %d (%s), not with %d", connect->result,
			 connect->detail, result);
	assert_null(connect->endpoint);
	check_words(connect->detail, words);
	world_run_for(world, 30);
	assert_int_equal(a->accepted_count, 0);
	side_close(a);
	side_close(b);
}

static void test_wrong_key(void **state)
{
	struct world *world = *state;

	refused(world, auth_with(world, "right", right), auth_with(world, "wrong", wrong), -EACCES,
		"key");
	refused(world, auth_with(world, "wrong", wrong), auth_with(world, "right", right), -EACCES,
		"key");
}

static void test_key_on_one_side_only(void **state)
{
	struct world *world = *state;
	char *options = auth_with(world, "key", right);

	refused(world, options, NULL, -EACCES, "auth");
	refused(world, NULL, options, -EACCES, "auth");
}

/* Those without the key don't disturb those with it. */
static void test_strangers_between_friends(void **state)
{
	struct world *world = *state;
	char *options = auth_with(world, "right", right);
	struct side *stranger;
	struct entry *connect;
	struct pair pair;

	pair_open(world, options, &pair);
	stranger = side_open(world, auth_with(world, "wrong", wrong));
	for (int i = 0; i < 20; i++) {
		connect = post_connect(
			stranger, connect_address(world, haul_listener_address(pair.a->listener)));
		check_alive(&pair);
		wait_result(connect, -EACCES);
	}
	assert_int_equal(pair.a->accepted_count, 1);
	assert_int_equal(pair.a->lost_count, 0);
}

static void bad_file(struct world *world, const char *option, int expected, const char *word)
{
	const char *words[] = {"auth", word, NULL};
	int error;

	assert_null(side_try_open(world, option, &error));
	check_error(NULL, error, expected, words);
}

static void test_key_files_that_are_none(void **state)
{
	struct world *world = *state;
	char large[5000];
	char *path;

	bad_file(world, "auth=psk:/nonexistent/key", -ENOENT, "/nonexistent/key");
	bad_file(world, "auth=psk:", -EINVAL, "psk:FILE");
	bad_file(world, "auth=secret", -EINVAL, "psk:FILE");
	bad_file(world, auth_with(world, "short", "fifteen bytes.."), -EINVAL, "16");
	bad_file(world, auth_with(world, "empty", ""), -EINVAL, "16");
	memset(large, 'k', sizeof(large));
	path = world_file(world, "large", large, sizeof(large), 0600);
	bad_file(world, world_text(world, "auth=psk:%s", path), -EINVAL, "4096");
	bad_file(world, world_text(world, "auth=psk:%s", world->folder), -EINVAL, world->folder);
}

/* A key that others can read is none; the detail has the command that mends it. */
static void test_key_file_for_all_to_read(void **state)
{
	static const unsigned modes[] = {0604, 0640, 0602, 0620, 0644, 0666};
	struct world *world = *state;

	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
		char *path = world_file(world, "open", right, sizeof(right) - 1, modes[i]);

		bad_file(world, world_text(world, "auth=psk:%s", path), -EACCES, "chmod 600");
	}
	/* 0400 and 0600 are good. */
	assert_non_null(side_open(
		world, world_text(world, "auth=psk:%s",
				  world_file(world, "closed", right, sizeof(right) - 1, 0400))));
}

/*
 * Root reads everything: be somebody else, in a process of its own, since a process that changes
 * its user loses the right to what it had opened of some devices.
 */
static void test_key_file_that_cannot_be_read(void **state)
{
	struct world *world = *state;
	const char *spec;
	char *path;
	pid_t child;
	int status;

	path = world_file(world, "unreadable", right, sizeof(right) - 1, 0000);
	spec = spec_held(world, spec_with(world, settings.transport,
					  world_text(world, "auth=psk:%s", path)));
	assert_int_equal(chmod(world->folder, 0711), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		haul_context *context;

		if (geteuid() == 0 && seteuid(65534))
			_exit(1);
		if (haul_open(spec, &context) != -EACCES)
			_exit(2);
		_exit(strstr(haul_detail(NULL), "unreadable") ? 0 : 3);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

static const struct CMUnitTest tests[] = {
	WORLD_TEST(test_right_key),
	WORLD_TEST(test_newline_is_no_part_of_the_key),
	WORLD_TEST(test_wrong_key),
	WORLD_TEST(test_key_on_one_side_only),
	WORLD_TEST(test_strangers_between_friends),
	WORLD_TEST(test_key_files_that_are_none),
	WORLD_TEST(test_key_file_for_all_to_read),
	WORLD_TEST(test_key_file_that_cannot_be_read),
};

const struct test_table auth_tests = TABLE_OF(tests);
