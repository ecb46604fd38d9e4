/* SPDX-License-Identifier: Apache-2.0 */
#include "spec.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"

#define SPEC_MAX 4096
#define KIB (UINT64_C(1) << 10)
#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

/* ---- Cutting a spec ---------------------------------------------------- */

/* The end of the value that starts at `text`; NULL when its brace is never closed. */
static const char *value_end(const char *text)
{
	unsigned depth = 0;

	if (*text != '{')
		return text + strcspn(text, ",");
	for (; *text; text++) {
		depth += *text == '{';
		depth -= *text == '}';
		if (!depth)
			return text + 1;
	}
	return NULL;
}

static const struct spec_option *find_option(const struct spec *spec, const char *name)
{
	for (size_t i = 0; i < spec->count; i++) {
		if (!strcmp(spec->options[i].name, name))
			return &spec->options[i];
	}
	return NULL;
}

static int add_option(struct spec *spec, char *name, char *value)
{
	struct spec_option *options =
		reallocarray(spec->options, spec->count + 1, sizeof(struct spec_option));

	if (options)
		spec->options = options;
	if (!options || !name || !value) {
		free(name);
		free(value);
		return -ENOMEM;
	}
	options[spec->count++] = (struct spec_option){.name = name, .value = value};
	return 0;
}

/* Take "name=value" at *text, and leave *text behind it. */
static int parse_option(const char **text, struct spec *spec, char *why, size_t room)
{
	const char *start = *text;
	size_t name_length = strcspn(start, "=,");
	const char *value = start + name_length + 1;
	const char *end;
	bool braces;
	char *name;

	if (start[name_length] != '=' || !name_length)
		return explain(why, room, -EINVAL,
			       "the spec has the option \"%.80s\"; valid is option=value", start);
	end = value_end(value);
	if (!end)
		return explain(why, room, -EINVAL,
			       "option %.80s: the brace is not closed; valid is option={value}",
			       start);
	braces = *value == '{';
	if (*end && *end != ',')
		return explain(
			why, room, -EINVAL,
			"option %.80s: \"%.20s\" follows the closing brace; valid is a comma "
			"or the end",
			start, end);
	*text = end;
	name = strndup(start, name_length);
	if (name && find_option(spec, name)) {
		explain(why, room, 0, "option %.80s is given twice; valid is once", name);
		free(name);
		return -EINVAL;
	}
	if (add_option(spec, name, strndup(value + braces, (size_t)(end - value) - 2 * braces)))
		return explain(why, room, -ENOMEM, "no memory for the spec");
	return 0;
}

static int parse_transport(const char **text, struct spec *spec, char *why, size_t room)
{
	size_t length = strcspn(*text, ",");
	const char *valid = "valid is a transport's name, then ,option=value for each option";

	if (!length)
		return explain(why, room, -EINVAL, "the spec \"%.80s\" names no transport; %s",
			       *text, valid);
	if (memchr(*text, '=', length))
		return explain(why, room, -EINVAL, "the spec \"%.80s\" starts with an option; %s",
			       *text, valid);
	spec->transport = strndup(*text, length);
	*text += length;
	return spec->transport ? 0 : explain(why, room, -ENOMEM, "no memory for the spec");
}

int spec_parse(const char *text, struct spec *spec, char *why, size_t room)
{
	int error;

	*spec = (struct spec){0};
	if (strnlen(text, SPEC_MAX + 1) > SPEC_MAX)
		return explain(why, room, -EINVAL,
			       "the spec \"%.40s...\" is too long; valid are up to %d bytes", text,
			       SPEC_MAX);
	error = parse_transport(&text, spec, why, room);
	while (!error && *text) {
		text++; /* the comma */
		error = parse_option(&text, spec, why, room);
	}
	if (error)
		spec_free(spec);
	return error;
}

void spec_free(struct spec *spec)
{
	free(spec->transport);
	for (size_t i = 0; i < spec->count; i++) {
		free(spec->options[i].name);
		free(spec->options[i].value);
	}
	free(spec->options);
	*spec = (struct spec){0};
}

/* ---- Values ------------------------------------------------------------ */

/* What one row's value is, before it goes into the config. */
union value {
	uint64_t number;
	bool on;
	unsigned choice;
	char *text;
	struct haul_option_range range;
};

static const struct {
	const char *suffix;
	uint64_t factor;
} units[] = {{"GiB", GIB}, {"MiB", MIB}, {"KiB", KIB}, {"", 1}};

#define UNITS (sizeof(units) / sizeof(units[0]))

/* Digits only (no sign, no blanks), up to what is not one. */
static bool parse_digits(const char **text, uint64_t *number)
{
	const char *next = *text;

	*number = 0;
	for (; *next >= '0' && *next <= '9'; next++) {
		if (__builtin_mul_overflow(*number, 10, number) ||
		    __builtin_add_overflow(*number, (uint64_t)(*next - '0'), number))
			return false;
	}
	if (next == *text)
		return false;
	*text = next;
	return true;
}

static bool parse_number(const struct haul_option *row, const char *text, uint64_t *number)
{
	size_t unit = row->kind == HAUL_OPTION_BYTES ? 0 : UNITS - 1;

	if (row->automatic && !strcmp(text, "auto")) {
		*number = HAUL_OPTION_AUTO;
		return true;
	}
	if (!parse_digits(&text, number))
		return false;
	while (unit < UNITS && strcmp(text, units[unit].suffix))
		unit++;
	if (unit == UNITS || __builtin_mul_overflow(*number, units[unit].factor, number))
		return false;
	return *number >= row->low && *number <= row->high &&
	       !(row->automatic && *number == HAUL_OPTION_AUTO);
}

static bool parse_range(const struct haul_option *row, const char *text,
			struct haul_option_range *range)
{
	*range = (struct haul_option_range){0};
	if (!*text)
		return true;
	return parse_digits(&text, &range->low) && *text++ == '-' &&
	       parse_digits(&text, &range->high) && !*text && range->low >= row->low &&
	       range->low <= range->high && range->high <= row->high;
}

static bool parse_choice(const struct haul_option *row, const char *text, unsigned *choice)
{
	for (*choice = 0; row->choices[*choice]; ++*choice) {
		if (!strcmp(text, row->choices[*choice]))
			return true;
	}
	return false;
}

/* 0, -EINVAL or -ENOMEM */
static int parse_value(const struct haul_option *row, const char *text, union value *value)
{
	bool good = false;

	switch (row->kind) {
	case HAUL_OPTION_NUMBER:
	case HAUL_OPTION_BYTES:
		good = parse_number(row, text, &value->number);
		break;
	case HAUL_OPTION_SWITCH:
		value->on = !strcmp(text, "yes");
		good = value->on || !strcmp(text, "no");
		break;
	case HAUL_OPTION_CHOICE:
		good = parse_choice(row, text, &value->choice);
		break;
	case HAUL_OPTION_RANGE:
		good = parse_range(row, text, &value->range);
		break;
	case HAUL_OPTION_TEXT:
		value->text = *text ? strdup(text) : NULL;
		return *text && !value->text ? -ENOMEM : 0;
	}
	return good ? 0 : -EINVAL;
}

static void *field(const struct haul_option *row, const void *config)
{
	return (char *)config + row->offset;
}

static void store(const struct haul_option *row, void *config, const union value *value)
{
	switch (row->kind) {
	case HAUL_OPTION_NUMBER:
	case HAUL_OPTION_BYTES:
		*(uint64_t *)field(row, config) = value->number;
		break;
	case HAUL_OPTION_SWITCH:
		*(bool *)field(row, config) = value->on;
		break;
	case HAUL_OPTION_CHOICE:
		*(unsigned *)field(row, config) = value->choice;
		break;
	case HAUL_OPTION_RANGE:
		*(struct haul_option_range *)field(row, config) = value->range;
		break;
	case HAUL_OPTION_TEXT:
		*(char **)field(row, config) = value->text;
		break;
	}
}

/* ---- Text that is added to text ---------------------------------------- */

static void append(char *text, size_t room, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

static void append(char *text, size_t room, const char *format, ...)
{
	size_t length = strnlen(text, room);
	va_list arguments;

	if (length >= room)
		return;
	va_start(arguments, format);
	vsnprintf(text + length, room - length, format, arguments);
	va_end(arguments);
}

/* In the largest unit that shows it exactly. */
static void append_number(const struct haul_option *row, uint64_t number, char *text, size_t room)
{
	size_t unit = row->kind == HAUL_OPTION_BYTES && number ? 0 : UNITS - 1;

	if (row->automatic && number == HAUL_OPTION_AUTO) {
		append(text, room, "auto");
		return;
	}
	while (number % units[unit].factor)
		unit++;
	append(text, room, "%" PRIu64 "%s", number / units[unit].factor, units[unit].suffix);
}

/* What the row's values are, for errors. */
static void append_valid(const struct haul_option *row, char *text, size_t room)
{
	switch (row->kind) {
	case HAUL_OPTION_NUMBER:
	case HAUL_OPTION_BYTES:
		append_number(row, row->low, text, room);
		append(text, room, " to ");
		append_number(row, row->high, text, room);
		if (row->kind == HAUL_OPTION_BYTES)
			append(text, room, " (bytes, or with KiB, MiB, GiB)");
		if (row->automatic)
			append(text, room, ", or auto");
		break;
	case HAUL_OPTION_SWITCH:
		append(text, room, "yes or no");
		break;
	case HAUL_OPTION_CHOICE:
		for (unsigned i = 0; row->choices[i]; i++)
			append(text, room, "%s%s", i ? ", " : "", row->choices[i]);
		break;
	case HAUL_OPTION_RANGE:
		append(text, room, "LOW-HIGH within %" PRIu64 "-%" PRIu64 ", or nothing", row->low,
		       row->high);
		break;
	case HAUL_OPTION_TEXT:
		append(text, room, "%s", row->info.range);
		break;
	}
}

/* ---- Tables ------------------------------------------------------------ */

void options_default(const struct haul_option *table, void *config)
{
	for (const struct haul_option *row = table; row->info.name; row++) {
		union value value = {0};
		int error = parse_value(row, row->info.value, &value);

		assert(error != -EINVAL);
		(void)error; /* without memory, a text is left empty */
		store(row, config, &value);
	}
}

static int apply(const struct haul_option *row, struct spec_option *option, void *config, char *why,
		 size_t room)
{
	union value value = {0};
	int error = parse_value(row, option->value, &value);

	if (error == -ENOMEM)
		return explain(why, room, error, "no memory for the option %s", option->name);
	if (error) {
		explain(why, room, error, "option %s=%.80s: valid is ", option->name,
			option->value);
		if (why)
			append_valid(row, why, room);
		return error;
	}
	if (row->kind == HAUL_OPTION_TEXT)
		free(*(char **)field(row, config));
	store(row, config, &value);
	option->taken = true;
	return 0;
}

int options_apply(const struct haul_option *table, struct spec *spec, void *config, char *why,
		  size_t room)
{
	for (const struct haul_option *row = table; row->info.name; row++) {
		struct spec_option *option =
			(struct spec_option *)find_option(spec, row->info.name);
		int error = option ? apply(row, option, config, why, room) : 0;

		if (error)
			return error;
	}
	return 0;
}

/* A text with a comma came in braces, so that those within it are paired. */
static bool needs_braces(const char *text)
{
	return *text == '{' || strchr(text, ',');
}

void options_print(const struct haul_option *table, const void *config, char *text, size_t room)
{
	for (const struct haul_option *row = table; row->info.name; row++) {
		const void *value = field(row, config);
		const struct haul_option_range *range = value;
		const char *string;

		append(text, room, ",%s=", row->info.name);
		switch (row->kind) {
		case HAUL_OPTION_NUMBER:
		case HAUL_OPTION_BYTES:
			append_number(row, *(const uint64_t *)value, text, room);
			break;
		case HAUL_OPTION_SWITCH:
			append(text, room, "%s", *(const bool *)value ? "yes" : "no");
			break;
		case HAUL_OPTION_CHOICE:
			append(text, room, "%s", row->choices[*(const unsigned *)value]);
			break;
		case HAUL_OPTION_RANGE:
			if (range->high)
				append(text, room, "%" PRIu64 "-%" PRIu64, range->low, range->high);
			break;
		case HAUL_OPTION_TEXT:
			string = *(char *const *)value;
			if (string)
				append(text, room, needs_braces(string) ? "{%s}" : "%s", string);
			break;
		}
	}
}

void options_free(const struct haul_option *table, void *config)
{
	for (const struct haul_option *row = table; row->info.name; row++) {
		if (row->kind != HAUL_OPTION_TEXT)
			continue;
		free(*(char **)field(row, config));
		*(char **)field(row, config) = NULL;
	}
}

/* ---- Options that nobody knows ----------------------------------------- */

#define ALIKE_MAX 64 /* names longer than this are like no other */

static unsigned smaller(unsigned a, unsigned b)
{
	return a < b ? a : b;
}

/* How many letters to change, add or take away to make `b` of `a` (Levenshtein). */
static unsigned distance(const char *a, const char *b)
{
	size_t length = strlen(b);
	unsigned row[ALIKE_MAX + 1];

	if (length > ALIKE_MAX || strlen(a) > ALIKE_MAX)
		return UINT32_MAX;
	for (size_t j = 0; j <= length; j++)
		row[j] = (unsigned)j;
	for (size_t i = 0; a[i]; i++) {
		unsigned diagonal = row[0];

		row[0] = (unsigned)i + 1;
		for (size_t j = 0; j < length; j++) {
			unsigned changed = diagonal + (a[i] != b[j]);

			diagonal = row[j + 1];
			row[j + 1] = smaller(changed, smaller(row[j], diagonal) + 1);
		}
	}
	return row[length];
}

/* NULL when no name is alike: that is, differs in at most two letters, and a third of them. */
static const char *nearest(const char *name, const struct haul_option *const *tables)
{
	unsigned limit = smaller(3, (unsigned)(strnlen(name, ALIKE_MAX) / 3) + 1), least = limit;
	const char *best = NULL;

	for (; *tables; tables++) {
		for (const struct haul_option *row = *tables; row->info.name; row++) {
			unsigned d = distance(name, row->info.name);

			if (d < least) {
				least = d;
				best = row->info.name;
			}
		}
	}
	return best;
}

static int explain_unknown(const struct spec *spec, const char *name,
			   const struct haul_option *const *tables, char *why, size_t room)
{
	const char *alike = nearest(name, tables), *separator = "";

	explain(why, room, -EINVAL, "%.40s has no option %.80s%s%s%s; valid are ", spec->transport,
		name, alike ? " (did you mean " : "", alike ? alike : "", alike ? "?)" : "");
	for (; why && *tables; tables++) {
		for (const struct haul_option *row = *tables; row->info.name; row++) {
			append(why, room, "%s%s", separator, row->info.name);
			separator = ", ";
		}
	}
	return -EINVAL;
}

int options_all_taken(const struct spec *spec, const struct haul_option *const *tables, char *why,
		      size_t room)
{
	for (size_t i = 0; i < spec->count; i++) {
		if (!spec->options[i].taken)
			return explain_unknown(spec, spec->options[i].name, tables, why, room);
	}
	return 0;
}
