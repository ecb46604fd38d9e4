/* SPDX-License-Identifier: Apache-2.0 */
#include "host_facts.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <ifaddrs.h>
#include <math.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "bench_common.h"

/* ---- Files of one line ---- */

/* False when there is no such file or it is empty. */
__attribute__((format(printf, 3, 4))) static bool read_line(char *line, size_t room,
							    const char *format, ...)
{
	va_list arguments;
	char path[512];
	FILE *file;
	bool read;

	va_start(arguments, format);
	vsnprintf(path, sizeof(path), format, arguments);
	va_end(arguments);
	file = fopen(path, "re");
	if (!file)
		return false;
	read = fgets(line, (int)room, file) != NULL;
	fclose(file);
	if (read)
		line[strcspn(line, "\n")] = '\0';
	return read && line[0];
}

static double number_of(const char *line)
{
	char *end;
	double value = strtod(line, &end);

	return end == line ? NAN : value;
}

static void add_text(cJSON *object, const char *name, const char *text)
{
	if (text)
		cJSON_AddStringToObject(object, name, text);
	else
		cJSON_AddNullToObject(object, name);
}

static void add_number_file(cJSON *object, const char *name, const char *path)
{
	char line[64];

	bench_json_number(object, name,
			  read_line(line, sizeof(line), "%s", path) ? number_of(line) : NAN);
}

/* The words of a file as an array of texts, or of numbers. */
static void add_words(cJSON *object, const char *name, const char *path, bool numbers)
{
	char line[1024], *rest = line, *word;
	cJSON *array;

	if (!read_line(line, sizeof(line), "%s", path)) {
		cJSON_AddNullToObject(object, name);
		return;
	}
	array = cJSON_AddArrayToObject(object, name);
	while ((word = strsep(&rest, " \t")))
		if (*word && numbers)
			cJSON_AddItemToArray(array, cJSON_CreateNumber(number_of(word)));
		else if (*word)
			cJSON_AddItemToArray(array, cJSON_CreateString(word));
}

/* ---- CPUs and memory ---- */

static void add_model(cJSON *cpus)
{
	FILE *file = fopen("/proc/cpuinfo", "re");
	char line[512];
	const char *model = NULL;

	while (file && !model && fgets(line, sizeof(line), file)) {
		line[strcspn(line, "\n")] = '\0';
		if (strncmp(line, "model name", 10) == 0 && strchr(line, ':'))
			model = strchr(line, ':') + 1;
	}
	if (file)
		fclose(file);
	add_text(cpus, "model", model ? model + strspn(model, " ") : NULL);
}

static int count_entries(const char *folder, const char *prefix)
{
	DIR *directory = opendir(folder);
	struct dirent *entry;
	int count = 0;

	while (directory && (entry = readdir(directory)))
		count += strncmp(entry->d_name, prefix, strlen(prefix)) == 0 &&
			 entry->d_name[strlen(prefix)] >= '0' &&
			 entry->d_name[strlen(prefix)] <= '9';
	if (directory)
		closedir(directory);
	return count;
}

static void add_cpus(cJSON *facts)
{
	cJSON *cpus = cJSON_AddObjectToObject(facts, "cpus");
	int nodes = count_entries("/sys/devices/system/node", "node");
	cpu_set_t set;

	bench_json_number(cpus, "online", (double)sysconf(_SC_NPROCESSORS_ONLN));
	bench_json_number(cpus, "allowed",
			  sched_getaffinity(0, sizeof(set), &set) ? NAN : CPU_COUNT(&set));
	add_model(cpus);
	bench_json_number(cpus, "numa_nodes", nodes ? nodes : NAN);
	bench_json_number(facts, "memory_bytes",
			  (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE));
}

static void add_limit(cJSON *limits, const char *name, int resource)
{
	cJSON *object = cJSON_AddObjectToObject(limits, name);
	static const char *const names[] = {"soft", "hard"};
	struct rlimit limit;
	rlim_t values[2];

	if (getrlimit(resource, &limit))
		limit = (struct rlimit){0};
	values[0] = limit.rlim_cur;
	values[1] = limit.rlim_max;
	for (int i = 0; i < 2; i++)
		if (values[i] == RLIM_INFINITY)
			cJSON_AddStringToObject(object, names[i], "unlimited");
		else
			bench_json_number(object, names[i], (double)values[i]);
}

static void add_hugepages(cJSON *facts)
{
	static const char folder[] = "/sys/kernel/mm/hugepages";
	cJSON *array = cJSON_AddArrayToObject(facts, "hugepages");
	DIR *directory = opendir(folder);
	struct dirent *entry;
	char line[128], path[512];

	while (directory && (entry = readdir(directory))) {
		unsigned long long kib;
		cJSON *object;

		if (sscanf(entry->d_name, "hugepages-%llukB", &kib) != 1)
			continue;
		object = cJSON_CreateObject();
		bench_json_number(object, "size_bytes", (double)kib * 1024);
		snprintf(path, sizeof(path), "%s/%s/nr_hugepages", folder, entry->d_name);
		add_number_file(object, "total", path);
		snprintf(path, sizeof(path), "%s/%s/free_hugepages", folder, entry->d_name);
		add_number_file(object, "free", path);
		cJSON_AddItemToArray(array, object);
	}
	if (directory)
		closedir(directory);
	/* "always [madvise] never": the one in brackets holds. */
	if (read_line(line, sizeof(line), "/sys/kernel/mm/transparent_hugepage/enabled") &&
	    strchr(line, '[')) {
		char *word = strchr(line, '[') + 1;

		word[strcspn(word, "]")] = '\0';
		add_text(facts, "transparent_hugepages", word);
	} else {
		cJSON_AddNullToObject(facts, "transparent_hugepages");
	}
}

/* ---- Sockets ---- */

static void add_sockets(cJSON *facts)
{
	cJSON *buffers = cJSON_AddObjectToObject(facts, "socket_buffers");
	cJSON *congestion = cJSON_AddObjectToObject(facts, "congestion");
	char line[128];

	add_words(buffers, "tcp_rmem", "/proc/sys/net/ipv4/tcp_rmem", true);
	add_words(buffers, "tcp_wmem", "/proc/sys/net/ipv4/tcp_wmem", true);
	add_number_file(buffers, "rmem_max", "/proc/sys/net/core/rmem_max");
	add_number_file(buffers, "wmem_max", "/proc/sys/net/core/wmem_max");
	add_text(congestion, "default",
		 read_line(line, sizeof(line), "/proc/sys/net/ipv4/tcp_congestion_control") ? line
											    : NULL);
	add_words(congestion, "available", "/proc/sys/net/ipv4/tcp_available_congestion_control",
		  false);
	add_words(congestion, "allowed", "/proc/sys/net/ipv4/tcp_allowed_congestion_control",
		  false);
}

/* ---- Interfaces ---- */

static void add_addresses(cJSON *interface, const char *name, const struct ifaddrs *all)
{
	cJSON *array = cJSON_AddArrayToObject(interface, "addresses");
	char text[INET6_ADDRSTRLEN];

	for (; all; all = all->ifa_next) {
		const void *address = NULL;

		if (strcmp(all->ifa_name, name) != 0 || !all->ifa_addr)
			continue;
		if (all->ifa_addr->sa_family == AF_INET)
			address = &((const struct sockaddr_in *)all->ifa_addr)->sin_addr;
		else if (all->ifa_addr->sa_family == AF_INET6)
			address = &((const struct sockaddr_in6 *)all->ifa_addr)->sin6_addr;
		if (address && inet_ntop(all->ifa_addr->sa_family, address, text, sizeof(text)))
			cJSON_AddItemToArray(array, cJSON_CreateString(text));
	}
}

static cJSON *describe_interface(const char *name, const struct ifaddrs *all)
{
	cJSON *interface = cJSON_CreateObject();
	char line[256], path[512], *driver = NULL;
	double speed = NAN;
	ssize_t length;

	cJSON_AddStringToObject(interface, "name", name);
	add_text(interface, "state",
		 read_line(line, sizeof(line), "/sys/class/net/%s/operstate", name) ? line : NULL);
	snprintf(path, sizeof(path), "/sys/class/net/%s/mtu", name);
	add_number_file(interface, "mtu", path);
	/* Reading it fails while the link is down, and virtual ones say -1. */
	if (read_line(line, sizeof(line), "/sys/class/net/%s/speed", name))
		speed = number_of(line);
	bench_json_number(interface, "speed_mbps", speed > 0 ? speed : NAN);
	snprintf(path, sizeof(path), "/sys/class/net/%s/device/driver", name);
	length = readlink(path, line, sizeof(line) - 1);
	if (length > 0) {
		line[length] = '\0';
		driver = strrchr(line, '/');
	}
	add_text(interface, "driver", driver ? driver + 1 : NULL);
	snprintf(path, sizeof(path), "/sys/class/net/%s/device/numa_node", name);
	add_number_file(interface, "numa_node", path);
	add_addresses(interface, name, all);
	return interface;
}

static void add_interfaces(cJSON *facts)
{
	cJSON *array = cJSON_AddArrayToObject(facts, "interfaces");
	struct if_nameindex *names = if_nameindex();
	struct ifaddrs *all = NULL;

	if (getifaddrs(&all))
		all = NULL;
	for (struct if_nameindex *at = names; at && at->if_index; at++)
		cJSON_AddItemToArray(array, describe_interface(at->if_name, all));
	if (all)
		freeifaddrs(all);
	if (names)
		if_freenameindex(names);
}

/* ---- Advice ---- */

static void advise(cJSON *advice, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void advise(cJSON *advice, const char *format, ...)
{
	va_list arguments;
	char text[256];

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	cJSON_AddItemToArray(advice, cJSON_CreateString(text));
}

static const cJSON *fact(const cJSON *facts, const char *group, const char *name)
{
	return cJSON_GetObjectItem(cJSON_GetObjectItem(facts, group), name);
}

static bool has_word(const cJSON *array, const char *word)
{
	const cJSON *item;

	cJSON_ArrayForEach(item, array)
	{
		if (cJSON_IsString(item) && strcmp(item->valuestring, word) == 0)
			return true;
	}
	return false;
}

/* Enough for 10 Gb/s and a round trip of 5 ms. */
#define BUFFER_WISH 6291456

static void advise_buffers(cJSON *advice, const cJSON *facts, const char *name)
{
	const cJSON *values = fact(facts, "socket_buffers", name);
	const cJSON *least = cJSON_GetArrayItem(values, 0), *normal = cJSON_GetArrayItem(values, 1);
	const cJSON *most = cJSON_GetArrayItem(values, 2);

	if (cJSON_IsNumber(most) && most->valuedouble < BUFFER_WISH)
		advise(advice,
		       "a TCP buffer grows to %.0f bytes at most: sysctl -w net.ipv4.%s='%.0f %.0f "
		       "%d'",
		       most->valuedouble, name, least->valuedouble, normal->valuedouble,
		       BUFFER_WISH);
}

static void add_advice(cJSON *facts)
{
	cJSON *advice = cJSON_AddArrayToObject(facts, "advice");
	const cJSON *memlock = cJSON_GetObjectItem(fact(facts, "limits", "memlock_bytes"), "soft");
	const cJSON *files = cJSON_GetObjectItem(fact(facts, "limits", "open_files"), "soft");
	const cJSON *available = fact(facts, "congestion", "available");

	advise_buffers(advice, facts, "tcp_rmem");
	advise_buffers(advice, facts, "tcp_wmem");
	if (cJSON_IsArray(available) && !has_word(available, "bbr"))
		advise(advice, "bbr is not loaded; on lossy paths it helps tcp: modprobe tcp_bbr");
	if (cJSON_IsNumber(memlock))
		advise(advice,
		       "only %.0f bytes may be locked, verbs may need more: ulimit -l unlimited, "
		       "or "
		       "\"* - memlock unlimited\" in /etc/security/limits.conf and a new login",
		       memlock->valuedouble);
	if (cJSON_IsNumber(files) && files->valuedouble < 4096)
		advise(advice,
		       "only %.0f files may be open, a socket is one: ulimit -n 65536 (a server "
		       "of many clients needs it)",
		       files->valuedouble);
}

cJSON *host_facts(void)
{
	cJSON *facts = cJSON_CreateObject(), *limits;
	struct utsname kernel;
	char text[256];

	if (uname(&kernel) == 0)
		snprintf(text, sizeof(text), "%s %s %s", kernel.sysname, kernel.release,
			 kernel.machine);
	else
		snprintf(text, sizeof(text), "unknown");
	cJSON_AddStringToObject(facts, "kernel", text);
	add_cpus(facts);
	limits = cJSON_AddObjectToObject(facts, "limits");
	add_limit(limits, "memlock_bytes", RLIMIT_MEMLOCK);
	add_limit(limits, "open_files", RLIMIT_NOFILE);
	add_hugepages(facts);
	add_sockets(facts);
	add_interfaces(facts);
	add_advice(facts);
	return facts;
}
