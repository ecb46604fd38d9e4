/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The conformance suite: what every transport has to do, whatever it is made of.
 *
 *   conformance --transport=SPEC
 *
 * Exit status: 0, 1 when a test failed, 77 when none could run.
 */
#include <popt.h>
#include <stdio.h>
#include <stdlib.h>

#include "harness.h"
#include "peer.h"

static const struct {
	const char *name;
	const struct test_table *table;
} groups[] = {
	{"sizes", &sizes_tests},
	{"types", &types_tests},
	{"keys", &keys_tests},
	{"depth", &depth_tests},
	{"cancel", &cancel_tests},
	{"expire", &expire_tests},
	{"storm", &storm_tests},
	{"refuse", &refuse_tests},
	{"ends", &ends_tests},
	{"kill", &kill_tests},
	{"stop", &stop_tests},
	{"poll", &poll_tests},
	{"completion", &completion_tests},
	{"threads", &thread_tests},
	{"fork", &fork_tests},
	{"auth", &auth_tests},
	{"memory", &memory_tests},
	{"resources", &resource_tests},
	{"bad_spec", &bad_spec_tests},
	{"bad_address", &bad_address_tests},
	{"bad_tensor", &bad_tensor_tests},
	{"statistics", &statistics_tests},
};

enum { GROUPS = sizeof(groups) / sizeof(groups[0]) };

static char *transport, *peer_transport, *listen_host, *connect_host, *filter, *group_list, *scale;
static int in_process, dies_silently, list, is_peer, numbers;

static const struct poptOption options[] = {
	{"transport", 't', POPT_ARG_STRING, &transport, 0, "The transport spec (default: tcp)",
	 "SPEC"},
	{"peer-transport", 'p', POPT_ARG_STRING, &peer_transport, 0,
	 "The spec of the other contexts, when it must differ", "SPEC"},
	{"listen-host", 'l', POPT_ARG_STRING, &listen_host, 0,
	 "Where listeners listen (default: 127.0.0.1)", "HOST"},
	{"address", 'a', POPT_ARG_STRING, &connect_host, 0,
	 "The host to connect to, when it is not what the listener says", "HOST"},
	{"in-process", 'i', POPT_ARG_NONE, &in_process, 0,
	 "The transport stays within one process: skip what needs two", NULL},
	{"dies-silently", 'd', POPT_ARG_NONE, &dies_silently, 0,
	 "Nobody else answers for a process: a dead one is found out by its silence", NULL},
	{"numbers", 'n', POPT_ARG_INT, &numbers, 0,
	 "In the specs, %n becomes one of 1..N that no other context has (default: stays %n)", "N"},
	{"scale", 's', POPT_ARG_STRING, &scale, 0,
	 "How many rounds: quarter, small (default) or full", "SCALE"},
	{"filter", 'f', POPT_ARG_STRING, &filter, 0, "Run the tests of this name; * and ? match",
	 "NAME"},
	{"groups", 'g', POPT_ARG_STRING, &group_list, 0,
	 "Run only these groups of tests (files of the suite): sizes,keys", "LIST"},
	{"list", 'L', POPT_ARG_NONE, &list, 0, "Print the tests' names and exit", NULL},
	{"peer", 0, POPT_ARG_NONE | POPT_ARGFLAG_DOC_HIDDEN, &is_peer, 0, NULL, NULL},
	POPT_AUTOHELP POPT_TABLEEND,
};

static int usage(const char *what, const char *why)
{
	fprintf(stderr, "conformance: %s: %s (see --help)\n", what, why);
	return 2;
}

static int parse(int count, const char **arguments)
{
	poptContext context = poptGetContext("conformance", count, arguments, options, 0);
	int result = poptGetNextOpt(context);
	const char *rest = poptGetArg(context);
	int status = 0;

	if (result < -1)
		status = usage(poptBadOption(context, 0), poptStrerror(result));
	else if (rest)
		status = usage(rest, "unexpected argument");
	else if (scale && strcmp(scale, "quarter") && strcmp(scale, "small") &&
		 strcmp(scale, "full"))
		status = usage(scale, "a scale is quarter, small or full");
	else if (numbers < 0 || numbers > NUMBERS_MAX)
		status = usage("--numbers", "1 to 254");
	poptFreeContext(context);
	settings.transport = transport ? transport : "tcp";
	settings.peer_transport = peer_transport ? peer_transport : settings.transport;
	settings.listen_host = listen_host ? listen_host : "127.0.0.1";
	settings.connect_host = connect_host;
	settings.full = scale && !strcmp(scale, "full");
	settings.quarter = scale && !strcmp(scale, "quarter");
	settings.in_process = in_process;
	settings.dies_silently = dies_silently;
	settings.numbers = (unsigned)numbers;
	return status;
}

static void options_free(void)
{
	free(transport);
	free(peer_transport);
	free(listen_host);
	free(connect_host);
	free(filter);
	free(group_list);
	free(scale);
}

/* ---- Running ----------------------------------------------------------- */

/* Whether a comma-separated list, NULL for all, has this name. */
static bool wanted(const char *names, const char *name)
{
	size_t length = strlen(name);

	if (!names)
		return true;
	for (const char *at = names; (at = strstr(at, name)); at += length) {
		if ((at == names || at[-1] == ',') && (!at[length] || at[length] == ','))
			return true;
	}
	return false;
}

/* Each name in the list is a group's. */
static bool groups_known(const char *names)
{
	size_t length;

	for (; names && *names; names += length + (names[length] == ',')) {
		bool known = false;

		length = strcspn(names, ",");
		for (size_t i = 0; i < GROUPS; i++)
			known |= strlen(groups[i].name) == length &&
				 !strncmp(groups[i].name, names, length);
		if (!known)
			return false;
	}
	return true;
}

static struct CMUnitTest *all_tests(size_t *count)
{
	struct CMUnitTest *tests;

	*count = 0;
	for (size_t i = 0; i < GROUPS; i++)
		*count += groups[i].table->count;
	tests = calloc(*count, sizeof(*tests));
	if (!tests)
		return NULL;
	*count = 0;
	for (size_t i = 0; i < GROUPS; i++) {
		const struct test_table *table = groups[i].table;

		if (!wanted(group_list, groups[i].name))
			continue;
		memcpy(tests + *count, table->tests, table->count * sizeof(*tests));
		*count += table->count;
	}
	return tests;
}

static int run(const struct CMUnitTest *tests, size_t count)
{
	int status = suite_prepare();

	if (status)
		return status;
	printf("transport %s, peers %s, listening on %s\n", settings.transport,
	       settings.peer_transport, settings.listen_host);
	if (filter)
		cmocka_set_test_filter(filter);
	return _cmocka_run_group_tests("conformance", tests, count, NULL, NULL) ? 1 : 0;
}

int main(int count, const char **arguments)
{
	struct CMUnitTest *tests;
	size_t test_count;
	int status = parse(count, arguments);

	if (status)
		return status;
	if (!groups_known(group_list))
		return usage(group_list, "no such group of tests");
	if (is_peer)
		return peer_main();
	tests = all_tests(&test_count);
	if (!tests)
		return 1;
	if (list) {
		for (size_t i = 0; i < test_count; i++)
			puts(tests[i].name);
	} else {
		status = run(tests, test_count);
	}
	free(tests);
	options_free();
	return status;
}
