package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"code.dny.dev/ssrf"
	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/relay"
)

// httpPublisher sends each message as a request. Publish returns nil when the server has answered
// with a status from 200 to 299.
//
// The Publisher of watermill-http is not used. Its errors do not tell the status, nor how long the
// server wants to be left alone. It takes a redirect that was not followed for success. It reads
// the answer without a limit.
type httpPublisher struct {
	target      *url.URL // with topicMark for the topic
	method      string
	contentType string
	user        credentials
	keys        [][]byte
	timeout     time.Duration
	client      *http.Client
}

// topicMark stands for the topic in httpPublisher.target. It is unchanged by encoding.
const topicMark = "REDISDELAY-TOPIC"

const (
	longestRetryAfter = 24 * time.Hour
	mostRedirects     = 3
	excerptBytes      = 200      // of an answer, for errors
	answerBytes       = 64 << 10 // of an answer's headers, and of its body; more closes the connection
	answerTime        = time.Second

	// A connection of HTTP/2 gets a ping when nothing has come on it, and is closed without an
	// answer to that. Together this is less than the default time limit of a request.
	pingAfter   = 5 * time.Second
	pingTimeout = 5 * time.Second
)

// newHTTPClient returns a client that connects to no address that the guardian refuses. It ignores
// proxies of the environment, because it could not check the addresses behind a proxy.
func newHTTPClient(guardian *ssrf.Guardian, config *tls.Config) *http.Client {
	dialer := &net.Dialer{Timeout: connectTimeout, Control: guardian.Safe} // Control gets each address after DNS
	return &http.Client{
		Transport: &http.Transport{
			DialContext:            dialer.DialContext,
			TLSClientConfig:        config,
			TLSHandshakeTimeout:    connectTimeout, // a handshake goes on after the end of the request that began it
			HTTP2:                  &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
			ForceAttemptHTTP2:      true,
			DisableCompression:     true,
			MaxIdleConnsPerHost:    100,
			IdleConnTimeout:        90 * time.Second,
			MaxResponseHeaderBytes: answerBytes,
		},
		CheckRedirect: checkRedirect,
	}
}

// checkRedirect follows a redirect only if the same request goes to the same server. Others are the
// answer.
func checkRedirect(next *http.Request, before []*http.Request) error {
	first := before[0]
	if next.Method != first.Method || next.URL.Scheme != first.URL.Scheme || next.URL.Host != first.URL.Host || len(before) > mostRedirects {
		return http.ErrUseLastResponse
	}
	return nil
}

// Publish sends the messages one after the other, up to the first that fails.
func (p *httpPublisher) Publish(topic string, messages ...*message.Message) error {
	for _, msg := range messages {
		if err := p.send(topic, msg); err != nil {
			return err
		}
	}
	return nil
}

// Close closes idle connections.
func (p *httpPublisher) Close() error {
	p.client.CloseIdleConnections()
	return nil
}

// errHTTPRefused means that the server will never take the message.
var errHTTPRefused = errors.New("the endpoint refuses the message")

// refusedByHTTP returns whether the error is about the message itself, so that a retry cannot help.
func refusedByHTTP(err error) bool {
	return errors.Is(err, errUnsendable) || errors.Is(err, errHTTPRefused)
}

// permanentStatuses are the statuses that make a message dead.
var permanentStatuses = []int{
	http.StatusBadRequest, http.StatusGone, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity,
}

func (p *httpPublisher) send(topic string, msg *message.Message) error {
	ctx, cancel := context.WithTimeout(msg.Context(), p.timeout)
	defer cancel()
	request, err := p.request(ctx, topic, msg)
	if err != nil {
		return err
	}
	answer, err := p.client.Do(request)
	if err != nil {
		return p.unanswered(msg.Context(), err)
	}
	defer answer.Body.Close()
	defer time.AfterFunc(answerTime, cancel).Stop()                 // an answer that does not end must not hold up the next message
	body, _ := io.ReadAll(io.LimitReader(answer.Body, answerBytes)) // a connection whose answer was read to its end is used again
	if answer.StatusCode/100 == 2 {
		return nil
	}
	excerpt := body[:min(len(body), excerptBytes)]
	if p.user != (credentials{}) || echoes(string(body), request) { // an endpoint could answer with the password that it got
		excerpt = nil
	}
	return p.refused(answer, excerpt)
}

// echoes returns whether an answer has something of the request that may be secret: its path, a
// long step of that, a value of the query, or metadata that log in.
func echoes(answer string, request *http.Request) bool {
	var secrets []string
	for _, path := range []string{request.URL.EscapedPath(), request.URL.Path} {
		secrets = append(secrets, strings.Trim(path, "/"))
		for step := range strings.SplitSeq(path, "/") {
			if len(step) >= secretStep {
				secrets = append(secrets, step)
			}
		}
	}
	for pair := range strings.SplitSeq(request.URL.RawQuery, "&") {
		_, value, _ := strings.Cut(pair, "=")
		plain, _ := url.QueryUnescape(value)
		secrets = append(secrets, value, plain)
	}
	login := request.Header.Get("Authorization")
	_, token, _ := strings.Cut(login, " ")
	secrets = append(secrets, login, token, request.Header.Get("Cookie"))
	for _, cookie := range request.Cookies() {
		secrets = append(secrets, cookie.Value)
	}
	return slices.ContainsFunc(secrets, func(secret string) bool { return secret != "" && strings.Contains(answer, secret) })
}

// secretStep is the length from which on a step of a path may be a secret of its own.
const secretStep = 16

// unanswered returns the error of a request without an answer. The client's own error has the URL,
// which may contain a secret.
func (p *httpPublisher) unanswered(ctx context.Context, err error) error {
	var whole *url.Error
	if errors.As(err, &whole) {
		if whole.Timeout() && ctx.Err() == nil {
			return fmt.Errorf("%s does not answer within %v: %w", p.target.Host, p.timeout, whole.Err)
		}
		err = whole.Err
	}
	if errors.Is(err, ssrf.ErrProhibitedIP) {
		return fmt.Errorf("%s is not at a public address, and --http-allow-private does not allow it: %w", p.target.Host, err)
	}
	return fmt.Errorf("%s: %w", p.target.Host, err)
}

// refused returns the error for a status that is no success.
func (p *httpPublisher) refused(answer *http.Response, excerpt []byte) error {
	err := fmt.Errorf("%s answers %d %s", p.target.Host, answer.StatusCode, http.StatusText(answer.StatusCode))
	if to, locationErr := answer.Location(); locationErr == nil {
		err = fmt.Errorf("%w, a redirect to %s that is not followed", err, to.Host)
	}
	if len(excerpt) > 0 {
		err = fmt.Errorf("%w: %q", err, excerpt)
	}
	if slices.Contains(permanentStatuses, answer.StatusCode) {
		return fmt.Errorf("%w: %w", errHTTPRefused, err)
	}
	if wait := retryAfter(answer.Header, time.Now()); wait > 0 {
		return &redisdelay.PostponeError{Delay: wait, Err: err}
	}
	return err
}

// retryAfter returns how long the server wants to be left alone, at most longestRetryAfter, and 0
// if it does not say. It compares a date with the server's own clock, if the answer has that.
func retryAfter(header http.Header, now time.Time) time.Duration {
	text := header.Get("Retry-After")
	seconds, err := strconv.ParseUint(text, 10, 64)
	if err == nil || errors.Is(err, strconv.ErrRange) {
		return time.Duration(min(seconds, uint64(longestRetryAfter/time.Second))) * time.Second
	}
	until, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	if date, err := http.ParseTime(header.Get("Date")); err == nil {
		now = date
	}
	return min(max(0, until.Sub(now)), longestRetryAfter)
}

// request returns the request for a message.
func (p *httpPublisher) request(ctx context.Context, topic string, msg *message.Message) (*http.Request, error) {
	target, err := p.urlOf(topic)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, p.method, target, bytes.NewReader(msg.Payload))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnsendable, err)
	}
	request.Header.Set("Content-Type", p.contentType)
	request.Header.Set("User-Agent", "redisdelay/"+version())
	if p.user != (credentials{}) {
		request.SetBasicAuth(p.user.user, p.user.password)
	}
	if err := p.setHeaders(request.Header, msg); err != nil {
		return nil, err
	}
	p.sign(request.Header, msg, time.Now())
	return request, nil
}

// urlOf returns the URL for a topic. It refuses a topic that leads out of the path.
func (p *httpPublisher) urlOf(topic string) (string, error) {
	u := *p.target
	u.RawPath = strings.ReplaceAll(u.EscapedPath(), topicMark, url.PathEscape(topic))
	u.Path, _ = url.PathUnescape(u.RawPath)
	if strings.Contains(p.target.Path, topicMark) && hasDots(u.Path) {
		return "", fmt.Errorf("%w: with topic %.64q a step of the URL's path would be . or .., which servers resolve", errUnsendable, topic)
	}
	u.RawQuery = strings.ReplaceAll(u.RawQuery, topicMark, url.QueryEscape(topic))
	return u.String(), nil
}

// hasDots returns whether a path has a step . or .., also for a server that takes a backslash for a
// slash. The path is decoded, because some servers decode %2F first.
func hasDots(path string) bool {
	return slices.ContainsFunc(strings.FieldsFunc(path, func(r rune) bool { return r == '/' || r == '\\' }), func(step string) bool {
		return step == "." || step == ".."
	})
}

// setHeaders sets the metadata, each as a header of its name, and the UUID as watermill-http does.
func (p *httpPublisher) setHeaders(header http.Header, msg *message.Message) error {
	own := map[string]string{} // metadata keys by header
	for key, value := range msg.Metadata {
		name := http.CanonicalHeaderKey(key)
		switch {
		case key == relay.IDKey: // it is webhook-id
			continue
		case key == "_watermill_message_uuid":
			return errUUIDKey
		case !headerName.MatchString(key):
			return fmt.Errorf("%w: metadata key %.50q is not a valid HTTP header", errUnsendable, key)
		case own[name] != "":
			return fmt.Errorf("%w: its metadata has the keys %.50q and %.50q, which are one HTTP header", errUnsendable, min(own[name], key), max(own[name], key))
		case reservedHeader(name), name == "Authorization" && p.user != (credentials{}):
			return fmt.Errorf("%w: metadata key %.50q is a header that the request has itself", errUnsendable, key)
		case !isHeaderValue(value):
			return fmt.Errorf("%w: the value of metadata key %.50q has a line break or another control character", errUnsendable, key)
		}
		own[name] = key
		header.Set(name, value)
	}
	if !isHeaderValue(msg.UUID) {
		return fmt.Errorf("%w: its UUID has a line break or another control character", errUnsendable)
	}
	header.Set("Message-Uuid", msg.UUID)
	return nil
}

// reservedHeader returns whether metadata cannot set the header, because that would change where a
// request ends, who gets it, or whose signature it has.
func reservedHeader(name string) bool {
	return strings.HasPrefix(name, "Webhook-") || strings.HasPrefix(name, "Proxy-") || slices.Contains([]string{
		"Connection", "Content-Length", "Expect", "Host", "Keep-Alive", "Message-Uuid", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
	}, name)
}

func isHeaderValue(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}

// sign sets the headers of Standard Webhooks. The ID is the same at each try, the time is not.
func (p *httpPublisher) sign(header http.Header, msg *message.Message, now time.Time) {
	id, at := msg.Metadata.Get(relay.IDKey), strconv.FormatInt(now.Unix(), 10)
	header.Set("Webhook-Id", id)
	header.Set("Webhook-Timestamp", at)
	var signatures []string
	for _, key := range p.keys {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + at + "."))
		mac.Write(msg.Payload)
		signatures = append(signatures, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	if len(signatures) > 0 {
		header.Set("Webhook-Signature", strings.Join(signatures, " "))
	}
}
