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

void forged_send(haul_endpoint *side, uint64_t number, size_t bytes)
{
	static uint8_t zeros[4096];
	const int64_t length = (int64_t)bytes;
	DLTensor tensor = haul_tensor(zeros, (DLDataType){kDLUInt, 8, 1}, 1, &length);
	uint64_t name = htole64(number);
	struct haul_key key = {&name, sizeof(name)};
	int error;

	if (bytes > sizeof(zeros))
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
