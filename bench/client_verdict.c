/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What limits two hosts, from what plain sockets reached between them. The rates decide first: only
 * where several sockets are faster than one is something wrong with the one. A link that is full
 * loses packets too.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "client.h"

const char *const path_limit_names[] = {
	[LIMIT_LINK] = "link",
	[LIMIT_LOSS] = "loss",
	[LIMIT_WINDOW] = "receive window",
	[LIMIT_BUFFER] = "send buffer",
	[LIMIT_SENDER_CORE] = "sender's core",
	[LIMIT_RECEIVER_CORE] = "receiver's core",
	[LIMIT_CORES] = "this host's cores",
	[LIMIT_SOCKET] = "one socket",
};

/* Several sockets are faster than one when they reach so many times as much. */
#define FASTER 1.15
/* A step is as good as the best one when it reaches this share of it. */
#define AS_GOOD 0.97
/* Of a core's time: above this it is what a socket waits for. */
#define CORE_FULL 0.85
/* Of all cores, and of them our own part: the others' work is not the path's limit. */
#define HOST_FULL 0.95
#define HOST_OURS 0.5
/* Of the time that there was something to send. */
#define HELD_BACK 0.3
/* One socket of cubic feels less than that only over long paths. */
#define LOSSY 1e-4

/* The fewest sockets that reach nearly all. */
static size_t best_step(const struct path_facts *facts)
{
	double most = 0;

	for (size_t i = 0; i < facts->count; i++)
		most = fmax(most, facts->steps[i].gbps);
	for (size_t i = 0; i < facts->count; i++)
		if (facts->steps[i].gbps >= AS_GOOD * most)
			return i;
	return 0;
}

static enum path_limit limit_of_one(const struct path_step *one, bool alone)
{
	if (one->window_limited > HELD_BACK && one->window_limited >= one->buffer_limited)
		return LIMIT_WINDOW;
	if (one->buffer_limited > HELD_BACK)
		return LIMIT_BUFFER;
	if (one->client_cores > CORE_FULL * one->sockets)
		return LIMIT_SENDER_CORE;
	if (one->server_cores > CORE_FULL * one->sockets)
		return LIMIT_RECEIVER_CORE;
	if (alone)
		return LIMIT_LINK;
	return one->loss > LOSSY ? LIMIT_LOSS : LIMIT_SOCKET;
}

static double our_share(const struct path_facts *facts, const struct path_step *step)
{
	return step->client_cores / facts->cpus;
}

static bool others_busy(const struct path_facts *facts, const struct path_step *best)
{
	return best->host_busy > HOST_FULL && our_share(facts, best) <= HOST_OURS;
}

static enum path_limit limit_of_all(const struct path_facts *facts, const struct path_step *best)
{
	if (best->host_busy > HOST_FULL && our_share(facts, best) > HOST_OURS)
		return LIMIT_CORES;
	if (best->client_cores > CORE_FULL * fmin(facts->cpus, best->sockets))
		return best->sockets < facts->cpus ? LIMIT_SENDER_CORE : LIMIT_CORES;
	return LIMIT_LINK;
}

/* ---- In words ---- */

#define SAY(verdict, index, ...)                                                                   \
	snprintf((verdict)->words[index], sizeof((verdict)->words[index]), __VA_ARGS__)

/* The window that the rate needs, in KiB. */
static double window_kib(double gbps, double round_trip_us)
{
	return gbps * 1e3 * round_trip_us / 8 / 1024;
}

static void say_one(struct path_verdict *verdict, const struct path_step *one,
		    const struct path_step *best)
{
	double need = window_kib(best->gbps, one->least_round_trip_us);

	switch (verdict->one) {
	case LIMIT_LOSS:
		SAY(verdict, 1,
		    "One socket is held back by loss: %.2g %% of its bytes were sent again, and it "
		    "takes each loss for a full link.",
		    one->loss * 100);
		break;
	case LIMIT_WINDOW:
		SAY(verdict, 1,
		    "One socket is held back by the receiver's window for %.0f %% of the time: "
		    "%.3g Gb/s at %.0f us need at least %.0f KiB. Raise the third number of "
		    "net.ipv4.tcp_rmem on the receiving host.",
		    one->window_limited * 100, best->gbps, one->least_round_trip_us, need);
		break;
	case LIMIT_BUFFER:
		SAY(verdict, 1,
		    "One socket is held back by its send buffer for %.0f %% of the time: %.3g Gb/s "
		    "at %.0f us need at least %.0f KiB. Raise the third number of "
		    "net.ipv4.tcp_wmem on this host.",
		    one->buffer_limited * 100, best->gbps, one->least_round_trip_us, need);
		break;
	case LIMIT_SENDER_CORE:
		SAY(verdict, 1, "One socket keeps one core of this host busy (%.2f of it).",
		    one->client_cores);
		break;
	case LIMIT_RECEIVER_CORE:
		SAY(verdict, 1, "One socket keeps one core of the server's host busy (%.2f of it).",
		    one->server_cores);
		break;
	case LIMIT_SOCKET:
		SAY(verdict, 1,
		    "Why one socket is slow does not show here: no loss, no full core, no full "
		    "window. A switch or a firewall may hold back each connection.");
		break;
	default:
		SAY(verdict, 1, "One socket carries all that several do.");
	}
}

static void say_all(const struct path_facts *facts, struct path_verdict *verdict,
		    const struct path_step *best)
{
	switch (verdict->all) {
	case LIMIT_CORES:
		SAY(verdict, 2,
		    "All together the cores of this host limit them: %.1f of %.0f are busy at "
		    "%.3g Gb/s, %.1f of them with this%s.",
		    fmax(best->host_busy * facts->cpus, best->client_cores), facts->cpus,
		    best->gbps, best->client_cores,
		    facts->mtu < 9000 ? "; an MTU of 9000 on the whole path makes it cheaper" : "");
		break;
	case LIMIT_SENDER_CORE:
		SAY(verdict, 2, "The sending sockets have a core each, and these are full.");
		break;
	default:
		SAY(verdict, 2,
		    "%.3g Gb/s is what the link carries: more sockets do not get more%s.",
		    best->gbps, facts->mtu < 9000 ? "" : ", and the MTU is large already");
	}
}

static void advise(struct path_verdict *verdict, const struct path_step *best)
{
	bool several = best->sockets > 1;

	snprintf(verdict->spec, sizeof(verdict->spec), "tcp");
	if (verdict->all == LIMIT_CORES || verdict->one == LIMIT_SENDER_CORE ||
	    verdict->one == LIMIT_RECEIVER_CORE)
		SAY(verdict, 3,
		    "Take --transport=tcp; where an adapter does RDMA, verbs, or else a port for "
		    "dpdk, need less of the cores for the same rate.");
	else if (several)
		SAY(verdict, 3,
		    "Take --transport=tcp: it finds the number of sockets by itself; "
		    "streams=%u sets what was best here.",
		    best->sockets);
	else
		SAY(verdict, 3, "Take --transport=tcp as it is.");
}

/* There is no path to judge. */
static void judge_same_host(struct path_verdict *verdict)
{
	verdict->one = verdict->all = LIMIT_CORES;
	snprintf(verdict->spec, sizeof(verdict->spec), "tcp");
	SAY(verdict, 1,
	    "Both ends are on this host: its cores and its memory limit all of this, and it says "
	    "nothing about a path.");
	SAY(verdict, 2, "Start haul-bench-server on another host to learn what limits the two.");
	SAY(verdict, 3,
	    "Within a host take --transport=tcp, or a memif port of dpdk, which needs less of the "
	    "cores for the same rate.");
}

void path_judge(const struct path_facts *facts, struct path_verdict *verdict)
{
	const struct path_step *one = &facts->steps[0], *best;
	bool faster;

	memset(verdict, 0, sizeof(*verdict));
	verdict->best = best_step(facts);
	best = &facts->steps[verdict->best];
	faster = best->gbps > FASTER * one->gbps;
	if (!faster) {
		verdict->best = 0;
		best = one;
	}
	verdict->one = limit_of_one(one, !faster);
	verdict->all = faster ? limit_of_all(facts, best) : verdict->one;
	if (!faster && verdict->one == LIMIT_LINK)
		verdict->all = limit_of_all(facts, one);
	if (faster)
		SAY(verdict, 0, "%u sockets carry %.3g Gb/s, one carries %.3g: %.1f times as much.",
		    best->sockets, best->gbps, one->gbps, best->gbps / one->gbps);
	else
		SAY(verdict, 0, "One socket carries %.3g Gb/s, and more sockets no more.",
		    one->gbps);
	if (facts->same_host) {
		judge_same_host(verdict);
		return;
	}
	say_one(verdict, one, best);
	say_all(facts, verdict, best);
	advise(verdict, best);
	if (others_busy(facts, best))
		SAY(verdict, 4,
		    "Other work kept this host busy (%.0f %%) meanwhile: measure again without it.",
		    best->host_busy * 100);
}
