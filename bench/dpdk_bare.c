/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dpdk-bare - what two DPDK ports carry with nothing above them.
 *
 * The yardstick for the transport dpdk: the sender sends frames whose payload stays where it is in
 * 100 MiB of memory, behind a header of 74 bytes, and the receiver copies each payload to its place
 * in 100 MiB. Credits see to it that the receiver is never overrun; nothing is sent again.
 *
 *   dpdk-bare --receive --port=net_memif0,role=server,id=0,socket=/tmp/m.sock,bsize=9216,...
 *   dpdk-bare --send    --port=net_memif0,role=client,id=0,socket=/tmp/m.sock,bsize=9216,...
 *
 * The JSON that the sender's --json writes: one object,
 *
 *   {"tool": "dpdk-bare", "test": "throughput" or "latency", "port": VDEV, "frame_bytes": with the
 *   Ethernet header, "payload_bytes", "memory_bytes", "window_frames", "seconds", "goodput_gbps":
 * of payloads that arrived, "frames_per_s", "lost": frames, "cpu_s_per_gb": both sides,
 *   "cpu_sender_s", "cpu_receiver_s", "latency_us": {"p50", "p90", "p99", "max"}|null, "pings"}
 */
#include "dpdk_bare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench_options.h"

#define SHOWN (POPT_ARG_STRING | POPT_ARGFLAG_SHOW_DEFAULT)

static struct {
	char *port, *eal, *frame, *memory, *seconds, *warmup, *window, *burst, *json;
	int send, receive, ping, hugepages, own_memory;
} given = {
	.frame = "9014",
	.memory = "100MiB",
	.seconds = "3",
	.warmup = "0.5",
	.window = "256",
	.burst = "32",
};

static struct poptOption option_table[] = {
	{"send", 's', POPT_ARG_NONE, &given.send, 0, "be the side that sends and measures", NULL},
	{"receive", 'r', POPT_ARG_NONE, &given.receive, 0,
	 "be the side that receives, until the sender has finished", NULL},
	{"ping", 0, POPT_ARG_NONE, &given.ping, 0,
	 "with --send: round trips of a short frame (74 bytes) instead", NULL},
	{"port", 'p', POPT_ARG_STRING, &given.port, 0, "DPDK's --vdev", "VDEV"},
	{"frame", 'f', SHOWN, &given.frame, 0, "bytes of a frame, with its Ethernet header", "N"},
	{"memory", 'm', SHOWN, &given.memory, 0, "that payloads come from and go to", "SIZE"},
	{"seconds", 'S', SHOWN, &given.seconds, 0, "how long it measures", "SECONDS"},
	{"warmup", 0, SHOWN, &given.warmup, 0, "before that", "SECONDS"},
	{"window", 'w', SHOWN, &given.window, 0, "frames under way at most", "N"},
	{"burst", 'b', SHOWN, &given.burst, 0, "frames that are sent at once, at most", "N"},
	{"hugepages", 0, POPT_ARG_NONE, &given.hugepages, 0, "use hugepages", NULL},
	{"own-memory", 0, POPT_ARG_NONE, &given.own_memory, 0,
	 "payloads lie in memory of DPDK's, as vhost's drivers want it", NULL},
	{"eal", 0, POPT_ARG_STRING, &given.eal, 0, "more arguments for DPDK's EAL", "WORDS"},
	{"json", 'j', POPT_ARG_STRING, &given.json, 0,
	 "write the numbers; \"-\" is the standard output", "FILE"},
	POPT_AUTOHELP POPT_TABLEEND};

static void parse(int count, const char **arguments, struct bare_options *options)
{
	options_parse(count, arguments, option_table, NULL);
	if (given.send == given.receive)
		bench_usage_error("one of --send and --receive must be given");
	if (!given.port)
		bench_usage_error("--port must be given");
	if (given.ping && !given.send)
		bench_usage_error("--ping goes with --send: the other side answers both");
	options->port = given.port;
	options->eal = given.eal;
	options->hugepages = given.hugepages;
	options->own_memory = given.own_memory;
	options->frame = (uint32_t)option_number("frame", given.frame, 128, 9216);
	options->window = (uint32_t)option_number("window", given.window, 8, 2048);
	options->burst = (uint32_t)option_number("burst", given.burst, 1, BARE_BURST);
	options->seconds = option_seconds("seconds", given.seconds, 0.1, 3600);
	options->warmup = option_seconds("warmup", given.warmup, 0, 3600);
	options->memory = option_size("memory", given.memory, BARE_MEMORY_LEAST, UINT64_C(1) << 30);
	option_check_json(given.json);
}

static double microseconds(const struct histogram *times, double share)
{
	return times->count ? (double)histogram_at(times, share) / 1e3 : NAN;
}

static cJSON *times_json(const struct histogram *times)
{
	cJSON *object = cJSON_CreateObject();

	bench_json_number(object, "p50", microseconds(times, 0.5));
	bench_json_number(object, "p90", microseconds(times, 0.9));
	bench_json_number(object, "p99", microseconds(times, 0.99));
	bench_json_number(object, "max", (double)times->most / 1e3);
	return object;
}

static cJSON *result_json(const struct bare_options *options, const struct bare_result *result)
{
	cJSON *json = cJSON_CreateObject();
	uint32_t payload = options->frame - (uint32_t)BARE_FRONT;
	double bytes = given.ping ? NAN : (double)result->frames * payload;
	double cpu = result->sender_cpu_s + result->receiver_cpu_s;

	cJSON_AddStringToObject(json, "tool", "dpdk-bare");
	cJSON_AddStringToObject(json, "test", given.ping ? "latency" : "throughput");
	cJSON_AddStringToObject(json, "port", options->port);
	bench_json_number(json, "frame_bytes", given.ping ? BARE_FRONT : options->frame);
	bench_json_number(json, "payload_bytes", given.ping ? NAN : payload);
	bench_json_number(json, "memory_bytes", (double)options->memory);
	bench_json_number(json, "window_frames", options->window);
	bench_json_number(json, "seconds", result->seconds);
	bench_json_number(json, "goodput_gbps", bench_gbps(bytes, result->seconds));
	bench_json_number(json, "frames_per_s", (double)result->frames / result->seconds);
	bench_json_number(json, "lost", (double)result->lost);
	bench_json_number(json, "cpu_s_per_gb", cpu / (bytes / 1e9));
	bench_json_number(json, "cpu_sender_s", result->sender_cpu_s);
	bench_json_number(json, "cpu_receiver_s", given.ping ? NAN : result->receiver_cpu_s);
	cJSON_AddItemToObject(json, "latency_us",
			      given.ping ? times_json(&result->times) : cJSON_CreateNull());
	bench_json_number(json, "pings", given.ping ? (double)result->times.count : NAN);
	return json;
}

static int report(const struct bare_options *options, const struct bare_result *result)
{
	cJSON *json = result_json(options, result);
	int error = given.json ? bench_json_write(given.json, json) : 0;

	if (given.json && !strcmp(given.json, "-"))
		; /* the numbers are there */
	else if (given.ping)
		printf("%llu round trips: p50 %.2f us, p99 %.2f us; %llu lost\n",
		       (unsigned long long)result->times.count, microseconds(&result->times, 0.5),
		       microseconds(&result->times, 0.99), (unsigned long long)result->lost);
	else
		printf("%.2f Gb/s, %.0f frames/s, %.3f CPU s/GB; %llu lost\n",
		       cJSON_GetNumberValue(cJSON_GetObjectItem(json, "goodput_gbps")),
		       (double)result->frames / result->seconds,
		       cJSON_GetNumberValue(cJSON_GetObjectItem(json, "cpu_s_per_gb")),
		       (unsigned long long)result->lost);
	cJSON_Delete(json);
	return error ? EXIT_FAILED : 0;
}

int main(int count, const char **arguments)
{
	static struct bare bare;
	static struct bare_result result;
	int status = 0;

	bench_hold_standard_streams();
	parse(count, arguments, &bare.options);
	bare_open(&bare, arguments[0]);
	bare_wait_link(&bare);
	if (given.receive) {
		if (!bare_receive(&bare)) {
			bench_complain("what arrived is not what was sent");
			status = EXIT_FAILED;
		}
	} else {
		(given.ping ? bare_ping : bare_send)(&bare, &result);
		status = report(&bare.options, &result);
	}
	bare_close(&bare);
	return status;
}
