/* SPDX-License-Identifier: Apache-2.0 */
/* What several rounds say together. */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"

#define MEMBER(name) offsetof(struct round, name)

static double member_of(const struct round *round, size_t offset)
{
	double value;

	memcpy(&value, (const char *)round + offset, sizeof(value));
	return value;
}

double *round_values(const struct round *rounds, size_t count, size_t offset)
{
	double *values = malloc((count ? count : 1) * sizeof(*values));

	for (size_t i = 0; values && i < count; i++)
		values[i] = member_of(&rounds[i], offset);
	return values;
}

double round_median(const struct round *rounds, size_t count, size_t offset)
{
	double *values = round_values(rounds, count, offset);
	double median = values ? bench_median(values, count) : NAN;

	free(values);
	return median;
}

void round_range(const struct round *rounds, size_t count, size_t offset, double *low, double *high)
{
	double *values = round_values(rounds, count, offset);

	*low = *high = NAN;
	if (values)
		bench_range(values, count, low, high);
	free(values);
}

double round_cpu(const struct round *rounds, size_t count, bool client, bool server)
{
	double *values = malloc((count ? count : 1) * sizeof(*values));
	double median;

	if (!values)
		return NAN;
	for (size_t i = 0; i < count; i++) {
		const struct round *round = &rounds[i];

		values[i] = (client ? round->client_user + round->client_system : 0) +
			    (server ? round->server_user + round->server_system : 0);
	}
	median = bench_median(values, count);
	free(values);
	return median;
}

double client_median(const struct report *report, const struct test_result *result, unsigned client)
{
	double *values = malloc((result->rounds ? result->rounds : 1) * sizeof(*values));
	double median;

	if (!values || client >= report->options->clients) {
		free(values);
		return NAN;
	}
	for (size_t i = 0; i < result->rounds; i++)
		values[i] =
			result->round[i].client_gbps ? result->round[i].client_gbps[client] : NAN;
	median = bench_median(values, result->rounds);
	free(values);
	return median;
}

/* The median of each round's index: the clients of one round share one window. */
double clients_jain(const struct report *report, const struct test_result *result)
{
	double *values = malloc((result->rounds ? result->rounds : 1) * sizeof(*values));
	double median;

	if (!values)
		return NAN;
	for (size_t i = 0; i < result->rounds; i++)
		values[i] = result->round[i].client_gbps ? bench_jain(result->round[i].client_gbps,
								      report->options->clients)
							 : NAN;
	median = bench_median(values, result->rounds);
	free(values);
	return median;
}

double round_sum(const struct round *rounds, size_t count, size_t offset)
{
	double sum = NAN;

	for (size_t i = 0; i < count; i++) {
		double value = member_of(&rounds[i], offset);

		if (!isnan(value))
			sum = isnan(sum) ? value : sum + value;
	}
	return sum;
}

void round_percentiles(const struct round *rounds, size_t count, double values[PERCENTILES])
{
	double low, high;

	for (size_t i = 0; i < PERCENTILES; i++)
		values[i] = round_median(rounds, count, MEMBER(latency_us) + i * sizeof(double));
	round_range(rounds, count, MEMBER(latency_us) + P_MAX * sizeof(double), &low, &high);
	values[P_MAX] = high;
}
