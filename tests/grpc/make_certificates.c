/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes the certificates of the tests: make_certificates FOLDER writes ca.pem, and host.pem and
 * host.key that it signed, for 127.0.0.1, ::1 and the name tensorhaul.test; and the same by another
 * authority as other_ca.pem, other.pem and other.key.
 */
#include <stdio.h>
#include <stdlib.h>

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#define DAYS 3650

static const char *folder;

static void need(int condition, const char *what)
{
	if (condition)
		return;
	fprintf(stderr, "make_certificates: %s failed\n", what);
	exit(1);
}

static FILE *create(const char *name, const char *end)
{
	char path[4096];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s%s", folder, name, end);
	file = fopen(path, "we");
	need(file != NULL, path);
	return file;
}

static void extend(X509 *certificate, int kind, const char *value)
{
	X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, NULL, kind, value);

	need(extension && X509_add_ext(certificate, extension, -1), value);
	X509_EXTENSION_free(extension);
}

/* Signed by `issuer` and its key; NULL: by itself, and it may sign others. */
static X509 *certify(const char *name, EVP_PKEY *key, X509 *issuer, EVP_PKEY *issuer_key)
{
	static long serial;
	X509 *certificate = X509_new();
	X509_NAME *subject;

	need(certificate != NULL, "X509_new");
	subject = X509_get_subject_name(certificate);
	X509_set_version(certificate, X509_VERSION_3);
	ASN1_INTEGER_set(X509_get_serialNumber(certificate), ++serial);
	X509_gmtime_adj(X509_getm_notBefore(certificate), -24L * 3600);
	X509_gmtime_adj(X509_getm_notAfter(certificate), DAYS * 24L * 3600);
	X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, (const unsigned char *)name, -1, -1,
				   0);
	X509_set_issuer_name(certificate, issuer ? X509_get_subject_name(issuer) : subject);
	X509_set_pubkey(certificate, key);
	if (issuer)
		extend(certificate, NID_subject_alt_name,
		       "IP:127.0.0.1,IP:::1,DNS:tensorhaul.test");
	else
		extend(certificate, NID_basic_constraints, "critical,CA:TRUE");
	need(X509_sign(certificate, issuer ? issuer_key : key, EVP_sha256()), "X509_sign");
	return certificate;
}

static void write_certificate(const char *name, X509 *certificate)
{
	FILE *file = create(name, ".pem");

	need(PEM_write_X509(file, certificate) && fclose(file) == 0, name);
}

static void make(const char *authority, const char *name)
{
	EVP_PKEY *authority_key = EVP_EC_gen("P-256"), *key = EVP_EC_gen("P-256");
	X509 *root, *certificate;
	FILE *file;

	need(authority_key && key, "EVP_EC_gen");
	root = certify(authority, authority_key, NULL, NULL);
	certificate = certify(name, key, root, authority_key);
	write_certificate(authority, root);
	write_certificate(name, certificate);
	file = create(name, ".key");
	need(PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL) && fclose(file) == 0, name);
	X509_free(root);
	X509_free(certificate);
	EVP_PKEY_free(authority_key);
	EVP_PKEY_free(key);
}

int main(int count, char **arguments)
{
	if (count != 2) {
		fprintf(stderr, "usage: make_certificates FOLDER\n");
		return 2;
	}
	folder = arguments[1];
	make("ca", "host");
	make("other_ca", "other");
	return 0;
}
