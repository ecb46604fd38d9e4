/* SPDX-License-Identifier: Apache-2.0 */
/*
 * streams=auto: how many sockets does this path need?
 *
 * The sender measures what TCP gets acknowledged while there is something to send, and tries
 * twice as many streams, at least sixteen where packets are lost. More streams stay when they are
 * clearly faster; otherwise the trial is undone, and the next one waits, twice as long each time. A
 * gain that noise could explain has to show a second time. Half as many are tried in turn, and stay
 * when they are as fast: a path that was busy for a while goes back to fewer streams. A rate that
 * falls says that the path has changed.
 *
 * Where several links share a host, more streams take from the others what they gain. Then each
 * link keeps to one stream, and on a lossy path to its part of the sixteen.
 *
 * A trial costs little: streams that are not used stay open, and chunks are simply given to fewer
 * or more of them.
 */
#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>

#include "tcp.h"

/* One measurement, of time in which there was something to send. */
#define EPOCH (150 * MS)
/* After a change, TCP needs this long to find its speed. */
#define SETTLE (60 * MS)
#define PATIENCE_LEAST (1000 * MS)
#define PATIENCE_MOST (64000 * MS)

/* Twice the streams have to be this much faster to stay; below CLEAR only if that shows twice. */
#define GAIN 1.08
#define CLEAR 1.25
/* Half the streams stay when they are at least this fast. */
#define AS_GOOD 0.98
/* Segments sent again: from here on a path counts as lossy. Queues that overflow stay below. */
#define LOSSY 0.005
/*
 * On a lossy path this many stay when they are not slower: a stream that loses a packet for the
 * second time stands still for 200 ms (the least retransmission timeout), and the others go on.
 */
#define LOSSY_STREAMS 16
/* A rate that falls below this part of the best says that the path has changed. */
#define CHANGED 0.7

struct counters {
	uint64_t bytes, segments, again;
};

static struct counters count(const struct backend_link *link)
{
	struct counters sum = {0};
	struct stream *stream;

	TAILQ_FOREACH (stream, &link->streams, streams) {
		struct tcp_info info = {0};
		socklen_t size = sizeof(info);

		if (stream->socket->state != SOCKET_UP ||
		    getsockopt(stream->socket->fd, IPPROTO_TCP, TCP_INFO, &info, &size))
			continue;
		sum.bytes += info.tcpi_bytes_acked;
		sum.segments += info.tcpi_segs_out;
		sum.again += info.tcpi_total_retrans;
	}
	return sum;
}

/* Within one host there is no path that could throttle one socket. */
static bool automatic(const struct backend_link *link)
{
	return link->context->config->streams == HAUL_OPTION_AUTO && !link->local;
}

void tune_init(struct backend_link *link)
{
	struct tune *tune = &link->tune;

	uint64_t streams = link->context->config->streams;

	tune->target = streams == HAUL_OPTION_AUTO ? 1 : (unsigned)streams;
	tune->steady = tune->target;
	tune->patience = PATIENCE_LEAST;
}

unsigned tune_wanted(const struct backend_link *link)
{
	return link->tune.target > link->wanted_by_peer ? link->tune.target : link->wanted_by_peer;
}

/* ---- Measuring --------------------------------------------------------- */

static void begin(struct tune *tune, const struct counters *now)
{
	tune->last_bytes = now->bytes;
	tune->last_segments = now->segments;
	tune->last_again = now->again;
}

/* Add what happened since the busy time began. */
static void account(struct backend_link *link, uint64_t now)
{
	struct tune *tune = &link->tune;
	struct counters counters = count(link);

	tune->busy_ns += now - tune->busy_since;
	tune->bytes += counters.bytes - tune->last_bytes;
	tune->segments += counters.segments - tune->last_segments;
	tune->again += counters.again - tune->last_again;
	begin(tune, &counters);
}

static void restart(struct backend_link *link, uint64_t now, bool settling)
{
	struct tune *tune = &link->tune;
	struct counters counters = count(link);

	begin(tune, &counters);
	tune->busy_ns = tune->bytes = tune->segments = tune->again = 0;
	tune->settling = settling;
	if (tune->busy_since)
		tune->busy_since = now;
}

void tune_busy(struct backend_link *link)
{
	struct tune *tune = &link->tune;
	struct counters counters;

	if (!automatic(link) || tune->busy_since)
		return;
	counters = count(link);
	/* What was acknowledged since the last busy time ended was sent in it. */
	tune->bytes += counters.bytes - tune->last_bytes;
	begin(tune, &counters);
	tune->busy_since = haul_clock();
	link_timer(link, tune_next(link));
}

void tune_idle(struct backend_link *link)
{
	uint64_t now;

	if (!link->tune.busy_since)
		return;
	now = haul_clock();
	account(link, now);
	link->tune.busy_since = 0;
}

void tune_stream_gone(struct backend_link *link)
{
	/* The sums were made with its counters: start over once it is away. */
	link->tune.recount = true;
}

uint64_t tune_next(const struct backend_link *link)
{
	const struct tune *tune = &link->tune;
	uint64_t length = tune->settling ? SETTLE : EPOCH;

	if (!tune->busy_since || !automatic(link))
		return UINT64_MAX;
	return tune->busy_since + (tune->busy_ns < length ? length - tune->busy_ns : 0);
}

/* How many links share the path's ends, as far as the two sides know. */
static unsigned crowd(const struct backend_link *link, uint64_t now)
{
	unsigned here = stream_crowd(link->context, now);

	return here > link->crowd_at_peer ? here : link->crowd_at_peer;
}

/* The most streams that a link in a crowd uses. */
static unsigned share(unsigned crowd, bool lossy)
{
	if (crowd < 2)
		return STREAMS_MAX;
	return lossy && crowd < LOSSY_STREAMS ? LOSSY_STREAMS / crowd : 1;
}

/* ---- Deciding ---------------------------------------------------------- */

void tune_ask(struct backend_link *link)
{
	uint8_t bytes[4];

	put32(bytes, link->tune.target);
	if (control_record(link, RECORD_STREAMS, bytes, sizeof(bytes)) == 0)
		control_write(link);
}

static void set_target(struct backend_link *link, unsigned target)
{
	haul_log(HAUL_LOG_DEBUG, "%u streams instead of %u", target, link->tune.target);
	link->tune.target = target;
	if (link->connector)
		connect_streams(link, haul_clock());
	else
		tune_ask(link);
	tcp_flush(link);
}

/* On a path that loses packets, bbr keeps going where loss-based algorithms slow down. */
static bool change_to_bbr(struct backend_link *link)
{
	struct stream *stream;
	bool changed = false;

	if (!link->context->bbr || link->tune.bbr)
		return false;
	link->tune.bbr = true;
	TAILQ_FOREACH (stream, &link->streams, streams)
		changed |= stream_use_bbr(stream);
	return changed;
}

static void start_trial(struct backend_link *link, unsigned target, double rate)
{
	struct tune *tune = &link->tune;

	if (target > STREAMS_MAX)
		target = STREAMS_MAX;
	if (target == tune->steady)
		return;
	tune->rate = rate;
	tune->tried = target;
	tune->phase = TUNE_TRIAL;
	set_target(link, target);
}

static void try_more(struct backend_link *link, double rate, bool lossy)
{
	unsigned target = 2 * link->tune.steady;

	start_trial(link, lossy && target < LOSSY_STREAMS ? LOSSY_STREAMS : target, rate);
}

/* How much faster the trial has to be. */
static double needed(const struct tune *tune, bool lossy)
{
	if (tune->tried < tune->steady || (lossy && tune->tried <= LOSSY_STREAMS))
		return AS_GOOD;
	return GAIN;
}

/* The number that was tried stays, and what lies beyond it is tried at once. */
static void adopt(struct backend_link *link, double rate, bool lossy)
{
	struct tune *tune = &link->tune;
	bool more = tune->tried > tune->steady;

	tune->phase = TUNE_STEADY;
	tune->steady = tune->tried;
	tune->best = rate;
	tune->patience = PATIENCE_LEAST;
	if (tune->target != tune->steady)
		set_target(link, tune->steady);
	if (more)
		try_more(link, rate, lossy);
}

static void undo(struct backend_link *link, uint64_t now)
{
	struct tune *tune = &link->tune;

	tune->phase = TUNE_STEADY;
	if (tune->target != tune->steady)
		set_target(link, tune->steady);
	tune->next_trial = now + tune->patience;
	if (tune->patience < PATIENCE_MOST)
		tune->patience *= 2;
}

static void judge_trial(struct backend_link *link, double rate, bool lossy, uint64_t now)
{
	struct tune *tune = &link->tune;
	double gain = rate / tune->rate;

	if (gain < needed(tune, lossy)) {
		undo(link, now);
	} else if (tune->tried > tune->steady &&
		   (gain >= CLEAR || (lossy && tune->tried <= LOSSY_STREAMS))) {
		adopt(link, rate, lossy);
	} else {
		tune->trial_rate = rate;
		tune->phase = TUNE_CONFIRM;
		set_target(link, tune->steady);
	}
}

static void judge_again(struct backend_link *link, double rate, bool lossy, uint64_t now)
{
	struct tune *tune = &link->tune;
	double gain = tune->trial_rate / rate;

	if (gain < needed(tune, lossy))
		undo(link, now);
	else
		adopt(link, tune->trial_rate, lossy);
}

static void judge_steady(struct backend_link *link, double rate, bool lossy, uint64_t now)
{
	struct tune *tune = &link->tune;

	if (lossy && change_to_bbr(link)) {
		tune->next_trial = 0;
		return;
	}
	if (rate > tune->best)
		tune->best = rate;
	if (rate < CHANGED * tune->best) {
		tune->best = rate;
		tune->patience = PATIENCE_LEAST;
		tune->next_trial = 0;
	}
	if (now < tune->next_trial)
		return;
	/* What was tried last decides what comes now: more, less, more … */
	if (tune->tried > tune->steady && tune->steady > (lossy ? LOSSY_STREAMS : 1))
		start_trial(link, tune->steady / 2, rate);
	else
		try_more(link, rate, lossy);
}

static void keep_to_share(struct backend_link *link, unsigned most, bool lossy, uint64_t now)
{
	struct tune *tune = &link->tune;

	if (lossy)
		change_to_bbr(link);
	tune->phase = TUNE_STEADY;
	tune->steady = tune->tried = most;
	tune->best = 0;
	tune->next_trial = now + PATIENCE_LEAST;
	if (tune->target != most)
		set_target(link, most);
}

void tune_run(struct backend_link *link, uint64_t now)
{
	struct tune *tune = &link->tune;
	unsigned before = tune->target;
	bool bbr = tune->bbr;
	unsigned most;
	double rate;
	bool lossy;

	if (!automatic(link) || !tune->busy_since || now < tune_next(link))
		return;
	/* Of many clients that begin at once none knows of the others: the server says it. */
	if (tune->recount || tune->settling || !link->crowd_at_peer) {
		tune->recount = false;
		restart(link, now, false);
		return;
	}
	account(link, now);
	tune->busy_since = now;
	rate = (double)tune->bytes / (double)tune->busy_ns;
	lossy = (double)tune->again > LOSSY * (double)tune->segments;
	haul_log(HAUL_LOG_DEBUG, "%u streams: %.3f Gb/s, %.2f %% of the segments sent again",
		 tune->target, 8 * rate,
		 tune->segments ? 100.0 * (double)tune->again / (double)tune->segments : 0.0);
	most = share(crowd(link, now), lossy);
	if (most < STREAMS_MAX)
		keep_to_share(link, most, lossy, now);
	else if (tune->phase == TUNE_TRIAL)
		judge_trial(link, rate, lossy, now);
	else if (tune->phase == TUNE_CONFIRM)
		judge_again(link, rate, lossy, now);
	else
		judge_steady(link, rate, lossy, now);
	restart(link, now, tune->target != before || tune->bbr != bbr);
}
