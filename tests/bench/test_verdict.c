/* SPDX-License-Identifier: Apache-2.0 */
/* What --diagnose says of figures that are known to mean it. */
/* Before cmocka.h, which has a macro run_tests(). */
#include "client.h"

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

/* A path on which nothing but the link limits: 10 Gb/s, half a core for each side. */
static struct path_facts clean_path(void)
{
	struct path_facts facts = {.count = 3, .mtu = 9000, .cpus = 8};

	for (unsigned i = 0; i < 3; i++)
		facts.steps[i] = (struct path_step){.sockets = 1u << i,
						    .gbps = 9.8,
						    .round_trip_us = 200,
						    .least_round_trip_us = 100,
						    .client_cores = 0.4,
						    .server_cores = 0.5,
						    .host_busy = 0.1};
	return facts;
}

static struct path_verdict judge(const struct path_facts *facts)
{
	struct path_verdict verdict;

	path_judge(facts, &verdict);
	assert_string_equal(verdict.spec, "tcp");
	for (int i = 0; i < 4; i++) { /* whole sentences */
		size_t length = strlen(verdict.words[i]);

		assert_in_range(length, 2, sizeof(verdict.words[i]) - 2);
		assert_int_equal(verdict.words[i][length - 1], '.');
	}
	return verdict;
}

static void a_full_link(void **state)
{
	struct path_facts facts = clean_path();
	struct path_verdict verdict;

	facts.steps[0].loss = 0.01; /* a full link loses packets */
	facts.steps[2].gbps = 9.9;  /* noise */
	verdict = judge(&facts);
	assert_int_equal(verdict.one, LIMIT_LINK);
	assert_int_equal(verdict.all, LIMIT_LINK);
	assert_int_equal(verdict.best, 0);
	assert_non_null(strstr(verdict.words[2], "9.8 Gb/s is what the link carries"));
	assert_string_equal(verdict.words[3], "Take --transport=tcp as it is.");
	assert_string_equal(verdict.words[4], "");
}

static void one_host(void **state)
{
	struct path_facts facts = clean_path();
	struct path_verdict verdict;

	facts.same_host = true;
	facts.steps[0].window_limited = 1;
	facts.steps[1].gbps = 20;
	verdict = judge(&facts);
	assert_int_equal(verdict.one, LIMIT_CORES);
	assert_int_equal(verdict.all, LIMIT_CORES);
	assert_non_null(strstr(verdict.words[1], "Both ends are on this host"));
}

static void loss(void **state)
{
	struct path_facts facts = clean_path();
	struct path_verdict verdict;

	facts.steps[0].gbps = 1.4;
	facts.steps[0].loss = 0.01;
	facts.steps[1].gbps = 2.8;
	verdict = judge(&facts);
	assert_int_equal(verdict.one, LIMIT_LOSS);
	assert_int_equal(verdict.all, LIMIT_LINK);
	assert_int_equal(verdict.best, 2);
	assert_string_equal(verdict.words[0],
			    "4 sockets carry 9.8 Gb/s, one carries 1.4: 7.0 times as much.");
	assert_non_null(strstr(verdict.words[1], "1 % of its bytes"));
	assert_non_null(strstr(verdict.words[3], "streams=4"));
}

static void windows(void **state)
{
	struct path_facts facts = clean_path();
	struct path_verdict verdict;

	facts.steps[0].gbps = 1;
	facts.steps[0].loss = 0.01; /* the window says more */
	facts.steps[0].window_limited = 0.9;
	verdict = judge(&facts);
	assert_int_equal(verdict.one, LIMIT_WINDOW);
	assert_non_null(strstr(verdict.words[1], "90 % of the time"));
	assert_non_null(strstr(verdict.words[1], "120 KiB")); /* 9.8 Gb/s × 100 us */
	assert_non_null(strstr(verdict.words[1], "tcp_rmem"));
	facts.steps[0].window_limited = 0.1;
	facts.steps[0].buffer_limited = 0.8;
	verdict = judge(&facts);
	assert_int_equal(verdict.one, LIMIT_BUFFER);
	assert_non_null(strstr(verdict.words[1], "tcp_wmem"));
}

static void cores(void **state)
{
	struct path_facts facts = clean_path();
	struct path_verdict verdict;

	facts.steps[0].gbps = 5;
	facts.steps[0].client_cores = 0.97;
	assert_int_equal(judge(&facts).one, LIMIT_SENDER_CORE);
	facts.steps[0].client_cores = 0.5;
	facts.steps[0].server_cores = 0.99;
	assert_int_equal(judge(&facts).one, LIMIT_RECEIVER_CORE);
	/* Several sockets, and all cores. */
	for (int i = 1; i < 3; i++) {
		facts.steps[i].client_cores = 6;
		facts.steps[i].host_busy = 0.99;
	}
	verdict = judge(&facts);
	assert_int_equal(verdict.all, LIMIT_CORES);
	assert_non_null(strstr(verdict.words[2], "7.9 of 8 are busy"));
	assert_non_null(strstr(verdict.words[2], "6.0 of them with this"));
	/* The same, by others. */
	for (int i = 1; i < 3; i++)
		facts.steps[i].client_cores = 0.5;
	verdict = judge(&facts);
	assert_int_equal(verdict.all, LIMIT_LINK);
	assert_non_null(strstr(verdict.words[4], "Other work"));
}

static void unknown(void **state)
{
	struct path_facts facts = clean_path();
	struct path_verdict verdict;

	facts.steps[0].gbps = 1;
	verdict = judge(&facts);
	assert_int_equal(verdict.one, LIMIT_SOCKET);
	assert_non_null(strstr(verdict.words[1], "does not show"));
	/* What the kernel or /proc did not tell decides nothing. */
	facts.steps[0].loss = facts.steps[0].window_limited = facts.steps[0].buffer_limited = NAN;
	facts.steps[2].host_busy = facts.steps[0].host_busy = NAN;
	assert_int_equal(judge(&facts).one, LIMIT_SOCKET);
}

static void one_step(void **state)
{
	struct path_facts facts = clean_path();

	facts.count = 1;
	assert_int_equal(judge(&facts).all, LIMIT_LINK);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_full_link), cmocka_unit_test(loss),
		cmocka_unit_test(windows),     cmocka_unit_test(cores),
		cmocka_unit_test(unknown),     cmocka_unit_test(one_step),
		cmocka_unit_test(one_host),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
