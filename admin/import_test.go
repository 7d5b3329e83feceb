package admin_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
	"github.com/redisdelay/watermill-redisdelay/partition"
)

// exported makes dead letters of group a, and returns them as they are exported.
func (s *setup) exported(t *testing.T, all ...*message.Message) []byte {
	t.Helper()
	s.register(t, "a")
	s.buryThese(t, all...)
	var text bytes.Buffer
	for _, m := range s.list(t, "a", admin.Dead) {
		line, err := json.Marshal(m.Letter(topic, "a"))
		require.NoError(t, err)
		text.Write(append(line, '\n'))
	}
	return text.Bytes()
}

func odd(payload string) *message.Message {
	msg := text(payload + "\xff")
	msg.Metadata.Set("kind", "gift")
	return msg
}

func TestDeadLettersAreImported(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		file := s.exported(t, odd("1"), odd("2"), odd("3"))
		letters := admin.ReadLetters(append([]byte("\n"), file...))
		_, err := s.admin.PurgeDead(ctx, topic, admin.Bulk{Group: "a"})
		require.NoError(t, err)
		would, err := s.admin.ImportDead(ctx, topic, letters, admin.Import{DryRun: true})
		require.NoError(t, err)
		require.Equal(t, admin.Imported{Letters: 3, From: []string{"a"}}, would)
		require.Zero(t, s.stats(t).Messages)

		var seen []admin.Progress
		done, err := s.admin.ImportDead(ctx, topic, letters, admin.Import{Progress: func(p admin.Progress) { seen = append(seen, p) }})
		require.NoError(t, err)
		require.Equal(t, would, done)
		require.Equal(t, []admin.Progress{{Looked: 3, Done: 3}}, seen)
		messages := s.subscribe(t, "a")
		for _, want := range []string{"1\xff", "2\xff", "3\xff"} {
			msg := receive(t, messages)
			require.Equal(t, want, string(msg.Payload))
			require.Equal(t, "uuid of "+want, msg.UUID)
			require.Equal(t, "gift", msg.Metadata["kind"])
			msg.Ack()
		}
		done, err = s.admin.ImportDead(ctx, topic, letters, admin.Import{})
		require.NoError(t, err)
		require.Equal(t, admin.Imported{LeftOut: 3, From: []string{"a"}}, done)
	})
}

func TestAnImportAsksForConsentOfOtherGroups(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		letters := admin.ReadLetters(s.exported(t, text("x")))
		s.register(t, "b", "c")
		would, err := s.admin.ImportDead(ctx, topic, letters, admin.Import{DryRun: true})
		require.NoError(t, err)
		require.Equal(t, admin.Imported{Letters: 1, From: []string{"a"}, Others: []string{"b", "c"}}, would)
		before := s.stats(t).Counters.Published
		_, err = s.admin.ImportDead(ctx, topic, letters, admin.Import{})
		require.ErrorIs(t, err, admin.ErrInvalidArgument)
		require.ErrorContains(t, err, `groups "b", "c" did not export them`)
		require.Equal(t, before, s.stats(t).Counters.Published)
		_, err = s.admin.ImportDead(ctx, topic, letters, admin.Import{EveryGroup: true})
		require.NoError(t, err)
		require.Equal(t, "x", string(receive(t, s.subscribe(t, "c")).Payload))
	})
}

// With an error in the file nothing is published, also if it is at the end.
func TestAFileOfOtherThingsIsNotImported(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		file := s.exported(t, text("x"))
		before := s.stats(t).Counters.Published
		for _, wrong := range []string{"x", "{}", `{"id":"1"}`, `{"uuid":"1"}`, `{"id":1,"uuid":"2"}`, "\x00",
			`{"id":"1","group":"a","uuid":"u","state":"waiting","due":"2026-12-01T00:00:00.000Z"}`, `{"id":"1","uuid":"u","died_at":"2026-11-01T00:00:00.000Z"}`} {
			_, err := s.admin.ImportDead(ctx, topic, admin.ReadLetters(slices.Concat(file, []byte("\n\n"+wrong))), admin.Import{})
			require.ErrorIs(t, err, admin.ErrInvalidArgument, wrong)
			require.ErrorContains(t, err, "line 4 is not an exported dead letter", wrong)
		}
		_, err := s.admin.ImportDead(ctx, "other", admin.ReadLetters(file), admin.Import{})
		require.ErrorIs(t, err, admin.ErrNotFound)
		stopped := errors.New("stopped")
		var breaks iter.Seq2[admin.Letter, error] = func(yield func(admin.Letter, error) bool) { yield(admin.Letter{}, stopped) }
		_, err = s.admin.ImportDead(ctx, topic, breaks, admin.Import{})
		require.ErrorIs(t, err, stopped)
		require.Equal(t, before, s.stats(t).Counters.Published)
	})
}

func TestDeadLettersAreImportedIntoAPartitionedTopic(t *testing.T) {
	testkit.Both(t, func(t *testing.T, server redistest.Server) {
		s := setupOn(t, server)
		file := s.exported(t, text("x"), text("y"))
		_, err := s.admin.SetPartitions(ctx, "whole", 3)
		require.NoError(t, err)
		sub, err := partition.NewSubscriber(partition.SubscriberConfig{Subscriber: redisdelay.SubscriberConfig{Client: s.Client, KeyPrefix: s.Prefix, ConsumerGroup: "a", CloseTimeout: time.Second}}, nil)
		require.NoError(t, err)
		defer sub.Close()
		messages, err := sub.Subscribe(ctx, "whole")
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			stats, err := s.admin.Stats(ctx, "whole")
			return err == nil && len(stats.Partitions) == 3 && len(stats.Groups) == 1
		}, soon, time.Millisecond)
		done, err := s.admin.ImportDead(ctx, "whole", admin.ReadLetters(file), admin.Import{})
		require.NoError(t, err)
		require.Equal(t, 2, done.Letters)
		for range 2 {
			receive(t, messages).Ack()
		}
	})
}

// Large letters are imported whatever the limits, and those of groups with long names.
func TestLargeLettersAndLongNamesAreImported(t *testing.T) {
	t.Parallel()
	s := setupOn(t, redistest.Server{Client: redistest.Start(t).Client(t), Prefix: "own"})
	s.register(t, "a")
	long := strings.Repeat("g", 512)
	letters := func(yield func(admin.Letter, error) bool) {
		for i := range 60 {
			if !yield(admin.Letter{ID: fmt.Sprint(i), Group: long, UUID: fmt.Sprint(i), Payload: make([]byte, 1<<20)}, nil) {
				return
			}
		}
		yield(admin.Letter{ID: "large", Group: long, UUID: "large", Payload: make([]byte, 9<<20)}, nil)
	}
	calls := 0
	done, err := s.admin.ImportDead(ctx, topic, letters, admin.Import{EveryGroup: true, Progress: func(admin.Progress) { calls++ }})
	require.NoError(t, err)
	require.Equal(t, 61, done.Letters)
	require.GreaterOrEqual(t, calls, 15)
	done, err = s.admin.ImportDead(ctx, topic, letters, admin.Import{EveryGroup: true})
	require.NoError(t, err)
	require.Equal(t, 61, done.LeftOut)
}

// A letter that Publish would refuse is found before any is published.
func TestALetterThatCannotBePublishedIsNamed(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		file := s.exported(t, text("x"))
		before := s.stats(t).Counters.Published
		wrong := `{"id":"4711","group":"a","uuid":"u","died_at":"2026-11-01T00:00:00.000Z","metadata":{"expires_at":"soon"}}`
		_, err := s.admin.ImportDead(ctx, topic, admin.ReadLetters(slices.Concat([]byte("\ufeff"), file, []byte(wrong))), admin.Import{})
		require.ErrorIs(t, err, admin.ErrInvalidArgument)
		require.ErrorIs(t, err, redisdelay.ErrInvalidMetadata)
		require.ErrorContains(t, err, `dead letter "4711"`)
		require.Equal(t, before, s.stats(t).Counters.Published)
	})
}
