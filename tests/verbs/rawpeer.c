/* SPDX-License-Identifier: Apache-2.0 */
#include "rawpeer.h"
#include "bytes.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <rdma/rdma_verbs.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

const char *raw_source;

/* ---- Channels ---------------------------------------------------------- */

static struct sockaddr_in address_of(const char *host, unsigned port)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};

	assert_int_equal(inet_pton(AF_INET, host, &address.sin_addr), 1);
	return address;
}

static void resolve(struct rdma_cm_id *id, const char *where)
{
	char host[64];
	unsigned port;
	struct sockaddr_in from = address_of(raw_source, 0), to;

	assert_int_equal(sscanf(where, "%63[^:]:%u", host, &port), 2);
	to = address_of(host, port);
	assert_int_equal(
		rdma_resolve_addr(id, (struct sockaddr *)&from, (struct sockaddr *)&to, 2000), 0);
	assert_int_equal(rdma_resolve_route(id, 2000), 0);
}

static struct raw_answer answer_of(const struct rdma_cm_event *event, bool accepted)
{
	struct raw_answer answer = {.accepted = accepted};
	const struct rdma_conn_param *parameters;

	if (!event)
		return answer;
	parameters = &event->param.conn;
	if (accepted)
		assert_int_equal(verbs_decode_greeting(parameters->private_data,
						       parameters->private_data_len,
						       &answer.greeting),
				 0);
	else
		answer.refusal = verbs_decode_refusal(parameters->private_data,
						      parameters->private_data_len);
	return answer;
}

struct raw_answer raw_channel_open(struct raw_channel *channel, const char *address,
				   const void *greeting, size_t length)
{
	struct ibv_qp_init_attr attributes = {
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
		.cap = {.max_send_wr = 16,
			.max_recv_wr = RAW_RECEIVES,
			.max_send_sge = 1,
			.max_recv_sge = 1},
	};
	struct rdma_conn_param parameters = {.private_data = greeting,
					     .private_data_len = (uint8_t)length,
					     .responder_resources = 1,
					     .initiator_depth = 1,
					     .retry_count = 7,
					     .rnr_retry_count = 7};
	size_t size = RAW_SOURCE + RAW_SOURCE_SIZE;

	memset(channel, 0, sizeof(*channel));
	assert_int_equal(rdma_create_id(NULL, &channel->id, NULL, RDMA_PS_TCP), 0);
	resolve(channel->id, address);
	assert_int_equal(rdma_create_qp(channel->id, NULL, &attributes), 0);
	channel->buffers = aligned_alloc(4096, size);
	assert_non_null(channel->buffers);
	memset(channel->buffers, 0, size);
	channel->mr = rdma_reg_write(channel->id, channel->buffers, size);
	assert_non_null(channel->mr);
	for (uintptr_t i = 0; i < RAW_RECEIVES; i++)
		assert_int_equal(rdma_post_recv(channel->id, (void *)i,
						channel->buffers + i * RAW_BUFFER, RAW_BUFFER,
						channel->mr),
				 0);
	if (rdma_connect(channel->id, &parameters))
		return answer_of(channel->id->event, false);
	channel->connected = true;
	return answer_of(channel->id->event, true);
}

void raw_channel_close(struct raw_channel *channel)
{
	if (!channel->id)
		return;
	if (channel->connected)
		rdma_disconnect(channel->id);
	if (channel->mr)
		rdma_dereg_mr(channel->mr);
	rdma_destroy_qp(channel->id);
	rdma_destroy_id(channel->id);
	free(channel->buffers);
	memset(channel, 0, sizeof(*channel));
}

/* The end of the one work request that was posted. */
static bool posted_well(struct raw_channel *channel)
{
	struct ibv_wc done;

	assert_int_equal(rdma_get_send_comp(channel->id, &done), 1);
	return done.status == IBV_WC_SUCCESS;
}

bool raw_channel_send(struct raw_channel *channel, const void *bytes, size_t length)
{
	assert_true(length <= RAW_SOURCE_SIZE);
	memcpy(channel->buffers + RAW_SOURCE, bytes, length);
	if (rdma_post_send(channel->id, NULL, channel->buffers + RAW_SOURCE, length, channel->mr,
			   0))
		return false;
	return posted_well(channel);
}

static bool post(struct raw_channel *channel, struct ibv_send_wr *work, size_t length)
{
	struct ibv_sge piece = {(uintptr_t)(channel->buffers + RAW_SOURCE), (uint32_t)length,
				channel->mr->lkey};
	struct ibv_send_wr *bad;

	assert_true(length <= RAW_SOURCE_SIZE);
	work->sg_list = &piece;
	work->num_sge = 1;
	if (ibv_post_send(channel->id->qp, work, &bad))
		return false;
	return posted_well(channel);
}

bool raw_channel_write(struct raw_channel *channel, uint64_t address, uint32_t key, size_t length,
		       const uint32_t *tag)
{
	struct ibv_send_wr work = {
		.opcode = tag ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE,
		.imm_data = tag ? htonl(*tag) : 0,
		.wr.rdma = {.remote_addr = address, .rkey = key},
	};

	return post(channel, &work, length);
}

bool raw_channel_read(struct raw_channel *channel, uint64_t address, uint32_t key, size_t length)
{
	struct ibv_send_wr work = {
		.opcode = IBV_WR_RDMA_READ,
		.wr.rdma = {.remote_addr = address, .rkey = key},
	};

	return post(channel, &work, length);
}

bool raw_channel_forget(struct raw_channel *channel, uint32_t key)
{
	struct ibv_send_wr work = {.opcode = IBV_WR_SEND_WITH_INV, .invalidate_rkey = key};

	memset(channel->buffers + RAW_SOURCE, 0, VERBS_WORD);
	return post(channel, &work, VERBS_WORD);
}

size_t raw_channel_receive(struct raw_channel *channel, uint8_t *bytes)
{
	uint64_t until = now_ms() + RAW_PATIENCE_MS;
	struct ibv_wc came;
	uint8_t *from;
	int count;

	/* A queue pair of ours stays as it is when the other side has gone. */
	while ((count = ibv_poll_cq(channel->id->recv_cq, 1, &came)) == 0 && now_ms() < until)
		sched_yield();
	if (count != 1 || came.status != IBV_WC_SUCCESS)
		return 0;
	from = channel->buffers + came.wr_id * RAW_BUFFER;
	memcpy(bytes, from, came.byte_len);
	rdma_post_recv(channel->id, (void *)(uintptr_t)came.wr_id, from, RAW_BUFFER, channel->mr);
	return came.byte_len;
}

/* A queue pair is in the error state when its receives come back. */
bool raw_channel_closed_within(struct raw_channel *channel, unsigned ms)
{
	uint64_t until = now_ms() + ms;
	struct ibv_wc came;

	while (now_ms() < until) {
		struct pollfd events = {.fd = channel->id->channel->fd, .events = POLLIN};

		if (ibv_poll_cq(channel->id->recv_cq, 1, &came) == 1 &&
		    came.status != IBV_WC_SUCCESS)
			return true;
		if (poll(&events, 1, 10) == 1)
			return true;
	}
	return false;
}

/* ---- Peers ------------------------------------------------------------- */

struct greeting raw_greeting(enum verbs_kind kind, const uint8_t *session)
{
	struct greeting greeting = {.kind = kind,
				    .flags = VERBS_IMMEDIATES,
				    .ring = 32,
				    .small = 512,
				    .packet = RAW_BUFFER};

	if (session)
		memcpy(greeting.session, session, VERBS_SESSION);
	return greeting;
}

void raw_verbs_open(struct raw_verbs *peer, struct side *side)
{
	const char *address = haul_listener_address(side->listener);
	uint8_t bytes[VERBS_GREETING], message[HAUL_CONTROL_MAX];
	unsigned before = side->accepted_count;
	struct raw_answer answer;
	struct greeting own = raw_greeting(VERBS_CONTROL, NULL);

	memset(peer, 0, sizeof(*peer));
	verbs_encode_greeting(bytes, &own);
	answer = raw_channel_open(&peer->control, address, bytes, sizeof(bytes));
	assert_true(answer.accepted);
	peer->theirs = answer.greeting;
	own = raw_greeting(VERBS_DATA, answer.greeting.session);
	verbs_encode_greeting(bytes, &own);
	answer = raw_channel_open(&peer->data, address, bytes, sizeof(bytes));
	assert_true(answer.accepted);
	if (peer->theirs.flags & VERBS_WINDOWS) {
		own.number = 1;
		verbs_encode_greeting(bytes, &own);
		answer = raw_channel_open(&peer->other, address, bytes, sizeof(bytes));
		assert_true(answer.accepted);
	}
	assert_true(raw_verbs_message(peer, message, raw_hello(message, WIRE_VERSION, 0, 65536)));
	raw_verbs_expect(peer, WIRE_HELLO, message);
	wait_accepted(side, before + 1);
	peer->endpoint = side->accepted[before];
}

void raw_verbs_close(struct raw_verbs *peer)
{
	raw_channel_close(&peer->other);
	raw_channel_close(&peer->data);
	raw_channel_close(&peer->control);
}

static bool send_packet(struct raw_verbs *peer, const void *record, size_t head,
			const uint8_t *message, size_t length, const void *bytes, size_t count)
{
	uint8_t packet[RAW_BUFFER] = {0};

	put32(packet, peer->packets);
	memcpy(packet + VERBS_HEAD, record, head);
	memcpy(packet + VERBS_HEAD + head, message, length);
	if (count)
		memcpy(packet + VERBS_HEAD + head + length, bytes, count);
	return raw_channel_send(&peer->control, packet, VERBS_HEAD + head + length + count);
}

bool raw_verbs_message(struct raw_verbs *peer, const uint8_t *message, size_t length)
{
	uint8_t head[VERBS_SMALL];
	size_t size = verbs_encode_message(head, length);

	return send_packet(peer, head, size, message, length, NULL, 0);
}

bool raw_verbs_small(struct raw_verbs *peer, uint64_t slot, uint64_t offset, const uint8_t *message,
		     size_t length, const void *bytes, uint32_t count)
{
	uint8_t head[VERBS_SMALL];
	size_t size = verbs_encode_small(head, length, count, slot, offset);

	return send_packet(peer, head, size, message, length, bytes, count);
}

static void next_packet(struct raw_verbs *peer)
{
	peer->length = raw_channel_receive(&peer->control, peer->packet);
	assert_true(peer->length >= VERBS_HEAD);
	peer->packets += peer->length > VERBS_HEAD;
	peer->read = VERBS_HEAD;
}

void raw_verbs_expect(struct raw_verbs *peer, enum wire_type type, uint8_t *message)
{
	struct record record;

	message[0] = 0;
	do {
		while (peer->read >= peer->length)
			next_packet(peer);
		peer->read += verbs_decode_record(peer->packet + peer->read,
						  peer->length - peer->read, &record);
		assert_true(record.length > 0);
		memcpy(message, record.message, record.length);
	} while (message[0] != type);
}
