/* SPDX-License-Identifier: Apache-2.0 */
#include "rawpeer.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- Sockets ----------------------------------------------------------- */

/* Cut "host:port" or "[host]:port". */
static void split(const char *address, char host[128], char port[16])
{
	const char *colon = strrchr(address, ':');
	bool brackets = address[0] == '[';

	assert_non_null(colon);
	snprintf(host, 128, "%.*s", (int)(colon - address) - (brackets ? 2 : 0),
		 address + (brackets ? 1 : 0));
	snprintf(port, 16, "%s", colon + 1);
}

int raw_connect(const char *address)
{
	struct timeval patience = {.tv_sec = RAW_PATIENCE_MS / 1000};
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
	struct addrinfo *found;
	char host[128], port[16];
	int fd;

	split(address, host, port);
	assert_int_equal(getaddrinfo(host, port, &hints, &found), 0);
	fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_true(fd >= 0);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	if (connect(fd, found->ai_addr, found->ai_addrlen))
		fail_msg("connect to %s: %s", address, haul_strerror(errno));
	freeaddrinfo(found);
	return fd;
}

bool raw_send(int fd, const void *bytes, size_t length)
{
	const uint8_t *next = bytes;

	while (length > 0) {
		ssize_t sent = send(fd, next, length, MSG_NOSIGNAL);

		if (sent < 0 && errno == EAGAIN)
			fail_msg("nobody reads");
		if (sent <= 0)
			return false;
		next += sent;
		length -= (size_t)sent;
	}
	return true;
}

bool raw_recv(int fd, void *bytes, size_t length)
{
	uint8_t *next = bytes;

	while (length > 0) {
		ssize_t got = recv(fd, next, length, 0);

		if (got < 0 && errno == EAGAIN)
			fail_msg("nothing came within %d ms", RAW_PATIENCE_MS);
		if (got <= 0)
			return false;
		next += got;
		length -= (size_t)got;
	}
	return true;
}

bool raw_closed_within(int fd, unsigned ms)
{
	uint64_t until = now_ms() + ms;
	struct timeval patience = {.tv_usec = 20000};
	char scrap[4096];
	bool closed = false;

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	while (!closed && now_ms() < until) {
		ssize_t got = recv(fd, scrap, sizeof(scrap), 0);

		closed = got == 0 || (got < 0 && errno != EAGAIN);
	}
	patience = (struct timeval){.tv_sec = RAW_PATIENCE_MS / 1000};
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	return closed;
}

/* ---- Sessions ---------------------------------------------------------- */

struct preamble raw_greet(int fd, enum preamble_kind kind, const struct raw_peer *peer,
			  uint32_t stream)
{
	struct preamble preamble = {.version = TCP_VERSION, .kind = kind, .stream = stream};
	uint8_t bytes[PREAMBLE_SIZE];

	if (peer)
		memcpy(preamble.session, peer->session, SESSION_SIZE);
	preamble_encode(bytes, &preamble);
	assert_true(raw_send(fd, bytes, sizeof(bytes)));
	assert_true(raw_recv(fd, bytes, sizeof(bytes)));
	assert_int_equal(preamble_decode(bytes, &preamble), 0);
	assert_int_equal(preamble.version, TCP_VERSION);
	return preamble;
}

void raw_open_session(struct raw_peer *peer, const char *address)
{
	struct preamble answer;

	memset(peer, 0, sizeof(*peer));
	peer->pulse = peer->stream = -1;
	peer->control = raw_connect(address);
	answer = raw_greet(peer->control, PREAMBLE_OPEN, NULL, 0);
	assert_int_equal(answer.status, PREAMBLE_WELCOME);
	memcpy(peer->session, answer.session, SESSION_SIZE);
}

void raw_open(struct raw_peer *peer, struct side *side, uint64_t features)
{
	const char *address = haul_listener_address(side->listener);
	uint8_t message[HAUL_CONTROL_MAX];
	unsigned before = side->accepted_count;

	raw_open_session(peer, address);
	assert_true(raw_message(peer, message, raw_hello(message, WIRE_VERSION, features, 65536)));
	raw_expect(peer, WIRE_HELLO, message, NULL);
	assert_int_equal(get16(message + 2), WIRE_VERSION);
	assert_int_equal(get32(message + 4), WIRE_MAGIC);
	peer->pulse = raw_connect(address);
	assert_int_equal(raw_greet(peer->pulse, PREAMBLE_PULSE, peer, 0).status, PREAMBLE_WELCOME);
	peer->stream = raw_connect(address);
	assert_int_equal(raw_greet(peer->stream, PREAMBLE_STREAM, peer, 1).status,
			 PREAMBLE_WELCOME);
	wait_accepted(side, before + 1);
	peer->endpoint = side->accepted[before];
}

void raw_close(struct raw_peer *peer)
{
	if (peer->stream >= 0)
		close(peer->stream);
	if (peer->pulse >= 0)
		close(peer->pulse);
	if (peer->control >= 0)
		close(peer->control);
	peer->control = peer->pulse = peer->stream = -1;
}

/* ---- Records and chunks ------------------------------------------------ */

bool raw_record(struct raw_peer *peer, enum record_type type, size_t header, const void *body,
		size_t length)
{
	uint8_t *bytes = malloc(RECORD_SIZE + length);
	bool sent;

	assert_non_null(bytes);
	put32(bytes, (uint32_t)length);
	bytes[4] = (uint8_t)type;
	bytes[5] = 0;
	put16(bytes + 6, (uint16_t)header);
	if (length)
		memcpy(bytes + RECORD_SIZE, body, length);
	sent = raw_send(peer->control, bytes, RECORD_SIZE + length);
	free(bytes);
	return sent;
}

bool raw_message(struct raw_peer *peer, const uint8_t *message, size_t length)
{
	return raw_record(peer, RECORD_MESSAGE, 0, message, length);
}

bool raw_small(struct raw_peer *peer, uint64_t slot, uint64_t offset, const uint8_t *message,
	       size_t length, const void *bytes, size_t count)
{
	uint8_t *body = malloc(SMALL_SIZE + length + count);
	bool sent;

	assert_non_null(body);
	put64(body, slot);
	put64(body + 8, offset);
	memcpy(body + SMALL_SIZE, message, length);
	if (count)
		memcpy(body + SMALL_SIZE + length, bytes, count);
	sent = raw_record(peer, RECORD_SMALL, length, body, SMALL_SIZE + length + count);
	free(body);
	return sent;
}

bool raw_chunk(struct raw_peer *peer, uint64_t slot, uint64_t offset, const void *bytes,
	       uint32_t length)
{
	uint8_t header[CHUNK_SIZE];

	put64(header, slot);
	put64(header + 8, offset);
	put32(header + 16, length);
	put32(header + 20, CHUNK_MAGIC);
	return raw_send(peer->stream, header, sizeof(header)) &&
	       (!bytes || raw_send(peer->stream, bytes, length));
}

/* A SMALL whose body is there: its message, and its bytes. */
static size_t open_small(const uint8_t *body, size_t header, size_t length, uint8_t *message,
			 uint8_t *bytes)
{
	assert_true(length >= SMALL_SIZE + header && header <= HAUL_CONTROL_MAX);
	memcpy(message, body + SMALL_SIZE, header);
	if (bytes)
		memcpy(bytes, body + SMALL_SIZE + header, length - SMALL_SIZE - header);
	return header;
}

enum wire_type raw_next(struct raw_peer *peer, uint8_t *message, uint8_t *bytes)
{
	static uint8_t body[SMALL_SIZE + HAUL_CONTROL_MAX + 65536];
	uint8_t head[RECORD_SIZE];

	for (;;) {
		size_t length;

		if (!raw_recv(peer->control, head, sizeof(head)))
			return 0;
		length = get32(head);
		assert_true(length <= sizeof(body));
		if (!raw_recv(peer->control, body, length))
			return 0;
		if (head[4] == RECORD_SMALL)
			open_small(body, get16(head + 6), length, message, bytes);
		else if (head[4] == RECORD_MESSAGE)
			memcpy(message, body, length);
		else
			continue;
		return message[0];
	}
}

void raw_expect(struct raw_peer *peer, enum wire_type type, uint8_t *message, uint8_t *bytes)
{
	enum wire_type got;

	do {
		got = raw_next(peer, message, bytes);
		if (!got)
			fail_msg("the connection ended before message %d came", type);
	} while (got != type);
}

/* ---- Messages ---------------------------------------------------------- */

size_t raw_hello(uint8_t *out, unsigned version, uint64_t features, uint32_t slots)
{
	memset(out, 0, WIRE_HELLO_SIZE);
	out[0] = WIRE_HELLO;
	out[1] = WIRE_CONNECTOR;
	put16(out + 2, (uint16_t)version);
	put32(out + 4, WIRE_MAGIC);
	put64(out + 8, features);
	put64(out + 16, UINT64_C(0x1122334455667788));
	put32(out + 24, slots);
	memset(out + 32, 0x5c, WIRE_NONCE_SIZE);
	return WIRE_HELLO_SIZE;
}

size_t raw_ready(uint8_t *out, unsigned flags, uint64_t slot, uint64_t room, const char *key)
{
	memset(out, 0, 24);
	out[0] = WIRE_READY;
	out[1] = (uint8_t)flags;
	out[2] = (uint8_t)strlen(key);
	put64(out + 8, slot);
	put64(out + 16, room);
	memcpy(out + 24, key, strlen(key));
	return 24 + strlen(key);
}

size_t raw_push(uint8_t *out, enum wire_type type, uint64_t slot, uint64_t bytes)
{
	memset(out, 0, 48);
	out[0] = (uint8_t)type;
	out[2] = 1;
	out[3] = kDLUInt;
	out[4] = 8;
	put16(out + 6, 1);
	put64(out + 8, slot);
	put64(out + 16, bytes);
	put64(out + 40, bytes);
	return 48;
}

size_t raw_slot(uint8_t *out, enum wire_type type, uint64_t slot)
{
	memset(out, 0, 16);
	out[0] = (uint8_t)type;
	put64(out + 8, slot);
	return 16;
}
