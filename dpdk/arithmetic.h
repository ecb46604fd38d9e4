/* SPDX-License-Identifier: Apache-2.0 */
/* What the controllers need of mathematics, without its library. */
#ifndef TENSORHAUL_DPDK_ARITHMETIC_H
#define TENSORHAUL_DPDK_ARITHMETIC_H

static inline double least_of(double one, double other)
{
	return one < other ? one : other;
}

static inline double most_of(double one, double other)
{
	return one > other ? one : other;
}

/* To the base 2, of what is above 0: good to a tenth, and steady. */
static inline double logarithm(double value)
{
	double whole = 0;

	for (; value >= 2; value /= 2)
		whole++;
	for (; value < 1; value *= 2)
		whole--;
	return whole + value - 1;
}

/* Newton's way; good to a hundredth. */
static inline double square_root(double value)
{
	double root = value > 1 ? value : 1;

	for (unsigned i = 0; i < 24 && root * root > value * 1.01; i++)
		root = (root + value / root) / 2;
	return root;
}

/* Newton's way; good to far more digits than the window has. */
static inline double cube_root(double value)
{
	double root = 1;

	if (value <= 0)
		return 0;
	while (root * root * root < value)
		root *= 2;
	for (unsigned i = 0; i < 8; i++)
		root -= (root * root * root - value) / (3 * root * root);
	return root;
}

#endif
