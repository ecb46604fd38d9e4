/* SPDX-License-Identifier: Apache-2.0 */
#include "core.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CORE_MAJOR "29."

static struct core functions;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static void
	*library; /* of a libgrpc that the program loaded for itself, as Ruby's extension does */

static int find_library(struct dl_phdr_info *info, size_t size, void *user)
{
	const char *name = strrchr(info->dlpi_name, '/');

	name = name ? name + 1 : info->dlpi_name;
	if (strncmp(name, "libgrpc.so", strlen("libgrpc.so")))
		return 0;
	*(void **)user = dlopen(info->dlpi_name, RTLD_NOLOAD | RTLD_LAZY);
	return 1;
}

void *core_symbol(const char *name)
{
	void *found = dlsym(RTLD_NEXT, name);

	if (found)
		return found;
	if (!library)
		dl_iterate_phdr(find_library, &library);
	return library ? dlsym(library, name) : NULL;
}

static void find_function(const char *name, void *place)
{
	void *found = core_symbol(name);

	if (!found) {
		fprintf(stderr, "tensorhaul-grpc: no libgrpc has the function %s\n", name);
		abort();
	}
	memcpy(place, &found, sizeof(found));
}

static void find_functions(void)
{
#define CORE_FIND(name) find_function(#name, &functions.name);
	CORE_FUNCTIONS(CORE_FIND)
#undef CORE_FIND
}

const struct core *core(void)
{
	pthread_once(&once, find_functions);
	return &functions;
}

bool core_fits(void)
{
	return !strncmp(core()->grpc_version_string(), CORE_MAJOR, strlen(CORE_MAJOR));
}
