/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "bench_common.h"
#include "host_facts.h"

/* A value as text: a size, a number, or words with blanks between them. */
static void text_of(const cJSON *item, bool size, char *text, size_t room)
{
	char one[BENCH_SIZE_TEXT];

	if (cJSON_IsString(item)) {
		snprintf(text, room, "%s", item->valuestring);
	} else if (cJSON_IsNumber(item) && size) {
		snprintf(text, room, "%s", bench_size_text(one, (uint64_t)item->valuedouble));
	} else if (cJSON_IsNumber(item)) {
		snprintf(text, room, "%.0f", item->valuedouble);
	} else if (cJSON_IsArray(item)) {
		const cJSON *element;

		text[0] = '\0';
		cJSON_ArrayForEach(element, item)
		{
			size_t used = strlen(text);

			if (used && used + 1 < room)
				text[used++] = ' ';
			text[used] = '\0';
			text_of(element, size, text + used, room - used);
		}
	} else {
		snprintf(text, room, "unknown");
	}
}

static void line(FILE *file, const char *name, const cJSON *item, bool size)
{
	char text[512];

	text_of(item, size, text, sizeof(text));
	fprintf(file, "  %-24s %s\n", name, text);
}

static void limit_line(FILE *file, const char *name, const cJSON *limit, bool size)
{
	char soft[64], hard[64];

	text_of(cJSON_GetObjectItem(limit, "soft"), size, soft, sizeof(soft));
	text_of(cJSON_GetObjectItem(limit, "hard"), size, hard, sizeof(hard));
	fprintf(file, "  %-24s %s (may be raised to %s)\n", name, soft, hard);
}

static void print_cpus(FILE *file, const cJSON *cpus)
{
	char online[32], allowed[32], model[128], nodes[32];

	text_of(cJSON_GetObjectItem(cpus, "online"), false, online, sizeof(online));
	text_of(cJSON_GetObjectItem(cpus, "allowed"), false, allowed, sizeof(allowed));
	text_of(cJSON_GetObjectItem(cpus, "model"), false, model, sizeof(model));
	text_of(cJSON_GetObjectItem(cpus, "numa_nodes"), false, nodes, sizeof(nodes));
	fprintf(file, "  %-24s %s online, %s for this process, NUMA nodes: %s, %s\n", "CPUs",
		online, allowed, nodes, model);
}

static void print_hugepages(FILE *file, const cJSON *facts)
{
	const cJSON *item;
	char size[64], total[32], available[32];

	cJSON_ArrayForEach(item, cJSON_GetObjectItem(facts, "hugepages"))
	{
		text_of(cJSON_GetObjectItem(item, "size_bytes"), true, size, sizeof(size));
		text_of(cJSON_GetObjectItem(item, "total"), false, total, sizeof(total));
		text_of(cJSON_GetObjectItem(item, "free"), false, available, sizeof(available));
		fprintf(file, "  huge pages of %-10s %s, %s of them free\n", size, total,
			available);
	}
	line(file, "transparent huge pages", cJSON_GetObjectItem(facts, "transparent_hugepages"),
	     false);
}

static void print_interfaces(FILE *file, const cJSON *interfaces)
{
	static const struct {
		const char *name, *head;
	} columns[] = {
		{"name", "interface"},      {"state", "state"},
		{"speed_mbps", "Mb/s"},     {"mtu", "MTU"},
		{"driver", "driver"},       {"numa_node", "NUMA node"},
		{"addresses", "addresses"},
	};
	struct bench_table table;
	const cJSON *item;

	bench_table_init(&table, ARRAY_LENGTH(columns));
	bench_table_row(&table);
	for (size_t i = 0; i < ARRAY_LENGTH(columns); i++)
		bench_table_cell(&table, i, i ? "%s" : "  %s", columns[i].head);
	cJSON_ArrayForEach(item, interfaces)
	{
		bench_table_row(&table);
		for (size_t i = 0; i < ARRAY_LENGTH(columns); i++) {
			char text[256];

			text_of(cJSON_GetObjectItem(item, columns[i].name), false, text,
				sizeof(text));
			bench_table_cell(&table, i, i ? "%s" : "  %s", text);
		}
	}
	bench_table_print_left(&table, file);
	bench_table_free(&table);
}

void host_facts_print(const cJSON *facts, FILE *file)
{
	const cJSON *limits = cJSON_GetObjectItem(facts, "limits");
	const cJSON *buffers = cJSON_GetObjectItem(facts, "socket_buffers");
	const cJSON *congestion = cJSON_GetObjectItem(facts, "congestion");
	const cJSON *advice;

	fprintf(file, "This host\n");
	line(file, "kernel", cJSON_GetObjectItem(facts, "kernel"), false);
	print_cpus(file, cJSON_GetObjectItem(facts, "cpus"));
	fprintf(file, "  %-24s %.1f GiB\n", "memory",
		cJSON_GetNumberValue(cJSON_GetObjectItem(facts, "memory_bytes")) / (1 << 30));
	limit_line(file, "locked memory", cJSON_GetObjectItem(limits, "memlock_bytes"), true);
	limit_line(file, "open files", cJSON_GetObjectItem(limits, "open_files"), false);
	print_hugepages(file, facts);
	line(file, "net.ipv4.tcp_rmem", cJSON_GetObjectItem(buffers, "tcp_rmem"), false);
	line(file, "net.ipv4.tcp_wmem", cJSON_GetObjectItem(buffers, "tcp_wmem"), false);
	line(file, "net.core.rmem_max", cJSON_GetObjectItem(buffers, "rmem_max"), false);
	line(file, "net.core.wmem_max", cJSON_GetObjectItem(buffers, "wmem_max"), false);
	line(file, "congestion control", cJSON_GetObjectItem(congestion, "default"), false);
	line(file, "  available", cJSON_GetObjectItem(congestion, "available"), false);
	line(file, "  for every user", cJSON_GetObjectItem(congestion, "allowed"), false);
	print_interfaces(file, cJSON_GetObjectItem(facts, "interfaces"));
	cJSON_ArrayForEach(advice, cJSON_GetObjectItem(facts, "advice"))
		fprintf(file, "  hint: %s\n", advice->valuestring);
}
