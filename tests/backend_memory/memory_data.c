/* SPDX-License-Identifier: Apache-2.0 */
/* Regions, slots, pushes, and the pieces that pushes are cut into. */
#include "memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct region {
	struct backend_context *context;
	uint8_t *base;
	size_t length;
	unsigned use;
};

static void count(unsigned *counter, int change)
{
	house_lock();
	*counter += (unsigned)change;
	house_unlock();
}

/* ---- Regions ----------------------------------------------------------- */

static int data_region_add(struct backend_context *context, void *base, size_t length, unsigned use,
			   void **out)
{
	struct region *region;

	if (house_take(&house.fail_regions))
		return haul_fail(context->engine, -ENOMEM, "the test lets region_add() fail");
	region = malloc(sizeof(*region));
	if (!region)
		return -ENOMEM;
	*region = (struct region){context, base, length, use};
	count(&house.counts.regions, 1);
	*out = region;
	return 0;
}

static void data_region_remove(struct backend_context *context, void *region)
{
	count(&house.counts.regions, -1);
	free(region);
}

/* The engine must hand over the right region with each piece of memory. */
static bool covers(const struct region *region, struct backend_context *context, const void *base,
		   size_t length, unsigned use)
{
	const uint8_t *first = base;

	return region && region->context == context && (region->use & use) &&
	       first >= region->base && length <= region->length &&
	       (size_t)(first - region->base) <= region->length - length;
}

/* ---- Slots ------------------------------------------------------------- */

/* What a slot's descriptor says: nobody but the peer of this slot can know it. */
static void describe(uint64_t slot, size_t length, uint8_t *descriptor)
{
	for (size_t i = 0; i < length; i++)
		descriptor[i] = (uint8_t)(slot * 31 + (slot >> 32) + i * 7);
}

static struct open_slot **find_slot(struct backend_link *link, uint64_t slot)
{
	struct open_slot **at = &link->slots;

	while (*at && (*at)->slot != slot)
		at = &(*at)->next;
	return at;
}

static int data_slot_open(struct backend_link *link, uint64_t slot, void *base, size_t length,
			  void *region, uint8_t descriptor[HAUL_DESCRIPTOR_MAX])
{
	struct backend_context *context = link->context;
	struct open_slot *open;

	if (house_take(&house.fail_slots))
		return haul_fail(context->engine, -ENOMEM, "the test lets slot_open() fail");
	if (!covers(region, context, base, length, HAUL_USE_RECV))
		return haul_fail(context->engine, -EFAULT, "a slot without its region");
	open = calloc(1, sizeof(*open));
	if (!open)
		return -ENOMEM;
	open->slot = slot;
	open->next = link->slots;
	link->slots = open;
	count(&house.counts.slots, 1);
	describe(slot, context->config->descriptor, descriptor);
	return (int)context->config->descriptor;
}

static int data_slot_close(struct backend_link *link, uint64_t slot, bool over)
{
	struct open_slot **at = find_slot(link, slot), *open = *at;

	if (!open)
		return 0;
	if (link->context->config->sticky && !over)
		return -EBUSY;
	*at = open->next;
	free(open);
	count(&house.counts.slots, -1);
	return 0;
}

/* ---- Pushes: out ------------------------------------------------------- */

static void append(struct backend_link *link, struct haul_push *push)
{
	push->next = NULL;
	if (link->last)
		link->last->next = push;
	else
		link->first = push;
	link->last = push;
}

static void unqueue(struct backend_link *link, struct haul_push *push)
{
	struct haul_push *before = NULL;

	for (struct haul_push *at = link->first; at; before = at, at = at->next) {
		if (at != push)
			continue;
		if (before)
			before->next = push->next;
		else
			link->first = push->next;
		if (link->last == push)
			link->last = before;
		return;
	}
}

static void cut_free(struct backend_link *link, struct cut *cut)
{
	struct cut **at = &link->cuts;

	while (*at != cut)
		at = &(*at)->next;
	*at = cut->next;
	cut->push->backend = NULL;
	free(cut);
	count(&house.counts.pushes, -1);
}

static int say_header(struct backend_link *link, struct haul_push *push, const struct cut *cut)
{
	struct message *message = message_new(MESSAGE_CONTROL, push->header_length);

	if (!message)
		return -ENOMEM;
	memcpy(message->bytes, push->header, push->header_length);
	message->to = link->peer;
	message->push = cut->name;
	message->total = push->length;
	house_post(message);
	return 0;
}

static int data_push(struct backend_link *link, struct haul_push *push)
{
	struct cut *cut;

	if (house_take(&house.fail_pushes))
		return -ENOMEM;
	if (push->length &&
	    !covers(push->region, link->context, push->data, push->length, HAUL_USE_SEND))
		return -EFAULT;
	cut = calloc(1, sizeof(*cut));
	if (!cut)
		return -ENOMEM;
	house_lock();
	cut->name = house_name();
	house.counts.pushes++;
	house_unlock();
	cut->push = push;
	cut->next = link->cuts;
	link->cuts = cut;
	push->backend = cut;
	if (say_header(link, push, cut)) {
		cut_free(link, cut);
		return -ENOMEM;
	}
	if (push->length)
		append(link, push);
	return 0;
}

/* The next piece of the first push leaves; the others get their turn then. */
static bool send_piece(struct backend_link *link)
{
	struct haul_push *push = link->first;
	struct cut *cut = push->backend;
	uint64_t left = push->length - cut->done;
	size_t length = left < link->context->config->piece ? left : link->context->config->piece;
	struct message *piece = message_new(MESSAGE_PIECE, length);

	if (!piece)
		return false;
	memcpy(piece->bytes, push->data + cut->done, length);
	piece->to = link->peer;
	piece->from = link->name;
	piece->push = cut->name;
	piece->total = push->length;
	piece->slot = push->slot;
	piece->offset = push->offset + cut->done;
	piece->descriptor_length = push->descriptor_length;
	memcpy(piece->descriptor, push->descriptor, push->descriptor_length);
	cut->done += length;
	link->in_flight += length;
	link->pieces++;
	unqueue(link, push);
	if (cut->done < push->length)
		append(link, push);
	house_post(piece);
	return true;
}

void link_pump(struct backend_link *link)
{
	while (link->first && !link->dead && link->in_flight < link->context->config->window) {
		if (!send_piece(link))
			return;
	}
}

static int data_push_end(struct backend_link *link, struct haul_push *push, enum haul_push_end why)
{
	unqueue(link, push);
	cut_free(link, push->backend);
	if (!link->context->config->slow_end)
		return 1;
	push->next = link->ending;
	link->ending = push;
	link->context->again = true;
	return 0;
}

/* ---- Pushes: in -------------------------------------------------------- */

static struct incoming *incoming_of(struct backend_link *link, uint64_t push)
{
	struct incoming *incoming;

	for (incoming = link->incoming; incoming; incoming = incoming->next) {
		if (incoming->push == push)
			return incoming;
	}
	incoming = calloc(1, sizeof(*incoming));
	if (!incoming)
		abort();
	incoming->push = push;
	incoming->next = link->incoming;
	link->incoming = incoming;
	return incoming;
}

static void incoming_drop(struct backend_link *link, struct incoming *incoming)
{
	struct incoming **at = &link->incoming;

	while (*at != incoming)
		at = &(*at)->next;
	*at = incoming->next;
	free(incoming);
}

void data_header_came(struct backend_link *link, uint64_t push)
{
	incoming_of(link, push)->header = true;
}

static void give_credit(struct backend_link *link, size_t length)
{
	struct message *credit = message_new(MESSAGE_CREDIT, 0);

	if (!credit)
		return;
	credit->to = link->peer;
	credit->length = length;
	house_post(credit);
}

/* What the tests have in store for this piece. */
static bool meddle(struct backend_link *link, struct message *piece)
{
	bool cut = false;

	house_lock();
	switch (house.forgery) {
	case FORGE_SLOT:
		piece->slot ^= UINT64_C(0x7fff) << 16;
		break;
	case FORGE_OFFSET:
		piece->offset = piece->total - piece->length + 1;
		break;
	case FORGE_WRAP:
		piece->offset = UINT64_MAX - piece->length / 2;
		break;
	case FORGE_NOTHING:
		break;
	}
	house.forgery = FORGE_NOTHING;
	if (house.corrupt && piece->length) {
		house.corrupt--;
		piece->bytes[piece->length / 2] ^= 0x10;
	}
	if (house.cutting) {
		cut = piece->length >= house.cut_after;
		house.cut_after -= cut ? 0 : piece->length;
		house.cutting = !cut;
	}
	house_unlock();
	if (!cut)
		return false;
	link_fail(link, -ECONNRESET, "the test cut the link");
	return true;
}

static bool right_descriptor(const struct backend_link *link, const struct message *piece)
{
	uint8_t expected[HAUL_DESCRIPTOR_MAX];

	describe(piece->slot, link->context->config->descriptor, expected);
	return piece->descriptor_length == link->context->config->descriptor &&
	       !memcmp(piece->descriptor, expected, piece->descriptor_length);
}

static void place(struct backend_link *link, struct message *piece)
{
	uint8_t *address;

	switch (haul_place(link->endpoint, piece->slot, piece->offset, piece->length, &address)) {
	case HAUL_PLACE_HERE:
		if (!right_descriptor(link, piece)) {
			link_fail(link, -EPROTO, "a piece with another slot's descriptor");
			return;
		}
		memcpy(address, piece->bytes, piece->length);
		break;
	case HAUL_PLACE_DISCARD:
		break;
	default:
		link_fail(link, -EPROTO, "a piece for a place that is no slot's");
		return;
	}
	haul_on_arrived(link->endpoint, piece->slot, piece->length);
}

bool data_deliver(struct backend_link *link, struct message *piece)
{
	struct incoming *incoming = incoming_of(link, piece->push);
	bool last = incoming->arrived + piece->length == piece->total;

	if (last && !incoming->header)
		return false;
	incoming->arrived += piece->length;
	if (last)
		incoming_drop(link, incoming);
	give_credit(link, piece->length);
	if (!meddle(link, piece))
		place(link, piece);
	message_free(piece);
	return true;
}

/* The link is gone: nobody's memory is touched any more. */
void data_forget(struct backend_link *link)
{
	struct open_slot *open;

	/* Queued pushes and those that went out whole are the engine's again. */
	while (link->cuts)
		cut_free(link, link->cuts);
	link->first = link->last = link->ending = NULL;
	while ((open = link->slots)) {
		link->slots = open->next;
		free(open);
		count(&house.counts.slots, -1);
	}
	while (link->incoming)
		incoming_drop(link, link->incoming);
}

const struct haul_data_ops memory_data_ops = {
	.region_add = data_region_add,
	.region_remove = data_region_remove,
	.slot_open = data_slot_open,
	.slot_close = data_slot_close,
	.push = data_push,
	.push_end = data_push_end,
};
