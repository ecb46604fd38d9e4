/* SPDX-License-Identifier: Apache-2.0 */
#include "congestion.h"

const struct congestion_ops *const congestion_all[] = {
	&congestion_swift,
	&congestion_cubic,
	&congestion_fixed,
	NULL,
};
