/* SPDX-License-Identifier: Apache-2.0 */
/* Transport specs and option tables. */
#ifndef TENSORHAUL_SPEC_H
#define TENSORHAUL_SPEC_H

#include "../backend.h"

/* A transport spec cut into its parts; all strings belong to it. */
struct spec_option {
	char *name;
	char *value; /* without the braces */
	bool taken;  /* some table knew it */
};

struct spec {
	char *transport;
	struct spec_option *options;
	size_t count;
};

/*
 * Cut "name,option=value,option={a,b}" into parts. -EINVAL with one sentence in `why` for an empty
 * name, an option without "=", an option given twice, an unclosed brace, a spec over 4,096 bytes.
 */
int spec_parse(const char *text, struct spec *spec, char *why, size_t room);
void spec_free(struct spec *spec);

/* Fill a config struct with a table's defaults. A bad default is a bug of ours (assert). */
void options_default(const struct haul_option *table, void *config);

/*
 * Take the options that `table` knows into `config` and mark them taken. -EINVAL with the option,
 * its value and what is valid in `why`.
 */
int options_apply(const struct haul_option *table, struct spec *spec, void *config, char *why,
		  size_t room);

/*
 * -EINVAL when an option was taken by no table; `why` names it, the nearest valid name when one is
 * alike, and all valid ones (the tables: NULL-terminated list).
 */
int options_all_taken(const struct spec *spec, const struct haul_option *const *tables, char *why,
		      size_t room);

/* Append ",option=value" for each row, as it stands in `config`, to `text`. */
void options_print(const struct haul_option *table, const void *config, char *text, size_t room);

/* Free what the config owns (texts). */
void options_free(const struct haul_option *table, void *config);

#endif
