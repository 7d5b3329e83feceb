package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/relay"
)

// sender is a Publisher that sends each message as a request.
type sender struct {
	url string
	key []byte
}

func newKey() []byte {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	return key
}

// errRefused means that the receiver will never take the message.
var errRefused = errors.New("the receiver refuses it")

func refusedForGood(err error) bool { return errors.Is(err, errRefused) }

// Publish sends the messages.
func (s *sender) Publish(_ string, messages ...*message.Message) error {
	for _, msg := range messages {
		// The ID is the same each time, so that the receiver knows a message that comes again.
		if err := s.send(msg.Context(), msg.Metadata.Get(relay.IDKey), msg.Payload); err != nil {
			return err
		}
	}
	return nil
}

// Close does nothing.
func (s *sender) Close() error { return nil }

var client = &http.Client{
	Timeout:       5 * time.Second,
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

func (s *sender) send(ctx context.Context, id string, payload []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, bytes.NewReader(payload))
	if err != nil {
		return err
	}
	at := strconv.FormatInt(time.Now().Unix(), 10)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("webhook-id", id)
	request.Header.Set("webhook-timestamp", at)
	request.Header.Set("webhook-signature", sign(s.key, id, at, payload))
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	seconds, _ := strconv.Atoi(answer.Header.Get("Retry-After"))
	switch {
	case answer.StatusCode/100 == 2:
		return nil
	case answer.StatusCode == http.StatusGone:
		return fmt.Errorf("%w: %s", errRefused, answer.Status)
	case seconds > 0:
		// The message waits that long, which does not count as a failure.
		return &redisdelay.PostponeError{Delay: time.Duration(seconds) * time.Second, Err: errors.New(answer.Status)}
	}
	return errors.New(answer.Status)
}

// sign returns the signature of Standard Webhooks.
func sign(key []byte, id, at string, payload []byte) string {
	mac := hmac.New(sha256.New, key)
	_, _ = fmt.Fprintf(mac, "%s.%s.%s", id, at, payload)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// forge sends a reminder with another key.
func forge(ctx context.Context, url string) error {
	forger := &sender{url: url, key: newKey()}
	if err := forger.send(ctx, "forged", []byte(`{"reminder":0}`)); err == nil {
		return errors.New("a forged request was taken")
	}
	return nil
}
