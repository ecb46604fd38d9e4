/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records as events of a Chrome trace, which Perfetto reads. docs/tracing.md has the format. The
 * numbers are written by hand, two digits at a time: each event has about ten, and printf() is
 * slow. What the ten events of an operation have in common is made into text once.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "trace.h"

/* Links beyond this many are not named; their events are written all the same. */
#define NAMED_LINKS 4096
#define NAMED_LANES 256 /* each way */

/* Room for two numbers and the words between them. */
#define COMMON_MAX 128

/* Thread numbers of lanes begin above those of real threads (at most 2^22). */
#define LANES_FROM (UINT64_C(1) << 23)

struct named_link {
	char address[TRACE_ADDRESS_MAX];
	uint64_t lanes[2][NAMED_LANES / 64]; /* by way, a bit for each that has its name */
};

struct trace_json {
	struct named_link *links; /* by number */
	uint32_t count;
	uint64_t serial; /* of operations */
	uint32_t process;
	/* In each event of the operation that is being written: from its phase to its name. */
	char common[COMMON_MAX];
	size_t common_length;
};

struct trace_json *trace_json_new(void)
{
	struct trace_json *json = calloc(1, sizeof(*json));

	if (json)
		json->process = (uint32_t)getpid();
	return json;
}

void trace_json_free(struct trace_json *json)
{
	if (!json)
		return;
	free(json->links);
	free(json);
}

/* ---- Text -------------------------------------------------------------- */

struct text {
	char *at;
};

static void put(struct text *text, const char *words)
{
	size_t length = strlen(words);

	memcpy(text->at, words, length);
	text->at += length;
}

static const char pairs[] = "0001020304050607080910111213141516171819"
			    "2021222324252627282930313233343536373839"
			    "4041424344454647484950515253545556575859"
			    "6061626364656667686970717273747576777879"
			    "8081828384858687888990919293949596979899";

static void put_number(struct text *text, uint64_t number)
{
	char digits[20];
	char *first = digits + sizeof(digits);
	size_t count;

	for (; number >= 100; number /= 100)
		memcpy(first -= 2, pairs + number % 100 * 2, 2);
	memcpy(first -= 2, pairs + number * 2, 2);
	first += number < 10;
	count = (size_t)(digits + sizeof(digits) - first);
	memcpy(text->at, first, count);
	text->at += count;
}

static void put_signed(struct text *text, int64_t number)
{
	if (number < 0)
		*text->at++ = '-';
	put_number(text, number < 0 ? -(uint64_t)number : (uint64_t)number);
}

static void put_hex(struct text *text, uint64_t number)
{
	put(text, "\"0x");
	for (int shift = (63 - __builtin_clzll(number | 1)) & ~3; shift >= 0; shift -= 4)
		*text->at++ = "0123456789abcdef"[number >> shift & 15];
	*text->at++ = '"';
}

/* ns as microseconds with three decimals. */
static void put_time(struct text *text, uint64_t ns)
{
	unsigned rest = (unsigned)(ns % 1000);

	put_number(text, ns / 1000);
	*text->at++ = '.';
	*text->at++ = (char)('0' + rest / 100);
	memcpy(text->at, pairs + rest % 100 * 2, 2);
	text->at += 2;
}

/* In quotes. Bytes that are no ASCII letters become the character of the same number. */
static void put_string(struct text *text, const void *bytes, size_t length)
{
	const uint8_t *next = bytes;

	*text->at++ = '"';
	for (size_t i = 0; i < length; i++) {
		if (next[i] < 0x20 || next[i] >= 0x7f) {
			put(text, "\\u00");
			*text->at++ = "0123456789abcdef"[next[i] >> 4];
			*text->at++ = "0123456789abcdef"[next[i] & 15];
			continue;
		}
		if (next[i] == '"' || next[i] == '\\')
			*text->at++ = '\\';
		*text->at++ = (char)next[i];
	}
	*text->at++ = '"';
}

static void put_words(struct text *text, const char *words, size_t most)
{
	put_string(text, words, strnlen(words, most));
}

/* ---- Events ------------------------------------------------------------ */

static void begin_event(struct text *text, const char *phase, uint64_t process, uint64_t thread)
{
	put(text, ",\n{\"ph\":\"");
	put(text, phase);
	put(text, "\",\"pid\":");
	put_number(text, process);
	put(text, ",\"tid\":");
	put_number(text, thread);
}

/* A step that was begun again, or never, took no time that is negative. */
static uint64_t between(uint64_t from, uint64_t to)
{
	return to > from ? to - from : 0;
}

static void put_field(struct text *text, const char *name, uint64_t number)
{
	put(text, name);
	put_number(text, number);
}

static void put_time_field(struct text *text, const char *name, uint64_t ns)
{
	put(text, name);
	put_time(text, ns);
}

static void put_hex_field(struct text *text, const char *name, uint64_t number)
{
	put(text, name);
	put_hex(text, number);
}

static void put_metadata(struct text *text, uint64_t process, uint64_t thread, const char *name)
{
	begin_event(text, "M", process, thread);
	put(text, ",\"name\":\"");
	put(text, name);
	put(text, "\",\"args\":{");
}

size_t trace_json_head(char *out, const char *spec, uint64_t incarnation)
{
	struct text text = {out};
	uint64_t process = (uint64_t)getpid();
	char host[65] = "", title[256];

	gethostname(host, sizeof(host) - 1);
	snprintf(title, sizeof(title), "%.100s on %s", program_invocation_short_name, host);
	/* The first event has no comma before it. */
	put_metadata(&text, process, 0, "process_name");
	out[0] = '[';
	put(&text, "\"name\":");
	put_words(&text, title, sizeof(title));
	put(&text, "}}");
	put_metadata(&text, process, 0, "tensorhaul_trace");
	put(&text, "\"version\":1,\"program\":");
	put_words(&text, program_invocation_short_name, 100);
	put(&text, ",\"host\":");
	put_words(&text, host, sizeof(host));
	put_hex_field(&text, ",\"incarnation\":", incarnation);
	put(&text, ",\"spec\":");
	put_words(&text, spec, 1000);
	put(&text, "}}");
	return (size_t)(text.at - out);
}

size_t trace_json_lost(char *out, uint64_t at, uint64_t lost)
{
	struct text text = {out};

	begin_event(&text, "i", (uint64_t)getpid(), 0);
	put(&text, ",\"s\":\"p\",\"cat\":\"trace\",\"name\":\"events were lost\"");
	put_time_field(&text, ",\"ts\":", at);
	put_field(&text, ",\"args\":{\"lost\":", lost);
	put(&text, "}}");
	return (size_t)(text.at - out);
}

size_t trace_json_end(char *out, uint64_t written, uint64_t lost)
{
	struct text text = {out};

	put_metadata(&text, (uint64_t)getpid(), 0, "tensorhaul_end");
	put_field(&text, "\"written\":", written);
	put_field(&text, ",\"lost\":", lost);
	put(&text, "}}\n]\n");
	return (size_t)(text.at - out);
}

/* ---- Links and their lanes --------------------------------------------- */

static struct named_link *find_link(struct trace_json *json, uint32_t number)
{
	return number && number <= json->count ? &json->links[number - 1] : NULL;
}

static void name_link(struct trace_json *json, uint32_t number, const char *address)
{
	struct named_link *grown;

	if (!number || number > NAMED_LINKS)
		return;
	if (number > json->count) {
		grown = realloc(json->links, number * sizeof(*grown));
		if (!grown)
			return;
		memset(grown + json->count, 0, (number - json->count) * sizeof(*grown));
		json->links = grown;
		json->count = number;
	}
	snprintf(json->links[number - 1].address, TRACE_ADDRESS_MAX, "%s", address);
}

static void put_link(struct trace_json *json, struct text *text, const struct trace_record *record)
{
	name_link(json, record->link, record->to.address);
	put_metadata(text, json->process, 0, "tensorhaul_link");
	put_hex_field(text, "\"link\":", record->link_id);
	put(text, ",\"peer\":");
	put_words(text, record->to.address, TRACE_ADDRESS_MAX);
	put(text, "}}");
}

/* Each way of a lane is a thread: what goes out overlaps what comes in. */
static uint64_t thread_of(const struct trace_record *record)
{
	return LANES_FROM + (uint64_t)record->link % NAMED_LINKS * 2048 +
	       record->share.lane % 1024 * 2 + record->share.out;
}

static void name_lane(struct trace_json *json, struct text *text, const struct trace_record *record)
{
	struct named_link *link = find_link(json, record->link);
	uint32_t lane = record->share.lane;
	uint64_t bit = UINT64_C(1) << lane % 64, *word;
	char name[TRACE_ADDRESS_MAX + 48];

	if (!link || lane >= NAMED_LANES)
		return;
	word = &link->lanes[record->share.out][lane / 64];
	if (*word & bit)
		return;
	*word |= bit;
	put_metadata(text, json->process, thread_of(record), "thread_name");
	snprintf(name, sizeof(name), "%s %s, %slane %u", link->address,
		 record->share.out ? "out" : "in", lane ? "" : "control, ", lane);
	put(text, "\"name\":");
	put_words(text, name, sizeof(name));
	put(text, "}}");
}

/* ---- Shares, spans, clocks --------------------------------------------- */

/* Slots are named by the side that receives. */
static void put_slot(struct text *text, const struct trace_record *record, uint64_t slot, bool out)
{
	put_hex_field(text, ",\"link\":", record->link_id);
	put(text, out == record->connector ? ",\"to\":\"acceptor\"" : ",\"to\":\"connector\"");
	put_hex_field(text, ",\"slot\":", slot);
}

static void put_share(struct trace_json *json, struct text *text, const struct trace_record *record)
{
	const struct trace_share *share = &record->share;

	name_lane(json, text, record);
	begin_event(text, "X", json->process, thread_of(record));
	put(text, share->out ? ",\"cat\":\"share\",\"name\":\"out\""
			     : ",\"cat\":\"share\",\"name\":\"in\"");
	put_time_field(text, ",\"ts\":", share->begin);
	put_time_field(text, ",\"dur\":", between(share->begin, share->end));
	put_field(text, ",\"args\":{\"bytes\":", share->bytes);
	put_slot(text, record, share->slot, share->out);
	put_time_field(text, ",\"copy_us\":", share->copied);
	put_time_field(text, ",\"kernel_us\":", share->kernel);
	put(text, "}}");
}

static void put_span(const struct trace_json *json, struct text *text,
		     const struct trace_span *span)
{
	begin_event(text, "X", json->process, span->thread);
	put(text, ",\"cat\":\"program\",\"name\":");
	put_words(text, span->name, TRACE_NAME_MAX);
	put_time_field(text, ",\"ts\":", span->begin);
	put_time_field(text, ",\"dur\":", between(span->begin, span->end));
	put_field(text, ",\"args\":{\"bytes\":", span->bytes);
	put(text, "}}");
}

/* Offsets are strings: they may have more digits than a JSON number keeps. */
static void put_clock(const struct trace_json *json, struct text *text,
		      const struct trace_record *record)
{
	begin_event(text, "i", json->process, 0);
	put(text, ",\"s\":\"p\",\"cat\":\"clock\",\"name\":\"clock offset\"");
	put_time_field(text, ",\"ts\":", record->clock.at);
	put_hex_field(text, ",\"args\":{\"link\":", record->link_id);
	put(text, ",\"offset_ns\":\"");
	put_signed(text, record->clock.offset);
	put_field(text, "\",\"uncertainty_ns\":", record->clock.uncertainty);
	put(text, "}}");
}

/* ---- Operations -------------------------------------------------------- */

/* What the time went into. */
struct phases {
	uint64_t called, met, moving, arrived, done;
};

/* A step that there was not takes no time. */
static struct phases phases_of(const struct trace_operation *operation)
{
	const uint64_t *at = operation->at;
	struct phases phases = {.called = at[TRACE_CALLED], .done = at[TRACE_DONE]};

	phases.arrived = operation->send || !at[TRACE_ARRIVED] ? phases.done : at[TRACE_ARRIVED];
	phases.met = at[TRACE_MET] ? at[TRACE_MET] : phases.done;
	if (!operation->send)
		phases.moving = phases.met;
	else
		phases.moving = at[TRACE_MOVING] ? at[TRACE_MOVING] : phases.met;
	return phases;
}

static void begin_operation(struct trace_json *json)
{
	struct text text = {json->common};

	put_field(&text, "\",\"pid\":", json->process);
	put_hex_field(&text, ",\"tid\":0,\"cat\":\"tensor\",\"id\":", ++json->serial);
	put(&text, ",\"name\":\"");
	json->common_length = (size_t)(text.at - json->common);
}

static void begin_async(const struct trace_json *json, struct text *text, const char *phase,
			const char *name, uint64_t at)
{
	put(text, ",\n{\"ph\":\"");
	put(text, phase);
	memcpy(text->at, json->common, json->common_length);
	text->at += json->common_length;
	put(text, name);
	put_time_field(text, "\",\"ts\":", at);
}

static void put_step(const struct trace_json *json, struct text *text, const char *name,
		     uint64_t from, uint64_t to)
{
	if (to <= from)
		return;
	begin_async(json, text, "b", name, from);
	put(text, "}");
	begin_async(json, text, "e", name, to);
	put(text, "}");
}

static void put_moment(const struct trace_json *json, struct text *text, const char *name,
		       uint64_t at)
{
	if (!at)
		return;
	begin_async(json, text, "n", name, at);
	put(text, "}");
}

static void put_arguments(struct trace_json *json, struct text *text,
			  const struct trace_record *record, const struct phases *phases)
{
	const struct trace_operation *operation = &record->operation;
	const struct named_link *link = find_link(json, record->link);
	bool whole = operation->key_length <= TRACE_KEY_MAX;

	put(text, ",\"args\":{\"key\":");
	put_string(text, operation->key, whole ? operation->key_length : TRACE_KEY_MAX);
	if (!whole)
		put_field(text, ",\"key_length\":", operation->key_length);
	put_field(text, ",\"bytes\":", operation->bytes);
	if (link) {
		put(text, ",\"peer\":");
		put_words(text, link->address, TRACE_ADDRESS_MAX);
	}
	put_slot(text, record, operation->slot, operation->send);
	put(text, ",\"result\":");
	put_signed(text, operation->result);
	put_time_field(text, ",\"wait_us\":", between(phases->called, phases->met));
	put_time_field(text, ",\"checksum_us\":",
		       between(phases->met, phases->moving) +
			       between(phases->arrived, phases->done));
	put_time_field(text, ",\"move_us\":", between(phases->moving, phases->arrived));
	put_time_field(text, ",\"complete_us\":", between(phases->done, operation->handed));
	put_time_field(text, ",\"copy_us\":", operation->copied);
	put_time_field(text, ",\"kernel_us\":", operation->kernel);
	put(text, "}}");
}

static void put_operation(struct trace_json *json, struct text *text,
			  const struct trace_record *record)
{
	const struct trace_operation *operation = &record->operation;
	const char *name = operation->send ? "send" : "receive";
	struct phases phases = phases_of(operation);

	begin_operation(json);
	begin_async(json, text, "b", name, phases.called);
	put_arguments(json, text, record, &phases);
	put_step(json, text, operation->send ? "wait for the receive" : "wait for the sender",
		 phases.called, phases.met);
	put_moment(json, text, "READY", operation->at[TRACE_POSTED]);
	put_moment(json, text, "match", operation->send ? operation->at[TRACE_MET] : 0);
	put_step(json, text, "checksum", phases.met, phases.moving);
	put_step(json, text, "move", phases.moving, phases.arrived);
	put_step(json, text, "checksum", phases.arrived, phases.done);
	put_moment(json, text, "PLACED", operation->result ? 0 : phases.done);
	put_step(json, text, "complete", phases.done, operation->handed);
	begin_async(json, text, "e", name, operation->handed);
	put(text, "}");
}

size_t trace_json_record(struct trace_json *json, const struct trace_record *record, char *out)
{
	struct text text = {out};

	switch (record->kind) {
	case TRACE_LINK:
		put_link(json, &text, record);
		break;
	case TRACE_CLOCK:
		put_clock(json, &text, record);
		break;
	case TRACE_OPERATION:
		put_operation(json, &text, record);
		break;
	case TRACE_SHARE:
		put_share(json, &text, record);
		break;
	case TRACE_SPAN:
		put_span(json, &text, &record->span);
		break;
	}
	return (size_t)(text.at - out);
}
