/* SPDX-License-Identifier: Apache-2.0 */
/*
 * haul-info: the transports of this build and their options, whether they can run here, and what
 * the host offers them.
 *
 * --json writes one object:
 *   {"tool": "haul-info", "version": "0.1.0", "common_options": [OPTION...],
 *    "transports": [{"name", "available": bool, "reason": text|null, "description": [line...],
 *                     "options": [OPTION...]}],
 *    "layer_options": [OPTION...] of the layer for gRPC programs, where that is built,
 *    "host": {see host_facts.h}}
 * OPTION: {"name", "default", "range", "help"}. With --transport only that one, and no host.
 */
#include <popt.h>
#include <string.h>
#include <tensorhaul/haul.h>

#include "bench_common.h"
#include "../grpc_compat/dropin/options.h"
#include "host_facts.h"

static const char LAYER[] = "the layer for gRPC programs";

/* Not there where gRPC is not. */
extern const struct haul_option layer_options[] __attribute__((weak));

static struct {
	char *transport, *peer, *json;
} options;

static struct poptOption option_table[] = {
	{"transport", 't', POPT_ARG_STRING, &options.transport, 0,
	 "only this one, without the host (default: all)", "NAME"},
	{"peer", 'p', POPT_ARG_STRING, &options.peer, 0,
	 "also say which adapter of verbs leads there (default: no host)", "HOST"},
	{"json", 'j', POPT_ARG_STRING | POPT_ARGFLAG_OPTIONAL, &options.json, 0,
	 "write JSON into a file, or to the standard output without one (default: a text)", "FILE"},
	POPT_AUTOHELP POPT_TABLEEND};

/* The longest text about what a host has. */
#define DESCRIPTION_MAX 16384

/* ---- Options of the command line ---- */

static void check_transport(void)
{
	char list[256] = "";

	for (unsigned i = 0; options.transport && haul_transport_name(i); i++) {
		size_t used = strlen(list);

		if (strcmp(haul_transport_name(i), options.transport) == 0)
			return;
		snprintf(list + used, sizeof(list) - used, "%s%s", i ? ", " : "",
			 haul_transport_name(i));
	}
	if (options.transport)
		bench_usage_error("--transport=%s: expected one of: %s", options.transport, list);
}

/* popt would take the next word for the file, as in "--json tcp": a file belongs behind a "=". */
static void say_standard_output(int argc, const char **argv)
{
	for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
		if (strcmp(argv[i], "--json") == 0 || strcmp(argv[i], "-j") == 0)
			argv[i] = "--json=-";
}

static void parse_options(int argc, const char **argv)
{
	poptContext context;
	int result;

	say_standard_output(argc, argv);
	context = poptGetContext(NULL, argc, argv, option_table, 0);
	result = poptGetNextOpt(context);
	if (result < -1)
		bench_usage_error("%s: %s", poptBadOption(context, POPT_BADOPTION_NOALIAS),
				  poptStrerror(result));
	if (poptPeekArg(context))
		bench_usage_error("%s: not an option; --transport=NAME shows one transport, "
				  "--json=FILE writes into a file",
				  poptPeekArg(context));
	poptFreeContext(context);
	check_transport();
	result = bench_json_check(options.json);
	if (result)
		bench_usage_error("--json=%s: %s", options.json, strerror(-result));
}

static bool wanted(const char *name)
{
	return !options.transport || strcmp(options.transport, name) == 0;
}

/* The options of a transport, "" for those of every transport, or LAYER. NULL behind the last. */
static const struct haul_option_info *option_of(const char *name, unsigned number)
{
	if (name != LAYER)
		return haul_transport_option(name, number);
	return layer_options[number].info.name ? &layer_options[number].info : NULL;
}

/* ---- Text ---- */

static void print_options(const char *name)
{
	static const char *const heads[] = {"    option", "default", "values", "meaning"};
	const struct haul_option_info *option;
	struct bench_table table;

	bench_table_init(&table, ARRAY_LENGTH(heads));
	bench_table_row(&table);
	for (size_t i = 0; i < ARRAY_LENGTH(heads); i++)
		bench_table_cell(&table, i, "%s", heads[i]);
	for (unsigned i = 0; (option = option_of(name, i)); i++) {
		bench_table_row(&table);
		bench_table_cell(&table, 0, "    %s", option->name);
		bench_table_cell(&table, 1, "%s", option->value ? option->value : "");
		bench_table_cell(&table, 2, "%s", option->range ? option->range : "");
		bench_table_cell(&table, 3, "%s", option->help ? option->help : "");
	}
	if (table.count > 1)
		bench_table_print_left(&table, stdout);
	else
		printf("    no options of its own\n");
	bench_table_free(&table);
}

static void print_description(const char *name)
{
	char text[DESCRIPTION_MAX], *line, *next;
	int result = haul_transport_describe(name, options.peer, text, sizeof(text));

	if (result)
		printf("    %s\n", text[0] ? text : haul_strerror(result));
	for (line = result ? NULL : strtok_r(text, "\n", &next); line;
	     line = strtok_r(NULL, "\n", &next))
		printf("    %s\n", line);
}

static void print_transport(const char *name)
{
	char reason[1024] = "";
	int result = haul_transport_probe(name, reason, sizeof(reason));

	printf("  %s: %s%s%s\n", name, result ? "can't run here" : "can run here",
	       reason[0] ? ": "
	       : result  ? ": "
			 : "",
	       reason[0] ? reason
	       : result  ? haul_strerror(result)
			 : "");
	/* A module that can't be loaded can't tell anything more. */
	if (result == 0 || haul_transport_option(name, 0)) {
		print_description(name);
		print_options(name);
	}
}

static void print_text(void)
{
	printf("Transports\n");
	for (unsigned i = 0; haul_transport_name(i); i++)
		if (wanted(haul_transport_name(i)))
			print_transport(haul_transport_name(i));
	printf("  options of every transport\n");
	print_options("");
	if (layer_options && !options.transport) {
		printf("  options of %s, in TENSORHAUL_GRPC\n", LAYER);
		print_options(LAYER);
	}
	if (!options.transport) {
		cJSON *facts = host_facts();

		printf("\n");
		host_facts_print(facts, stdout);
		cJSON_Delete(facts);
	}
}

/* ---- JSON ---- */

static void add_or_null(cJSON *object, const char *name, const char *text)
{
	if (text)
		cJSON_AddStringToObject(object, name, text);
	else
		cJSON_AddNullToObject(object, name);
}

static void add_options(cJSON *object, const char *member, const char *name)
{
	cJSON *array = cJSON_AddArrayToObject(object, member);
	const struct haul_option_info *option;

	for (unsigned i = 0; (option = option_of(name, i)); i++) {
		cJSON *item = cJSON_CreateObject();

		add_or_null(item, "name", option->name);
		add_or_null(item, "default", option->value);
		add_or_null(item, "range", option->range);
		add_or_null(item, "help", option->help);
		cJSON_AddItemToArray(array, item);
	}
}

static void add_description(cJSON *object, const char *name, int probed)
{
	cJSON *array = cJSON_AddArrayToObject(object, "description");
	char text[DESCRIPTION_MAX] = "", *line, *next;

	if (probed && !haul_transport_option(name, 0))
		return;
	haul_transport_describe(name, options.peer, text, sizeof(text));
	for (line = strtok_r(text, "\n", &next); line; line = strtok_r(NULL, "\n", &next))
		cJSON_AddItemToArray(array, cJSON_CreateString(line));
}

static cJSON *describe_transport(const char *name)
{
	cJSON *object = cJSON_CreateObject();
	char reason[1024] = "";
	int result = haul_transport_probe(name, reason, sizeof(reason));
	const char *text = reason[0] ? reason : result ? haul_strerror(result) : NULL;

	cJSON_AddStringToObject(object, "name", name);
	cJSON_AddBoolToObject(object, "available", result == 0);
	add_or_null(object, "reason", text);
	add_description(object, name, result);
	add_options(object, "options", name);
	return object;
}

static bool write_json(void)
{
	const char *path = options.json;
	cJSON *json = cJSON_CreateObject(), *transports;
	char version[32];
	int result;

	snprintf(version, sizeof(version), "%d.%d.%d", HAUL_VERSION_MAJOR, HAUL_VERSION_MINOR,
		 HAUL_VERSION_PATCH);
	cJSON_AddStringToObject(json, "tool", "haul-info");
	cJSON_AddStringToObject(json, "version", version);
	add_options(json, "common_options", "");
	transports = cJSON_AddArrayToObject(json, "transports");
	for (unsigned i = 0; haul_transport_name(i); i++)
		if (wanted(haul_transport_name(i)))
			cJSON_AddItemToArray(transports,
					     describe_transport(haul_transport_name(i)));
	if (layer_options && !options.transport)
		add_options(json, "layer_options", LAYER);
	if (!options.transport)
		cJSON_AddItemToObject(json, "host", host_facts());
	result = bench_json_write(path, json);
	cJSON_Delete(json);
	if (result)
		bench_complain("--json=%s: %s", path, strerror(-result));
	return result == 0;
}

int main(int argc, const char **argv)
{
	bench_hold_standard_streams();
	parse_options(argc, argv);
	if (options.json)
		return write_json() ? 0 : EXIT_FAILED;
	print_text();
	return bench_output_arrived() ? 0 : EXIT_FAILED;
}
