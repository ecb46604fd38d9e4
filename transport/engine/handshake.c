/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handshake: HELLO both ways, then PROOF both ways when auth=psk is set. Until it is over,
 * nothing else is accepted from the peer, and nothing is remembered for it.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "engine.h"

/* The features that must be the same on both sides. */
#define MUST_AGREE UINT64_C(0xffffffff)

static uint64_t own_features(const haul_context *context)
{
	uint64_t features = WIRE_FEATURE_CLOCK;

	if (context->key)
		features |= WIRE_FEATURE_AUTH;
	if (context->config.checksum == CHECKSUM_CRC32C)
		features |= WIRE_FEATURE_CHECKSUM;
	return features;
}

void handshake_start(haul_endpoint *endpoint)
{
	haul_context *context = endpoint->context;
	struct wire_hello hello = {
		.role = endpoint->role,
		.version = WIRE_VERSION,
		.features = own_features(context),
		.incarnation = context->incarnation,
		.slots = (uint32_t)context->config.slots,
	};

	endpoint->state = ENDPOINT_HELLO;
	if (haul_random(hello.nonce, sizeof(hello.nonce))) {
		endpoint_doom(endpoint, -EIO, "no randomness for the handshake");
		return;
	}
	endpoint_control(endpoint, endpoint->hello_own,
			 wire_encode_hello(endpoint->hello_own, &hello));
}

void handshake_expired(haul_endpoint *endpoint)
{
	const struct engine_config *config = &endpoint->context->config;
	char why[128];

	if (endpoint->role == WIRE_CONNECTOR)
		snprintf(why, sizeof(why), "no answer within %" PRIu64 " ms (connect_ms)",
			 config->connect_ms);
	else
		snprintf(why, sizeof(why),
			 "the handshake was not over within %" PRIu64 " ms (handshake_ms)",
			 config->handshake_ms);
	endpoint_lost(endpoint, -ETIMEDOUT, why);
}

/* Tell the peer why, and end it; the message still leaves. */
static void reject(haul_endpoint *endpoint, unsigned reason, int error, const char *why)
{
	uint8_t message[HAUL_CONTROL_MAX];

	endpoint_control(endpoint, message, wire_encode_reject(message, reason));
	endpoint->context->backend->link->flush(endpoint->link);
	endpoint->polite = true;
	endpoint_lost(endpoint, error, why);
}

static void open_endpoint(haul_endpoint *endpoint)
{
	haul_context *context = endpoint->context;
	struct operation *connect = endpoint->connect;

	deadlines_clear(&context->deadlines, &endpoint->timer.deadline);
	endpoint->state = ENDPOINT_OPEN;
	haul_log(HAUL_LOG_INFO, "endpoint %s is open", endpoint->address);
	if (connect) {
		endpoint->connect = NULL;
		endpoint->announced = true;
		operation_complete(connect, 0);
	} else {
		context->handshakes--;
		endpoint_event(endpoint, HAUL_ACCEPTED, 0, NULL);
	}
	trace_endpoint(endpoint);
	clock_open(endpoint, endpoint->peer_features);
}

static void send_proof(haul_endpoint *endpoint)
{
	bool connector = endpoint->role == WIRE_CONNECTOR;
	uint8_t message[HAUL_CONTROL_MAX], mac[WIRE_MAC_SIZE];

	if (auth_proof(endpoint->context->key, endpoint->role,
		       connector ? endpoint->hello_own : endpoint->hello_peer,
		       connector ? endpoint->hello_peer : endpoint->hello_own, mac)) {
		endpoint_doom(endpoint, -EIO, "the proof can't be computed");
		return;
	}
	endpoint_control(endpoint, message, wire_encode_proof(message, mac));
	endpoint->state = ENDPOINT_PROOF;
}

static void check_proof(haul_endpoint *endpoint, const uint8_t mac[WIRE_MAC_SIZE])
{
	bool connector = endpoint->role == WIRE_CONNECTOR;
	uint8_t expected[WIRE_MAC_SIZE];
	int error;

	error = auth_proof(endpoint->context->key, connector ? WIRE_ACCEPTOR : WIRE_CONNECTOR,
			   connector ? endpoint->hello_own : endpoint->hello_peer,
			   connector ? endpoint->hello_peer : endpoint->hello_own, expected);
	if (error || !auth_equal(mac, expected, sizeof(expected)))
		reject(endpoint, WIRE_REASON_AUTH, -EACCES,
		       "the peer has another key (auth=psk:FILE must name the same key on both "
		       "sides)");
	else
		open_endpoint(endpoint);
}

/* Features on one side only: whose fault it is, in words. */
static bool features_agree(haul_endpoint *endpoint, uint64_t theirs)
{
	uint64_t ours = own_features(endpoint->context);
	uint64_t differ = (ours ^ theirs) & MUST_AGREE;

	if (!differ)
		return true;
	if (differ & WIRE_FEATURE_AUTH)
		reject(endpoint, WIRE_REASON_AUTH_NEEDED, -EACCES,
		       ours & WIRE_FEATURE_AUTH ? "the peer has no key: it must set auth=psk:FILE"
						: "the peer asks for a key: set auth=psk:FILE");
	else if (differ & WIRE_FEATURE_CHECKSUM)
		reject(endpoint, WIRE_REASON_FEATURES, -EPROTO,
		       "checksum=crc32c is set on one side only: set it on both or none");
	else
		reject(endpoint, WIRE_REASON_FEATURES, -EPROTO,
		       "the peer needs a feature that this version doesn't have");
	return false;
}

static void check_hello(haul_endpoint *endpoint, const struct wire_hello *hello,
			const uint8_t *bytes)
{
	char why[128];

	if (hello->version != WIRE_VERSION) {
		snprintf(why, sizeof(why),
			 "the peer speaks version %u of the protocol, this side %d", hello->version,
			 WIRE_VERSION);
		reject(endpoint, WIRE_REASON_VERSION, -EPROTO, why);
		return;
	}
	if (hello->role == endpoint->role) {
		endpoint_lost(endpoint, -EPROTO, "the peer claims to be on this side");
		return;
	}
	if (!features_agree(endpoint, hello->features))
		return;
	memcpy(endpoint->hello_peer, bytes, WIRE_HELLO_SIZE);
	endpoint->peer_incarnation = hello->incarnation;
	endpoint->peer_features = hello->features;
	endpoint->slots_max = hello->slots;
	if (endpoint->context->key)
		send_proof(endpoint);
	else
		open_endpoint(endpoint);
}

static void rejected(haul_endpoint *endpoint, unsigned reason)
{
	switch (reason) {
	case WIRE_REASON_VERSION:
		endpoint_lost(endpoint, -EPROTO, "the peer speaks another version of the protocol");
		break;
	case WIRE_REASON_AUTH:
		endpoint_lost(endpoint, -EACCES,
			      "the peer has another key (auth=psk:FILE must name the same key on "
			      "both sides)");
		break;
	case WIRE_REASON_AUTH_NEEDED:
		endpoint_lost(endpoint, -EACCES, "auth=psk:FILE is set on one side only");
		break;
	case WIRE_REASON_FEATURES:
		endpoint_lost(endpoint, -EPROTO,
			      "the peer was opened with another checksum or feature");
		break;
	default:
		endpoint_lost(endpoint, -EPROTO, "the peer said no, without a reason");
		break;
	}
}

void handshake_message(haul_endpoint *endpoint, const struct wire_message *message,
		       const uint8_t *bytes, size_t length)
{
	if (message->type == WIRE_REJECT)
		rejected(endpoint, message->reason);
	else if (endpoint->state == ENDPOINT_HELLO && message->type == WIRE_HELLO)
		check_hello(endpoint, &message->hello, bytes);
	else if (endpoint->state == ENDPOINT_PROOF && message->type == WIRE_PROOF)
		check_proof(endpoint, message->mac);
	else
		endpoint_lost(endpoint, -EPROTO, "a message came before its turn in the handshake");
}
