/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Congestion control by delay, after Swift: G. Kumar et al., "Swift: Delay is Simple and Effective
 * for Congestion Control in the Datacenter", SIGCOMM 2020.
 *
 * Kept from Swift: a window that grows while the delay is below a target and shrinks in proportion
 * to what is above it, at most by half and once in a round trip; a target that is longer for
 * small windows, which is what makes flows of one link equal. What is different, and why:
 *
 * - The delay that counts is that of queues: a round trip less the least one. Swift gets precise
 *   times from the NIC; here hosts are scheduled, and add to some samples what no queue did. So the
 *   shortest of some samples counts; and the more samples differ, the longer is the target, for a
 *   queue has to keep the link busy while a host is away. That may be more than the buffer holds:
 *   what goes beyond the path's own target grows slowly, and shrinks with losses, as TCP does.
 * - The window moves by a part of the way to the target (Swift: by a packet, which would take
 *   minutes on a path of 10 ms at 10 Gb/s), and starts by doubling, as TCP does.
 * - Loss is no sign of congestion while it is as high as this path's loss usually is. More than
 *   that is: a queue that is shorter than the target, or a policer, can't be seen in the delay.
 * - Marks (ECN) count as in DCTCP (RFC 8257), for switches that set them at a short queue.
 * - Flows that don't care for delay (TCP's) keep a queue that no window of ours can shorten. When
 *   that goes on for long, this one behaves as they do until the queue is gone: a packet more in a
 *   round trip, and less with each loss. So it gets a share, but no larger one than they.
 * - A flow that starts while others keep a queue takes that for the path. So each flow drains the
 *   queue now and then, and all at the same time.
 */
#include "congestion.h"

#include "arithmetic.h"
#include "swift_loss.h"
#include "swift_noise.h"
#include "swift_others.h"

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)

/* In packets. Below the least window the pace is what gets slower. */
#define WINDOW_LEAST 2
#define WINDOW_START 16
#define WINDOW_CROWDED 4
#define WINDOW_SMALL 16
#define PACE_LEAST 1

/* The target is this, or this part of the path, whichever is longer: software that is scheduled
 * on shared cores makes delays of this size by itself. */
#define TARGET_LEAST (250 * US)
#define TARGET_PART 8
/* ...but no longer than this: what a crowd keeps may pass for the path, and has to be seen. */
#define TARGET_PATH_MOST (1000 * US)
/* Or this part of what delays differ by, for the queue has to last while hosts are away. */
#define NOISE_PART 0.5
/* A window of so many packets (as a power of two) has just the target, and with half of it a target
 * that is longer by this part. Very small windows get more, see target_of(). */
#define TARGET_MIDDLE 8
#define TARGET_SLOPE 4
#define TARGET_SHORTEST 0.25
/* How much of the way to the target is done at a time. */
#define APPROACH 0.3
#define DECREASE 0.5
#define DECREASE_MOST 0.5
/* While there is hardly a queue, steps double, up to this part of the window. */
#define EAGER_FIRST 0.02
#define EAGER_MOST 0.25

/* The shortest of so many samples counts, whether they come in one round trip or in a few: a flow
 * with few samples would see more of the noise, and get less than its share. */
#define SAMPLES 4
#define ROUNDS 4
/* The window grows without samples while no more than so many times the usual is lost. */
#define BLIND_LOSS 1.5

/* The same in slow start, where one round trip is too long. */
#define SAMPLES_START 8

/* Loss is counted over so many packets at least: of 5 % random loss that gives 5 +- 1.4 %. */
#define LOSS_PACKETS 256
/* More than usual by this is congestion: much without any delay, little with some. */
#define LOSS_EXCESS 0.05
#define LOSS_EXCESS_DELAYED 0.02
/* So much is congestion, whatever is usual, and after a few packets. */
#define LOSS_HEAVY 0.25
#define LOSS_HEAVY_PACKETS 32
/* What a path may be taken to lose by itself from its first packets. */
#define LOSS_FIRST_MOST 0.05
/* The window became less than this part, and there is still as much loss: it is the path's own. */
#define LOSS_VAIN 0.5
/* A window that is above its ceiling grows by a packet in a round trip, after so many of those
 * without excess loss or marks by two, and so on... */
#define CALM_ROUNDS 8
/* ...but no faster than by this part while loss is counted once, and is free at twice the ceiling.
 */
#define CAREFUL_PART 16

/* While the queue is drained the pace is this part of that of the least window: flows may be many.
 */
#define DRAIN_PACE 0.25

/* In a crowd of flows that don't care for delay: */
/* as fast as Reno on the average, RFC 9438, section 4.3, with beta 0.7. */
#define CROWDED_DECREASE 0.3
#define CROWDED_INCREASE 0.5 /* packets in a round trip */

struct swift {
	uint64_t packet, most, target; /* target 0: automatic */
	double window;
	double ceiling; /* where it got too much last; grow with care above; 0: nowhere */
	uint64_t rtt_least, now;
	uint16_t clock; /* the receiver's */
	/* Since the delay was followed last: the shortest, and how often it was seen. */
	uint64_t delay;
	unsigned samples, rounds;
	struct noise noise;
	unsigned eager; /* times in a row that there was hardly a queue */
	/* This round. */
	uint64_t round_acked, round_marked, round_lost;
	bool limited;
	/* Loss: counted over several rounds. */
	uint64_t acked, lost;
	double loss_usual, marked_part;
	struct own_loss own_loss;
	unsigned calm;           /* rounds since the window was made less blindly */
	double window_lossy;     /* where excess loss began; 0: there is none */
	unsigned losses_ignored; /* so many rounds: they were answered already */
	struct others others;
	bool slow_start, loss_known;
};

_Static_assert(sizeof(struct swift) <= CONGESTION_STATE, "the state has to fit");

static void set_window(struct swift *swift, double window)
{
	window = least_of(window, (double)swift->most);
	swift->window = most_of(window, PACE_LEAST * (double)swift->packet);
}

static void forget_delay(struct swift *swift)
{
	swift->delay = UINT64_MAX;
	swift->samples = swift->rounds = 0;
}

static void swift_start(void *state, const struct congestion_config *config, uint64_t now)
{
	struct swift *swift = state;

	*swift = (struct swift){
		.packet = config->packet,
		.most = config->most,
		.target = config->target,
		.now = now,
		.slow_start = true,
		.limited = true,
	};
	noise_begin(&swift->noise, now);
	forget_delay(swift);
	set_window(swift, WINDOW_START * (double)swift->packet);
}

/* ---- The target -------------------------------------------------------- */

/* The target on the shortest of paths. */
static double least_target(const struct swift *swift)
{
	if (swift->target)
		return (double)swift->target;
	return TARGET_LEAST;
}

/* What the path alone makes it. */
static double path_target(const struct swift *swift)
{
	double path = least_of((double)swift->rtt_least / TARGET_PART, TARGET_PATH_MOST);

	return swift->target ? (double)swift->target : most_of(TARGET_LEAST, path);
}

static double middle_target(const struct swift *swift)
{
	double path = path_target(swift);

	return swift->target ? path : most_of(path, NOISE_PART * swift->noise.mean);
}

/*
 * All flows of a link see the same delay, so each gets the window whose target that is. Swift's
 * target goes with 1 / sqrt(window). That is flat for windows of hundreds of packets, where small
 * errors of the least round trip would decide on shares; the logarithm is not.
 */
static double target_scale(const struct swift *swift)
{
	double packets = swift->window / (double)swift->packet;
	double scale = 1 + (TARGET_MIDDLE - logarithm(packets)) / TARGET_SLOPE;

	return most_of(scale, TARGET_SHORTEST) + 1 / square_root(packets);
}

static double target_of(const struct swift *swift)
{
	return middle_target(swift) * target_scale(swift);
}

/* A queue that is kept only because hosts are away now and then. */
static bool is_spare(const struct swift *swift, double delay)
{
	double path = path_target(swift);

	return middle_target(swift) > path && delay > path * target_scale(swift);
}

/* ---- Changing the window ----------------------------------------------- */

static void shrink(struct swift *swift, double part)
{
	set_window(swift, swift->window * (1 - least_of(part, DECREASE_MOST)));
}

/* Shrink because of losses or marks: the delay will not warn at this size of the window. */
static void shrink_blindly(struct swift *swift, double part)
{
	shrink(swift, part);
	swift->ceiling = swift->window;
	swift->calm = swift->eager = 0;
	swift->slow_start = false;
	swift->losses_ignored = 1;
}

static void add(struct swift *swift, double step)
{
	/* The least step of all; less where the window is only a few packets. */
	double packet = least_of((double)swift->packet, swift->window / 4);

	if (!swift->limited)
		set_window(swift, swift->window + most_of(step, packet));
}

static double careful_step(const struct swift *swift, double step)
{
	double packet = (double)swift->packet;
	double counted = (double)swift->round_acked / packet / LOSS_PACKETS;
	unsigned doublings = swift->calm / CALM_ROUNDS;

	if (swift->limited)
		return 0;
	step = least_of(step, swift->window / CAREFUL_PART * least_of(counted, 1));
	return doublings < 16 ? least_of(step, packet * (1u << doublings)) : step;
}

static void grow(struct swift *swift, double delay, double target)
{
	double least = (double)swift->rtt_least;
	double step = APPROACH * (target - delay) / (least + target);

	if (delay > target / 4 || swift->limited)
		swift->eager = 0;
	else if (EAGER_FIRST * (1u << swift->eager) < EAGER_MOST)
		swift->eager++;
	if (swift->eager)
		step = most_of(step, least_of(EAGER_FIRST * (1u << swift->eager), EAGER_MOST));
	step *= swift->window;
	if (swift->window > 2 * swift->ceiling)
		swift->ceiling = 0;
	if (swift->ceiling > 0 && swift->window >= swift->ceiling)
		set_window(swift, swift->window + careful_step(swift, step));
	else
		add(swift, step);
}

/*
 * The delay says how much was too much: packets that met it left a round trip ago, when the window
 * was half as large.
 */
static void leave_slow_start(struct swift *swift, double delay, double target)
{
	double least = (double)swift->rtt_least;
	double before = swift->window / 2;

	set_window(swift, most_of(before * (least + target) / (least + delay), before / 2));
	swift->slow_start = false;
	swift->losses_ignored = 2; /* what they tell is that it was too much */
	others_start(&swift->others, swift->now, swift->clock);
}

static bool is_crowded(struct swift *swift, double delay)
{
	double packets = swift->window / (double)swift->packet;
	const struct others_delay seen = {
		.delay = delay,
		.target = middle_target(swift),
		.least_target = least_target(swift),
		.small = packets <= WINDOW_SMALL,
	};

	return others_watch(&swift->others, swift->now, &seen);
}

static void grow_in_crowd(struct swift *swift)
{
	double packets =
		most_of(CROWDED_INCREASE + swift->window / (double)swift->packet, WINDOW_CROWDED);

	if (!swift->limited)
		set_window(swift, packets * (double)swift->packet);
}

/* So much delay that it needs no second look. */
static bool is_urgent(const struct swift *swift)
{
	return swift->samples && (double)swift->delay > 2 * target_of(swift);
}

/*
 * Hosts that are hardly ever there: two programs that share a core, say. Then no round trip tells
 * of the path, and a window's worth passes each time that they meet. Until more packets than usual
 * are lost it may be more.
 */
static void grow_blindly(struct swift *swift)
{
	double all = (double)(swift->round_acked + swift->round_lost);

	if ((double)swift->round_lost > BLIND_LOSS * swift->loss_usual * all)
		swift->eager = 0;
	else
		grow(swift, 0, middle_target(swift));
}

static void follow_delay(struct swift *swift)
{
	double target = target_of(swift);
	double delay = (double)swift->delay;

	if (!swift->samples) {
		if (!swift->slow_start)
			grow_blindly(swift);
		forget_delay(swift);
		return;
	}
	forget_delay(swift);
	if (swift->slow_start) {
		if (delay > target / 2)
			leave_slow_start(swift, delay, target);
		return;
	}
	if (is_crowded(swift, delay) || (delay < target && is_spare(swift, delay)))
		grow_in_crowd(swift); /* losses make it less */
	else if (delay < target)
		grow(swift, delay, target);
	else if (!swift->others.crowded)
		shrink(swift, DECREASE * (delay - target) / ((double)swift->rtt_least + delay));
}

/* ---- Losses and marks -------------------------------------------------- */

static void forget_losses(struct swift *swift)
{
	swift->acked = swift->lost = 0;
}

/*
 * In a crowd that fills buffers until they overflow any loss counts, as it does for the crowd. In a
 * spare queue what is more than the path's own does: the buffer is shorter than hosts that are away
 * would like it to be, or a crowd fills it that can't be seen, for this flow leaves it no room.
 */
static bool follow_overflow(struct swift *swift, bool counts)
{
	double all = (double)(swift->round_acked + swift->round_lost) / (double)swift->packet;
	double lost = (double)swift->round_lost / (double)swift->packet;
	bool spare = false;

	if (swift->samples && !swift->slow_start) {
		spare = is_spare(swift, (double)swift->delay);
		if (!spare && counts)
			own_loss_count(&swift->own_loss, all, lost);
	}
	if (!(swift->others.crowded && lost > 0) &&
	    !(spare && own_loss_exceeded(&swift->own_loss, all, lost)))
		return false;
	forget_losses(swift);
	shrink_blindly(swift, CROWDED_DECREASE);
	set_window(swift, most_of(swift->window, WINDOW_LEAST * (double)swift->packet));
	return true;
}

/* True when the window was changed. */
static bool follow_losses(struct swift *swift)
{
	double all = (double)(swift->acked + swift->lost);
	double part = all > 0 ? (double)swift->lost / all : 0;
	double packets = all / (double)swift->packet;
	double excess = part - swift->loss_usual;
	bool delayed = swift->samples && (double)swift->delay > middle_target(swift) / 4;

	if (part > LOSS_HEAVY && packets >= LOSS_HEAVY_PACKETS) {
		forget_losses(swift);
		shrink_blindly(swift, DECREASE_MOST);
		return true;
	}
	if (packets < LOSS_PACKETS)
		return false;
	forget_losses(swift);
	if (!swift->loss_known) {
		/* The first packets, of a small window, tell what the path loses by itself. */
		swift->loss_known = true;
		swift->loss_usual = least_of(part, LOSS_FIRST_MOST);
		return false;
	}
	if (excess < (delayed ? LOSS_EXCESS_DELAYED : LOSS_EXCESS)) {
		/* Down fast, up slowly. */
		swift->loss_usual += excess / (excess < 0 ? 4 : 64);
		swift->window_lossy = 0;
		return false;
	}
	if (swift->window < LOSS_VAIN * swift->window_lossy) {
		swift->loss_usual = part;
		swift->window_lossy = swift->ceiling = 0;
		return false;
	}
	if (!(swift->window_lossy > 0))
		swift->window_lossy = swift->window;
	shrink_blindly(swift, most_of(excess, 0.1));
	return true;
}

static bool follow_marks(struct swift *swift)
{
	double part;

	if (!swift->round_acked)
		return false;
	part = least_of((double)swift->round_marked / (double)swift->round_acked, 1);
	swift->marked_part += (part - swift->marked_part) / 16;
	if (!swift->round_marked)
		return false;
	shrink_blindly(swift, most_of(swift->marked_part, part / 4) / 2);
	return true;
}

/* ---- What is told ------------------------------------------------------ */

static void end_round(struct swift *swift)
{
	bool counts = !swift->losses_ignored;

	if (swift->losses_ignored) {
		swift->losses_ignored--;
		forget_losses(swift);
		swift->round_lost = 0;
	}
	swift->calm++;
	swift->rounds++;
	if (others_disturb(&swift->others)) {
		forget_delay(swift);
		others_settle(&swift->others);
	} else if (!follow_overflow(swift, counts) && !follow_losses(swift) &&
		   !follow_marks(swift) &&
		   (swift->samples >= SAMPLES || swift->rounds >= ROUNDS || is_urgent(swift)))
		follow_delay(swift);
	swift->round_acked = swift->round_marked = swift->round_lost = 0;
	swift->limited = true;
}

static void count_delay(struct swift *swift, const struct congestion_sample *sample)
{
	uint64_t delay = sample->rtt > sample->rtt_least ? sample->rtt - sample->rtt_least : 0;

	swift->rtt_least = sample->rtt_least;
	swift->samples++;
	if (delay < swift->delay)
		swift->delay = delay;
	if (swift->slow_start || others_disturb(&swift->others))
		noise_begin(&swift->noise, swift->now);
	else
		noise_count(&swift->noise, swift->now, delay);
	others_sample(&swift->others, sample->rtt, (double)delay, least_target(swift));
}

/* A window that is not used does not grow: nobody knows what it would do. */
static bool is_limited(const struct swift *swift, const struct congestion_sample *sample)
{
	return sample->limited || (double)sample->in_flight < swift->window / 2;
}

static void swift_on_ack(void *state, const struct congestion_sample *sample)
{
	struct swift *swift = state;
	uint64_t late = sample->late < swift->lost ? sample->late : swift->lost;

	swift->now = sample->now;
	swift->clock = sample->clock;
	if (sample->rtt)
		count_delay(swift, sample);
	swift->acked += sample->acked;
	swift->lost += sample->lost - late;
	swift->round_acked += sample->acked;
	swift->round_lost += sample->lost;
	swift->round_marked += sample->marks * swift->packet;
	swift->limited = swift->limited && (is_limited(swift, sample) || !sample->acked);
	if (swift->slow_start && !is_limited(swift, sample)) {
		set_window(swift, swift->window + (double)sample->acked);
		if (swift->samples >= SAMPLES_START)
			follow_delay(swift);
	}
	others_drain(&swift->others, sample, swift->window / (double)swift->packet,
		     swift->slow_start || swift->limited);
	if (sample->round)
		end_round(swift);
}

/*
 * So many in a row are a path that is cut, or was changed. Fewer are a peer that has no processor
 * for some ms; nothing but probes leaves meanwhile, and if all was lost, that will be told.
 */
#define TIMEOUTS 4

static void swift_on_timeout(void *state, unsigned count, uint64_t now)
{
	struct swift *swift = state;

	swift->now = now;
	if (count < TIMEOUTS)
		return;
	if (count == TIMEOUTS && !swift->slow_start)
		swift->ceiling = swift->window / 2;
	set_window(swift, least_of(swift->window, WINDOW_START * (double)swift->packet));
	swift->slow_start = true;
	others_stop(&swift->others);
	swift->losses_ignored = 2;
	forget_losses(swift);
	forget_delay(swift);
}

/* Pacing spreads the window, so it may be kept for a while; but others may have come. */
static void swift_on_idle(void *state, uint64_t idle)
{
	struct swift *swift = state;
	double start = WINDOW_START * (double)swift->packet;
	unsigned halvings = idle / (1000 * MS) < 32 ? (unsigned)(idle / (1000 * MS)) : 32;

	if (!halvings)
		return;
	swift->ceiling = most_of(swift->ceiling, swift->window / 2);
	set_window(swift, most_of(start, swift->window / (double)(UINT64_C(1) << halvings)));
	swift->slow_start = true;
	others_stop(&swift->others);
	forget_delay(swift);
}

static uint64_t swift_window(const void *state)
{
	const struct swift *swift = state;
	double least = WINDOW_LEAST * (double)swift->packet;

	double window = swift->others.drain_until ? least : most_of(least, swift->window);

	return (uint64_t)least_of(window, (double)swift->most);
}

/*
 * More than the window in a round trip, so that the window is what decides, but without bursts. A
 * window that is too small for that is kept by the pace.
 */
static uint64_t swift_rate(const void *state, uint64_t rtt_smooth)
{
	const struct swift *swift = state;
	double least = WINDOW_LEAST * (double)swift->packet;
	double window = swift->window;

	if (!rtt_smooth)
		return 0;
	if (swift->others.drain_until)
		window = DRAIN_PACE * least_of(window, least);
	else if (swift->slow_start)
		window *= 2;
	else if (window >= least)
		window *= 1.25;
	return (uint64_t)(window * 1e9 / (double)rtt_smooth) + 1;
}

const struct congestion_ops congestion_swift = {
	.name = "swift",
	.summary = "by the delay of queues (Swift, SIGCOMM 2020); the default",
	.start = swift_start,
	.on_ack = swift_on_ack,
	.on_timeout = swift_on_timeout,
	.on_idle = swift_on_idle,
	.window = swift_window,
	.rate = swift_rate,
};
