/* SPDX-License-Identifier: Apache-2.0 */
#include "protocol.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

static const char *const kind_names[] = {"hello", "start", "usage", "finish", NULL};
static const char *const round_names[] = {"stream", "pings", NULL};
const char *const direction_names[] = {"send", "recv", "both", NULL};

/* ---- Writing ---- */

static int print(cJSON *object, char text[PROTOCOL_TEXT_MAX])
{
	bool printed = object && cJSON_PrintPreallocated(object, text, PROTOCOL_TEXT_MAX, false);

	cJSON_Delete(object);
	return printed ? (int)strlen(text) : -ENOSPC;
}

static void write_round(cJSON *object, const struct round_request *round)
{
	cJSON_AddStringToObject(object, "kind", round_names[round->kind]);
	cJSON_AddStringToObject(object, "direction", direction_names[round->direction]);
	cJSON_AddNumberToObject(object, "number", round->number);
	cJSON_AddNumberToObject(object, "size", (double)round->size);
	cJSON_AddNumberToObject(object, "concurrency", round->concurrency);
	cJSON_AddNumberToObject(object, "seed", round->seed);
	cJSON_AddBoolToObject(object, "verify", round->verify);
	cJSON_AddBoolToObject(object, "poll", round->poll);
}

int protocol_write_request(const struct request *request, char text[PROTOCOL_TEXT_MAX])
{
	cJSON *object = cJSON_CreateObject();

	cJSON_AddNumberToObject(object, "version", PROTOCOL_VERSION);
	cJSON_AddStringToObject(object, "request", kind_names[request->kind]);
	if (request->kind == REQUEST_START)
		write_round(object, &request->round);
	return print(object, text);
}

int protocol_write_answer(const struct answer *answer, char text[PROTOCOL_TEXT_MAX])
{
	cJSON *object = cJSON_CreateObject();

	cJSON_AddNumberToObject(object, "version", PROTOCOL_VERSION);
	cJSON_AddStringToObject(object, "error", answer->error);
	cJSON_AddNumberToObject(object, "user_s", answer->usage.user_s);
	cJSON_AddNumberToObject(object, "system_s", answer->usage.system_s);
	cJSON_AddNumberToObject(object, "arrived", answer->arrived);
	cJSON_AddNumberToObject(object, "clock_s", answer->clock_s);
	cJSON_AddStringToObject(object, "spec", answer->spec);
	cJSON_AddNumberToObject(object, "memory", (double)answer->memory);
	cJSON_AddNumberToObject(object, "ceiling_port", answer->ceiling_port);
	cJSON_AddNumberToObject(object, "tensors_received", (double)answer->tensors_received);
	cJSON_AddNumberToObject(object, "verified", (double)answer->verified);
	cJSON_AddNumberToObject(object, "mismatches", (double)answer->mismatches);
	cJSON_AddNumberToObject(object, "chunks_sent", (double)answer->chunks_sent);
	cJSON_AddNumberToObject(object, "chunks_again", (double)answer->chunks_again);
	cJSON_AddBoolToObject(object, "statistics", answer->statistics);
	return print(object, text);
}

/* ---- Reading: the first thing that is wrong is kept, the rest is skipped ---- */

struct reader {
	const cJSON *object;
	char *why;
	size_t room;
	bool failed;
};

__attribute__((format(printf, 2, 3))) static void fail(struct reader *reader, const char *format,
						       ...)
{
	va_list arguments;

	if (reader->failed)
		return;
	reader->failed = true;
	va_start(arguments, format);
	vsnprintf(reader->why, reader->room, format, arguments);
	va_end(arguments);
}

static const cJSON *member(struct reader *reader, const char *name)
{
	const cJSON *item = cJSON_GetObjectItemCaseSensitive(reader->object, name);

	if (!item)
		fail(reader, "%s is missing", name);
	return item;
}

static uint64_t read_whole(struct reader *reader, const char *name, uint64_t low, uint64_t high)
{
	const cJSON *item = member(reader, name);
	double value;

	if (!item)
		return low;
	value = cJSON_GetNumberValue(item); /* NAN when it is something else */
	if (!(value >= (double)low && value <= (double)high) || floor(value) != value) {
		fail(reader, "%s is not a whole number from %llu to %llu", name,
		     (unsigned long long)low, (unsigned long long)high);
		return low;
	}
	return (uint64_t)value;
}

static double read_seconds(struct reader *reader, const char *name)
{
	const cJSON *item = member(reader, name);
	double value = item ? cJSON_GetNumberValue(item) : 0;

	if (!(value >= 0 && value < 1e12)) {
		fail(reader, "%s is not a time in seconds", name);
		return 0;
	}
	return value;
}

static bool read_bool(struct reader *reader, const char *name)
{
	const cJSON *item = member(reader, name);

	if (item && !cJSON_IsBool(item))
		fail(reader, "%s is neither true nor false", name);
	return cJSON_IsTrue(item);
}

static int read_choice(struct reader *reader, const char *name, const char *const *choices)
{
	const cJSON *item = member(reader, name);
	const char *text = cJSON_GetStringValue(item);
	int choice = text ? bench_parse_choice(text, choices) : -EINVAL;

	if (item && choice < 0)
		fail(reader, "%s is not a known word", name);
	return choice < 0 ? 0 : choice;
}

static void read_text(struct reader *reader, const char *name, char *text, size_t room)
{
	const cJSON *item = member(reader, name);
	const char *value = cJSON_GetStringValue(item);

	if (item && (!value || strlen(value) >= room))
		fail(reader, "%s is not a text of less than %zu bytes", name, room);
	else if (value)
		strcpy(text, value);
}

/* Whole numbers up to 2^53 are exact in JSON. */
#define EXACT_MAX (UINT64_C(1) << 53)

static void read_round(struct reader *reader, struct round_request *round)
{
	round->kind = (enum round_kind)read_choice(reader, "kind", round_names);
	round->direction = (enum direction)read_choice(reader, "direction", direction_names);
	round->number = (uint32_t)read_whole(reader, "number", 0, UINT32_MAX);
	round->size = read_whole(reader, "size", 0, EXACT_MAX);
	round->concurrency =
		(uint32_t)read_whole(reader, "concurrency", 1, PROTOCOL_CONCURRENCY_MAX);
	round->seed = (uint32_t)read_whole(reader, "seed", 0, UINT32_MAX);
	round->verify = read_bool(reader, "verify");
	round->poll = read_bool(reader, "poll");
}

static cJSON *parse(struct reader *reader, const char *text, size_t length)
{
	cJSON *object = length <= PROTOCOL_TEXT_MAX ? cJSON_ParseWithLength(text, length) : NULL;

	reader->object = object;
	if (!cJSON_IsObject(object))
		fail(reader, "this is not a JSON object");
	else
		read_whole(reader, "version", PROTOCOL_VERSION, PROTOCOL_VERSION);
	return object;
}

int protocol_read_request(const char *text, size_t length, struct request *request, char *why,
			  size_t room)
{
	struct reader reader = {.why = why, .room = room};
	cJSON *object = parse(&reader, text, length);

	*request = (struct request){0};
	if (!reader.failed)
		request->kind = (enum request_kind)read_choice(&reader, "request", kind_names);
	if (!reader.failed && request->kind == REQUEST_START)
		read_round(&reader, &request->round);
	cJSON_Delete(object);
	return reader.failed ? -EPROTO : 0;
}

static void read_answer(struct reader *reader, struct answer *answer)
{
	read_text(reader, "error", answer->error, sizeof(answer->error));
	answer->usage.user_s = read_seconds(reader, "user_s");
	answer->usage.system_s = read_seconds(reader, "system_s");
	answer->arrived = (double)read_whole(reader, "arrived", 0, EXACT_MAX);
	answer->clock_s = read_seconds(reader, "clock_s");
	read_text(reader, "spec", answer->spec, sizeof(answer->spec));
	answer->memory = read_whole(reader, "memory", 0, EXACT_MAX);
	answer->ceiling_port = (uint16_t)read_whole(reader, "ceiling_port", 0, UINT16_MAX);
	answer->tensors_received = read_whole(reader, "tensors_received", 0, EXACT_MAX);
	answer->verified = read_whole(reader, "verified", 0, EXACT_MAX);
	answer->mismatches = read_whole(reader, "mismatches", 0, EXACT_MAX);
	answer->chunks_sent = read_whole(reader, "chunks_sent", 0, EXACT_MAX);
	answer->chunks_again = read_whole(reader, "chunks_again", 0, EXACT_MAX);
	answer->statistics = read_bool(reader, "statistics");
}

int protocol_read_answer(const char *text, size_t length, struct answer *answer, char *why,
			 size_t room)
{
	struct reader reader = {.why = why, .room = room};
	cJSON *object = parse(&reader, text, length);

	*answer = (struct answer){0};
	if (!reader.failed)
		read_answer(&reader, answer);
	cJSON_Delete(object);
	return reader.failed ? -EPROTO : 0;
}
