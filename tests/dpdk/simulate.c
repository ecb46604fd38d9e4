/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simulate: what one flow of each congestion controller gets through a simulated link, over loss
 * and over the length of the path. The text is for reading, --json and --data are for programs.
 *
 * --json writes one object:
 *   {"tool": "simulate", "gigabits": 10, "packet": 9000,
 *    "points": [{"over": "loss"|"rtt", "loss": part, "rtt_us", "controller": name,
 *                "goodput": part of the link, "queue_us": what a packet waits on the average}]}
 *
 * --data writes what controllers.gnuplot draws; docs/dpdk-controllers.svg comes from
 *   build/tests/dpdk/simulate --data >controllers.data
 *   gnuplot -e "data='controllers.data'; picture='docs/dpdk-controllers.svg'" \
 *           tests/dpdk/controllers.gnuplot
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "simulator.h"

#define GIGABITS 10
#define PACKET 9000

#define US SIMULATED_US
#define MS SIMULATED_MS

static const double losses[] = {0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05};
static const uint64_t rtts_us[] = {20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000};

/* The one that stands still while the other varies. */
#define RTT_US 1000
#define LOSS 0.01

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

struct point {
	double loss;
	uint64_t rtt_us;
	const struct congestion_ops *ops;
	double goodput, queue_us;
};

/* Measured when the flow has found its speed, and has stopped to look for others. */
static void measure(struct point *point)
{
	uint64_t rtt = point->rtt_us * US;
	uint64_t from = 256 * rtt > 300 * MS ? 256 * rtt : 300 * MS;
	uint64_t until = from + (256 * rtt > 600 * MS ? 256 * rtt : 600 * MS);
	double bytes_per_us = GIGABITS * 1000.0 / 8;
	struct simulated_link link = {
		.gigabits = GIGABITS,
		.rtt = rtt,
		.buffer = (uint64_t)(bytes_per_us * (double)(rtt > MS ? rtt : MS) / US),
		.loss = point->loss,
	};
	struct simulated_flow flow = {.ops = point->ops, .packet = PACKET};
	struct simulator *simulator = simulator_new(&link, 1, &flow);

	simulator_run(simulator, from);
	simulator_queue(simulator);
	point->goodput = simulator_fill(simulator, from, until, NULL);
	point->queue_us = simulator_queue(simulator) / bytes_per_us;
	simulator_free(simulator);
}

/* ---- Three ways to show it --------------------------------------------- */

enum format { TEXT, DATA, JSON };

static void show_begin(enum format format, const char *over)
{
	if (format == JSON)
		return;
	if (format == TEXT && strcmp(over, "loss") == 0)
		printf("%d Gb/s, packets of %d bytes, round trip %d us: goodput as a part of the "
		       "link, and what a packet waits\n\n",
		       GIGABITS, PACKET, RTT_US);
	else if (format == TEXT)
		printf("\nThe same with %g %% loss, over the round trip\n\n", LOSS * 100);
	printf("%s%-9s", format == DATA ? "# " : "", over);
	for (unsigned i = 0; congestion_all[i]; i++)
		printf(format == DATA ? " %s" : "   %-16s", congestion_all[i]->name);
	printf("\n");
}

static void show_point(enum format format, const char *over, const struct point *point, bool first)
{
	if (format == JSON)
		printf("%s\n    {\"over\": \"%s\", \"loss\": %g, \"rtt_us\": %llu, "
		       "\"controller\": \"%s\", \"goodput\": %.4f, \"queue_us\": %.1f}",
		       first ? "" : ",", over, point->loss, (unsigned long long)point->rtt_us,
		       point->ops->name, point->goodput, point->queue_us);
	else if (format == DATA)
		printf(" %.4f", point->goodput);
	else
		printf("   %.3f %7.0f us", point->goodput, point->queue_us);
	fflush(stdout);
}

/* One row: each controller on the same link. */
static void show_row(enum format format, const char *over, double loss, uint64_t rtt_us, bool first)
{
	if (format == TEXT && strcmp(over, "loss") == 0)
		printf("%-7.1f %%", loss * 100);
	else if (format == TEXT)
		printf("%-6llu us", (unsigned long long)rtt_us);
	else if (format == DATA)
		printf("%g", strcmp(over, "loss") == 0 ? loss * 100 : (double)rtt_us);
	for (unsigned i = 0; congestion_all[i]; i++) {
		struct point point = {.loss = loss, .rtt_us = rtt_us, .ops = congestion_all[i]};

		measure(&point);
		show_point(format, over, &point, first && i == 0);
	}
	if (format != JSON)
		printf("\n");
}

static void show_all(enum format format)
{
	if (format == JSON)
		printf("{\"tool\": \"simulate\", \"gigabits\": %d, \"packet\": %d, \"points\": [",
		       GIGABITS, PACKET);
	show_begin(format, "loss");
	for (size_t i = 0; i < COUNT(losses); i++)
		show_row(format, "loss", losses[i], RTT_US, i == 0);
	if (format == DATA)
		printf("\n\n");
	show_begin(format, "rtt");
	for (size_t i = 0; i < COUNT(rtts_us); i++)
		show_row(format, "rtt", LOSS, rtts_us[i], false);
	if (format == JSON)
		printf("\n]}\n");
}

int main(int argc, char **argv)
{
	enum format format = TEXT;

	if (argc == 2 && strcmp(argv[1], "--json") == 0) {
		format = JSON;
	} else if (argc == 2 && strcmp(argv[1], "--data") == 0) {
		format = DATA;
	} else if (argc > 1) {
		fprintf(stderr,
			"usage: %s [--json | --data]\n"
			"goodput over loss and over delay for each congestion controller: a text,\n"
			"JSON, or the data that tests/dpdk/controllers.gnuplot draws:\n"
			"  %s --data >controllers.data\n"
			"  gnuplot -e \"data='controllers.data'; "
			"picture='docs/dpdk-controllers.svg'\" tests/dpdk/controllers.gnuplot\n",
			argv[0], argv[0]);
		return 2;
	}
	show_all(format);
	return ferror(stdout) ? EXIT_FAILURE : EXIT_SUCCESS;
}
