/* SPDX-License-Identifier: Apache-2.0 */
/* Transport specs that are none: the detail names the value and what is valid. */
#include "harness.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* Opening `spec` fails; nothing is left half open. */
static void bad_spec(const char *spec, int expected, const char *first, const char *second)
{
	haul_context *context = (haul_context *)&context;
	int before = descriptors_open();
	const char *words[] = {first, second, NULL};
	int error = haul_open(spec, &context);

	if (!error)
		fail_msg("haul_open(%s) works", spec);
	check_error(NULL, error, expected, words);
	assert_null(context);
	assert_int_equal(descriptors_open(), before);
}

/* The transport that is tested, with one more option. */
static void bad_option(struct world *world, const char *option, const char *first,
		       const char *second)
{
	unsigned number;
	char *spec = spec_numbered(spec_with(world, settings.transport, option), &number);

	bad_spec(spec, -EINVAL, first, second);
	free(spec);
	number_give_back(number);
}

static void test_unknown_transport(void **state)
{
	bad_spec("carrierpigeon", -EINVAL, "carrierpigeon", "tcp");
	bad_spec("TCP", -EINVAL, "TCP", "tcp");
	bad_spec("../tcp", -EINVAL, NULL, "tcp");
	bad_spec("tcp ", -EINVAL, NULL, "tcp");
	bad_spec(",", -EINVAL, NULL, NULL);
	bad_spec(",slots=4", -EINVAL, NULL, NULL);
}

static void test_unknown_option(void **state)
{
	struct world *world = *state;

	bad_option(world, "slotz=4", "slotz", "slots");
	bad_option(world, "wings=2", "wings", "progress");
	bad_option(world, "Slots=4", "Slots", "slots");
}

static void test_options_without_a_value(void **state)
{
	struct world *world = *state;

	bad_option(world, "slots", "slots", NULL);
	bad_option(world, "slots=", "slots", NULL);
	bad_option(world, "=4", NULL, NULL);
	bad_option(world, "slots=4,,progress=caller", NULL, NULL);
	bad_spec(world_text(world, "%s,", spec_held(world, settings.transport)), -EINVAL, NULL,
		 NULL);
}

static void test_values_out_of_range(void **state)
{
	struct world *world = *state;

	bad_option(world, "slots=0", "slots", "16777216");
	bad_option(world, "slots=16777217", "16777217", "16777216");
	bad_option(world, "slots=-1", "-1", "16777216");
	bad_option(world, "slots=4x", "4x", "16777216");
	bad_option(world, "slots=0x10", "0x10", "16777216");
	bad_option(world, "slots= 4", NULL, "16777216");
	bad_option(world, "slots=18446744073709551617", "18446744073709551617", "16777216");
	bad_option(world, "progress=maybe", "maybe", "caller");
	bad_option(world, "progress=", "progress", "thread");
	bad_option(world, "checksum=md5", "md5", "crc32c");
	bad_option(world, "peer_ms=10", "peer_ms", "1000");
	bad_option(world, "connect_ms=0", "connect_ms", NULL);
	bad_option(world, "linger_ms=1h", "1h", NULL);
}

static void test_options_given_twice(void **state)
{
	struct world *world = *state;

	bad_option(world, "slots=4,slots=4", "slots", NULL);
}

static void test_braces(void **state)
{
	struct world *world = *state;

	bad_option(world, "auth={psk:/a,b", NULL, NULL);
	bad_option(world, "auth={psk:/nonexistent,file}x", NULL, NULL);
	bad_spec(spec_with(world, spec_held(world, settings.transport),
			   "auth={psk:/nonexistent,with,commas}"),
		 -ENOENT, "/nonexistent,with,commas", NULL);
	/* A value without a comma may be in braces, too. */
	side_close(side_open(world, "slots={4}"));
}

static void test_spec_that_is_too_long(void **state)
{
	struct world *world = *state;
	char *spec = world_memory(world, 10000);

	memset(spec, 'x', 9999);
	bad_spec(spec, -EINVAL, NULL, NULL);
	memcpy(spec, "tcp,auth=", 9);
	bad_spec(spec, -EINVAL, NULL, NULL);
}

/* The whole spec, with every option; it opens a context that is the same. */
static void test_spec_of_a_context(void **state)
{
	struct world *world = *state;
	struct side *side = side_open(world, "slots=123,checksum=crc32c");
	char *spec = world_text(world, "%s", haul_spec(side->context));
	haul_context *again;

	check_words(spec, (const char *const[]){"slots=123", "checksum=crc32c",
						"progress=", "peer_ms=", "linger_ms=", NULL});
	side_close(side);
	assert_int_equal(haul_open(spec, &again), 0);
	assert_string_equal(haul_spec(again), spec);
	haul_close(again);
}

static void test_spec_from_the_environment(void **state)
{
	struct world *world = *state;
	char *before = getenv("HAUL_TRANSPORT");
	haul_context *context;

	before = before ? world_text(world, "%s", before) : NULL;
	setenv("HAUL_TRANSPORT", spec_with(world, spec_held(world, settings.transport), "slots=77"),
	       1);
	assert_int_equal(haul_open(NULL, &context), 0);
	assert_non_null(strstr(haul_spec(context), "slots=77"));
	haul_close(context);
	setenv("HAUL_TRANSPORT", "carrierpigeon", 1);
	bad_spec(NULL, -EINVAL, "carrierpigeon", "tcp");
	unsetenv("HAUL_TRANSPORT");
	assert_int_equal(haul_open(NULL, &context), 0);
	assert_int_equal(strncmp(haul_spec(context), "tcp", 3), 0);
	haul_close(context);
	if (before)
		setenv("HAUL_TRANSPORT", before, 1);
}

/* What haul-info prints: names, defaults and ranges of every option. */
static void test_option_tables(void **state)
{
	struct world *world = *state;
	char *name = world_text(world, "%.*s", (int)strcspn(settings.transport, ","),
				settings.transport);
	bool found = false;
	unsigned count = 0;
	char reason[256];

	for (unsigned i = 0; haul_transport_name(i); i++)
		found |= !strcmp(haul_transport_name(i), "tcp");
	assert_true(found);
	assert_int_equal(haul_transport_probe(name, reason, sizeof(reason)), 0);
	assert_true(haul_transport_probe("carrierpigeon", reason, sizeof(reason)) < 0);
	check_words(reason, (const char *const[]){"carrierpigeon", NULL});
	for (unsigned i = 0; haul_transport_option("", i); i++, count++) {
		const struct haul_option_info *option = haul_transport_option("", i);

		assert_true(option->name && *option->name && option->value);
		assert_true(option->range && *option->range && option->help && *option->help);
	}
	assert_true(count >= 9);
	for (unsigned i = 0; haul_transport_option(name, i); i++)
		assert_true(*haul_transport_option(name, i)->help);
	assert_null(haul_transport_option("carrierpigeon", 0));
	assert_null(haul_transport_option(NULL, 0));
}

static void test_open_without_a_place_for_it(void **state)
{
	(void)state;
	assert_int_equal(haul_open(settings.transport, NULL), -EINVAL);
	haul_close(NULL);
}

/* The detail of a failed haul_open() is the thread's own, and goes with the next success. */
static void test_texts_of_errors(void **state)
{
	struct side *side = side_open(*state, NULL);

	assert_string_equal(haul_detail(side->context), "");
	for (int error = -200; error < 200; error++) {
		assert_non_null(haul_strerror(error));
		assert_true(*haul_strerror(error));
		assert_string_equal(haul_strerror(error), haul_strerror(-error));
	}
	assert_non_null(haul_strerror(INT32_MIN));
	assert_string_not_equal(haul_strerror(-ECONNRESET), haul_strerror(-ETIMEDOUT));
}

static const struct CMUnitTest tests[] = {
	WORLD_TEST(test_unknown_transport),           WORLD_TEST(test_unknown_option),
	WORLD_TEST(test_options_without_a_value),     WORLD_TEST(test_values_out_of_range),
	WORLD_TEST(test_options_given_twice),         WORLD_TEST(test_braces),
	WORLD_TEST(test_spec_that_is_too_long),       WORLD_TEST(test_spec_of_a_context),
	WORLD_TEST(test_spec_from_the_environment),   WORLD_TEST(test_option_tables),
	WORLD_TEST(test_open_without_a_place_for_it), WORLD_TEST(test_texts_of_errors),
};

const struct test_table bad_spec_tests = TABLE_OF(tests);
