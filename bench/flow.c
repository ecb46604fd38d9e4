/* SPDX-License-Identifier: Apache-2.0 */
#include "flow.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_common.h"
#include "content.h"

#define PAGE 4096u
#define LINE 64u

/*
 * One tensor: a stream uses `bytes` and the companion, a ping sends `bytes` and receives `echo`.
 * The tensors of a stream share one key, each ping has its own.
 */
struct flow_slot {
	struct operation first, second;
	char first_key[24], second_key[24];
	struct flow *flow;
	uint8_t *bytes, *echo;
	struct companion *companion;
	struct flow_slot *next_idle;
	uint64_t sequence;
	uint64_t started;
	unsigned sending, receiving; /* operations outstanding */
	bool busy;
	bool failed; /* one of its operations was cancelled or failed */
};

/* ---- Memory: all buffers of a flow are one region ---- */

/* Large buffers begin at a page, small ones at a cache line. */
static bool buffer_stride(uint64_t size, uint64_t *stride)
{
	uint64_t unit = size >= PAGE ? PAGE : LINE;

	if (__builtin_add_overflow(size ? size : 1, unit - 1, stride))
		return false;
	*stride -= *stride % unit;
	return true;
}

/* Pings never wait for a buffer: the next one may come while the last pong is in flight. */
static uint32_t slots_of(const struct flow_settings *settings)
{
	return settings->role == FLOW_ECHOES ? 2 * settings->concurrency : settings->concurrency;
}

static uint64_t region_length(const struct flow_settings *settings, uint64_t *stride)
{
	uint64_t buffers = settings->role == FLOW_PINGS ? 2 : 1;
	uint64_t length;

	if (!buffer_stride(settings->size, stride) ||
	    __builtin_add_overflow(buffers * *stride, (uint64_t)LINE, &length) ||
	    __builtin_mul_overflow(length, (uint64_t)slots_of(settings), &length) ||
	    length > SIZE_MAX / 2)
		return UINT64_MAX;
	return length;
}

uint64_t flow_memory(const struct flow_settings *settings)
{
	uint64_t stride, length = region_length(settings, &stride);

	if (length == UINT64_MAX)
		return length;
	return length + slots_of(settings) * sizeof(struct flow_slot);
}

/* ---- Errors ---- */

__attribute__((format(printf, 3, 4))) static void flow_fail(struct flow *flow, int error,
							    const char *format, ...)
{
	va_list arguments;

	flow->stopped = true;
	if (flow->error)
		return;
	flow->error = error;
	va_start(arguments, format);
	vsnprintf(flow->detail, sizeof(flow->detail), format, arguments);
	va_end(arguments);
}

/* ---- Operations ---- */

static DLTensor tensor_of(void *bytes, const int64_t *shape)
{
	return haul_tensor(bytes, (DLDataType){kDLUInt, 8, 1}, 1, shape);
}

static bool started(struct flow_slot *slot, int result, const char *call)
{
	if (result == 0) {
		slot->flow->outstanding++;
		return true;
	}
	slot->failed = true;
	flow_fail(slot->flow, result, "%s: %s", call,
		  failure_text(result, haul_detail(slot->flow->context)));
	return false;
}

static void put(struct flow_slot *slot, const char *key, void *bytes, const int64_t *shape,
		struct operation *operation)
{
	struct flow *flow = slot->flow;
	struct haul_op op = {.size = sizeof(op), .cookie = operation};
	DLTensor tensor = tensor_of(bytes, shape);

	slot->sending +=
		started(slot, haul_send(flow->endpoint, haul_key(key), &tensor, flow->region, &op),
			"haul_send");
}

static void take(struct flow_slot *slot, const char *key, void *bytes, const int64_t *shape,
		 struct operation *operation)
{
	struct flow *flow = slot->flow;
	struct haul_op op = {.size = sizeof(op), .cookie = operation};
	DLTensor tensor = tensor_of(bytes, shape);

	slot->receiving +=
		started(slot, haul_recv(flow->endpoint, haul_key(key), &tensor, flow->region, &op),
			"haul_recv");
}

static void start_slot(struct flow_slot *slot, uint64_t now)
{
	struct flow *flow = slot->flow;
	const struct flow_settings *settings = &flow->settings;

	slot->sequence = flow->next_sequence++;
	slot->started = now;
	slot->busy = true;
	slot->failed = false;
	switch (settings->role) {
	case FLOW_SENDS:
		if (settings->verify) {
			content_stamp(slot->bytes, settings->size, settings->seed, slot->sequence,
				      slot->companion);
			put(slot, slot->second_key, slot->companion, flow->companion_shape,
			    &slot->second);
		}
		put(slot, slot->first_key, slot->bytes, flow->shape, &slot->first);
		break;
	case FLOW_RECEIVES:
		if (settings->verify)
			take(slot, slot->second_key, slot->companion, flow->companion_shape,
			     &slot->second);
		take(slot, slot->first_key, slot->bytes, flow->shape, &slot->first);
		break;
	case FLOW_PINGS:
		if (settings->verify)
			content_stamp(slot->bytes, settings->size, settings->seed, slot->sequence,
				      slot->companion);
		/* The pong's place is known to the server before the ping is. */
		take(slot, slot->second_key, slot->echo, flow->shape, &slot->second);
		put(slot, slot->first_key, slot->bytes, flow->shape, &slot->first);
		break;
	case FLOW_ECHOES:
		take(slot, slot->first_key, slot->bytes, flow->shape, &slot->first);
		break;
	}
}

/* ---- Completions ---- */

static void check_content(struct flow_slot *slot, const void *bytes)
{
	struct flow *flow = slot->flow;

	if (content_is(bytes, flow->settings.size, slot->sequence, slot->companion))
		flow->verified++;
	else
		flow->mismatches++;
}

static void count(struct flow_slot *slot, uint64_t now)
{
	struct flow *flow = slot->flow;

	flow->tensors++;
	if (flow->settings.meter)
		meter_add(flow->settings.meter, slot->started, now, flow->settings.size);
}

/* One tensor of a stream, and its companion, are through. */
static void finish_stream(struct flow_slot *slot, uint64_t now)
{
	struct flow *flow = slot->flow;

	count(slot, now);
	if (flow->settings.verify && flow->settings.role == FLOW_RECEIVES)
		check_content(slot, slot->bytes);
}

static void finish_ping(struct flow_slot *slot, uint64_t now)
{
	count(slot, now);
	if (slot->flow->settings.verify)
		check_content(slot, slot->echo);
}

/*
 * A ping is over when its pong is here. That its send has completed as well is waited for only
 * when the buffer gets another content: otherwise it would be part of the round trip.
 */
static bool slot_is_over(const struct flow_slot *slot)
{
	if (slot->flow->settings.role == FLOW_PINGS && !slot->flow->settings.verify)
		return !slot->receiving && slot->busy;
	return !slot->receiving && !slot->sending && slot->busy;
}

static void finish_slot(struct flow_slot *slot, uint64_t now)
{
	struct flow *flow = slot->flow;

	slot->busy = false;
	if (!slot->failed && flow->settings.role == FLOW_PINGS)
		finish_ping(slot, now);
	else if (!slot->failed && flow->settings.role != FLOW_ECHOES)
		finish_stream(slot, now);
	else if (!slot->failed)
		flow->tensors++;
	if (flow->settings.interval_ns > 0) {
		slot->next_idle = flow->idle;
		flow->idle = slot;
		flow_pace(flow, now);
	} else if (!flow->stopped) {
		start_slot(slot, now);
	}
}

uint64_t flow_due(const struct flow *flow)
{
	if (flow->settings.interval_ns <= 0 || flow->stopped)
		return UINT64_MAX;
	return flow->paced_from + (uint64_t)flow->due;
}

void flow_pace(struct flow *flow, uint64_t now)
{
	while (flow->idle && flow_due(flow) <= now) {
		struct flow_slot *slot = flow->idle;
		uint64_t due = flow_due(flow);

		flow->idle = slot->next_idle;
		flow->due += flow->settings.interval_ns;
		start_slot(slot, due);
	}
}

static bool went_well(struct flow_slot *slot, const struct haul_completion *completion,
		      uint64_t bytes)
{
	struct flow *flow = slot->flow;
	const char *what = completion->event == HAUL_SENT ? "a send" : "a receive";

	if (completion->result) {
		if (!flow->cancelled)
			flow_fail(flow, completion->result, "%s failed: %s", what,
				  failure_text(completion->result, completion->detail));
		slot->failed = true;
	} else if (completion->event == HAUL_RECEIVED && completion->tensor.bytes != bytes) {
		flow_fail(flow, -EPROTO, "a tensor of %llu bytes came instead of one of %llu",
			  (unsigned long long)completion->tensor.bytes, (unsigned long long)bytes);
		slot->failed = true;
	}
	return !slot->failed;
}

static void slot_done(struct flow_slot *slot, const struct haul_completion *completion,
		      uint64_t bytes, uint64_t now)
{
	struct flow *flow = slot->flow;
	bool well = went_well(slot, completion, bytes);

	flow->outstanding--;
	if (completion->event == HAUL_SENT)
		slot->sending--;
	else
		slot->receiving--;
	if (flow->settings.role == FLOW_ECHOES && completion->event == HAUL_RECEIVED && well)
		put(slot, slot->second_key, slot->bytes, flow->shape, &slot->first);
	if (slot_is_over(slot))
		finish_slot(slot, now);
}

static void first_done(struct operation *operation, const struct haul_completion *completion,
		       uint64_t now)
{
	struct flow_slot *slot = operation->owner;

	slot_done(slot, completion, slot->flow->settings.size, now);
}

static void second_done(struct operation *operation, const struct haul_completion *completion,
			uint64_t now)
{
	struct flow_slot *slot = operation->owner;
	bool pong = slot->flow->settings.role == FLOW_PINGS;

	slot_done(slot, completion, pong ? slot->flow->settings.size : sizeof(struct companion),
		  now);
}

/* ---- Life ---- */

static const unsigned region_use[] = {
	[FLOW_SENDS] = HAUL_USE_SEND,
	[FLOW_RECEIVES] = HAUL_USE_RECV,
	[FLOW_PINGS] = HAUL_USE_SEND | HAUL_USE_RECV,
	[FLOW_ECHOES] = HAUL_USE_SEND | HAUL_USE_RECV,
};

/* Two places of the echo wait for each ping. */
static void name_keys(struct flow_slot *slot, uint32_t i)
{
	enum flow_role role = slot->flow->settings.role;
	unsigned number = slot->flow->settings.number;
	unsigned ping = role == FLOW_ECHOES ? i / 2 : i;

	if (role == FLOW_SENDS || role == FLOW_RECEIVES) {
		snprintf(slot->first_key, sizeof(slot->first_key), "data.%u", number);
		snprintf(slot->second_key, sizeof(slot->second_key), "hash.%u", number);
	} else {
		snprintf(slot->first_key, sizeof(slot->first_key), "ping.%u.%u", number, ping);
		snprintf(slot->second_key, sizeof(slot->second_key), "pong.%u.%u", number, ping);
	}
}

/* Every page is touched here, so that no round pays for it. */
static void prepare_slots(struct flow *flow, uint64_t stride)
{
	const struct flow_settings *settings = &flow->settings;
	uint64_t buffers = settings->role == FLOW_PINGS ? 2 : 1;
	uint8_t *base = haul_region_base(flow->region);

	for (uint32_t i = 0; i < flow->slot_count; i++) {
		struct flow_slot *slot = &flow->slots[i];
		uint8_t *behind = base + (uint64_t)flow->slot_count * buffers * stride;

		slot->flow = flow;
		slot->first = (struct operation){first_done, slot};
		slot->second = (struct operation){second_done, slot};
		name_keys(slot, i);
		slot->bytes = base + i * buffers * stride;
		slot->echo = slot->bytes + (buffers - 1) * stride;
		slot->companion = (struct companion *)(behind + (uint64_t)i * LINE);
		if (settings->role == FLOW_SENDS || settings->role == FLOW_PINGS)
			content_fill(slot->bytes, settings->size, settings->seed + i);
		else
			memset(slot->bytes, 0, settings->size);
	}
}

int flow_open(struct flow *flow, haul_context *context, haul_endpoint *endpoint,
	      const struct flow_settings *settings)
{
	uint64_t stride, length = region_length(settings, &stride);
	int result;

	*flow = (struct flow){.settings = *settings, .context = context, .endpoint = endpoint};
	flow->shape[0] = (int64_t)settings->size;
	flow->companion_shape[0] = sizeof(struct companion);
	flow->slot_count = slots_of(settings);
	if (length == UINT64_MAX)
		return -EOVERFLOW;
	flow->slots = calloc(flow->slot_count, sizeof(*flow->slots));
	if (!flow->slots) {
		flow_fail(flow, -ENOMEM, "no memory for %u tensors", flow->slot_count);
		return -ENOMEM;
	}
	result = haul_region_allocate(context, length, region_use[settings->role], &flow->region);
	if (result) {
		flow_fail(flow, result, "haul_region_allocate of %llu bytes: %s",
			  (unsigned long long)length, failure_text(result, haul_detail(context)));
		free(flow->slots);
		flow->slots = NULL;
		return result;
	}
	prepare_slots(flow, stride);
	return 0;
}

void flow_start(struct flow *flow)
{
	uint64_t now = bench_now();

	flow->idle = NULL;
	flow->paced_from = now;
	flow->due = flow->settings.first_due_ns;
	for (uint32_t i = 0; i < flow->slot_count && !flow->stopped; i++) {
		if (flow->settings.interval_ns > 0) {
			flow->slots[i].next_idle = flow->idle;
			flow->idle = &flow->slots[i];
		} else {
			start_slot(&flow->slots[i], now);
		}
	}
}

void flow_stop(struct flow *flow)
{
	flow->stopped = true;
}

void flow_abandon(struct flow *flow)
{
	flow->stopped = true;
	flow->cancelled = true;
}

void flow_cancel(struct flow *flow)
{
	flow_abandon(flow);
	for (uint32_t i = 0; i < flow->slot_count; i++) {
		struct flow_slot *slot = &flow->slots[i];

		if (slot->sending || slot->receiving) {
			haul_cancel(flow->context, &slot->first);
			haul_cancel(flow->context, &slot->second);
		}
	}
}

uint64_t flow_started_before(const struct flow *flow, uint64_t time)
{
	uint64_t count_before = 0;

	for (uint32_t i = 0; i < flow->slot_count; i++)
		count_before += flow->slots[i].busy && flow->slots[i].started < time;
	return count_before + (flow_due(flow) < time);
}

void flow_close(struct flow *flow)
{
	int result = haul_region_release(flow->region);

	if (result)
		bench_complain("haul_region_release: %s", haul_strerror(result));
	free(flow->slots);
	*flow = (struct flow){0};
}
