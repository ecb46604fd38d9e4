/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slots: memory that a peer may write into. Where the device has memory windows, a window opens
 * just the slot, and is invalidated when the slot ends; elsewhere the peer gets the key of the
 * region, which opens all of it for as long as it is registered (docs/verbs.md).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "verbs.h"

/* So many windows are kept for slots to come, and as many as are in use. All that are there have to
 * go at once when the link ends, and each is a call of the driver. */
#define WINDOWS_KEPT 1024u

/* ---- Windows ----------------------------------------------------------- */

static void window_free(struct backend_link *link, struct window *window)
{
	TAILQ_REMOVE(&link->all_windows, window, all);
	ibv_dealloc_mw(window->mw);
	if (window->registration)
		registration_unuse(window->registration);
	free(window);
}

/* For another slot, or no more. */
static void window_give_back(struct backend_link *link, struct window *window)
{
	TAILQ_INSERT_HEAD(&link->windows, window, queued);
	link->windows_free++;
	for (int i = 0; i < 2 && link->windows_free > WINDOWS_KEPT + link->windows_used; i++) {
		window = TAILQ_FIRST(&link->windows);
		TAILQ_REMOVE(&link->windows, window, queued);
		link->windows_free--;
		window_free(link, window);
	}
}

static struct window *window_new(struct backend_link *link)
{
	struct window *window = TAILQ_FIRST(&link->windows);

	if (window) {
		TAILQ_REMOVE(&link->windows, window, queued);
		link->windows_free--;
		return window;
	}
	window = calloc(1, sizeof(*window));
	if (!window)
		return NULL;
	window->mw = ibv_alloc_mw(link->device->pd, IBV_MW_TYPE_2);
	if (!window->mw) {
		free(window);
		return NULL;
	}
	TAILQ_INSERT_TAIL(&link->all_windows, window, all);
	return window;
}

static void post_work(struct backend_link *link, struct window *window)
{
	struct channel *channel = link_inbound(link);
	struct posted what = {.kind = window->bind ? POSTED_BIND : POSTED_INVALIDATE,
			      .window = window};
	struct ibv_send_wr work = {0};

	if (window->bind) {
		work.opcode = IBV_WR_BIND_MW;
		work.bind_mw.mw = window->mw;
		work.bind_mw.rkey = window->key;
		work.bind_mw.bind_info = (struct ibv_mw_bind_info){
			.mr = window->mr,
			.addr = window->address,
			.length = window->length,
			.mw_access_flags = IBV_ACCESS_REMOTE_WRITE,
		};
	} else {
		work.opcode = IBV_WR_LOCAL_INV;
		work.invalidate_rkey = window->key;
	}
	if (channel_post(channel, &work, &what, true))
		return;
	window->mw->rkey = window->key;
	window->posted = true;
}

void windows_pump(struct backend_link *link)
{
	struct window *window;

	while (!link->error && (window = TAILQ_FIRST(&link->window_work)) &&
	       channel_room(link_inbound(link)) > 0) {
		TAILQ_REMOVE(&link->window_work, window, queued);
		post_work(link, window);
	}
}

void window_done(struct backend_link *link, enum posted_kind kind, struct window *window)
{
	if (kind == POSTED_BIND) {
		link->binds_done++;
		return;
	}
	registration_unuse(window->registration);
	window->registration = NULL;
	link->windows_used--;
	window_give_back(link, window);
	slots_have_room(link);
}

void slots_have_room(struct backend_link *link)
{
	if (!link->starved || !link->endpoint)
		return;
	link->starved = false;
	haul_on_room(link->endpoint);
}

/* Windows over each registration that the slot lies in; the keys go into `place`. */
static int open_windows(struct backend_link *link, struct open_slot *slot, struct place *place,
			struct registration *registration, unsigned first)
{
	uint64_t address = place->address;

	slot->windows = calloc(place->keys, sizeof(struct window *));
	if (!slot->windows)
		return -ENOMEM;
	for (unsigned i = 0; i < place->keys; i++) {
		struct window *window = window_new(link);

		if (!window) {
			while (i > 0) {
				window = slot->windows[--i];
				window->registration = NULL;
				registration_unuse(registration);
				window_give_back(link, window);
			}
			free(slot->windows);
			slot->windows = NULL;
			return -EAGAIN;
		}
		slot->windows[i] = window;
		window->bind = true;
		window->posted = false;
		window->registration = registration;
		registration_use(registration);
		window->mr = registration->mrs[first + i];
		window->address = address;
		window->length = place->length[i];
		window->key = ibv_inc_rkey(window->mw->rkey);
		place->key[i] = window->key;
		address += window->length;
	}
	slot->window_count = (uint8_t)place->keys;
	for (unsigned i = 0; i < place->keys; i++)
		TAILQ_INSERT_TAIL(&link->window_work, slot->windows[i], queued);
	link->binds_wanted += place->keys;
	link->windows_used += place->keys;
	windows_pump(link);
	return 0;
}

static void close_windows(struct backend_link *link, struct open_slot *slot)
{
	/* READY leaves after the binds, and the peer can't end what it doesn't know of. */
	for (unsigned i = 0; i < slot->window_count; i++) {
		if (!slot->windows[i]->posted) {
			link_fail(link, -EPROTO, "the peer has ended a slot that it can't know");
			return;
		}
	}
	for (unsigned i = 0; i < slot->window_count; i++) {
		slot->windows[i]->bind = false;
		TAILQ_INSERT_TAIL(&link->window_work, slot->windows[i], queued);
	}
	free(slot->windows);
	slot->windows = NULL;
	slot->window_count = 0;
	windows_pump(link);
}

/* ---- Slots ------------------------------------------------------------- */

static int grow(struct backend_link *link, uint32_t index)
{
	uint32_t room = link->slot_room ? link->slot_room : 16;
	struct open_slot *grown;

	if (index < link->slot_room)
		return 0;
	while (room <= index)
		room *= 2;
	grown = realloc(link->slots, room * sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	memset(grown + link->slot_room, 0, (room - link->slot_room) * sizeof(*grown));
	link->slots = grown;
	link->slot_room = room;
	return 0;
}

/* Which registrations the memory lies in; the number of the first one, or a negative errno. */
static int find_place(struct backend_link *link, const struct region *region,
		      const struct registration *registration, const uint8_t *base, size_t length,
		      struct place *place)
{
	uint64_t before = (uint64_t)(base - region->base), left = length;
	uint64_t each = registration->each, first = before / each;
	uint64_t keys = (before + length - 1) / each - first + 1;

	if (keys > PLACE_KEYS)
		return verbs_fail(link->context, -E2BIG,
				  "a receive of %zu bytes lies in %llu registrations of at most "
				  "%llu bytes, the limit is %d: raise region_piece, or receive it "
				  "in parts",
				  length, (unsigned long long)keys, (unsigned long long)each,
				  PLACE_KEYS);
	place->address = (uintptr_t)base;
	place->first = each - before % each;
	place->each = each;
	place->keys = (unsigned)keys;
	if (place->first > length)
		place->first = length;
	for (unsigned i = 0; i < keys; i++) {
		place->length[i] = i == 0 ? place->first : left < each ? left : each;
		place->key[i] = registration->mrs[first + i]->rkey;
		left -= place->length[i];
	}
	return (int)first;
}

int verbs_slot_open(struct backend_link *link, uint64_t name, void *base, size_t length,
		    void *region_of, uint8_t descriptor[HAUL_DESCRIPTOR_MAX])
{
	struct region *region = region_of;
	struct registration *registration;
	struct open_slot *slot;
	struct place place;
	int first, error = grow(link, (uint32_t)name);

	if (error)
		return error;
	slot = &link->slots[(uint32_t)name];
	/* Whatever fits in here comes within a packet: nothing has to be opened. */
	if (length <= link->small_in && region->dmabuf < 0)
		return 0;
	registration = region_on(link->context, region, link->device);
	if (!registration)
		return -ENOMEM;
	first = find_place(link, region, registration, base, length, &place);
	if (first < 0)
		return first;
	place.write_only = region->dmabuf >= 0;
	if (link->device->windows)
		error = open_windows(link, slot, &place, registration, (unsigned)first);
	link->starved = error == -EAGAIN;
	if (link->starved && link->windows_used == 0)
		return verbs_fail(link->context, -ENOMEM,
				  "device %s has no memory window left (of %d): windows=off does "
				  "without",
				  ibv_get_device_name(link->device->verbs->device),
				  link->device->limits.max_mw);
	if (error)
		return error;
	slot->uses = (uint32_t)(name >> 32);
	slot->open = slot->used = true;
	slot->write_only = place.write_only;
	link->slots_open++;
	return (int)place_encode(descriptor, &place);
}

int verbs_slot_close(struct backend_link *link, uint64_t name, bool over)
{
	uint32_t index = (uint32_t)name;
	struct open_slot *slot = index < link->slot_room ? &link->slots[index] : NULL;

	if (!slot || !slot->open)
		return 0;
	/* A write that is under way would find the door shut, and end the connection. */
	if (!over)
		return -EBUSY;
	slot->open = false;
	link->slots_open--;
	close_windows(link, slot);
	return 0;
}

bool slot_takes_packets(const struct backend_link *link, uint64_t name)
{
	uint32_t index = (uint32_t)name;
	const struct open_slot *slot = index < link->slot_room ? &link->slots[index] : NULL;

	return !slot || !slot->open || slot->uses != (uint32_t)(name >> 32) || !slot->write_only;
}

void slot_written(struct backend_link *link, uint32_t tag, uint64_t length)
{
	uint32_t index = tag & 0xffffff;
	struct open_slot *slot = index < link->slot_room ? &link->slots[index] : NULL;

	if (!slot || !slot->used) {
		link_fail(link, -EPROTO, "the peer wrote into a slot that never was");
		return;
	}
	/* Late: the slot was taken back, and the peer knew. */
	if (!slot->open || (slot->uses & 0xff) != tag >> 24 || !link->endpoint)
		return;
	haul_on_arrived(link->endpoint, (uint64_t)slot->uses << 32 | index, length);
}

void windows_free(struct backend_link *link)
{
	struct window *window;

	for (uint32_t i = 0; i < link->slot_room; i++) {
		free(link->slots[i].windows);
		link->slots[i].windows = NULL;
		link->slots[i].window_count = 0;
	}
	TAILQ_INIT(&link->windows);
	TAILQ_INIT(&link->window_work);
	link->windows_free = 0;
	while ((window = TAILQ_FIRST(&link->all_windows)))
		window_free(link, window);
}

void slots_free(struct backend_link *link)
{
	windows_free(link);
	free(link->slots);
	link->slots = NULL;
	link->slot_room = 0;
}
