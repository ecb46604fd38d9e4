/* SPDX-License-Identifier: Apache-2.0 */
/* The values of options on the programs' command lines. Each function ends the program with a
 * message that names the option, its value and what was expected. */
#ifndef BENCH_OPTIONS_H
#define BENCH_OPTIONS_H

#include <popt.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

uint64_t option_number(const char *option, const char *text, uint64_t low, uint64_t high);
uint64_t option_size(const char *option, const char *text, uint64_t low, uint64_t high);
double option_seconds(const char *option, const char *text, double low, double high);
/* The number of `text` in a NULL-terminated list. */
int option_choice(const char *option, const char *text, const char *const *names);
/* Values with commas between them, at most `most`; returns how many. */
size_t option_numbers(const char *option, const char *text, uint64_t low, uint64_t high,
		      uint64_t *values, size_t most);
size_t option_sizes(const char *option, const char *text, uint64_t low, uint64_t high,
		    uint64_t *values, size_t most);
/* Whether the file of --json can be written. */
void option_check_json(const char *path);

/*
 * Parse a command line that has no words beside its options. `take` gets the value of each option
 * that has one in the table; NULL when none has. "--job_type=x" counts as "--job-type=x".
 */
void options_parse(int argc, const char **argv, const struct poptOption *table,
		   void (*take)(int value));

#endif
