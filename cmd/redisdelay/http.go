package main

import (
	"context"
	"encoding/base64"
	"errors"
	"log/slog"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"code.dny.dev/ssrf"
)

// httpKind is a destination at a web server: each message is a request, signed as Standard Webhooks
// says.
type httpKind struct {
	settings    *settings
	url         *string
	method      *choice
	contentType *string
	secret      *secret
	username    *string
	password    *secret
	timeout     *time.Duration
	allowed     *list
	tls         *tlsSettings
}

func declareHTTP(s *settings) destinationKind {
	return &httpKind{
		settings:    s,
		url:         s.text("http", "", "for --to http: the `https://` URL that gets the messages; `{topic}` in its path or query is the topic"),
		method:      s.choice("http-method", "POST", "`POST`, `PUT` or `PATCH`", "POST", "PUT", "PATCH"),
		contentType: s.text("http-content-type", "application/json", "the header `Content-Type`, for messages without metadata of that name"),
		secret: s.secret("http-secret", "the keys that sign, one a line, each `whsec_` and base64 of 24 to 64 random bytes; "+
			"each request has a signature by each key"),
		username: s.text("http-username", "", "user for basic authentication"),
		password: s.secret("http-password", "the password"),
		timeout:  s.duration("http-timeout", 15*time.Second, "how long a request may take, from connecting to the answer"),
		allowed: s.list("http-allow-private", "addresses such as `10.1.2.3` or `10.0.0.0/8` that may be called although they are not public, "+
			"separated by commas or given several times"),
		tls: declareTLS(s, "http", "; or use `https://`"),
	}
}

func (k *httpKind) open(int, *slog.Logger) (*destination, error) {
	publisher, err := k.publisher()
	if err != nil {
		return nil, err
	}
	warning := ""
	if len(publisher.keys) == 0 {
		warning = "Requests are not signed, so the receiver cannot tell who sent them: --http-secret-file"
	}
	return &destination{
		Publisher: publisher,
		permanent: refusedByHTTP,
		check:     func(context.Context) error { return nil }, // others may take messages while one endpoint is down
		single:    true,
		warning:   warning,
	}, nil
}

func (k *httpKind) publisher() (*httpPublisher, error) {
	if *k.url == "" {
		return nil, refuse("--http is missing: https://host/path, which may have {topic} in it")
	}
	u, user, err := readURL(k.settings, "http", strings.ReplaceAll(*k.url, "{topic}", topicMark), "http", "https")
	if err != nil {
		return nil, err
	}
	if strings.Contains(u.Host, topicMark) {
		return nil, refuse("--http has {topic} in its host; it may be in the path and in the query, because whoever names a topic must not choose the host")
	}
	if strings.Contains(u.Path, topicMark) && hasDots(strings.ReplaceAll(u.Path, topicMark, "topic")) {
		return nil, refuse("--http has a step . or .. in its path; write the path without them")
	}
	tlsConfig, err := k.tls.config(u.Scheme == "https")
	if err != nil {
		return nil, err
	}
	if tlsConfig != nil {
		u.Scheme = "https"
	}
	keys, err := readKeys(k.secret.value)
	if err != nil {
		return nil, refuse("--http-secret-file, %s: %w", variable("http-secret"), err)
	}
	if *k.timeout <= 0 {
		return nil, refuse("--http-timeout is %v; it must be positive", *k.timeout)
	}
	guardian, err := k.guardian(u)
	if err != nil {
		return nil, err
	}
	return &httpPublisher{
		target:      u,
		method:      k.method.value,
		contentType: *k.contentType,
		user:        user.or(*k.username, k.password.value),
		keys:        keys,
		timeout:     *k.timeout,
		client:      newHTTPClient(guardian, tlsConfig),
	}, nil
}

// guardian returns the check of addresses. It refuses a URL whose host is an address that may not
// be called. Names are looked up, and checked, at each connection.
func (k *httpKind) guardian(u *url.URL) (*ssrf.Guardian, error) {
	var v4, v6 []netip.Prefix
	for _, text := range *k.allowed {
		prefix, err := netip.ParsePrefix(text)
		if address, addressErr := netip.ParseAddr(text); addressErr == nil {
			prefix, err = netip.PrefixFrom(address, address.BitLen()), nil
		}
		switch {
		case err != nil:
			return nil, refuse("--http-allow-private has %q; it must be an address such as 10.1.2.3, or a range such as 10.0.0.0/8", text)
		case prefix.Addr().Is4():
			v4 = append(v4, prefix)
		default:
			v6 = append(v6, prefix)
		}
	}
	guardian := ssrf.New(ssrf.WithAnyPort(), ssrf.WithAllowedV4Prefixes(v4...), ssrf.WithAllowedV6Prefixes(v6...))
	if address, err := netip.ParseAddr(u.Hostname()); err == nil && guardian.SafeAddr(address.Unmap()) != nil {
		return nil, refuse("--http: %s is not a public address; if messages may go there, set --http-allow-private %[1]s", address)
	}
	return guardian, nil
}

// The length of a key that signs, as Standard Webhooks wants it.
const minKey, maxKey = 24, 64

// readKeys reads the keys that sign. Errors do not contain them.
func readKeys(text string) (keys [][]byte, err error) {
	for _, word := range strings.Fields(text) {
		encoded, ok := strings.CutPrefix(word, "whsec_")
		if !ok {
			return nil, errors.New("a key does not begin with whsec_")
		}
		key, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			return nil, errors.New("a key is not base64 after whsec_")
		}
		if len(key) < minKey || len(key) > maxKey {
			return nil, errors.New("a key must have 24 to 64 bytes; this makes one: echo whsec_$(head -c 32 /dev/urandom | base64)")
		}
		keys = append(keys, key)
	}
	return keys, nil
}
