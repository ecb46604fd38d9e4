/* SPDX-License-Identifier: Apache-2.0 */
/* Any spec is refused with a reason of one line, or its config prints and parses to the same again.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/spec.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

struct config {
	uint64_t number, size;
	bool on;
	unsigned choice;
	char *text;
	struct haul_option_range range;
};

static const char *const choices[] = {"one", "two", NULL};

static const struct haul_option table[] = {
	{{"n", "auto", "", ""}, HAUL_OPTION_NUMBER, offsetof(struct config, number), 1, 64, true},
	{{"b", "1MiB", "", ""}, HAUL_OPTION_BYTES, offsetof(struct config, size), 0, UINT64_MAX},
	{{"s", "no", "", ""}, HAUL_OPTION_SWITCH, offsetof(struct config, on)},
	{{"c", "two", "", ""},
	 HAUL_OPTION_CHOICE,
	 offsetof(struct config, choice),
	 .choices = choices},
	{{"t", "", "", ""}, HAUL_OPTION_TEXT, offsetof(struct config, text)},
	{{"r", "", "", ""}, HAUL_OPTION_RANGE, offsetof(struct config, range), 1, 65535},
	{{NULL}},
};

static const struct haul_option *const tables[] = {table, NULL};

/* Read a spec and print what it means. */
static bool read_and_print(const char *text, char *printed, size_t room)
{
	struct config config;
	struct spec spec;
	char why[512] = "";
	int error = spec_parse(text, &spec, why, sizeof(why));

	if (!error) {
		options_default(table, &config);
		error = options_apply(table, &spec, &config, why, sizeof(why));
		if (!error)
			error = options_all_taken(&spec, tables, why, sizeof(why));
		memcpy(printed, "x", 2);
		options_print(table, &config, printed, room);
		options_free(table, &config);
		spec_free(&spec);
	}
	if (error && (!*why || strchr(why, '\n')))
		abort();
	return !error;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
	static char first[8192], second[8192];
	char *text = strndup((const char *)bytes, length);

	if (!text)
		return 0;
	/* A spec of nearly 4,096 bytes prints to a longer one, which can't be read again. */
	if (read_and_print(text, first, sizeof(first)) && strlen(first) <= 4096) {
		if (!read_and_print(first, second, sizeof(second)) || strcmp(first, second))
			abort();
	}
	free(text);
	return 0;
}
