/* SPDX-License-Identifier: Apache-2.0 */
/* What the programs that run tests have in common. */
#include "harness.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define SKIPPED_STATUS 77

/* A call that never comes back: say so, and let the process end. */
static void out_of_time(int number)
{
	static const char text[] = "the test takes too long; it is given up\n";

	(void)number;
	(void)!write(STDERR_FILENO, text, sizeof(text) - 1);
	abort();
}

int suite_prepare(void)
{
	struct sigaction action = {.sa_handler = out_of_time};
	haul_context *context;
	unsigned number;
	char *spec = spec_numbered(settings.transport, &number);
	int error = haul_open(spec, &context);

	free(spec);
	if (error == -EINVAL) {
		fprintf(stderr, "%s\n", haul_detail(NULL));
		return 2;
	}
	if (error) {
		printf("SKIP: %s: %s\n", settings.transport, haul_detail(NULL));
		return SKIPPED_STATUS;
	}
	haul_close(context);
	number_give_back(number);
	sigaction(SIGALRM, &action, NULL);
	signal(SIGPIPE, SIG_IGN); /* of the peers' pipes; the library raises none */
	setvbuf(stdout, NULL, _IOLBF, 0);
	return 0;
}

int suite_main(const char *transport, const struct CMUnitTest *tests, size_t count, int arguments,
	       char **argument)
{
	int failed = 0, status;

	settings.transport = settings.peer_transport = transport;
	status = suite_prepare();
	if (status)
		return status;
	if (arguments <= 1)
		failed = _cmocka_run_group_tests(transport, tests, count, NULL, NULL);
	for (int i = 1; i < arguments; i++) {
		cmocka_set_test_filter(argument[i]);
		failed += _cmocka_run_group_tests(argument[i], tests, count, NULL, NULL);
	}
	return failed ? 1 : 0;
}
