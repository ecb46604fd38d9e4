/* SPDX-License-Identifier: Apache-2.0 */
/* How the programs write what they found: JSON files and tables. */
#include "bench_common.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- JSON ---- */

static double rounded(double value)
{
	return fabs(value) < 1e6 ? round(value * 1e9) / 1e9 : value;
}

static cJSON *number_or_null(double value)
{
	return isfinite(value) ? cJSON_CreateNumber(rounded(value)) : cJSON_CreateNull();
}

void bench_json_number(cJSON *object, const char *name, double value)
{
	cJSON_AddItemToObject(object, name, number_or_null(value));
}

void bench_json_numbers(cJSON *object, const char *name, const double *values, size_t count)
{
	cJSON *array = cJSON_AddArrayToObject(object, name);

	for (size_t i = 0; i < count; i++)
		cJSON_AddItemToArray(array, number_or_null(values[i]));
}

int bench_json_check(const char *path)
{
	struct stat status;
	bool there;
	int fd;

	if (!path || strcmp(path, "-") == 0)
		return 0;
	there = stat(path, &status) == 0;
	/* A fifo without a reader would block here. */
	if (there && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode))
		return 0;
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
	if (fd < 0)
		return -errno;
	close(fd);
	if (!there)
		unlink(path);
	return 0;
}

int bench_json_write(const char *path, const cJSON *json)
{
	bool standard = strcmp(path, "-") == 0;
	char *text = cJSON_Print(json);
	FILE *file = NULL;
	int result = 0;

	if (!text)
		return -ENOMEM;
	file = standard ? stdout : fopen(path, "we");
	if (!file) {
		result = -errno;
		goto out;
	}
	if (fprintf(file, "%s\n", text) < 0 || fflush(file) != 0)
		result = errno ? -errno : -EIO;
	if (!standard && fclose(file) != 0 && !result)
		result = -errno;
out:
	cJSON_free(text);
	return result;
}

/* ---- Tables ---- */

int bench_table_init(struct bench_table *table, size_t columns)
{
	*table = (struct bench_table){.columns = columns};
	return 0;
}

int bench_table_row(struct bench_table *table)
{
	char ***rows = realloc(table->rows, (table->count + 1) * sizeof(*rows));

	if (!rows)
		return -ENOMEM;
	table->rows = rows;
	rows[table->count] = calloc(table->columns, sizeof(**rows));
	if (!rows[table->count])
		return -ENOMEM;
	table->count++;
	return 0;
}

void bench_table_cell(struct bench_table *table, size_t column, const char *format, ...)
{
	va_list arguments;
	char **cell;

	if (!table->count || column >= table->columns)
		return;
	cell = &table->rows[table->count - 1][column];
	free(*cell);
	va_start(arguments, format);
	if (vasprintf(cell, format, arguments) < 0)
		*cell = NULL;
	va_end(arguments);
}

/* Characters, not bytes: the cells may hold UTF-8. */
static int width_of(const char *text)
{
	int width = 0;

	for (; text && *text; text++)
		width += ((unsigned char)*text & 0xc0) != 0x80;
	return width;
}

static int column_width(const struct bench_table *table, size_t column)
{
	int widest = 0;

	/* A head alone makes no column. */
	for (size_t row = 1; row < table->count && !widest; row++)
		widest = width_of(table->rows[row][column]);
	for (size_t row = 0; row < table->count && widest; row++) {
		int width = width_of(table->rows[row][column]);

		if (width > widest)
			widest = width;
	}
	return widest;
}

static void print(const struct bench_table *table, FILE *file, bool left)
{
	for (size_t row = 0; row < table->count; row++) {
		int owed = 0; /* blanks behind a cell, only written when another one follows */

		for (size_t column = 0; column < table->columns; column++) {
			const char *cell = table->rows[row][column];
			int width = column_width(table, column);
			int blanks = width - width_of(cell);

			if (!width)
				continue;
			fprintf(file, "%*s", owed + (left || !column ? 0 : blanks), "");
			fputs(cell ? cell : "", file);
			owed = 2 + (left || !column ? blanks : 0);
		}
		fputc('\n', file);
	}
}

void bench_table_print(const struct bench_table *table, FILE *file)
{
	print(table, file, false);
}

void bench_table_print_left(const struct bench_table *table, FILE *file)
{
	print(table, file, true);
}

void bench_table_free(struct bench_table *table)
{
	for (size_t row = 0; row < table->count; row++) {
		for (size_t column = 0; column < table->columns; column++)
			free(table->rows[row][column]);
		free(table->rows[row]);
	}
	free(table->rows);
	*table = (struct bench_table){0};
}

bool bench_output_arrived(void)
{
	if (fflush(stdout) == 0 && !ferror(stdout))
		return true;
	bench_complain("the standard output could not be written: %s", strerror(errno));
	return false;
}
