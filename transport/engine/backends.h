/* SPDX-License-Identifier: Apache-2.0 */
/* Which transports there are: those in the library, and modules beside it. */
#ifndef TENSORHAUL_BACKENDS_H
#define TENSORHAUL_BACKENDS_H

#include "../backend.h"

/*
 * Find a transport by its name ("auto" is tcp for now); a module is loaded with dlopen() once and
 * kept: from the folders of $HAUL_MODULE_PATH (colon-separated; not looked at in a set-user-id
 * program), then the library's module folder. NULL with an errno in *error and one sentence in
 * `why`: -EINVAL names the transports there are, -ENOSYS the module that is missing and how to get
 * it, or what dlopen() said.
 */
const struct haul_backend *backends_find(const char *name, int *error, char *why, size_t room);

#endif
