/* SPDX-License-Identifier: Apache-2.0 */
/* Loaded before libgrpc, it makes of it a version that the layer was not made for. */
const char *grpc_version_string(void);

const char *grpc_version_string(void)
{
	return "30.1.2";
}
