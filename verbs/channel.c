/* SPDX-License-Identifier: Apache-2.0 */
/* One queue pair: how it is made, moved on, filled and ended. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "verbs.h"

/* From so many work requests on, one of them asks for its completion. */
#define SIGNAL_EVERY 8u

/* 0.01 ms (code 1 of table 45 of the InfiniBand specification, volume 1): a peer that finds no
 * receive posted, which credits make impossible, tries again at once. */
#define RNR_TIMER 1
#define RETRIES 7

/* ---- Memory ------------------------------------------------------------ */

uint8_t *channel_buffer(struct channel *channel, unsigned number)
{
	return channel->buffers + (size_t)number * channel->size;
}

static size_t buffers_size(const struct channel *channel)
{
	return (size_t)(channel->receives + SEND_BUFFERS) * channel->size;
}

static int make_buffers(struct channel *channel)
{
	struct backend_link *link = channel->link;

	channel->receives = RING + VERBS_SPARE;
	channel->size = channel->control ? PACKET : VERBS_WORD;
	/* Pages of their own, so that pinning them pins nothing else. */
	channel->buffers = mmap(NULL, buffers_size(channel), PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (channel->buffers == MAP_FAILED) {
		channel->buffers = NULL;
		return -ENOMEM;
	}
	channel->buffers_mr = ibv_reg_mr(link->device->pd, channel->buffers, buffers_size(channel),
					 IBV_ACCESS_LOCAL_WRITE);
	return channel->buffers_mr ? 0 : -errno;
}

struct channel *channel_new(struct backend_link *link, bool control, unsigned number)
{
	struct channel *channel = calloc(1, sizeof(*channel));

	if (!channel)
		return NULL;
	channel->link = link;
	channel->control = control;
	channel->number = number;
	return channel;
}

/* ---- The queue pair ---------------------------------------------------- */

/* rdma_cm moves an iWARP queue pair on by itself; elsewhere we do, since it leaves timers and path
 * to chance. */
static struct ibv_qp *create(struct channel *channel, struct ibv_qp_init_attr *wish)
{
	if (channel->attached)
		return rdma_create_qp(channel->id, channel->link->device->pd, wish)
			       ? NULL
			       : channel->id->qp;
	return ibv_create_qp(channel->link->device->pd, wish);
}

static int make_queue_pair(struct channel *channel)
{
	struct backend_link *link = channel->link;
	uint32_t inline_data = INLINE_WISH;
	char limit[LOCK_LIMIT_ROOM];

	channel->attached = link->device->iwarp;
	for (;;) {
		struct ibv_qp_init_attr wish = {
			.send_cq = link->cq,
			.recv_cq = link->cq,
			.qp_type = IBV_QPT_RC,
			.cap = {.max_send_wr = SEND_DEPTH,
				.max_recv_wr = channel->receives,
				.max_send_sge = 1,
				.max_recv_sge = 1,
				.max_inline_data = inline_data},
		};

		channel->qp = create(channel, &wish);
		if (channel->qp) {
			channel->inline_max = inline_data;
			return 0;
		}
		if (inline_data == 0)
			break;
		/* 64 holds a word and a short packet, and most devices have it. */
		inline_data = inline_data > 64 ? 64 : 0;
	}
	return verbs_fail(link->context, errno ? -errno : -EIO,
			  "device %s gives no queue pair: %s; it has %d, each with up to %d work "
			  "requests; %s",
			  ibv_get_device_name(link->device->verbs->device),
			  haul_strerror(errno ? errno : EIO), link->device->limits.max_qp,
			  link->device->limits.max_qp_wr, verbs_lock_limit(limit));
}

/*
 * The time until a packet is sent again is 4.096 us x 2^n, and an adapter may take four times as
 * long. With all retries that has to stay below peer_ms.
 */
static uint8_t ack_timeout(const struct backend_link *link)
{
	uint64_t limit_ns = haul_peer_ms(link->context->engine) * MS / (4 * (RETRIES + 1));
	uint8_t code = 8;

	while (code < 16 && (UINT64_C(4096) << (code + 1)) <= limit_ns)
		code++;
	return code;
}

static void override_path(const struct channel *channel, struct ibv_qp_attr *attributes)
{
	const struct verbs_config *config = channel->link->context->config;
	unsigned mtu = channel->link->mtu;

	if (mtu && (unsigned)attributes->path_mtu > mtu)
		attributes->path_mtu = (enum ibv_mtu)mtu;
	if (config->service_level != HAUL_OPTION_AUTO)
		attributes->ah_attr.sl = (uint8_t)config->service_level;
	if (config->traffic_class != HAUL_OPTION_AUTO)
		attributes->ah_attr.grh.traffic_class = (uint8_t)config->traffic_class;
}

static int move_to(struct channel *channel, enum ibv_qp_state state)
{
	struct ibv_qp_attr attributes = {.qp_state = state};
	int mask = 0;

	if (rdma_init_qp_attr(channel->id, &attributes, &mask))
		return -errno;
	if (state == IBV_QPS_INIT) {
		/* Packets come by SEND: only data channels are written to. */
		attributes.qp_access_flags =
			IBV_ACCESS_REMOTE_READ | (channel->control ? 0 : IBV_ACCESS_REMOTE_WRITE);
	} else if (state == IBV_QPS_RTR) {
		override_path(channel, &attributes);
		attributes.min_rnr_timer = RNR_TIMER;
		attributes.max_dest_rd_atomic = 1;
	} else {
		attributes.timeout = ack_timeout(channel->link);
		attributes.retry_cnt = RETRIES;
		attributes.rnr_retry = RETRIES;
		attributes.max_rd_atomic = 1;
	}
	return -ibv_modify_qp(channel->qp, &attributes, mask);
}

static int not_moved(const struct channel *channel, int error)
{
	const struct backend_link *link = channel->link;

	return verbs_fail(link->context, error,
			  "device %s does not set up a queue pair: %s (the peer is gone, or mtu=, "
			  "sl= or traffic_class= is none for this network)",
			  ibv_get_device_name(link->device->verbs->device), haul_strerror(error));
}

int channel_ready(struct channel *channel)
{
	int error;

	if (channel->attached)
		return 0;
	error = move_to(channel, IBV_QPS_RTR);
	if (!error)
		error = move_to(channel, IBV_QPS_RTS);
	return error ? not_moved(channel, error) : 0;
}

int channel_open(struct channel *channel)
{
	char limit[LOCK_LIMIT_ROOM];
	int error = make_buffers(channel);

	if (error)
		return verbs_fail(channel->link->context, error,
				  "no registered memory for a connection: %s; %s",
				  haul_strerror(error), verbs_lock_limit(limit));
	error = make_queue_pair(channel);
	if (error)
		return error;
	if (!channel->attached)
		error = move_to(channel, IBV_QPS_INIT);
	if (error)
		return not_moved(channel, error);
	for (unsigned i = 0; i < channel->receives; i++)
		channel_post_receive(channel, i);
	return channel->link->error ? -EIO : 0;
}

/* ---- Posting ----------------------------------------------------------- */

static uint64_t name_of(const struct channel *channel)
{
	return (uint64_t)(channel->control ? 0 : channel->number + 1) << 48;
}

/* An iWARP queue pair takes nothing more once TCP's connection has ended. */
static void post_failed(struct channel *channel, int error)
{
	struct backend_link *link = channel->link;

	if (link_awaits_last_word(channel))
		return;
	error = abs(error);
	link_fail(link, link->device->iwarp ? -ECONNRESET : -EIO,
		  "a work request was not taken: %s", haul_strerror(error));
}

void channel_post_receive(struct channel *channel, unsigned number)
{
	struct ibv_sge piece = {(uintptr_t)channel_buffer(channel, number), channel->size,
				channel->buffers_mr->lkey};
	struct ibv_recv_wr work = {
		.wr_id = name_of(channel) | RECEIVE_BIT | number, .sg_list = &piece, .num_sge = 1};
	struct ibv_recv_wr *bad;
	int error;

	if (!channel->qp || channel->state == CHANNEL_BROKEN)
		return;
	error = ibv_post_recv(channel->qp, &work, &bad);
	if (error)
		post_failed(channel, error);
}

unsigned channel_room(const struct channel *channel)
{
	return channel->state == CHANNEL_UP ? SEND_DEPTH - channel->posted_count : 0;
}

int channel_post(struct channel *channel, struct ibv_send_wr *work, const struct posted *what,
		 bool signalled)
{
	unsigned at = (channel->posted_first + channel->posted_count) % SEND_DEPTH;
	struct ibv_send_wr *bad;
	int error;

	if (channel->unsignalled + 1 >= SIGNAL_EVERY)
		signalled = true;
	work->wr_id =
		name_of(channel) | ((channel->posted_before + channel->posted_count) & POSTED_MASK);
	if (signalled)
		work->send_flags |= IBV_SEND_SIGNALED;
	/* Some providers return it negative. */
	error = abs(ibv_post_send(channel->qp, work, &bad));
	if (error) {
		post_failed(channel, error);
		return -EIO;
	}
	channel->posted[at] = *what;
	channel->posted_count++;
	link_watch(channel->link);
	channel->unsignalled = signalled ? 0 : channel->unsignalled + 1;
	return 0;
}

/*
 * rxe lets work wait for acknowledgements, and can miss that what it waits for has just come (seen
 * in Linux 6.1 with several CPUs). It looks again when it is called, with nothing to post too.
 */
void channel_ring(struct channel *channel)
{
	struct ibv_send_wr *bad;

	if (channel->qp && channel->link->device->rxe &&
	    channel->posted_count > channel->unsignalled)
		ibv_post_send(channel->qp, NULL, &bad);
}

bool channel_can_send(const struct channel *channel)
{
	return channel_room(channel) > 0 &&
	       channel->buffers_used != (UINT32_C(1) << SEND_BUFFERS) - 1;
}

int channel_send(struct channel *channel, const uint8_t *bytes, uint32_t length)
{
	struct posted what = {.kind = POSTED_PACKET, .buffer = NO_BUFFER};
	struct ibv_sge piece = {(uintptr_t)bytes, length, channel->buffers_mr->lkey};
	struct ibv_send_wr work = {.sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND};
	int error;

	if (!channel_can_send(channel))
		return -EAGAIN;
	if (length <= channel->inline_max) {
		work.send_flags = IBV_SEND_INLINE;
	} else {
		what.buffer = (unsigned)__builtin_ctz(~channel->buffers_used);
		piece.addr = (uintptr_t)channel_buffer(channel, channel->receives + what.buffer);
		memcpy((void *)(uintptr_t)piece.addr, bytes, length);
	}
	error = channel_post(channel, &work, &what, false);
	if (!error && what.buffer != NO_BUFFER)
		channel->buffers_used |= UINT32_C(1) << what.buffer;
	return error;
}

/* ---- Credits ----------------------------------------------------------- */

unsigned channel_credits(const struct channel *channel)
{
	uint32_t under_way = channel->sent - channel->taken_by_peer;

	return under_way < channel->link->peer_ring ? channel->link->peer_ring - under_way : 0;
}

bool channel_taken(struct channel *channel, uint32_t taken)
{
	if (taken - channel->taken_by_peer > channel->sent - channel->taken_by_peer)
		return false;
	channel->taken_by_peer = taken;
	return true;
}

/* ---- The end ----------------------------------------------------------- */

void channel_stop(struct channel *channel)
{
	struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_ERR};

	if (channel->state == CHANNEL_UP && !channel->control)
		channel->link->data_up--;
	channel->state = CHANNEL_BROKEN;
	if (channel->qp)
		ibv_modify_qp(channel->qp, &attributes, IBV_QP_STATE);
}

/* Once a queue pair is destroyed, its adapter touches no memory for it any more. */
void channel_break(struct channel *channel)
{
	channel_stop(channel);
	if (!channel->qp)
		return;
	if (channel->attached)
		rdma_destroy_qp(channel->id);
	else
		ibv_destroy_qp(channel->qp);
	channel->qp = NULL;
}

void channel_reset(struct channel *channel)
{
	struct backend_link *link = channel->link;
	unsigned number = channel->number;
	bool control = channel->control;

	/* Says goodbye to the peer; an error means that there is nobody. */
	if (channel->id && channel->state >= CHANNEL_CONNECTING)
		rdma_disconnect(channel->id);
	channel_break(channel);
	if (channel->id)
		rdma_destroy_id(channel->id);
	if (channel->buffers_mr)
		ibv_dereg_mr(channel->buffers_mr);
	if (channel->buffers)
		munmap(channel->buffers, buffers_size(channel));
	memset(channel, 0, sizeof(*channel));
	channel->link = link;
	channel->number = number;
	channel->control = control;
}

void channel_free(struct channel *channel)
{
	if (channel)
		channel_reset(channel);
	free(channel);
}
