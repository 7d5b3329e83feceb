package meta

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

func isPlain(msg *message.Message) bool {
	plain, _ := Glance(msg)
	return plain
}

func TestAMessageWithAKeyThatHasAMeaningIsNotPlain(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("keys.go")
	require.NoError(t, err)
	keys := []string{delay.DelayedForKey, delay.DelayedUntilKey}
	for _, found := range regexp.MustCompile(`(?m)^\t[A-Z]\w*Key += "(.*)"$`).FindAllStringSubmatch(string(text), -1) {
		keys = append(keys, found[1])
	}
	require.Len(t, keys, 12)
	for _, key := range keys {
		require.False(t, isPlain(delayMessage(message.Metadata{"other": "", key: ""})), key)
	}
	inContext := delayMessage(nil)
	inContext.SetContext(delay.WithContext(context.Background(), delay.For(time.Hour)))
	require.False(t, isPlain(inContext))

	require.True(t, isPlain(delayMessage(message.Metadata{"other": "", "Delay": "", "": ""})))
	require.True(t, isPlain(delayMessage(nil)))
}

func TestAPlainMessageCostsNoAllocation(t *testing.T) {
	metadata := message.Metadata{"name": "order.placed", "tenant": "7"}
	msg := delayMessage(metadata)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if spec := Take(metadata); !isPlain(msg) || spec.Limit != 0 {
			t.Error("it is not plain")
		}
	}))
}

// full has a value for every setting.
func full() message.Metadata {
	return message.Metadata{
		DelayKey: "1m", DelayIDKey: "order 1", DelayIDModeKey: Reject, DelayIDWindowKey: "1h",
		MaxDeliveriesKey: "3", BackoffKey: "30s",
		ExpiresAtKey: "2026-03-04T13:00:00Z", MaxLatenessKey: "5m", OnExpiryKey: Dead, "other": "kept",
	}
}

func TestReadReadsAll(t *testing.T) {
	t.Parallel()
	one := time.Date(2026, 3, 4, 13, 0, 0, 0, time.UTC)
	spec, err := Read(delayMessage(full()), delayNow)
	require.NoError(t, err)
	require.Equal(t, Spec{
		Due:     queue.In(time.Minute),
		Name:    Name{ID: "order 1", Mode: queue.Reject, Window: time.Hour},
		Expiry:  Expiry{At: one, Lateness: 5 * time.Minute, Dead: true},
		Backoff: Backoff{fixed, 30 * time.Second, 30 * time.Second},
		Limit:   3,
	}, spec)
	want := queue.Options{MaxDeliveries: 3, DelayID: "order 1", Mode: queue.Reject, Window: time.Hour}
	require.Equal(t, want, spec.Options(false))
	want.Expiry = queue.Expiry{At: one, Lateness: 5 * time.Minute, Dead: true}
	require.Equal(t, want, spec.Options(true))
}

// A delay counts from the publisher's clock. Instants are compared without a clock, so that a
// message in a store is always refused or never.
func TestDelayBeyondTheExpiryIsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		metadata message.Metadata
		refused  bool
	}{
		"a delay until the expiry":           {message.Metadata{DelayKey: "1h"}, true},
		"a longer delay":                     {message.Metadata{DelayKey: "2h"}, true},
		"a shorter delay":                    {message.Metadata{DelayKey: "59m59.999s"}, false},
		"an instant at the expiry":           {message.Metadata{DelayUntilKey: "2026-03-04T13:00:00.4Z"}, true},
		"an instant just before the expiry":  {message.Metadata{DelayUntilKey: "2026-03-04T13:00:00.399Z"}, false},
		"an instant after a past expiry":     {message.Metadata{DelayUntilKey: "2026-03-04T11:00:00Z", ExpiresAtKey: "2026-03-04T10:00:00Z"}, true},
		"an instant before a past expiry":    {message.Metadata{DelayUntilKey: "2026-03-04T10:00:00Z", ExpiresAtKey: "2026-03-04T11:00:00Z"}, false},
		"no delay and a past expiry":         {message.Metadata{ExpiresAtKey: "2026-03-04T10:00:00Z"}, false},
		"a delay of 0 and a past expiry":     {message.Metadata{DelayKey: "0s", ExpiresAtKey: "2026-03-04T10:00:00Z"}, false},
		"a message that never is too late":   {message.Metadata{DelayKey: "2h", OnExpiryKey: Deliver}, false},
		"a delay of Watermill":               {message.Metadata{delay.DelayedForKey: "2h", delay.DelayedUntilKey: "2026-03-04T14:00:00Z"}, true},
		"a delay beyond the lateness it may": {message.Metadata{DelayKey: "30m", MaxLatenessKey: "1m"}, false},
	} {
		metadata := message.Metadata{ExpiresAtKey: "2026-03-04T13:00:00.4Z", OnExpiryKey: Drop}
		for key, value := range c.metadata {
			metadata[key] = value
		}
		_, err := Read(delayMessage(metadata), delayNow)
		if !c.refused {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorIs(t, err, queue.ErrPastExpiry, name)
		require.ErrorIs(t, err, ErrInvalidMetadata, name)
		require.ErrorContains(t, err, `metadata expires_at is "`+metadata[ExpiresAtKey]+`": due at or after expires_at: the message is due at 2026-03-04T1`, name)
	}
	inContext := delayMessage(message.Metadata{ExpiresAtKey: "2026-03-04T13:00:00.4Z", OnExpiryKey: Dead})
	inContext.SetContext(delay.WithContext(context.Background(), delay.For(2*time.Hour)))
	_, err := Read(inContext, delayNow)
	require.ErrorIs(t, err, queue.ErrPastExpiry)
}

func TestReadNamesEachWrongValue(t *testing.T) {
	t.Parallel()
	for _, key := range []string{DelayKey, MaxDeliveriesKey, BackoffKey, DelayIDModeKey, DelayIDWindowKey, ExpiresAtKey, MaxLatenessKey, OnExpiryKey} {
		metadata := full()
		metadata[key] = "wrong"
		spec, err := Read(delayMessage(metadata), delayNow)
		require.Zero(t, spec)
		require.ErrorContains(t, err, `metadata `+key+` is "wrong": want `)
		if key == DelayKey {
			require.ErrorIs(t, err, ErrInvalidDelay)
		} else {
			require.ErrorIs(t, err, ErrInvalidMetadata)
		}
		metadata[DelayKey] = "wrong, too"
		_, err = Read(delayMessage(metadata), delayNow)
		require.ErrorContains(t, err, "metadata delay is")
		require.ErrorContains(t, err, "metadata "+key+" is")
	}
}

func TestTakeIgnoresAWrongValueAndRemovesWhatHandlersDoNotSee(t *testing.T) {
	t.Parallel()
	all := Spec{
		Name:    Name{ID: "order 1"},
		Expiry:  Expiry{At: time.Date(2026, 3, 4, 13, 0, 0, 0, time.UTC), Lateness: 5 * time.Minute, Dead: true},
		Backoff: Backoff{fixed, 30 * time.Second, 30 * time.Second},
		Limit:   3,
	}
	for key, without := range map[string]func(*Spec){
		"":               func(*Spec) {},
		MaxDeliveriesKey: func(s *Spec) { s.Limit = 0 },
		BackoffKey:       func(s *Spec) { s.Backoff = Backoff{} },
		ExpiresAtKey:     func(s *Spec) { s.Expiry = Expiry{} },
		MaxLatenessKey:   func(s *Spec) { s.Expiry = Expiry{} },
		OnExpiryKey:      func(s *Spec) { s.Expiry = Expiry{} },
	} {
		metadata, want := full(), all
		if key != "" {
			metadata[key] = "wrong"
		}
		without(&want)
		require.Equal(t, want, Take(metadata), key)
		for _, hidden := range []string{DelayIDKey, ExpiresAtKey, MaxLatenessKey, OnExpiryKey} {
			require.NotContains(t, metadata, hidden)
		}
		for _, seen := range []string{MaxDeliveriesKey, BackoffKey, "other"} {
			require.Contains(t, metadata, seen)
		}
	}
}

func TestExpiryIsTheEarlierOfTwo(t *testing.T) {
	t.Parallel()
	due, at := delayNow, delayNow.Add(time.Minute)
	require.Zero(t, Expiry{}.From(due))
	require.Equal(t, at, Expiry{At: at}.From(due))
	require.Equal(t, due.Add(time.Second), Expiry{Lateness: time.Second}.From(due))
	require.Equal(t, due.Add(time.Second), Expiry{At: at, Lateness: time.Second}.From(due))
	require.Equal(t, at, Expiry{At: at, Lateness: time.Hour}.From(due))
}

func TestDelayedForIsTheDurationOfWatermillsPair(t *testing.T) {
	t.Parallel()
	const until = "2026-03-04T12:00:00Z"
	for want, metadata := range map[string]message.Metadata{
		"1m0s": {delay.DelayedForKey: "60s", delay.DelayedUntilKey: until},
		"":     {delay.DelayedForKey: "soon", delay.DelayedUntilKey: until},
	} {
		require.Equal(t, want, DelayedFor(metadata))
	}
	require.Empty(t, DelayedFor(message.Metadata{delay.DelayedForKey: "60s"}), "it is left from an earlier retry")
	require.Empty(t, DelayedFor(nil))
}

func TestBackoffOfAMessage(t *testing.T) {
	t.Parallel()
	none, err := ReadBackoff(nil)
	require.NoError(t, err)
	require.False(t, none.IsSet())
	for value, atLeast := range map[string][2]time.Duration{ // the first and the third wait
		"30s":     {30 * time.Second, 30 * time.Second},
		"0s":      {0, 0},
		"0s..1m":  {0, 0},
		"1s..10m": {800 * time.Millisecond, 3200 * time.Millisecond},
		"1s..2s":  {800 * time.Millisecond, 1600 * time.Millisecond},
	} {
		b, err := ReadBackoff(message.Metadata{BackoffKey: value})
		require.NoError(t, err)
		require.True(t, b.IsSet())
		for i, delivery := range []int{1, 3} {
			require.GreaterOrEqual(t, b.Wait(delivery), atLeast[i], value)
			require.LessOrEqual(t, b.Wait(delivery), atLeast[i]*3/2, value)
		}
	}
}

func TestAWrongBackoffIsRefused(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"", "-1s", "1m..1s", "1s..", "..1s", "900000h", "1s..900000h", "1s..2s..3s", "soon"} {
		b, err := ReadBackoff(message.Metadata{BackoffKey: value})
		require.ErrorIs(t, err, ErrInvalidMetadata, value)
		require.False(t, b.IsSet())
	}
}

func TestKeysInAnotherCaseAreRecognized(t *testing.T) {
	known := []string{
		DelayKey, DelayUntilKey, DelayIDKey, DelayIDModeKey, DelayIDWindowKey, MaxDeliveriesKey, BackoffKey,
		ExpiresAtKey, MaxLatenessKey, OnExpiryKey, delay.DelayedForKey, delay.DelayedUntilKey,
	}
	for _, key := range known {
		isPlain, miscased := Glance(delayMessage(message.Metadata{key: "", "name": ""}))
		require.False(t, isPlain)
		require.False(t, miscased)
		require.Empty(t, Meant(key))
		for _, other := range []string{strings.ToUpper(key), strings.ToUpper(key[:2]) + key[2:], key[:4] + strings.ToUpper(key[4:])} {
			require.Equal(t, key, Meant(other))
			isPlain, miscased := Glance(delayMessage(message.Metadata{other: "", "name": ""}))
			require.True(t, isPlain)
			require.True(t, miscased)
			isPlain, miscased = Glance(delayMessage(message.Metadata{other: "", key: ""}))
			require.False(t, isPlain)
			require.True(t, miscased)
		}
	}
	for _, other := range []string{"", "name", "delayed", "Relay", "correlation_id", "DELAY-ID", strings.Repeat("x", 100)} {
		require.Empty(t, Meant(other), other)
	}
}
