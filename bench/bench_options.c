/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_options.h"

#include <stdlib.h>
#include <string.h>

#include "bench_common.h"

uint64_t option_number(const char *option, const char *text, uint64_t low, uint64_t high)
{
	uint64_t value = 0;

	if (bench_parse_number(text, low, high, &value))
		bench_usage_error("--%s=%s: expected a number from %llu to %llu", option, text,
				  (unsigned long long)low, (unsigned long long)high);
	return value;
}

uint64_t option_size(const char *option, const char *text, uint64_t low, uint64_t high)
{
	char from[BENCH_SIZE_TEXT], to[BENCH_SIZE_TEXT];
	uint64_t value = 0;

	if (bench_parse_size(text, &value) || value < low || value > high)
		bench_usage_error("--%s=%s: expected a size from %s to %s; units are B, KB, MB, "
				  "GB, TB, KiB, MiB, GiB and TiB",
				  option, text, bench_size_text(from, low),
				  bench_size_text(to, high));
	return value;
}

double option_seconds(const char *option, const char *text, double low, double high)
{
	double value = 0;

	if (bench_parse_seconds(text, low, high, &value))
		bench_usage_error("--%s=%s: expected seconds, from %g to %g", option, text, low,
				  high);
	return value;
}

int option_choice(const char *option, const char *text, const char *const *names)
{
	int value = bench_parse_choice(text, names);
	char list[256] = "";

	for (int i = 0; value < 0 && names[i]; i++) {
		size_t used = strlen(list);

		snprintf(list + used, sizeof(list) - used, "%s%s", i ? ", " : "", names[i]);
	}
	if (value < 0)
		bench_usage_error("--%s=%s: expected one of: %s", option, text, list);
	return value;
}

typedef uint64_t option_value(const char *option, const char *text, uint64_t low, uint64_t high);

static size_t list(const char *option, const char *text, option_value *value, uint64_t low,
		   uint64_t high, uint64_t *values, size_t most)
{
	char *own = strdup(text), *rest = own, *item;
	size_t count = 0;

	if (!own) {
		bench_complain("no memory");
		exit(EXIT_FAILED);
	}
	while ((item = strsep(&rest, ","))) {
		if (count == most)
			bench_usage_error("--%s=%s: more than %zu values", option, text, most);
		values[count++] = value(option, item, low, high);
	}
	free(own);
	return count;
}

size_t option_numbers(const char *option, const char *text, uint64_t low, uint64_t high,
		      uint64_t *values, size_t most)
{
	return list(option, text, option_number, low, high, values, most);
}

size_t option_sizes(const char *option, const char *text, uint64_t low, uint64_t high,
		    uint64_t *values, size_t most)
{
	return list(option, text, option_size, low, high, values, most);
}

void option_check_json(const char *path)
{
	int result = bench_json_check(path);

	if (result)
		bench_usage_error("--json=%s: %s", path, strerror(-result));
}

/* In place, up to the value: the words of a command line are the program's own. */
static void hyphenate(char *word)
{
	for (; *word && *word != '='; word++)
		if (*word == '_')
			*word = '-';
}

void options_parse(int argc, const char **argv, const struct poptOption *table,
		   void (*take)(int value))
{
	poptContext context;
	char why[256] = "";
	int result;

	for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
		if (strncmp(argv[i], "--", 2) == 0)
			hyphenate((char *)argv[i]);
	context = poptGetContext(NULL, argc, argv, table, 0);
	while ((result = poptGetNextOpt(context)) > 0)
		take(result);
	if (result < -1)
		snprintf(why, sizeof(why), "%s: %s", poptBadOption(context, POPT_BADOPTION_NOALIAS),
			 poptStrerror(result));
	else if (poptPeekArg(context))
		snprintf(why, sizeof(why), "%s: not an option", poptPeekArg(context));
	poptFreeContext(context);
	if (why[0])
		bench_usage_error("%s", why);
}
