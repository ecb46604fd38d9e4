/* SPDX-License-Identifier: Apache-2.0 */
/* What goes into a context's trace, and from where: operations, shares of backends, the program's
 * own spans. */
#include <stdio.h>
#include <unistd.h>
#include <xxhash.h>

#include "engine.h"

static struct trace_record record_of(const haul_endpoint *endpoint, enum trace_kind kind)
{
	struct trace_record record;

	/* The key and the name are long, and only as far as they go. */
	record.kind = kind;
	record.link = endpoint ? endpoint->trace_link : 0;
	record.link_id = endpoint ? endpoint->trace_link_id : 0;
	record.connector = endpoint && endpoint->role == WIRE_CONNECTOR;
	return record;
}

/* ---- Endpoints --------------------------------------------------------- */

/* Both sides have the same two HELLOs, and no other endpoint has them. */
static uint64_t link_id(const haul_endpoint *endpoint)
{
	bool connector = endpoint->role == WIRE_CONNECTOR;
	uint8_t both[2 * WIRE_HELLO_SIZE];

	memcpy(both, connector ? endpoint->hello_own : endpoint->hello_peer, WIRE_HELLO_SIZE);
	memcpy(both + WIRE_HELLO_SIZE, connector ? endpoint->hello_peer : endpoint->hello_own,
	       WIRE_HELLO_SIZE);
	return XXH3_64bits(both, sizeof(both));
}

void trace_endpoint(haul_endpoint *endpoint)
{
	haul_context *context = endpoint->context;
	struct trace_record record;

	if (!context->trace)
		return;
	endpoint->trace_link = ++context->trace_links;
	endpoint->trace_link_id = link_id(endpoint);
	record = record_of(endpoint, TRACE_LINK);
	snprintf(record.to.address, sizeof(record.to.address), "%s", endpoint->address);
	trace_record(context->trace, &record);
}

void trace_offset(haul_endpoint *endpoint, const struct clock_estimate *estimate)
{
	struct trace_record record = record_of(endpoint, TRACE_CLOCK);

	record.clock = (struct trace_clock){.at = estimate->at,
					    .offset = estimate->offset,
					    .uncertainty = estimate->uncertainty};
	trace_record(endpoint->context->trace, &record);
}

/* ---- Operations -------------------------------------------------------- */

void trace_called(struct operation *operation)
{
	if (!operation->context->trace)
		return;
	memset(&operation->trace, 0, sizeof(operation->trace));
	operation->trace.link = operation->endpoint->trace_link;
	operation->trace.link_id = operation->endpoint->trace_link_id;
	operation->trace.connector = operation->endpoint->role == WIRE_CONNECTOR;
	trace_point(operation, TRACE_CALLED);
}

void trace_done(struct operation *operation)
{
	if (!operation->context->trace || !operation->endpoint)
		return;
	trace_point(operation, TRACE_DONE);
	clock_refresh(operation->endpoint);
}

void trace_handed(struct operation *operation)
{
	haul_context *context = operation->context;
	struct trace_record record;
	struct trace_operation *out = &record.operation;
	size_t kept;

	if (!context->trace ||
	    (operation->kind != OPERATION_SEND && operation->kind != OPERATION_RECV))
		return;
	record.kind = TRACE_OPERATION;
	record.link = operation->trace.link;
	record.link_id = operation->trace.link_id;
	record.connector = operation->trace.connector;
	memcpy(out->at, operation->trace.at, sizeof(out->at));
	out->handed = haul_clock();
	out->bytes = operation->tensor.bytes;
	out->slot = operation->trace.slot;
	out->copied = operation->trace.copied;
	out->kernel = operation->trace.kernel;
	out->result = operation->result;
	out->send = operation->kind == OPERATION_SEND;
	out->key_length = operation->key_length;
	kept = operation->key_length < TRACE_KEY_MAX ? operation->key_length : TRACE_KEY_MAX;
	memcpy(out->key, operation_key(operation), kept);
	trace_record(context->trace, &record);
}

/* ---- Shares ------------------------------------------------------------ */

bool haul_is_traced(const haul_context *context)
{
	return context->trace != NULL;
}

void haul_trace_share(haul_endpoint *endpoint, const struct haul_share *share)
{
	bool out = share->way == HAUL_SHARE_OUT;
	struct operation *operation =
		out ? send_of(endpoint, share->slot) : recv_of(endpoint, share->slot);
	struct trace_record record = record_of(endpoint, TRACE_SHARE);

	if (operation) {
		operation->trace.copied += share->copied;
		operation->trace.kernel += share->kernel;
		if (!out && (!operation->trace.at[TRACE_MET] ||
			     operation->trace.at[TRACE_MET] > share->begin))
			operation->trace.at[TRACE_MET] = share->begin;
	}
	record.share = (struct trace_share){.begin = share->begin,
					    .end = share->end,
					    .bytes = share->bytes,
					    .slot = share->slot,
					    .copied = share->copied,
					    .kernel = share->kernel,
					    .lane = share->lane,
					    .out = out};
	trace_record(endpoint->context->trace, &record);
}

void haul_trace_copy(haul_endpoint *endpoint, enum haul_share_way way, uint64_t slot,
		     uint64_t bytes, uint64_t begin)
{
	struct haul_share share = {.way = way, .slot = slot, .bytes = bytes, .begin = begin};

	share.end = haul_clock();
	share.copied = share.end - begin;
	haul_trace_share(endpoint, &share);
}

/* ---- The program's own ------------------------------------------------- */

uint64_t haul_trace_clock(const haul_context *context)
{
	return context && context->trace ? haul_clock() : 0;
}

void haul_trace_span(haul_context *context, const char *name, uint64_t begin, uint64_t bytes)
{
	static _Thread_local uint32_t thread;
	struct trace_record record;

	if (!begin || !context || !context->trace || !name || context_forked(context))
		return;
	if (!thread)
		thread = (uint32_t)gettid();
	record = record_of(NULL, TRACE_SPAN);
	record.span.begin = begin;
	record.span.end = haul_clock();
	record.span.bytes = bytes;
	record.span.thread = thread;
	snprintf(record.span.name, sizeof(record.span.name), "%s", name);
	trace_record(context->trace, &record);
}
