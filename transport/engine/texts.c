/* SPDX-License-Identifier: Apache-2.0 */
#include "log.h"

#include <stdarg.h>
#include <stdio.h>

/* A newline in a file's name or from a peer must not forge a second log message. */
void replace_control_characters(char *text)
{
	for (; *text; text++) {
		if ((unsigned char)*text < 0x20 || *text == 0x7f)
			*text = '?';
	}
}

int explain(char *why, size_t room, int error, const char *format, ...)
{
	va_list arguments;

	if (!why || !room)
		return error;
	va_start(arguments, format);
	vsnprintf(why, room, format, arguments);
	va_end(arguments);
	replace_control_characters(why);
	return error;
}
