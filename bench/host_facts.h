/* SPDX-License-Identifier: Apache-2.0 */
/* What a host offers to a transport: limits, memory, sockets, interfaces, CPUs. */
#ifndef BENCH_HOST_FACTS_H
#define BENCH_HOST_FACTS_H

#include <cjson/cJSON.h>
#include <stdio.h>

/*
 * An object for cJSON_Delete(); what could not be found out is null, a limit without end is
 * the text "unlimited":
 *
 *   "kernel": text, "cpus": {"online", "allowed", "model", "numa_nodes"}, "memory_bytes",
 *   "limits": {"memlock_bytes": {"soft", "hard"}, "open_files": {"soft", "hard"}},
 *   "hugepages": [{"size_bytes", "total", "free"}], "transparent_hugepages": text,
 *   "socket_buffers": {"tcp_rmem": [least, default, most], "tcp_wmem": [3], "rmem_max",
 * "wmem_max"}, "congestion": {"default": text, "available": [text], "allowed": [text]},
 *   "interfaces": [{"name", "state", "mtu", "speed_mbps", "driver", "numa_node", "addresses": []}],
 *   "advice": [text]
 */
cJSON *host_facts(void);
void host_facts_print(const cJSON *facts, FILE *file);

#endif
