package admin_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
	"github.com/redisdelay/watermill-redisdelay/partition"
)

// places returns all messages of a topic that wait, retry or are dead, with all that is known.
func (s *setup) places(t *testing.T, topic string, groups ...string) (all []string) {
	t.Helper()
	for _, state := range []admin.State{admin.Waiting, admin.Retrying, admin.Dead} {
		of := groups
		if state == admin.Waiting {
			of = []string{""}
		}
		for _, group := range of {
			page, err := s.admin.List(ctx, topic, admin.Query{State: state, Group: group, Limit: 1000})
			require.NoError(t, err)
			for _, m := range page.Messages {
				all = append(all, fmt.Sprintf("%s %s %s %q %v %+v", state, m.ID, m.DelayID, m.Payload, m.ExpiresAt, m.Places))
			}
		}
	}
	return all
}

func TestARenamedTopicMovesWithAllThatItHas(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		expiring := delayed("expiring", 2*time.Hour)
		redisdelay.ExpireAfter(expiring, time.Minute, redisdelay.ExpiryDrop)
		s.inEachState(t, s.publisher(t), topic, topic)
		require.NoError(t, s.publisher(t).Publish(topic, expiring, delayed("soon", 10*time.Second)))
		before := s.places(t, topic, "a")
		require.Len(t, before, 5)
		_, err := s.admin.Move(ctx, topic, admin.Moving{To: "renamed"})
		require.ErrorIs(t, err, admin.ErrNotFound)
		require.ErrorContains(t, err, `topic "renamed"`)

		dry, err := s.admin.Move(ctx, topic, admin.Moving{To: "renamed", Create: true, DryRun: true})
		require.NoError(t, err)
		moved, err := s.admin.Move(ctx, topic, admin.Moving{To: "renamed", Create: true})
		require.NoError(t, err)
		require.Equal(t, dry, moved)
		// Group b has those that a has as retrying and dead ready, so they stay.
		require.Equal(t, admin.Moved{To: "renamed", Messages: 3, Created: []string{"a", "b"}, NewTopic: true,
			Stay: []admin.Stay{{Reason: admin.StayInUse, Messages: 2}}, Ready: 5, InHand: 1}, moved)
		require.Equal(t, before[:3], s.places(t, "renamed", "a", "b"))
		require.Equal(t, before[3:], s.places(t, topic, "a"))
		require.Len(t, moved.Explain(), 2)

		old := testkit.SubscribeTo(t, s.subscriber(t, "b"), topic)
		for range 4 {
			receive(t, old).Ack()
		}
		eventually(t, func() bool { return s.group(t, "b").InHand == 0 }, "group b is done")
		moved, err = s.admin.Move(ctx, topic, admin.Moving{To: "renamed"})
		require.NoError(t, err)
		require.Equal(t, 2, moved.Messages)
		require.Equal(t, before, s.places(t, "renamed", "a"))
	})
}

func TestAMoveByAFilterMovesThoseOnly(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.register(t, "a")
		gift := func(name string) *message.Message {
			msg := delayed(name, time.Hour)
			msg.Metadata["kind"] = "gift"
			return msg
		}
		require.NoError(t, s.publisher(t).Publish(topic, gift("1"), delayed("2", time.Hour), gift("3")))
		require.NoError(t, s.publisher(t).Publish("other", delayed("there", time.Hour))) // it has no group
		var seen admin.Progress
		filter := admin.Filter{Metadata: map[string]string{"kind": "gift"}}
		moved, err := s.admin.Move(ctx, topic, admin.Moving{To: "other", Filter: filter, Progress: func(p admin.Progress) { seen = p }})
		require.NoError(t, err)
		require.Equal(t, 2, moved.Messages)
		require.Equal(t, admin.Progress{Looked: 3, Done: 2}, seen)
		require.Len(t, s.places(t, "other"), 3)
		require.Len(t, s.places(t, topic), 1)
		moved, err = s.admin.Move(ctx, topic, admin.Moving{To: "other", States: []admin.State{admin.Retrying, admin.Dead}})
		require.NoError(t, err)
		require.Zero(t, moved.Messages)
	})
}

func TestAMoveNamesWhatTheOtherTopicLacks(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.bury(t, 3)
		s.register(t, "audit")
		require.NoError(t, s.publisher(t).Publish("other", text("x")))
		_, err := s.admin.Move(ctx, topic, admin.Moving{To: "other"})
		require.ErrorIs(t, err, admin.ErrNotFound)
		require.ErrorContains(t, err, `topic "other" lacks group "a", "audit"`)
		_, err = s.admin.Move(ctx, topic, admin.Moving{To: "other", States: []admin.State{admin.Waiting, admin.Retrying, admin.Dead}})
		require.ErrorContains(t, err, `topic "other" lacks group "a", "audit"`, "as without States")
		dead := []admin.State{admin.Dead}
		_, err = s.admin.Move(ctx, topic, admin.Moving{To: "other", States: dead})
		require.ErrorContains(t, err, `topic "other" lacks group "a":`, "audit has no dead letters")
		moved, err := s.admin.Move(ctx, topic, admin.Moving{To: "other", States: dead, Filter: admin.Filter{Reason: "no such reason"}})
		require.NoError(t, err)
		require.Zero(t, moved.Messages)
		moved, err = s.admin.Move(ctx, topic, admin.Moving{To: "other", States: dead, Create: true})
		require.NoError(t, err)
		require.Equal(t, 3, moved.Messages)
		require.Equal(t, []string{"a"}, moved.Created)
		options := s.Client.HGet(ctx, s.keys.Groups(), "a").Val()
		require.Equal(t, options, s.Client.HGet(ctx, queue.NewKeys(s.Prefix, "other").Groups(), "a").Val())
		stats, err := s.admin.Stats(ctx, "other")
		require.NoError(t, err)
		require.Equal(t, 3, stats.Groups[0].Dead)
	})
}

func TestWhatStaysIsCountedAndNamed(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.register(t, "a")
		p := s.publisher(t)
		for _, to := range []string{topic, "other"} {
			for i := range 3 {
				msg := delayed(to, time.Hour)
				redisdelay.SetDelayID(msg, fmt.Sprint("order ", i), redisdelay.DelayIDReplace)
				require.NoError(t, p.Publish(to, msg))
			}
		}
		require.NoError(t, p.Publish(topic, delayed("free", time.Hour)))
		moved, err := s.admin.Move(ctx, topic, admin.Moving{To: "other", Create: true})
		require.NoError(t, err)
		require.Equal(t, 1, moved.Messages)
		require.Equal(t, []admin.Stay{{Reason: admin.StayDelayID, Messages: 3, Names: []string{"order 0", "order 1", "order 2"}}}, moved.Stay)
		require.Equal(t, []string{`3 messages stay, because other messages have their delay IDs in topic "other": "order 0", "order 1", "order 2".`}, moved.Explain())
	})
}

// A Stay has a hundred names at most, so how many more there are is not known.
func TestManyThatStayAreNamedInPart(t *testing.T) {
	names := make([]string, 100)
	for i := range names {
		names[i] = fmt.Sprint("order ", i)
	}
	ten := `"order 0", "order 1", "order 2", "order 3", "order 4", "order 5", "order 6", "order 7", "order 8", "order 9"`
	said := func(messages, named int) string {
		return admin.Moved{To: "other", Stay: []admin.Stay{{Reason: admin.StayDelayID, Messages: messages, Names: names[:named]}}}.Explain()[0]
	}
	require.Equal(t, "5,000 messages stay, because other messages have their delay IDs in topic \"other\", such as "+ten+".", said(5000, 100))
	require.Equal(t, "11 messages stay, because other messages have their delay IDs in topic \"other\": "+ten+", and 1 more.", said(11, 11))
}

func TestAPartitionedTopicMovesPartitionByPartition(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		p := newPartitioned(t, s)
		moved, err := s.admin.Move(ctx, topic, admin.Moving{To: "renamed", Create: true})
		require.NoError(t, err)
		require.Equal(t, len(p.names), moved.Messages)
		require.Equal(t, []string{"audit", "billing"}, moved.Created)
		for _, name := range p.names {
			m, err := s.admin.Get(ctx, "renamed", admin.ByDelayID(name))
			require.NoError(t, err)
			plain, err := partition.TopicOf("renamed", parts, name)
			require.NoError(t, err)
			require.Equal(t, plain, m.Topic)
		}
		back, err := s.admin.Move(ctx, "renamed", admin.Moving{To: topic})
		require.NoError(t, err)
		require.Equal(t, len(p.names), back.Messages)

		require.NoError(t, s.publisher(t).Publish("plain", text("x")))
		for to, want := range map[string]string{"plain": "move to a topic with 3 partitions", topic: "to itself"} {
			_, err = s.admin.Move(ctx, topic, admin.Moving{To: to})
			require.ErrorIs(t, err, admin.ErrInvalidArgument)
			require.ErrorContains(t, err, want)
		}
		_, err = s.admin.Move(ctx, "plain", admin.Moving{To: topic})
		require.ErrorContains(t, err, "name one of the partitions")
		wide, err := partition.Topics("wide", parts+1)
		require.NoError(t, err)
		for _, plain := range wide {
			require.NoError(t, s.publisher(t).Publish(plain, text("x")))
		}
		_, err = s.admin.Move(ctx, topic, admin.Moving{To: "wide"})
		require.ErrorContains(t, err, `topic "orders" has 3 partitions and topic "wide" has 4`)
	})
}

func TestAMoveRefusesWhatDoesNotFit(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.register(t, "a")
		stream := s.publisher(t, func(c *redisdelay.PublisherConfig) { c.Stream = &redisdelay.StreamConfig{} })
		other := s.Prefix + "-stream"
		t.Cleanup(func() { s.Client.Del(ctx, other) })
		require.NoError(t, stream.Publish(other, delayed("x", time.Hour)))
		for _, of := range []struct {
			from  string
			m     admin.Moving
			want  error
			about string
		}{
			{topic, admin.Moving{To: other}, admin.ErrTopicMode, other},
			{other, admin.Moving{To: topic}, admin.ErrTopicMode, other},
			{"missing", admin.Moving{To: topic}, admin.ErrNotFound, "missing"},
			{topic, admin.Moving{}, admin.ErrInvalidTopic, ""},
			{topic, admin.Moving{To: "x", States: []admin.State{admin.Ready}}, admin.ErrInvalidArgument, "ready"},
		} {
			_, err := s.admin.Move(ctx, of.from, of.m)
			require.ErrorIs(t, err, of.want)
			require.ErrorContains(t, err, of.about)
		}
	})
}

func TestAMoveEndsWithItsContext(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.register(t, "a")
		require.NoError(t, s.publisher(t).Publish(topic, slices.Collect(func(yield func(*message.Message) bool) {
			for i := 0; i < 250 && yield(delayed(fmt.Sprint(i), time.Hour)); i++ {
			}
		})...))
		cancelled, cancel := context.WithCancel(ctx)
		defer cancel()
		moved, err := s.admin.Move(cancelled, topic, admin.Moving{To: "other", Create: true, Progress: func(p admin.Progress) {
			if p.Done == 200 {
				cancel()
			}
		}})
		require.True(t, errors.Is(err, context.Canceled))
		require.Equal(t, 200, moved.Messages)
		moved, err = s.admin.Move(ctx, topic, admin.Moving{To: "other"})
		require.NoError(t, err)
		require.Equal(t, 50, moved.Messages)
	})
}
