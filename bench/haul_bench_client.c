/* SPDX-License-Identifier: Apache-2.0 */
/* haul-bench-client: measures a transport against a haul-bench-server. See client.h. */
#include <signal.h>
#include <string.h>
#include <tensorhaul/haul.h>

#include "client.h"

static void log_message(void *user, enum haul_log_level level, const char *message)
{
	static const char *const names[] = {"error", "warning", "info", "debug"};

	(void)user;
	bench_complain("%s: %s", names[level & 3], message);
}

int main(int argc, const char **argv)
{
	static struct client_options options; /* with what it holds, as long as the program */
	struct report report = {.options = &options};
	struct team *team;
	bool well;

	bench_hold_standard_streams();
	client_options_parse(argc, argv, &options);
	signal(SIGPIPE, SIG_IGN);
	haul_log_set(log_message, NULL, options.verbose ? HAUL_LOG_DEBUG : HAUL_LOG_WARNING);
	if (options.diagnose)
		return diagnose(&options) && bench_output_arrived() ? 0 : EXIT_FAILED;
	team = team_new(&options);
	if (!team)
		return EXIT_FAILED;
	well = run_tests(team, &options, &report);
	report_print(&report, options.json && strcmp(options.json, "-") == 0 ? stderr : stdout);
	if (options.json)
		well = report_write_json(&report) && well;
	if (report.mismatches) {
		bench_complain("%llu tensors did not arrive as they were sent",
			       (unsigned long long)report.mismatches);
		well = false;
	}
	well = bench_output_arrived() && well;
	team_free(team);
	report_free(&report);
	return well ? 0 : EXIT_FAILED;
}
