/* SPDX-License-Identifier: Apache-2.0 */
/* A backend that does nothing, built as a module in several ways for test_backends. */
#include "backend.h"

#ifdef WRONG_VERSION
#define VERSION (HAUL_BACKEND_VERSION + 1)
#else
#define VERSION HAUL_BACKEND_VERSION
#endif

#ifdef WRONG_NAME
#define NAME "another"
#else
#define NAME MODULE_NAME
#endif

#ifdef WRONG_SYMBOL
#define SYMBOL haul_backend_unexpected
#else
#define SYMBOL MODULE_SYMBOL
#endif

static int probe(char *reason, size_t room)
{
	static const char text[] = "no device of this kind";

	for (size_t i = 0; i < room; i++)
		reason[i] = i < sizeof(text) ? text[i] : 0;
	return -19; /* ENODEV */
}

static const struct haul_option options[] = {
	{{"first", "1", "0..9", "a number"}, HAUL_OPTION_NUMBER, 0, 0, 9},
	{{"second", "no", "yes or no", "a switch"}, HAUL_OPTION_SWITCH, 8},
	{{NULL}},
};

static const struct haul_context_ops context_ops = {.probe = probe};
static const struct haul_data_ops data_ops = {0};

#ifdef WRONG_OPS
#define LINK_OPS NULL
#else
static const struct haul_link_ops link_ops = {0};
#define LINK_OPS &link_ops
#endif

extern const struct haul_backend SYMBOL;

__attribute__((visibility("default"))) const struct haul_backend SYMBOL = {
	.version = VERSION,
	.name = NAME,
	.summary = "does nothing",
	.options = options,
	.config_size = 16,
	.context = &context_ops,
	.link = LINK_OPS,
	.data = &data_ops,
};
