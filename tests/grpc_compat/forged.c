/* SPDX-License-Identifier: Apache-2.0 */
#include "forged.h"

#include <endian.h>
#include <grpc/byte_buffer_reader.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define NOTE_WAIT_MS 10000

static haul_context *context;

void forged_die(const char *what, int error)
{
	fprintf(stderr, "%s: %s: %s\n", what, haul_strerror(error), haul_detail(context));
	exit(3);
}

haul_context *forged_open(void)
{
	int error = haul_open("tcp,progress=thread", &context);

	if (error)
		forged_die("haul_open", error);
	return context;
}

void forged_send(haul_endpoint *side, uint64_t number, const uint8_t *data, size_t bytes)
{
	static uint8_t zeros[4096];
	const int64_t length = (int64_t)bytes;
	DLTensor tensor =
		haul_tensor(data ? (void *)data : zeros, (DLDataType){kDLUInt, 8, 1}, 1, &length);
	uint64_t name = htole64(number);
	struct haul_key key = {&name, sizeof(name)};
	int error;

	if (!data && bytes > sizeof(zeros))
		abort();
	error = haul_send(side, key, &tensor, NULL, NULL);
	if (error)
		forged_die("haul_send", error);
}

void forged_note(haul_endpoint *side, const struct wire_note *note)
{
	static uint8_t bytes[WIRE_NOTE_BYTES];
	const int64_t length = sizeof(bytes);
	DLTensor tensor = haul_tensor(bytes, (DLDataType){kDLUInt, 8, 1}, 1, &length);

	wire_put_note(note, bytes);
	haul_send_wait(side, haul_key(WIRE_NOTE_KEY), &tensor, NULL, NOTE_WAIT_MS);
}

bool forged_note_wait(haul_endpoint *side, struct wire_note *note)
{
	uint8_t bytes[WIRE_NOTE_BYTES];
	const int64_t length = sizeof(bytes);
	DLTensor tensor = haul_tensor(bytes, (DLDataType){kDLUInt, 8, 1}, 1, &length);

	return !haul_recv_wait(side, haul_key(WIRE_NOTE_KEY), &tensor, NULL, NOTE_WAIT_MS, NULL) &&
	       wire_get_note(bytes, sizeof(bytes), note);
}

grpc_byte_buffer *forged_message(const uint8_t *bytes, size_t length)
{
	grpc_slice slice = grpc_slice_from_copied_buffer((const char *)bytes, length);
	grpc_byte_buffer *message = grpc_raw_byte_buffer_create(&slice, 1);

	grpc_slice_unref(slice);
	return message;
}

size_t forged_copy(grpc_byte_buffer *message, uint8_t *bytes, size_t room)
{
	grpc_byte_buffer_reader reader;
	size_t length = 0;
	grpc_slice slice;

	if (!message || grpc_byte_buffer_length(message) > room ||
	    !grpc_byte_buffer_reader_init(&reader, message))
		return 0;
	slice = grpc_byte_buffer_reader_readall(&reader);
	length = GRPC_SLICE_LENGTH(slice);
	memcpy(bytes, GRPC_SLICE_START_PTR(slice), length);
	grpc_slice_unref(slice);
	grpc_byte_buffer_reader_destroy(&reader);
	return length;
}

void forged_descriptor(const struct wire_mark *mark, uint64_t number, uint64_t bytes,
		       struct wire_descriptor *descriptor)
{
	*descriptor = (struct wire_descriptor){
		.mark = *mark, .number = number, .bytes = bytes, .pieces = 1, .piece = {bytes}};
}

/* ---- Forgeries ----------------------------------------------------------- */

static void honest(struct forgery *forgery)
{
	forgery->aside = FORGED_BYTES;
}

static void replayed(struct forgery *forgery)
{
	forgery->descriptor.number = FORGED_FIRST_NUMBER; /* the honest one's */
	forgery->waits = true;
}

static void without_bytes(struct forgery *forgery)
{
	forgery->waits = true;
}

static void cut_in_head(struct forgery *forgery)
{
	forgery->length = WIRE_DESCRIPTOR_HEAD;
}

static void cut_in_pieces(struct forgery *forgery)
{
	forgery->descriptor.pieces = 3;
	forgery->descriptor.piece[1] = forgery->descriptor.piece[2] = 1;
	forgery->descriptor.bytes += 2;
	forgery->length = WIRE_DESCRIPTOR_HEAD + 2 * 8;
}

static void without_pieces(struct forgery *forgery)
{
	forgery->descriptor.pieces = 0;
	forgery->descriptor.bytes = 0;
}

static void with_an_empty_piece(struct forgery *forgery)
{
	forgery->descriptor.pieces = 2;
}

static void with_another_sum(struct forgery *forgery)
{
	forgery->descriptor.bytes++;
}

static void with_a_sum_that_wraps(struct forgery *forgery)
{
	forgery->descriptor.pieces = 2;
	forgery->descriptor.piece[0] = UINT64_MAX;
	forgery->descriptor.piece[1] = FORGED_BYTES + 1;
}

static void with_numbers_that_wrap(struct forgery *forgery)
{
	forgery->descriptor.pieces = 2;
	forgery->descriptor.piece[1] = 1;
	forgery->descriptor.bytes++;
	forgery->descriptor.number = UINT64_MAX;
}

static void of_another_call(struct forgery *forgery)
{
	forgery->descriptor.mark.call += 7;
}

/* No descriptor of this session: a message like any other. */
static void of_another_session(struct forgery *forgery)
{
	forgery->descriptor.mark.session.bytes[3] ^= 1;
}

static void of_no_session(struct forgery *forgery)
{
	forgery->mark.session.bytes[3] ^= 1;
	forgery->descriptor.mark = forgery->mark;
}

static void longer_than_it_says(struct forgery *forgery)
{
	forgery->aside = FORGED_BYTES + 1;
}

static void shorter_than_it_says(struct forgery *forgery)
{
	forgery->aside = FORGED_BYTES - 1;
}

static void larger_than_any_memory(struct forgery *forgery)
{
	forgery->descriptor.bytes = forgery->descriptor.piece[0] = UINT64_C(1) << 62;
}

static void larger_than_a_number(struct forgery *forgery)
{
	forgery->descriptor.bytes = forgery->descriptor.piece[0] = UINT64_MAX;
}

const struct forgery_kind forgeries[] = {
	{"honest", honest, GRPC_STATUS_OK},
	{"replayed", replayed, GRPC_STATUS_DEADLINE_EXCEEDED},
	{"without bytes", without_bytes, GRPC_STATUS_DEADLINE_EXCEEDED},
	{"cut in its head", cut_in_head, GRPC_STATUS_INTERNAL},
	{"cut in its pieces", cut_in_pieces, GRPC_STATUS_INTERNAL},
	{"without pieces", without_pieces, GRPC_STATUS_INTERNAL},
	{"with an empty piece", with_an_empty_piece, GRPC_STATUS_INTERNAL},
	{"with another sum", with_another_sum, GRPC_STATUS_INTERNAL},
	{"with a sum that wraps", with_a_sum_that_wraps, GRPC_STATUS_INTERNAL},
	{"with numbers that wrap", with_numbers_that_wrap, GRPC_STATUS_INTERNAL},
	{"of another call", of_another_call, GRPC_STATUS_INTERNAL},
	{"of another session", of_another_session, GRPC_STATUS_OK},
	{"of no session", of_no_session, GRPC_STATUS_UNAVAILABLE},
	{"longer than it says", longer_than_it_says, GRPC_STATUS_INTERNAL},
	{"shorter than it says", shorter_than_it_says, GRPC_STATUS_INTERNAL},
	{"larger than any memory", larger_than_any_memory, GRPC_STATUS_RESOURCE_EXHAUSTED},
	{"larger than a number", larger_than_a_number, GRPC_STATUS_RESOURCE_EXHAUSTED},
	{NULL},
};
