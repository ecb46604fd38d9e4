/* SPDX-License-Identifier: Apache-2.0 */
/*
 * haul-trace: what the traces of a run say, and all of them as one. See trace_file.h.
 *
 * --json writes one object:
 *   {"tool": "haul-trace",
 *    "files": [{"path", "program", "host", "transport_options", "seconds", "tensors", "failed",
 *               "copy_s", "copy_share", "kernel_s", "clock_offset_us", "clock_drift",
 *               "clock_uncertainty_us", "lost", "whole": bool,
 *               "spans": [{"name", "count", "seconds", "bytes"}]}],
 *    "sizes": [{"size", GROUP}], "peers": [{"peer", GROUP}]}
 * GROUP: "way", "tensors", "bytes", "mean_us", "p50_us", "p99_us", and the means "wait_us",
 * "checksum_us", "move_us" (without the copies), "copy_us", "back_us"|null, "complete_us",
 * "kernel_us".
 */
#include <popt.h>
#include <stdlib.h>
#include <string.h>

#include "bench_common.h"
#include "trace_file.h"

static struct {
	char *merge, *json;
	const char **paths;
	size_t count;
} options;

static struct poptOption option_table[] = {
	{"merge", 'm', POPT_ARG_STRING, &options.merge, 0,
	 "write all files into one trace, on the first one's clock (default: none)", "FILE"},
	{"json", 'j', POPT_ARG_STRING, &options.json, 0,
	 "write JSON instead of the tables; \"-\" is the standard output (default: none)", "FILE"},
	POPT_AUTOHELP POPT_TABLEEND};

/* A trace that is read must not be overwritten. */
static void check_output(const char *option, const char *path)
{
	int result = bench_json_check(path);

	if (result)
		bench_usage_error("--%s=%s: %s", option, path, strerror(-result));
	for (size_t i = 0; path && i < options.count; i++)
		if (strcmp(options.paths[i], path) == 0)
			bench_usage_error("--%s=%s: it is one of the files that are read", option,
					  path);
}

static void check_options(void)
{
	if (!options.count)
		bench_usage_error("which traces? Give the files that --trace or the option trace "
				  "wrote");
	for (size_t i = 0; i < options.count; i++)
		for (size_t n = 0; n < i; n++)
			if (strcmp(options.paths[i], options.paths[n]) == 0)
				bench_usage_error("%s is there twice", options.paths[i]);
	check_output("merge", options.merge);
	check_output("json", options.json);
}

static void parse_options(int argc, const char **argv)
{
	poptContext context = poptGetContext(NULL, argc, argv, option_table, 0);
	const char *path;
	int result;

	poptSetOtherOptionHelp(context, "[OPTION...] FILE...");
	result = poptGetNextOpt(context);
	if (result < -1)
		bench_usage_error("%s: %s", poptBadOption(context, POPT_BADOPTION_NOALIAS),
				  poptStrerror(result));
	options.paths = calloc((size_t)argc, sizeof(*options.paths));
	while (options.paths && (path = poptGetArg(context)))
		options.paths[options.count++] = strdup(path);
	poptFreeContext(context);
	check_options();
}

/* ---- Reading ----------------------------------------------------------- */

static bool read_all(struct trace_file *files)
{
	char why[512];

	for (size_t i = 0; i < options.count; i++) {
		if (trace_file_read(&files[i], options.paths[i], why, sizeof(why))) {
			bench_complain("%s: %s", options.paths[i], why);
			return false;
		}
		if (!files[i].whole)
			bench_complain(
				"%s: warning: the end is missing: the program is still running, "
				"was killed, or left its context open",
				options.paths[i]);
	}
	if (trace_align(files, options.count, why, sizeof(why)))
		return true;
	/* Each file alone can be summed up all the same. */
	bench_complain("%s%s", options.merge ? "" : "warning: ", why);
	return !options.merge;
}

static bool write_json(const struct trace_file *files)
{
	cJSON *json = trace_summary_json(files, options.count);
	int result = bench_json_write(options.json, json);

	cJSON_Delete(json);
	if (result)
		bench_complain("--json=%s: %s", options.json, strerror(-result));
	return result == 0;
}

static bool merge(const struct trace_file *files)
{
	char why[512];

	if (!trace_merge(files, options.count, options.merge, why, sizeof(why)))
		return true;
	bench_complain("%s", why);
	return false;
}

int main(int argc, const char **argv)
{
	struct trace_file *files;
	bool well;

	bench_hold_standard_streams();
	parse_options(argc, argv);
	files = calloc(options.count, sizeof(*files));
	if (!files) {
		bench_complain("no memory");
		return EXIT_FAILED;
	}
	well = read_all(files);
	if (well && options.merge)
		well = merge(files);
	if (well && options.json)
		well = write_json(files);
	else if (well)
		trace_summary_print(files, options.count, stdout);
	well = bench_output_arrived() && well;
	for (size_t i = 0; i < options.count; i++)
		trace_file_free(&files[i]);
	free(files);
	return well ? 0 : EXIT_FAILED;
}
