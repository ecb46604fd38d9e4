/* SPDX-License-Identifier: Apache-2.0 */
/* TLS: certificates and keys from files, in the form that gRPC takes. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <grpc/grpc_security.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include "rpc.h"

/* No sane PEM file is larger. */
#define PEM_MAX ((size_t)4 << 20)

static int read_file(haul_context *engine, const char *option, const char *path,
		     const char *expected, char **out)
{
	FILE *file = fopen(path, "re");
	size_t length = 0;
	char *text;
	int error = 0;

	if (!file)
		return haul_fail(engine, -errno, "%s=%s can't be read: %s", option, path,
				 haul_strerror(errno));
	text = malloc(PEM_MAX + 1);
	if (text)
		length = fread(text, 1, PEM_MAX, file);
	if (!text)
		error = -ENOMEM;
	else if (ferror(file))
		error = haul_fail(engine, -errno, "%s=%s can't be read: %s", option, path,
				  haul_strerror(errno));
	fclose(file);
	if (!error) {
		text[length] = 0;
		if (strlen(text) != length || !strstr(text, expected))
			error = haul_fail(engine, -EINVAL,
					  "%s=%s: expected a PEM file with a line \"%s\"", option,
					  path, expected);
	}
	if (error) {
		free(text);
		return error;
	}
	*out = text;
	return 0;
}

/* gRPC would only tell when the first peer comes. */
static bool belong_together(const struct backend_context *context)
{
	BIO *cert_text = BIO_new_mem_buf(context->cert, -1);
	BIO *key_text = BIO_new_mem_buf(context->key, -1);
	char none[] = ""; /* no pass phrase is asked for */
	X509 *cert = cert_text ? PEM_read_bio_X509(cert_text, NULL, NULL, none) : NULL;
	EVP_PKEY *key = key_text ? PEM_read_bio_PrivateKey(key_text, NULL, NULL, none) : NULL;
	bool together = cert && key && X509_check_private_key(cert, key) == 1;

	ERR_clear_error();
	EVP_PKEY_free(key);
	X509_free(cert);
	BIO_free(key_text);
	BIO_free(cert_text);
	return together;
}

int tls_open(struct backend_context *context)
{
	const struct rpc_config *config = context->config;
	haul_context *engine = context->engine;
	int error = 0;

	context->tls = config->tls_ca || config->tls_cert;
	if (!config->tls_cert != !config->tls_key)
		return haul_fail(engine, -EINVAL,
				 "tls_cert= and tls_key= belong together: %s is missing",
				 config->tls_cert ? "tls_key" : "tls_cert");
	if (config->tls_name && !context->tls)
		return haul_fail(engine, -EINVAL, "tls_name= needs tls_ca=: TLS is off");
	if (config->interface && context->tls)
		return haul_fail(engine, -EINVAL,
				 "interface= does not go with TLS: gRPC makes the sockets then");
	if (config->tls_ca)
		error = read_file(engine, "tls_ca", config->tls_ca, "BEGIN CERTIFICATE-----",
				  &context->ca);
	if (!error && config->tls_cert)
		error = read_file(engine, "tls_cert", config->tls_cert, "BEGIN CERTIFICATE-----",
				  &context->cert);
	if (!error && config->tls_key)
		error = read_file(engine, "tls_key", config->tls_key, "PRIVATE KEY-----",
				  &context->key);
	if (!error && context->key && !belong_together(context))
		error = haul_fail(engine, -EINVAL,
				  "tls_key=%s is not the key of tls_cert=%s, or is "
				  "encrypted",
				  config->tls_key, config->tls_cert);
	return error;
}

void tls_close(struct backend_context *context)
{
	if (context->key)
		explicit_bzero(context->key, strlen(context->key));
	free(context->ca);
	free(context->cert);
	free(context->key);
}

grpc_channel_credentials *tls_channel(const struct backend_context *context)
{
	grpc_ssl_pem_key_cert_pair pair = {context->key, context->cert};

	return grpc_ssl_credentials_create(context->ca, context->cert ? &pair : NULL, NULL, NULL);
}

grpc_server_credentials *tls_server(const struct backend_context *context)
{
	grpc_ssl_pem_key_cert_pair pair = {context->key, context->cert};

	return grpc_ssl_server_credentials_create_ex(
		context->ca, &pair, 1,
		context->ca ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
			    : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
		NULL);
}
