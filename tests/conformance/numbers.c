/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers for specs: a transport whose contexts need something of their own each, like a port of a
 * switch or an IP address, has %n in its spec, which becomes a number that nobody else uses.
 *
 * Tests open contexts in threads, so the table has a lock. A number is used again as late as can
 * be: who looks for the last one's traces finds them.
 */
#include "harness.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static struct {
	pthread_mutex_t lock;
	bool used[NUMBERS_MAX + 1]; /* from 1; 0 stands for none */
	unsigned last;              /* that was given out */
} numbers = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The next number of the cycle that is not used; 0: all are. */
static unsigned number_take(void)
{
	unsigned found = 0;

	pthread_mutex_lock(&numbers.lock);
	for (unsigned i = 0; i < settings.numbers && !found; i++) {
		numbers.last = numbers.last % settings.numbers + 1;
		if (!numbers.used[numbers.last])
			found = numbers.last;
	}
	numbers.used[found] = found > 0;
	pthread_mutex_unlock(&numbers.lock);
	return found;
}

void number_give_back(unsigned number)
{
	pthread_mutex_lock(&numbers.lock);
	numbers.used[number] = false;
	pthread_mutex_unlock(&numbers.lock);
}

void number_again(unsigned number)
{
	pthread_mutex_lock(&numbers.lock);
	if (number)
		numbers.last = number - 1;
	pthread_mutex_unlock(&numbers.lock);
}

/* Write `spec` to `text`, which has the room, with `number` in place of each %n. */
static void spec_write(char *text, const char *spec, unsigned number)
{
	while (*spec) {
		if (strncmp(spec, "%n", 2)) {
			*text++ = *spec++;
			continue;
		}
		text += sprintf(text, "%u", number);
		spec += 2;
	}
	*text = '\0';
}

char *spec_numbered(const char *spec, unsigned *number)
{
	/* A number takes three digits in the place of two letters. */
	char *text = malloc(strlen(spec) * 3 / 2 + 2);

	assert_non_null(text);
	*number = 0;
	if (!settings.numbers || !strstr(spec, "%n"))
		return strcpy(text, spec);
	*number = number_take();
	if (!*number) {
		free(text);
		skip_because("no more contexts: all of --numbers=%u are in use", settings.numbers);
	}
	spec_write(text, spec, *number);
	return text;
}

const char *spec_held(struct world *world, const char *spec)
{
	unsigned number;
	char *numbered = spec_numbered(spec, &number);
	const char *text = world_text(world, "%s", numbered);

	free(numbered);
	world->numbers[number] = true;
	return text;
}

void numbers_give_back(struct world *world)
{
	for (unsigned number = 0; number <= NUMBERS_MAX; number++) {
		if (world->numbers[number])
			number_give_back(number);
	}
}
